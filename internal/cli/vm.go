package cli

import (
	"github.com/spf13/cobra"

	pb "poolmgr/api/poolmgr/v1alpha1"
)

func (a *app) vmCommands() *cobra.Command {
	return group("vm", "Look at single VMs", a.vmList(), a.vmGet())
}

func vmTable(vms ...*pb.VMRecord) table {
	t := table{
		columns: []string{"ID", "NAMESPACE", "POOL", "PHASE", "HOST", "REVISION", "HEALTH", "AGE"},
		extra:   []string{"UID", "SLOT", "ATTEMPT", "REASON", "MESSAGE"},
	}
	for _, v := range vms {
		t.add(v.GetId(), v.GetPoolNamespace(), v.GetPoolName(), v.GetPhase().String(), v.GetFlintlockHost(), number(v.GetRevision()),
			v.GetHealth(), age(v.GetCreatedAt()), v.GetUid(), v.GetSlot(), number(v.GetAttempt()), v.GetReason(), v.GetMessage())
	}
	return t
}

func (a *app) vmList() *cobra.Command {
	c := &cobra.Command{
		Use: "list", Short: "List VMs", Args: none,
		Long: "Lists the VMs of one pool, of one namespace with --namespace alone, or of every pool.",
	}
	pool := c.Flags().String("pool", "", "only the VMs of this pool")
	c.RunE = func(c *cobra.Command, _ []string) error {
		conn, err := a.client()
		if err != nil {
			return err
		}
		narrow := a.onlyNamespace(c, *pool)
		all := &pb.ListVMsResponse{}
		req := &pb.ListVMsRequest{Pool: a.filter(*pool)}
		for {
			page, err := conn.VMs().ListVMs(c.Context(), req)
			if err != nil {
				return err
			}
			for _, v := range page.GetVms() {
				if !narrow || v.GetPoolNamespace() == a.namespace {
					all.Vms = append(all.Vms, v)
				}
			}
			if page.GetNextPageToken() == "" {
				return a.print(all, vmTable(all.GetVms()...))
			}
			req.PageToken = page.GetNextPageToken()
		}
	}
	return c
}

func (a *app) vmGet() *cobra.Command {
	return &cobra.Command{
		Use: "get ID", Short: "Show a VM", Args: exactly("ID"),
		RunE: func(c *cobra.Command, args []string) error {
			conn, err := a.client()
			if err != nil {
				return err
			}
			vm, err := conn.VMs().GetVM(c.Context(), &pb.GetVMRequest{Id: args[0]})
			if err != nil {
				return err
			}
			if vm.GetMessage() != "" && a.output == "table" {
				a.note("%s", vm.GetMessage())
			}
			return a.print(vm, vmTable(vm))
		},
	}
}
