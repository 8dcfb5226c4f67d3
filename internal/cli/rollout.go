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

func (a *app) rolloutCommands() *cobra.Command {
	return group("rollout", "Watch and steer the replacement of VMs by those of a new template",
		a.rolloutStatus(), a.rolloutPause(), a.rolloutResume(), a.rolloutRestart(), a.rolloutUndo(), a.rolloutHistory())
}

// stateWord is a rollout's state without the wire's prefix; empty without a state.
func stateWord(s pb.RolloutState) string {
	if s == pb.RolloutState_ROLLOUT_STATE_UNSPECIFIED {
		return ""
	}
	return strings.TrimPrefix(s.String(), "ROLLOUT_STATE_")
}

func (a *app) rolloutTable(name string, r *pb.RolloutStatus) table {
	t := table{
		columns: []string{"NAMESPACE", "NAME", "STATE", "REVISION", "COMPLETED", "REPLACED", "TOTAL", "FAILURES", "AGE"},
		extra:   []string{"REASON", "LAST_ERROR"},
	}
	t.add(a.namespace, name, stateWord(r.GetState()), number(r.GetRevision()), number(r.GetLastCompletedRevision()),
		number(r.GetReplaced()), number(r.GetTotal()), number(r.GetFailures()), age(r.GetStartedAt()), r.GetReason(), r.GetLastError())
	return t
}

func (a *app) rolloutStatus() *cobra.Command {
	c := &cobra.Command{
		Use: "status NAME", Short: "Show how far a rollout is, or wait for its end", Args: exactly("NAME"),
		Long: "With --wait the exit code is 0 when the rollout is COMPLETED, 1 when it is STALLED or was rolled back,\n" +
			"and 3 when --timeout is over.",
		ValidArgsFunction: a.completePools,
	}
	wait := c.Flags().Bool("wait", false, "wait for the end")
	limit := c.Flags().Duration("timeout", 30*time.Minute, "with --wait: how long")
	c.RunE = func(c *cobra.Command, args []string) error {
		if err := within("timeout", *limit); err != nil {
			return err
		}
		status, err := a.rollout(c.Context(), args[0])
		if err == nil && *wait {
			status, err = a.awaitRollout(c.Context(), args[0], status, *limit)
		}
		if err != nil {
			return err
		}
		a.explainRollout(status)
		return a.print(status, a.rolloutTable(args[0], status))
	}
	return c
}

func (a *app) rollout(ctx context.Context, pool string) (*pb.RolloutStatus, error) {
	conn, err := a.client()
	if err != nil {
		return nil, err
	}
	return conn.Rollouts().GetRollout(ctx, &pb.GetRolloutRequest{Pool: a.ref(pool)})
}

// awaitRollout waits until the rollout is over. One that was rolled back before is another's story: only a roll-back
// that happens while waiting is a failure.
func (a *app) awaitRollout(ctx context.Context, pool string, first *pb.RolloutStatus, limit time.Duration) (*pb.RolloutStatus, error) {
	status := first
	what := fmt.Sprintf("the rollout of pool %s", title(a.ref(pool)))
	err := a.await(ctx, limit, what, func(ctx context.Context) (bool, string, error) {
		var err error
		if status, err = a.rollout(ctx, pool); err != nil {
			return false, "", err
		}
		switch {
		case status.GetRolledBackFrom() != 0 && status.GetRolledBackFrom() != first.GetRolledBackFrom():
			return false, "", failf(codes.Aborted, "the rollout of pool %s was rolled back from revision %d to what is now revision %d%s",
				title(a.ref(pool)), status.GetRolledBackFrom(), status.GetRevision(), because(status))
		case status.GetState() == pb.RolloutState_ROLLOUT_STATE_COMPLETED:
			return true, "", nil
		case status.GetState() == pb.RolloutState_ROLLOUT_STATE_STALLED:
			return false, "", failf(codes.Aborted, "the rollout of pool %s to revision %d is stalled, with %d of %d VMs replaced%s",
				title(a.ref(pool)), status.GetRevision(), status.GetReplaced(), status.GetTotal(), because(status))
		}
		return false, a.rolloutState(status), nil
	})
	return status, err
}

// rolloutState tells how far a rollout is, and what holds it up. On a terminal it also draws it.
func (a *app) rolloutState(r *pb.RolloutStatus) string {
	state := stateWord(r.GetState()) + ": "
	if a.terminal {
		state += bar(int(r.GetReplaced()), int(r.GetTotal()))
	}
	state += fmt.Sprintf("%d of %d VMs replaced (revision %d)", r.GetReplaced(), r.GetTotal(), r.GetRevision())
	if n := r.GetFailures(); n > 0 {
		state += fmt.Sprintf(", %d failed", n)
	}
	return state + because(r)
}

// because joins what the daemon says about the reasons.
func because(r *pb.RolloutStatus) string {
	var parts []string
	if r.GetReason() != "" {
		parts = append(parts, r.GetReason())
	}
	parts = append(parts, r.GetExplanations()...)
	if r.GetLastError() != "" {
		parts = append(parts, "last error: "+r.GetLastError())
	}
	if len(parts) == 0 {
		return ""
	}
	return "; " + strings.Join(parts, "; ")
}

// explainRollout tells people what the numbers do not.
func (a *app) explainRollout(r *pb.RolloutStatus) {
	if a.output != "table" && a.output != "wide" {
		return // the answer itself says it
	}
	for _, sentence := range append([]string{r.GetReason()}, r.GetExplanations()...) {
		if sentence != "" {
			a.note("%s", sentence)
		}
	}
	if r.GetLastError() != "" {
		a.note("last error: %s", r.GetLastError())
	}
}
