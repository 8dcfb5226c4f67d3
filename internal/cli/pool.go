package cli

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"

	pb "poolmgr/api/poolmgr/v1alpha1"
)

func (a *app) poolCommands() *cobra.Command {
	return group("pool", "Make, change, look at and remove pools",
		a.poolApply("create"), a.poolApply("update"), a.poolPlan(), a.poolGet(), a.poolList(), a.poolDelete(), a.poolWait())
}

// poolTable shows pools in the columns that scripts rely on.
func poolTable(pools ...*pb.Pool) table {
	t := table{
		columns: []string{"NAMESPACE", "NAME", "SIZE", "AVAILABLE", "LEASED", "PROVISIONING", "QUARANTINED", "STALE", "ROLLOUT", "AGE"},
		extra:   []string{"DESIRED", "DELETING", "WAITING", "REVISION", "GENERATION", "STRATEGY"},
	}
	for _, p := range pools {
		s, st := p.GetSpec(), p.GetStatus()
		t.add(s.GetNamespace(), s.GetName(), number(s.GetSize()), number(st.GetAvailableCount()), number(st.GetLeasedCount()),
			number(st.GetProvisioningCount()), number(st.GetQuarantinedCount()), number(st.GetStaleCount()),
			stateWord(st.GetRollout().GetState()), age(st.GetCreatedAt()),
			number(st.GetDesiredCount()), number(st.GetDeletingCount()), number(st.GetWaitingClaims()),
			number(st.GetRollout().GetRevision()), number(s.GetGeneration()), s.GetReplenishmentStrategy().GetType().String())
	}
	return t
}

// title is how a pool is called in sentences.
func title(ref *pb.PoolRef) string { return ref.GetNamespace() + "/" + ref.GetName() }

// poolApply is pool create and pool update, which differ in one call.
func (a *app) poolApply(verb string) *cobra.Command {
	c := &cobra.Command{
		Use: verb + " --spec-file FILE", Args: none,
		Short: map[string]string{
			"create": "Make a pool from a spec file",
			"update": "Replace a pool's whole spec by a spec file",
		}[verb],
		Long: "The spec file holds one PoolSpec of the API in YAML or JSON, with snake_case or camelCase keys; - reads stdin.\n" +
			"Durations are written as 30s or 5m. A missing namespace is filled in from --namespace.",
	}
	file := c.Flags().StringP("spec-file", "f", "", "the spec, or - for stdin")
	c.RunE = func(c *cobra.Command, _ []string) error {
		if *file == "" {
			return usagef("--spec-file is missing: name a file with the pool's spec, or - for stdin")
		}
		spec, err := a.readSpec(*file, c.Flags().Changed("namespace"))
		if err != nil {
			return err
		}
		conn, err := a.client()
		if err != nil {
			return err
		}
		var pool *pb.Pool
		if verb == "create" {
			pool, err = conn.Pools().CreatePool(c.Context(), &pb.CreatePoolRequest{Spec: spec})
		} else {
			pool, err = conn.Pools().UpdatePool(c.Context(), &pb.UpdatePoolRequest{Spec: spec})
		}
		if err != nil {
			return err
		}
		a.followUp(verb, pool)
		return a.print(pool, poolTable(pool))
	}
	return c
}

// followUp tells people on a terminal how to watch what they have begun.
func (a *app) followUp(verb string, pool *pb.Pool) {
	if !a.terminal {
		return
	}
	spec := pool.GetSpec()
	flags := ""
	if spec.GetNamespace() != "default" {
		flags = " -n " + spec.GetNamespace()
	}
	switch {
	case verb == "create" && spec.GetSize() > 0:
		a.note("watch it fill: poolmgrctl%s pool wait %s --available %d", flags, spec.GetName(), spec.GetSize())
	case verb == "update" && pool.GetStatus().GetRollout().GetState() != pb.RolloutState_ROLLOUT_STATE_COMPLETED:
		a.note("watch it roll out: poolmgrctl%s rollout status %s --wait", flags, spec.GetName())
	}
}

func (a *app) poolGet() *cobra.Command {
	return &cobra.Command{
		Use: "get NAME", Short: "Show a pool, and what it is short of", Args: exactly("NAME"),
		ValidArgsFunction: a.completePools,
		RunE: func(c *cobra.Command, args []string) error {
			pool, err := a.getPool(c.Context(), args[0])
			if err != nil {
				return err
			}
			a.explainPool(pool)
			return a.print(pool, poolTable(pool))
		},
	}
}

func (a *app) getPool(ctx context.Context, name string) (*pb.Pool, error) {
	conn, err := a.client()
	if err != nil {
		return nil, err
	}
	return conn.Pools().GetPool(ctx, &pb.GetPoolRequest{Ref: a.ref(name)})
}

// explainPool tells people what the numbers do not.
func (a *app) explainPool(pool *pb.Pool) {
	if a.output != "table" && a.output != "wide" {
		return // the answer itself says it
	}
	if pool.GetStatus().GetDeleting() {
		a.note("the pool is being deleted; %d of its VMs are still to be confirmed gone", pool.GetStatus().GetDeletingCount())
	}
	for _, sentence := range pool.GetStatus().GetExplanations() {
		a.note("%s", sentence)
	}
}

func (a *app) poolList() *cobra.Command {
	c := &cobra.Command{Use: "list", Short: "List the pools of a namespace", Args: none}
	all := c.Flags().BoolP("all-namespaces", "A", false, "list the pools of every namespace")
	c.RunE = func(c *cobra.Command, _ []string) error {
		conn, err := a.client()
		if err != nil {
			return err
		}
		req := &pb.ListPoolsRequest{}
		if !*all {
			req.Namespace = &a.namespace
		}
		list, err := conn.Pools().ListPools(c.Context(), req)
		if err != nil {
			return err
		}
		return a.print(list, poolTable(list.GetPools()...))
	}
	return c
}

func (a *app) poolDelete() *cobra.Command {
	c := &cobra.Command{
		Use: "delete NAME", Short: "Close a pool and remove its VMs", Args: exactly("NAME"),
		Long:              "Answers as soon as the pool is closed; its VMs are removed after that, and then its name is free again.",
		ValidArgsFunction: a.completePools,
	}
	force := c.Flags().Bool("force", false, "end the leases of VMs that are in use")
	c.RunE = func(c *cobra.Command, args []string) error {
		conn, err := a.client()
		if err != nil {
			return err
		}
		ref := a.ref(args[0])
		if _, err := conn.Pools().DeletePool(c.Context(), &pb.DeletePoolRequest{Ref: ref, Force: *force}); err != nil {
			return err
		}
		return a.printDone("pool %s is closed; its VMs are being removed", title(ref))
	}
	return c
}

func (a *app) poolWait() *cobra.Command {
	c := &cobra.Command{
		Use: "wait NAME --available N", Short: "Wait until so many VMs can be claimed", Args: exactly("NAME"),
		ValidArgsFunction: a.completePools,
	}
	available := c.Flags().Int32("available", 0, "how many VMs; without it the pool's size")
	limit := c.Flags().Duration("timeout", 5*time.Minute, "how long to wait; at its end the exit code is 3")
	c.RunE = func(c *cobra.Command, args []string) error {
		if *available < 0 {
			return usagef("--available is negative")
		}
		if err := within("timeout", *limit); err != nil {
			return err
		}
		var pool *pb.Pool
		what := fmt.Sprintf("available VMs of pool %s", title(a.ref(args[0])))
		err := a.await(c.Context(), *limit, what, func(ctx context.Context) (bool, string, error) {
			var err error
			if pool, err = a.getPool(ctx, args[0]); err != nil {
				return false, "", err
			}
			if pool.GetStatus().GetDeleting() {
				return false, "", failf(codes.FailedPrecondition, "pool %s is being deleted", title(a.ref(args[0])))
			}
			wanted := *available
			if !c.Flags().Changed("available") {
				wanted = pool.GetSpec().GetSize()
			}
			return pool.GetStatus().GetAvailableCount() >= wanted, poolState(pool, wanted), nil
		})
		if err != nil {
			return err
		}
		return a.print(pool, poolTable(pool))
	}
	return c
}

// poolState tells how far a pool is from what is waited for, and why.
func poolState(pool *pb.Pool, wanted int32) string {
	st := pool.GetStatus()
	parts := []string{fmt.Sprintf("%d of %d available", st.GetAvailableCount(), wanted)}
	for _, count := range []struct {
		n    int32
		what string
	}{
		{st.GetProvisioningCount(), "provisioning"},
		{st.GetLeasedCount(), "leased"},
		{st.GetQuarantinedCount(), "quarantined"},
		{st.GetDeletingCount(), "deleting"},
		{st.GetWaitingClaims(), plural(st.GetWaitingClaims(), "claim", "claims") + " waiting"},
	} {
		if count.n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", count.n, count.what))
		}
	}
	state := strings.Join(parts, ", ")
	if why := st.GetExplanations(); len(why) > 0 {
		state += "; " + strings.Join(why, "; ")
	}
	return state
}

// completePools offers the names of pools to the shell. A daemon that does not answer soon offers nothing.
func (a *app) completePools(c *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	conn, err := a.client()
	if err != nil || len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	ctx, cancel := context.WithTimeout(c.Context(), 2*time.Second)
	defer cancel()
	list, err := conn.Pools().ListPools(ctx, &pb.ListPoolsRequest{Namespace: &a.namespace})
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var names []string
	for _, p := range list.GetPools() {
		names = append(names, p.GetSpec().GetName())
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}
