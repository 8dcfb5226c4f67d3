package server_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "poolmgr/api/poolmgr/v1alpha1"
)

func TestCreatePoolEchoesTheSpecWithItsDefaults(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		s := spec(2)
		s.CommandTimeout = nil
		got := r.create(s).GetSpec()
		if got.GetGeneration() != 1 || got.GetTemplateHash() == "" {
			t.Errorf("generation %d, hash %q", got.GetGeneration(), got.GetTemplateHash())
		}
		for name, d := range map[string][2]time.Duration{
			"heartbeat_interval":         {got.GetHeartbeatInterval().AsDuration(), 30 * time.Second},
			"heartbeat_expiry_threshold": {got.GetHeartbeatExpiryThreshold().AsDuration(), 5 * time.Minute},
			"boot_timeout":               {got.GetBootTimeout().AsDuration(), 2 * time.Minute},
			"command_timeout":            {got.GetCommandTimeout().AsDuration(), 5 * time.Minute},
		} {
			if d[0] != d[1] {
				t.Errorf("%s is %s, want %s", name, d[0], d[1])
			}
		}
		if got.GetReplenishmentStrategy().GetType() != pb.ReplenishmentStrategyType_IMMEDIATE_ON_LEASE ||
			got.GetHookFailurePolicy() != pb.HookFailurePolicy_DELETE_AND_REPLACE {
			t.Errorf("strategy and policy are not echoed: %v", got)
		}
		if got.RolloutPolicy != nil || got.MaxQuarantined != nil || len(got.GetFlintlockHosts()) != 0 {
			t.Errorf("what was not set must stay so: %v", got)
		}
	})
}

func TestUnsetAndExplicitZeroBothRoundTrip(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		s := spec(1)
		s.MaxQuarantined = proto.Int32(0)
		s.RolloutPolicy = &pb.RolloutPolicy{MaxUnavailable: &pb.RolloutPolicy_Count{Count: 0}}
		r.create(s)
		got := r.get().GetSpec()
		if got.MaxQuarantined == nil || got.GetMaxQuarantined() != 0 {
			t.Error("an explicit 0 of max_quarantined is lost")
		}
		if _, is := got.GetRolloutPolicy().GetMaxUnavailable().(*pb.RolloutPolicy_Count); !is {
			t.Errorf("an explicit 0 of max_unavailable is lost: %v", got.GetRolloutPolicy())
		}
	})
}

// Every fault at once, each at the path that the API calls it by, and nothing changed.
func TestAnInvalidSpecIsRefusedWithAllItsFaults(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		bad := spec(-1)
		bad.Name, bad.Namespace = strings.Repeat("a", 55), "Team_A"
		bad.MicrovmTemplate.Vcpu, bad.MicrovmTemplate.MemoryInMb = 65, 1
		bad.MicrovmTemplate.Kernel = nil
		bad.MicrovmTemplate.Interfaces[0].DeviceId = "eth0"
		bad.FlintlockHosts = []string{"host-0", "nowhere"}
		bad.ReplenishmentStrategy = &pb.ReplenishmentStrategy{Type: pb.ReplenishmentStrategyType_MIN_SIZE_THRESHOLD}
		bad.HookFailurePolicy = 17
		bad.HeartbeatInterval = durationpb.New(-time.Second)
		bad.RolloutPolicy = &pb.RolloutPolicy{MaxUnavailable: &pb.RolloutPolicy_Percent{Percent: 150}}
		want := []string{
			"flintlock_hosts[1]", "heartbeat_interval", "hook_failure_policy", "microvm_template.interfaces[0].device_id",
			"microvm_template.kernel.image", "microvm_template.memory_in_mb", "microvm_template.vcpu", "name", "namespace",
			"replenishment_strategy.min_size", "rollout_policy.percent", "size",
		}
		_, err := r.pools.CreatePool(r.ctx(), &pb.CreatePoolRequest{Spec: bad})
		st := r.refused(err, codes.InvalidArgument, want...)
		if diff := cmp.Diff(want, fields(st)); diff != "" {
			t.Errorf("field paths (-want +got):\n%s", diff)
		}
		_, err = r.pools.UpdatePool(r.ctx(), &pb.UpdatePoolRequest{Spec: bad})
		if diff := cmp.Diff(want, fields(r.refused(err, codes.InvalidArgument))); diff != "" {
			t.Errorf("field paths of an update (-want +got):\n%s", diff)
		}
		_, err = r.pools.CreatePool(r.ctx(), &pb.CreatePoolRequest{})
		r.refused(err, codes.InvalidArgument, "spec")
		if list, err := r.pools.ListPools(r.ctx(), &pb.ListPoolsRequest{}); err != nil || len(list.GetPools()) != 0 {
			t.Errorf("a refused pool is there: %v, %v", list, err)
		}
	})
}

func TestAnAddressForOneIsRefusedInAPoolOfTwo(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		s := spec(2)
		s.MicrovmTemplate.Interfaces[0].GuestMac = proto.String("02:00:00:00:00:01")
		_, err := r.pools.CreatePool(r.ctx(), &pb.CreatePoolRequest{Spec: s})
		r.refused(err, codes.InvalidArgument, "microvm_template.interfaces[0]")
	})
}

// A spec with thousands of faults must not make an error that clients cannot receive.
func TestAnErrorStaysSmall(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		s := spec(1)
		for range 900 {
			s.FlintlockHosts = append(s.FlintlockHosts, strings.Repeat("x", 200))
		}
		_, err := r.pools.CreatePool(r.ctx(), &pb.CreatePoolRequest{Spec: s})
		st := r.refused(err, codes.InvalidArgument, "flintlock_hosts[0]")
		if size := proto.Size(st.Proto()); size > 12<<10 {
			t.Errorf("the error has %d bytes", size)
		}
		_, err = r.pools.GetPool(r.ctx(), &pb.GetPoolRequest{Ref: &pb.PoolRef{Name: strings.Repeat("é", 100_000), Namespace: "default"}})
		r.refused(err, codes.InvalidArgument, "ref.name", "at most")
	})
}

func TestPoolsThatAreNotThere(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		r.create(spec(1))
		_, err := r.pools.CreatePool(r.ctx(), &pb.CreatePoolRequest{Spec: spec(1)})
		r.refused(err, codes.AlreadyExists, "default/web")

		other := spec(1)
		other.Name = "other"
		ref := &pb.PoolRef{Name: "other", Namespace: "default"}
		_, err = r.pools.UpdatePool(r.ctx(), &pb.UpdatePoolRequest{Spec: other})
		r.refused(err, codes.NotFound, "default/other")
		_, err = r.pools.GetPool(r.ctx(), &pb.GetPoolRequest{Ref: ref})
		r.refused(err, codes.NotFound, "default/other")
		_, err = r.pools.DeletePool(r.ctx(), &pb.DeletePoolRequest{Ref: ref})
		r.refused(err, codes.NotFound, "default/other")
		_, err = r.leases.ClaimVM(r.ctx(), &pb.ClaimVMRequest{Pool: ref})
		r.refused(err, codes.NotFound, "default/other")
		_, err = r.rollouts.GetRollout(r.ctx(), &pb.GetRolloutRequest{Pool: ref})
		r.refused(err, codes.NotFound, "default/other")
		_, err = r.rollouts.ListRevisions(r.ctx(), &pb.ListRevisionsRequest{Pool: ref})
		r.refused(err, codes.NotFound, "default/other")
		_, err = r.pools.GetPool(r.ctx(), &pb.GetPoolRequest{})
		if diff := cmp.Diff([]string{"ref.name", "ref.namespace"}, fields(r.refused(err, codes.InvalidArgument))); diff != "" {
			t.Error(diff)
		}
	})
}

func TestUpdatePoolReplacesTheWholeSpec(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		first := spec(1)
		first.CreateCommands = []string{"true"}
		r.filled(first)
		second := spec(3)
		second.Generation = 1
		updated, err := r.pools.UpdatePool(r.ctx(), &pb.UpdatePoolRequest{Spec: second})
		r.must(err)
		if got := updated.GetSpec(); got.GetGeneration() != 2 || len(got.GetCreateCommands()) != 0 || got.GetSize() != 3 {
			t.Errorf("the update is not the new spec: %v", got)
		}
		_, err = r.pools.UpdatePool(r.ctx(), &pb.UpdatePoolRequest{Spec: second})
		r.refused(err, codes.Aborted, "generation 2", "not 1")
		r.eventually("three VMs of the new spec", func() bool {
			s := r.get().GetStatus()
			return s.GetAvailableCount() == 3 && s.GetStaleCount() == 0 && s.GetRollout().GetState() == pb.RolloutState_ROLLOUT_STATE_COMPLETED
		})
	})
}

func TestTheStatusOfARollout(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		r.filled(spec(3))
		held := r.claim()
		r.eventually("the claimed VM is replaced", func() bool { return r.get().GetStatus().GetAvailableCount() == 3 })
		next := spec(3)
		next.MicrovmTemplate.Kernel.Cmdline["version"] = "2"
		updated, err := r.pools.UpdatePool(r.ctx(), &pb.UpdatePoolRequest{Spec: next})
		r.must(err)
		if s := updated.GetStatus(); s.GetStaleCount() != 4 || s.GetStaleLeasedCount() != 1 ||
			s.GetRollout().GetState() != pb.RolloutState_ROLLOUT_STATE_PROGRESSING || s.GetRollout().GetTotal() != 3 {
			t.Errorf("after the update: %v", s)
		}
		r.eventually("the rollout is complete", func() bool {
			s, err := r.rollouts.GetRollout(r.ctx(), &pb.GetRolloutRequest{Pool: webRef})
			r.must(err)
			return s.GetState() == pb.RolloutState_ROLLOUT_STATE_COMPLETED && s.GetReplaced() == 3
		})
		beat, err := r.leases.Heartbeat(r.ctx(), &pb.HeartbeatRequest{LeaseId: held.GetLeaseId()})
		r.must(err)
		if s := r.get().GetStatus(); !beat.GetOutdated() || s.GetStaleCount() != 1 || s.GetStaleLeasedCount() != 1 {
			t.Errorf("outdated %v, %v", beat.GetOutdated(), s)
		}
		revisions, err := r.rollouts.ListRevisions(r.ctx(), &pb.ListRevisionsRequest{Pool: webRef})
		r.must(err)
		got := revisions.GetRevisions()
		if len(got) != 2 || got[0].GetNumber() != 2 || !got[0].GetCurrent() || !got[0].GetLastCompleted() || got[1].GetCurrent() {
			t.Errorf("the latest revision comes first, and is the current one: %v", got)
		}
	})
}

func TestListPoolsBySortedKeyAndNamespace(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		for _, name := range []string{"b/web", "a/zoo", "a/web"} {
			s := spec(0)
			s.Namespace, s.Name, _ = strings.Cut(name, "/")
			r.create(s)
		}
		list := func(namespace *string) (names []string) {
			got, err := r.pools.ListPools(r.ctx(), &pb.ListPoolsRequest{Namespace: namespace})
			r.must(err)
			for _, p := range got.GetPools() {
				names = append(names, p.GetSpec().GetNamespace()+"/"+p.GetSpec().GetName())
			}
			return names
		}
		if diff := cmp.Diff([]string{"a/web", "a/zoo", "b/web"}, list(nil)); diff != "" {
			t.Error(diff)
		}
		if diff := cmp.Diff([]string{"b/web"}, list(proto.String("b"))); diff != "" {
			t.Error(diff)
		}
		if got := list(proto.String("c")); got != nil {
			t.Errorf("an unknown namespace has no pools: %v", got)
		}
	})
}

func TestDeletePool(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		r.filled(spec(2))
		held := r.claim()
		// Rows that no host accepted yet are reported as deleted too, without ever having been reported as made.
		r.eventually("the leased VM is replaced", func() bool { return r.get().GetStatus().GetAvailableCount() == 2 })
		_, err := r.pools.DeletePool(r.ctx(), &pb.DeletePoolRequest{Ref: webRef})
		r.refused(err, codes.FailedPrecondition, "1 leased", "force")
		if r.get().GetStatus().GetDeleting() {
			t.Error("a refused deletion changed something")
		}
		_, err = r.pools.DeletePool(r.ctx(), &pb.DeletePoolRequest{Ref: webRef, Force: true})
		r.must(err)

		// Until the last VM is confirmed gone the pool is shown, and can do nothing.
		if s := r.get().GetStatus(); !s.GetDeleting() {
			t.Errorf("the pool is not shown as being deleted: %v", s)
		}
		_, err = r.leases.ClaimVM(r.ctx(), &pb.ClaimVMRequest{Pool: webRef})
		r.refused(err, codes.NotFound)
		_, err = r.leases.Heartbeat(r.ctx(), &pb.HeartbeatRequest{LeaseId: held.GetLeaseId()})
		r.refused(err, codes.NotFound)
		_, err = r.pools.CreatePool(r.ctx(), &pb.CreatePoolRequest{Spec: spec(1)})
		r.refused(err, codes.AlreadyExists, "being deleted")
		_, err = r.pools.UpdatePool(r.ctx(), &pb.UpdatePoolRequest{Spec: spec(1)})
		r.refused(err, codes.FailedPrecondition, "being deleted")
		_, err = r.rollouts.GetRollout(r.ctx(), &pb.GetRolloutRequest{Pool: webRef})
		r.refused(err, codes.FailedPrecondition, "being deleted")
		_, err = r.rollouts.ListRevisions(r.ctx(), &pb.ListRevisionsRequest{Pool: webRef})
		r.refused(err, codes.FailedPrecondition, "being deleted")
		_, err = r.pools.DeletePool(r.ctx(), &pb.DeletePoolRequest{Ref: webRef})
		r.must(err)

		r.eventually("the pool is gone", func() bool {
			list, err := r.pools.ListPools(r.ctx(), &pb.ListPoolsRequest{})
			r.must(err)
			return len(list.GetPools()) == 0
		})
		if n := len(r.hosts[0].VMs()); n != 0 {
			t.Errorf("%d VMs are left on the host", n)
		}
		deleted := r.replay(pb.EventType_VM_DELETED_ON_POOL_DELETE)
		if provisioned := r.replay(pb.EventType_VM_PROVISIONED); len(deleted) == 0 || len(deleted) != len(provisioned) {
			t.Errorf("%d VMs were made and %d reported as deleted", len(provisioned), len(deleted))
		}
		r.create(spec(0)) // the name is free
	})
}

func TestExplanationsTellWhatIsShort(t *testing.T) {
	inBubble(t, 0, func(r *rig) {
		large := spec(2)
		large.MicrovmTemplate.MemoryInMb = 1024
		r.create(large)
		r.pass(time.Second)
		s := r.get().GetStatus()
		if s.GetDesiredCount() != 2 || len(s.GetExplanations()) == 0 {
			t.Errorf("a pool without hosts must say why it is empty: %v", s)
		}
	})
}
