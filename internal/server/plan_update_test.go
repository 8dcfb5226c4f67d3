package server_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	pb "poolmgr/api/poolmgr/v1alpha1"
)

func (r *rig) plan(s *pb.PoolSpec) *pb.PlanUpdateResponse {
	r.Helper()
	got, err := r.rollouts.PlanUpdate(r.ctx(), &pb.PlanUpdateRequest{Spec: s})
	r.must(err)
	return got
}

// another is the spec with another template.
func another(size int32) *pb.PoolSpec {
	s := spec(size)
	s.MicrovmTemplate.Kernel.Cmdline["version"] = "2"
	return s
}

// What is foretold is what the reconciler then does.
func TestPlanUpdateForetellsTheUpdate(t *testing.T) {
	inBubble(t, 2, func(r *rig) {
		r.filled(spec(4))
		r.pass(time.Minute)
		before, events, ids := r.get(), len(r.replay()), map[string]string{}
		list, err := r.vms.ListVMs(r.ctx(), &pb.ListVMsRequest{Pool: webRef})
		r.must(err)
		for _, v := range list.GetVms() {
			ids[v.GetUid()] = v.GetId()
		}
		want := r.plan(another(4))
		if diff := cmp.Diff(before, r.get(), protocmp.Transform()); diff != "" || len(r.replay()) != events {
			t.Errorf("a dry run changed something:\n%s", diff)
		}
		if want.GetFromHash() != before.GetSpec().GetTemplateHash() || !want.GetHashChanges() || want.GetBatches() != 4 ||
			want.GetLowestAvailable() != 3 || len(want.GetExplanations()) != 0 {
			t.Errorf("the dry run says %v", want)
		}
		// A boot takes a second here: half of it on the host, half in the guest.
		if d := want.GetEstimate().AsDuration(); d < 4*time.Second || d > 8*time.Second {
			t.Errorf("the estimate is %s", d)
		}
		_, err = r.pools.UpdatePool(r.ctx(), &pb.UpdatePoolRequest{Spec: another(4)})
		r.must(err)
		began, lowest := time.Now(), int32(4)
		r.eventually("the rollout is over", func() bool {
			st := r.get().GetStatus()
			lowest = min(lowest, st.GetAvailableCount())
			return st.GetRollout().GetState() == pb.RolloutState_ROLLOUT_STATE_COMPLETED
		})
		var order []string
		for _, e := range r.replay(pb.EventType_VM_DELETED_FOR_ROLLOUT) {
			order = append(order, ids[e.GetVmUid()])
		}
		if diff := cmp.Diff(want.GetVmIdsInOrder(), order); diff != "" {
			t.Errorf("the VMs that went (-foretold +went):\n%s", diff)
		}
		if lowest != want.GetLowestAvailable() {
			t.Errorf("%d were available at the lowest, %d foretold", lowest, want.GetLowestAvailable())
		}
		if got := r.get().GetSpec().GetTemplateHash(); got != want.GetToHash() {
			t.Errorf("hash %s, %s foretold", got, want.GetToHash())
		}
		if took := time.Since(began); took > 2*want.GetEstimate().AsDuration()+5*time.Second {
			t.Errorf("it took %s, %s foretold", took, want.GetEstimate().AsDuration())
		}
	})
}

func TestPlanUpdateOfAnUnknownPool(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		got := r.plan(spec(2))
		if !got.GetHashChanges() || got.GetFromHash() != "" || len(got.GetVmIdsInOrder()) != 0 || got.GetEstimate() != nil || len(got.GetExplanations()) != 0 {
			t.Errorf("the dry run says %v", got)
		}
		if made := r.create(spec(2)).GetSpec().GetTemplateHash(); made != got.GetToHash() {
			t.Errorf("hash %s, %s foretold", made, got.GetToHash())
		}
	})
	inBubble(t, 0, func(r *rig) {
		s := spec(2)
		s.MicrovmTemplate.MemoryInMb = 1024 // what a host takes of which nothing is known
		if got := r.plan(s).GetExplanations(); len(got) != 1 || !strings.Contains(got[0], "no host is registered") {
			t.Errorf("explained %q", got)
		}
	})
}

func TestPlanUpdateTellsWhatCannotMove(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		r.filled(spec(2))
		claimed := r.claim()
		r.eventually("it is full again", func() bool { return r.get().GetStatus().GetAvailableCount() == 2 })
		paused := another(2)
		paused.RolloutPolicy = &pb.RolloutPolicy{Paused: true}
		got := r.plan(paused)
		said := strings.Join(got.GetExplanations(), "\n")
		if got.GetBatches() != 0 || !strings.Contains(said, "paused by request") || !strings.Contains(said, "leased VMs of an earlier template") {
			t.Errorf("the dry run says %v", got)
		}
		if slices.Contains(r.plan(another(2)).GetVmIdsInOrder(), claimed.GetVmUid()) {
			t.Error("a leased VM would be taken")
		}
		same := r.plan(spec(2))
		if same.GetHashChanges() || same.GetBatches() != 0 || same.GetLowestAvailable() != 2 {
			t.Errorf("of the same spec, the dry run says %v", same)
		}
		if smaller := r.plan(spec(1)); len(smaller.GetVmIdsInOrder()) != 1 || smaller.GetLowestAvailable() != 1 {
			t.Errorf("of a smaller size, the dry run says %v", smaller)
		}
	})
}

// What an update would be refused for, its dry run is refused for, with the same words.
func TestPlanUpdateRefusesWhatTheUpdateWouldBeRefusedFor(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		r.filled(spec(2))
		refused := func(s *pb.PoolSpec, code codes.Code) {
			t.Helper()
			_, planned := r.rollouts.PlanUpdate(r.ctx(), &pb.PlanUpdateRequest{Spec: proto.Clone(s).(*pb.PoolSpec)})
			_, updated := r.pools.UpdatePool(r.ctx(), &pb.UpdatePoolRequest{Spec: s})
			got, want := r.refused(planned, code), r.refused(updated, code)
			if diff := cmp.Diff(want.Message(), got.Message()) + cmp.Diff(fields(want), fields(got)); diff != "" {
				t.Errorf("another answer than the update's (-update +plan):\n%s", diff)
			}
		}
		bad := spec(-1)
		bad.MicrovmTemplate.Kernel, bad.FlintlockHosts = nil, []string{"nowhere"}
		refused(bad, codes.InvalidArgument)
		refused(nil, codes.InvalidArgument)
		old := another(2)
		old.Generation = 7
		refused(old, codes.Aborted)
		_, err := r.pools.DeletePool(r.ctx(), &pb.DeletePoolRequest{Ref: webRef})
		r.must(err)
		refused(another(2), codes.FailedPrecondition)
	})
}
