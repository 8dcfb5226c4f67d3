package cli

import (
	"context"

	"github.com/spf13/cobra"

	pb "poolmgr/api/poolmgr/v1alpha1"
)

func (a *app) hostCommands() *cobra.Command {
	return group("host", "Register hosts and look after them",
		a.hostList(), a.hostGet(), a.hostAdd(), a.hostCordon(), a.hostUncordon(), a.hostRemove())
}

func hostTable(hosts ...*pb.HostStatus) table {
	t := table{
		columns: []string{"NAME", "ADDRESS", "STATE", "VMS", "STARTING", "MAX_VMS", "MEMORY_MB", "VERSION"},
		extra:   []string{"REASON", "MESSAGE"},
	}
	for _, h := range hosts {
		t.add(h.GetHost().GetName(), h.GetHost().GetAddress(), hostState(h), number(h.GetVmCount()), number(h.GetStartsInFlight()),
			number(h.GetMaxVms()), number(h.GetMemoryMb()), h.GetFlintlockVersion(), h.GetHost().GetCordonedReason(), h.GetMessage())
	}
	return t
}

// hostState is one word; a cordon is what somebody wanted, so it comes after what is wrong.
func hostState(h *pb.HostStatus) string {
	switch {
	case !h.GetReachable() && h.GetHost().GetCordoned():
		return "UNREACHABLE,CORDONED"
	case !h.GetReachable():
		return "UNREACHABLE"
	case h.GetHost().GetCordoned():
		return "CORDONED"
	default:
		return "READY"
	}
}

func (a *app) hostList() *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "List hosts", Args: none,
		RunE: func(c *cobra.Command, _ []string) error {
			conn, err := a.client()
			if err != nil {
				return err
			}
			list, err := conn.Hosts().ListHosts(c.Context(), &pb.ListHostsRequest{})
			if err != nil {
				return err
			}
			return a.print(list, hostTable(list.GetHosts()...))
		},
	}
}

func (a *app) hostGet() *cobra.Command {
	return &cobra.Command{
		Use: "get NAME", Short: "Show a host", Args: exactly("NAME"),
		RunE: func(c *cobra.Command, args []string) error {
			conn, err := a.client()
			if err != nil {
				return err
			}
			host, err := conn.Hosts().GetHost(c.Context(), &pb.GetHostRequest{Name: args[0]})
			if err != nil {
				return err
			}
			if host.GetMessage() != "" && a.output == "table" {
				a.note("%s", host.GetMessage())
			}
			return a.print(host, hostTable(host))
		},
	}
}

func (a *app) hostAdd() *cobra.Command {
	c := &cobra.Command{
		Use: "add NAME --address HOST:PORT", Short: "Register a host", Args: exactly("NAME"),
		Long: "The daemon talks to the host first, by TLS unless --insecure is given. The TLS files are the daemon's.",
	}
	f := c.Flags()
	address := f.String("address", "", "host:port of the host's gRPC API")
	tls := &pb.HostTLS{}
	f.BoolVar(&tls.Insecure, "insecure", false, "talk to the host in plain text")
	f.StringVar(&tls.CaFile, "ca-file", "", "certificate authorities to trust")
	f.StringVar(&tls.CertFile, "cert-file", "", "certificate to show")
	f.StringVar(&tls.KeyFile, "key-file", "", "key of that certificate")
	skip := f.Bool("skip-validation", false, "register the host without talking to it")
	c.RunE = func(c *cobra.Command, args []string) error {
		if *address == "" {
			return usagef("--address is missing: where does host %s listen?", args[0])
		}
		if tls.GetInsecure() && (tls.GetCaFile() != "" || tls.GetCertFile() != "" || tls.GetKeyFile() != "") {
			return usagef("--insecure means no TLS: it does not go with --ca-file, --cert-file or --key-file")
		}
		return a.changeHost(c.Context(), "registered", func(ctx context.Context, hosts pb.HostAdminClient) (*pb.Host, error) {
			return hosts.AddHost(ctx, &pb.AddHostRequest{
				Host: &pb.Host{Name: args[0], Address: *address, Tls: tls}, SkipValidation: *skip,
			})
		})
	}
	return c
}

func (a *app) hostCordon() *cobra.Command {
	c := &cobra.Command{Use: "cordon NAME", Short: "Place no new VMs on a host", Args: exactly("NAME")}
	reason := c.Flags().String("reason", "", "why, for people to read")
	c.RunE = func(c *cobra.Command, args []string) error {
		return a.changeHost(c.Context(), "cordoned", func(ctx context.Context, hosts pb.HostAdminClient) (*pb.Host, error) {
			return hosts.CordonHost(ctx, &pb.CordonHostRequest{Name: args[0], Reason: *reason})
		})
	}
	return c
}

func (a *app) hostUncordon() *cobra.Command {
	return &cobra.Command{
		Use: "uncordon NAME", Short: "End a cordon", Args: exactly("NAME"),
		RunE: func(c *cobra.Command, args []string) error {
			return a.changeHost(c.Context(), "uncordoned", func(ctx context.Context, hosts pb.HostAdminClient) (*pb.Host, error) {
				return hosts.UncordonHost(ctx, &pb.UncordonHostRequest{Name: args[0]})
			})
		},
	}
}

// changeHost makes one change and shows the host as it is then.
func (a *app) changeHost(ctx context.Context, what string, change func(context.Context, pb.HostAdminClient) (*pb.Host, error)) error {
	conn, err := a.client()
	if err != nil {
		return err
	}
	host, err := change(ctx, conn.Hosts())
	if err != nil {
		return err
	}
	t := table{columns: []string{"NAME", "ADDRESS", "CORDONED", "REASON"}}
	t.add(host.GetName(), host.GetAddress(), yesNo(host.GetCordoned()), host.GetCordonedReason())
	a.note("host %s %s", host.GetName(), what)
	return a.print(host, t)
}

func (a *app) hostRemove() *cobra.Command {
	c := &cobra.Command{Use: "remove NAME", Short: "Forget a host that no pool needs", Args: exactly("NAME")}
	force := c.Flags().Bool("force", false, "for a host that is dead for ever: end the leases there and forget its VMs")
	c.RunE = func(c *cobra.Command, args []string) error {
		conn, err := a.client()
		if err != nil {
			return err
		}
		if _, err := conn.Hosts().RemoveHost(c.Context(), &pb.RemoveHostRequest{Name: args[0], Force: *force}); err != nil {
			return err
		}
		return a.printDone("host %s removed", args[0])
	}
	return c
}
