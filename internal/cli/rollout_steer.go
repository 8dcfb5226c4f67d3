package cli

import (
	"context"
	"strings"

	"github.com/spf13/cobra"

	vmtypes "poolmgr/api/flintlock/vmtypes"
	pb "poolmgr/api/poolmgr/v1alpha1"
)

func (a *app) rolloutPause() *cobra.Command {
	return a.rolloutSteer(&cobra.Command{
		Use: "pause NAME", Short: "Hold a rollout back: VMs of another revision stay",
		Long: "Sets rollout_policy.paused of the pool. The pool is still refilled, and new VMs are of the current revision.",
	}, func(ctx context.Context, c pb.RolloutAdminClient, ref *pb.PoolRef) (*pb.RolloutStatus, error) {
		return c.PauseRollout(ctx, &pb.PauseRolloutRequest{Pool: ref})
	})
}

func (a *app) rolloutResume() *cobra.Command {
	return a.rolloutSteer(&cobra.Command{
		Use: "resume NAME", Short: "Let a paused rollout go on",
	}, func(ctx context.Context, c pb.RolloutAdminClient, ref *pb.PoolRef) (*pb.RolloutStatus, error) {
		return c.ResumeRollout(ctx, &pb.ResumeRolloutRequest{Pool: ref})
	})
}

func (a *app) rolloutRestart() *cobra.Command {
	return a.rolloutSteer(&cobra.Command{
		Use: "restart NAME", Short: "Replace every idle VM without a change of the template",
	}, func(ctx context.Context, c pb.RolloutAdminClient, ref *pb.PoolRef) (*pb.RolloutStatus, error) {
		return c.RestartRollout(ctx, &pb.RestartRolloutRequest{Pool: ref})
	})
}

func (a *app) rolloutUndo() *cobra.Command {
	c := &cobra.Command{
		Use: "undo NAME [--to REVISION]", Short: "Go back to the template of an earlier revision",
		Long: "Restores the template and the create commands of an earlier revision as a new revision, and rolls it out.\n" +
			"Without --to it is the revision that last completed a rollout or, when that is the current one, the newest\n" +
			"other one that is kept. rollout history lists them.",
	}
	to := c.Flags().Int64("to", 0, "number of the revision to go back to")
	return a.rolloutSteer(c, func(ctx context.Context, client pb.RolloutAdminClient, ref *pb.PoolRef) (*pb.RolloutStatus, error) {
		if c.Flags().Changed("to") && *to < 1 {
			return nil, usagef("--to %d: revisions are numbered from 1 (see poolmgrctl rollout history %s)", *to, ref.GetName())
		}
		return client.UndoRollout(ctx, &pb.UndoRolloutRequest{Pool: ref, ToRevision: *to})
	})
}

// steering is one call of RolloutAdmin that changes how a rollout goes on.
type steering func(ctx context.Context, c pb.RolloutAdminClient, ref *pb.PoolRef) (*pb.RolloutStatus, error)

// rolloutSteer completes a command that makes such a call and shows where the rollout stands after it.
func (a *app) rolloutSteer(c *cobra.Command, call steering) *cobra.Command {
	c.Args, c.ValidArgsFunction = exactly("NAME"), a.completePools
	c.RunE = func(c *cobra.Command, args []string) error {
		conn, err := a.client()
		if err != nil {
			return err
		}
		status, err := call(c.Context(), conn.Rollouts(), a.ref(args[0]))
		if err != nil {
			return err
		}
		a.explainRollout(status)
		a.followRollout(args[0], status)
		return a.print(status, a.rolloutTable(args[0], status))
	}
	return c
}

// followRollout tells people on a terminal how to watch what they have set going.
func (a *app) followRollout(name string, r *pb.RolloutStatus) {
	if !a.terminal || r.GetState() != pb.RolloutState_ROLLOUT_STATE_PROGRESSING {
		return
	}
	flags := ""
	if a.namespace != "default" {
		flags = " -n " + a.namespace
	}
	a.note("watch it roll out: poolmgrctl%s rollout status %s --wait", flags, name)
}

func (a *app) rolloutHistory() *cobra.Command {
	return &cobra.Command{
		Use: "history NAME", Short: "List the revisions of a pool that are kept, the latest first", Args: exactly("NAME"),
		ValidArgsFunction: a.completePools,
		RunE: func(c *cobra.Command, args []string) error {
			conn, err := a.client()
			if err != nil {
				return err
			}
			list, err := conn.Rollouts().ListRevisions(c.Context(), &pb.ListRevisionsRequest{Pool: a.ref(args[0])})
			if err != nil {
				return err
			}
			return a.print(list, historyTable(list.GetRevisions()))
		},
	}
}

func historyTable(revisions []*pb.Revision) table {
	t := table{
		columns: []string{"REVISION", "CURRENT", "COMPLETED", "TEMPLATE_HASH", "AGE"},
		extra:   []string{"HASH_IN_FULL", "KERNEL", "ROOT", "CREATE_COMMANDS"},
	}
	for _, r := range revisions {
		t.add(number(r.GetNumber()), yesNo(r.GetCurrent()), yesNo(r.GetLastCompleted()), prefix(r.GetTemplateHash()), age(r.GetCreatedAt()),
			r.GetTemplateHash(), r.GetTemplate().GetKernel().GetImage(), rootImage(r.GetTemplate()), strings.Join(r.GetCreateCommands(), "; "))
	}
	return t
}

// rootImage is what the root volume is made of.
func rootImage(t *vmtypes.MicroVMSpec) string {
	return t.GetRootVolume().GetSource().GetContainerSource()
}
