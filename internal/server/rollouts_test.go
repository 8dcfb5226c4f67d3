package server_test

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	pb "poolmgr/api/poolmgr/v1alpha1"
)

// edit applies a template whose kernel is told a version.
func (r *rig) edit(size int32, version string) {
	r.Helper()
	next := spec(size)
	next.MicrovmTemplate.Kernel.Cmdline["version"] = version
	_, err := r.pools.UpdatePool(r.ctx(), &pb.UpdatePoolRequest{Spec: next})
	r.must(err)
}

func (r *rig) rollout() *pb.RolloutStatus {
	r.Helper()
	s, err := r.rollouts.GetRollout(r.ctx(), &pb.GetRolloutRequest{Pool: webRef})
	r.must(err)
	return s
}

func (r *rig) rolledOut() {
	r.Helper()
	r.eventually("the rollout is complete", func() bool { return r.rollout().GetState() == pb.RolloutState_ROLLOUT_STATE_COMPLETED })
}

func TestPauseHoldsARolloutAndResumeFinishesIt(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		r.filled(spec(3))
		r.rolledOut()
		for range 2 { // again is OK
			s, err := r.rollouts.PauseRollout(r.ctx(), &pb.PauseRolloutRequest{Pool: webRef})
			r.must(err)
			if s.GetRevision() != 1 {
				t.Errorf("paused: %v", s)
			}
		}
		if p := r.get().GetSpec(); !p.GetRolloutPolicy().GetPaused() || p.GetGeneration() != 2 {
			t.Errorf("the pause is shown in the spec, once: %v", p)
		}
		next := r.get().GetSpec() // an edit that keeps the pause
		next.MicrovmTemplate.Kernel.Cmdline["version"] = "2"
		_, err := r.pools.UpdatePool(r.ctx(), &pb.UpdatePoolRequest{Spec: next})
		r.must(err)
		r.pass(10 * time.Minute)
		if s := r.rollout(); s.GetState() != pb.RolloutState_ROLLOUT_STATE_PAUSED || s.GetReplaced() != 0 || s.GetTotal() != 3 {
			t.Errorf("a paused rollout moved: %v", s)
		}
		s, err := r.rollouts.ResumeRollout(r.ctx(), &pb.ResumeRolloutRequest{Pool: webRef})
		r.must(err)
		if s.GetState() != pb.RolloutState_ROLLOUT_STATE_PROGRESSING {
			t.Errorf("resumed: %v", s)
		}
		r.rolledOut()
		for _, typ := range []pb.EventType{pb.EventType_POOL_ROLLOUT_PAUSED, pb.EventType_POOL_ROLLOUT_RESUMED} {
			if got := r.replay(typ); len(got) != 1 {
				t.Errorf("%d %s, want 1", len(got), typ)
			}
		}
	})
}

func TestRestartReplacesEveryVM(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		r.filled(spec(3))
		r.rolledOut()
		before, hash := r.ids(), r.get().GetSpec().GetTemplateHash()
		s, err := r.rollouts.RestartRollout(r.ctx(), &pb.RestartRolloutRequest{Pool: webRef})
		r.must(err)
		if s.GetState() != pb.RolloutState_ROLLOUT_STATE_PROGRESSING || s.GetTotal() != 3 {
			t.Errorf("restarted: %v", s)
		}
		r.rolledOut()
		r.eventually("the pool is whole", func() bool { return r.get().GetStatus().GetAvailableCount() == 3 && len(r.ids()) == 3 })
		for _, id := range r.ids() {
			if slices.Contains(before, id) {
				t.Errorf("VM %s was not replaced", id)
			}
		}
		if got := r.get().GetSpec().GetTemplateHash(); got != hash {
			t.Errorf("hash %s, want %s: a restart is no change of the template", got, hash)
		}
	})
}

// ids are those of the pool's VMs.
func (r *rig) ids() []string {
	r.Helper()
	list, err := r.vms.ListVMs(r.ctx(), &pb.ListVMsRequest{Pool: webRef})
	r.must(err)
	var ids []string
	for _, v := range list.GetVms() {
		ids = append(ids, v.GetId())
	}
	return ids
}

func TestUndoGoesBackToAnEarlierRevision(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		r.filled(spec(2))
		r.rolledOut()
		_, err := r.rollouts.UndoRollout(r.ctx(), &pb.UndoRolloutRequest{Pool: webRef})
		r.refused(err, codes.FailedPrecondition)
		r.edit(2, "2")
		r.rolledOut()
		s, err := r.rollouts.UndoRollout(r.ctx(), &pb.UndoRolloutRequest{Pool: webRef})
		r.must(err)
		if s.GetRevision() != 3 || s.GetRolledBackFrom() != 2 {
			t.Errorf("undone: %v", s)
		}
		r.rolledOut()
		if got := r.get().GetSpec().GetMicrovmTemplate().GetKernel().GetCmdline()["version"]; got != "1" {
			t.Errorf("the template is of version %s, want 1", got)
		}
		s, err = r.rollouts.UndoRollout(r.ctx(), &pb.UndoRolloutRequest{Pool: webRef, ToRevision: 2})
		r.must(err)
		if s.GetRevision() != 4 || s.GetRolledBackFrom() != 3 {
			t.Errorf("undone to revision 2: %v", s)
		}
		_, err = r.rollouts.UndoRollout(r.ctx(), &pb.UndoRolloutRequest{Pool: webRef, ToRevision: 9})
		r.refused(err, codes.NotFound, "9")
		_, err = r.rollouts.UndoRollout(r.ctx(), &pb.UndoRolloutRequest{Pool: webRef, ToRevision: -1})
		if got := fields(r.refused(err, codes.InvalidArgument)); !slices.Equal(got, []string{"to_revision"}) {
			t.Errorf("faults %v, want to_revision", got)
		}
		if got := r.replay(pb.EventType_POOL_ROLLOUT_ROLLED_BACK); len(got) != 2 {
			t.Errorf("%d POOL_ROLLOUT_ROLLED_BACK, want 2", len(got))
		}
	})
}

// steering is every call that changes how a rollout goes on.
func (r *rig) steering(ref *pb.PoolRef) map[string]error {
	_, pause := r.rollouts.PauseRollout(r.ctx(), &pb.PauseRolloutRequest{Pool: ref})
	_, resume := r.rollouts.ResumeRollout(r.ctx(), &pb.ResumeRolloutRequest{Pool: ref})
	_, restart := r.rollouts.RestartRollout(r.ctx(), &pb.RestartRolloutRequest{Pool: ref})
	_, undo := r.rollouts.UndoRollout(r.ctx(), &pb.UndoRolloutRequest{Pool: ref})
	_, watch := r.watch(r.ctx(), ref).Recv()
	return map[string]error{"pause": pause, "resume": resume, "restart": restart, "undo": undo, "watch": watch}
}

func (r *rig) watch(ctx context.Context, ref *pb.PoolRef) grpc.ServerStreamingClient[pb.RolloutStatus] {
	r.Helper()
	stream, err := r.rollouts.WatchRollout(ctx, &pb.WatchRolloutRequest{Pool: ref})
	r.must(err)
	return stream
}

func TestRolloutsThatCannotBeSteered(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		expect := func(ref *pb.PoolRef, code codes.Code, text string) {
			t.Helper()
			for _, err := range r.steering(ref) {
				r.refused(err, code, text)
			}
		}
		expect(nil, codes.InvalidArgument, "pool.name")
		expect(webRef, codes.NotFound, "default/web")
		r.filled(spec(1))
		_, err := r.pools.DeletePool(r.ctx(), &pb.DeletePoolRequest{Ref: webRef})
		r.must(err)
		expect(webRef, codes.FailedPrecondition, "being deleted")
	})
}

// Every status differs from the one before it, the first comes at once, and the deletion of the pool ends the stream.
func TestWatchRolloutFollowsUntilThePoolGoes(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		r.filled(spec(2))
		r.rolledOut()
		stream := r.watch(r.ctx(), webRef)
		first, err := stream.Recv()
		r.must(err)
		if first.GetState() != pb.RolloutState_ROLLOUT_STATE_COMPLETED || first.GetRevision() != 1 {
			t.Errorf("first comes %v", first)
		}
		r.pass(50 * time.Minute) // nothing happens, and nothing is sent
		r.edit(2, "2")
		var replaced []int32
		last := first
		for s := first; s.GetRevision() == 1 || s.GetState() != pb.RolloutState_ROLLOUT_STATE_COMPLETED; last = s {
			s, err = stream.Recv()
			r.must(err)
			if cmp.Equal(s.String(), last.String()) {
				t.Errorf("sent twice: %v", s)
			}
			replaced = append(replaced, s.GetReplaced())
		}
		if !slices.IsSorted(replaced) || !slices.Contains(replaced, 1) || replaced[len(replaced)-1] != 2 {
			t.Errorf("replaced went %v", replaced)
		}
		_, err = r.pools.DeletePool(r.ctx(), &pb.DeletePoolRequest{Ref: webRef})
		r.must(err)
		for err == nil {
			_, err = stream.Recv()
		}
		r.refused(err, codes.FailedPrecondition, "being deleted")
	})
}

func TestWatchRolloutEndsWithItsCallerOrTheDaemon(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		r.filled(spec(1))
		ctx, hangUp := context.WithCancel(r.ctx())
		left, kept := r.watch(ctx, webRef), r.watch(r.ctx(), webRef)
		for _, stream := range []grpc.ServerStreamingClient[pb.RolloutStatus]{left, kept} {
			_, err := stream.Recv()
			r.must(err)
		}
		hangUp()
		var err error
		for err == nil {
			_, err = left.Recv()
		}
		r.refused(err, codes.Canceled)
		synctest.Wait()
		close(r.stopping)
		for err = nil; err == nil; {
			_, err = kept.Recv()
		}
		r.refused(err, codes.Unavailable, "watch again")
	})
}
