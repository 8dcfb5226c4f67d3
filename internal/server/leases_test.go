package server_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "poolmgr/api/poolmgr/v1alpha1"
	"poolmgr/internal/host/fake"
)

func TestAClaimIsAnsweredWithEverythingAConsumerNeeds(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		r.filled(spec(1))
		before := time.Now()
		got, err := r.leases.ClaimVM(r.ctx(), &pb.ClaimVMRequest{Pool: webRef, RequestId: "one", Consumer: "ci job 7"})
		r.must(err)
		onHost := r.hosts[0].Find(got.GetVmId())
		if len(onHost) != 1 || onHost[0].UID != got.GetVmUid() {
			t.Fatalf("VM %s with uid %s is not the one on the host: %v", got.GetVmId(), got.GetVmUid(), onHost)
		}
		if got.GetHost().GetName() != "host-0" || got.GetHost().GetAddress() != "10.0.0.1:9090" {
			t.Errorf("host: %v", got.GetHost())
		}
		if iface := got.GetNetworkInterfaces()["eth1"]; iface.GetMacAddress() == "" {
			t.Errorf("network interfaces: %v", got.GetNetworkInterfaces())
		}
		if len(got.GetLeaseId()) < 22 || got.GetStale() || got.GetTemplateHash() != r.get().GetSpec().GetTemplateHash() {
			t.Errorf("answer: %v", got)
		}
		if end := got.GetExpiresAt().AsTime(); !end.Equal(before.Add(5 * time.Minute)) {
			t.Errorf("the lease ends at %s", end)
		}
		again, err := r.leases.ClaimVM(r.ctx(), &pb.ClaimVMRequest{Pool: webRef, RequestId: "one"})
		r.must(err)
		if !proto.Equal(got, again) {
			t.Errorf("the same request id finds the same lease, its expiry untouched:\n%v\n%v", got, again)
		}
	})
}

func TestNothingToClaim(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		r.create(spec(0))
		_, err := r.leases.ClaimVM(r.ctx(), &pb.ClaimVMRequest{Pool: webRef})
		hinted(t, r.refused(err, codes.ResourceExhausted, "default/web"))

		began := time.Now()
		_, err = r.leases.ClaimVM(r.ctx(), &pb.ClaimVMRequest{Pool: webRef, Wait: durationpb.New(7 * time.Second)})
		hinted(t, r.refused(err, codes.ResourceExhausted, "within 7s"))
		if waited := time.Since(began); waited != 7*time.Second {
			t.Errorf("it waited for %s", waited)
		}
	})
}

func hinted(t *testing.T, st *status.Status) {
	t.Helper()
	for _, d := range st.Details() {
		if hint, ok := d.(*errdetails.RetryInfo); ok && hint.GetRetryDelay().AsDuration() > 0 {
			return
		}
	}
	t.Errorf("no hint when to retry: %v", st.Details())
}

func TestWaitingClaimsAreServedInOrderAndShown(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		r.create(spec(0))
		type outcome struct {
			who string
			vm  string
			at  time.Time
		}
		done := make(chan outcome, 2)
		for _, who := range []string{"first", "second"} {
			go func() {
				got, err := r.leases.ClaimVM(r.ctx(), &pb.ClaimVMRequest{Pool: webRef, Wait: durationpb.New(time.Minute), Consumer: who})
				if err != nil {
					r.Error(err)
				}
				done <- outcome{who, got.GetVmId(), time.Now()}
			}()
			synctest.Wait()
		}
		if n := r.get().GetStatus().GetWaitingClaims(); n != 2 {
			t.Errorf("%d claims are shown as waiting", n)
		}
		_, err := r.leases.ClaimVM(r.ctx(), &pb.ClaimVMRequest{Pool: webRef})
		r.refused(err, codes.ResourceExhausted, "2", "wait for a VM")
		_, err = r.pools.UpdatePool(r.ctx(), &pb.UpdatePoolRequest{Spec: spec(1)})
		r.must(err)
		first, second := <-done, <-done
		if first.who != "first" || second.who != "second" || first.vm == second.vm || !first.at.Before(second.at) {
			t.Errorf("first come, first served: %v then %v", first, second)
		}
	})
}

// A caller that hung up is given nothing.
func TestAClaimWhoseCallerWentTakesNothing(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		r.create(spec(0))
		ctx, hangUp := context.WithCancel(r.ctx())
		ended := make(chan error, 1)
		go func() {
			_, err := r.leases.ClaimVM(ctx, &pb.ClaimVMRequest{Pool: webRef, Wait: durationpb.New(time.Hour)})
			ended <- err
		}()
		synctest.Wait()
		hangUp()
		r.refused(<-ended, codes.Canceled)
		synctest.Wait()
		_, err := r.pools.UpdatePool(r.ctx(), &pb.UpdatePoolRequest{Spec: spec(1)})
		r.must(err)
		r.eventually("the VM stays available", func() bool { return r.get().GetStatus().GetAvailableCount() == 1 })
		if s := r.get().GetStatus(); s.GetWaitingClaims() != 0 || s.GetLeasedCount() != 0 {
			t.Errorf("status: %v", s)
		}
	})
}

func TestClaimsThatAreRefusedAtTheDoor(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		r.create(spec(1))
		for name, c := range map[string]struct {
			req   *pb.ClaimVMRequest
			field string
		}{
			"no pool":            {&pb.ClaimVMRequest{}, "pool.name"},
			"long request id":    {&pb.ClaimVMRequest{Pool: webRef, RequestId: strings.Repeat("x", 256)}, "request_id"},
			"long consumer":      {&pb.ClaimVMRequest{Pool: webRef, Consumer: strings.Repeat("x", 2000)}, "consumer"},
			"negative wait":      {&pb.ClaimVMRequest{Pool: webRef, Wait: durationpb.New(-1)}, "wait"},
			"wait that is none":  {&pb.ClaimVMRequest{Pool: webRef, Wait: &durationpb.Duration{Seconds: 1, Nanos: -1}}, "wait"},
			"wait for a century": {&pb.ClaimVMRequest{Pool: webRef, Wait: durationpb.New(1e6 * time.Hour)}, "wait"},
		} {
			_, err := r.leases.ClaimVM(r.ctx(), c.req)
			if st := status.Convert(err); st.Code() != codes.InvalidArgument || !contains(fields(st), c.field) {
				t.Errorf("%s: want INVALID_ARGUMENT at %s, got %v %v", name, c.field, err, fields(st))
			}
		}
	})
}

func contains(all []string, one string) bool {
	for _, x := range all {
		if x == one {
			return true
		}
	}
	return false
}

func TestAClaimWhosePreLeaseCommandsFailIsToldWhy(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		s := spec(3)
		s.PreLeaseCommands = []string{"prepare"}
		r.hosts[0].Script("prepare", fake.Reply{Code: 3, Stderr: "no space left \xff on device"})
		r.filled(s)
		_, err := r.leases.ClaimVM(r.ctx(), &pb.ClaimVMRequest{Pool: webRef})
		r.refused(err, codes.Internal, "3 VMs", "no space left", "prepare")
		if failed := r.replay(pb.EventType_VM_HOOK_FAILED); len(failed) != 3 {
			t.Errorf("%d VM_HOOK_FAILED", len(failed))
		}
	})
}

func TestHeartbeatAndRelease(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		s := spec(1)
		s.MaxLeaseDuration = durationpb.New(8 * time.Minute)
		r.filled(s)
		began := time.Now()
		id := r.claim().GetLeaseId()
		r.pass(4 * time.Minute)
		beat, err := r.leases.Heartbeat(r.ctx(), &pb.HeartbeatRequest{LeaseId: id})
		r.must(err)
		if end := beat.GetExpiresAt().AsTime(); !end.Equal(began.Add(8*time.Minute)) || beat.GetOutdated() {
			t.Errorf("never past max_lease_duration: %s, outdated %v", end.Sub(began), beat.GetOutdated())
		}
		list, err := r.leases.ListLeases(r.ctx(), &pb.ListLeasesRequest{})
		r.must(err)
		if got := list.GetLeases(); len(got) != 1 || got[0].GetLeaseId() != id || !got[0].GetLastHeartbeatAt().AsTime().Equal(began.Add(4*time.Minute)) {
			t.Errorf("leases: %v", got)
		}
		// The release is answered although the host is away: it is told afterwards.
		r.hosts[0].Down()
		_, err = r.leases.ReleaseVM(r.ctx(), &pb.ReleaseVMRequest{LeaseId: id})
		r.must(err)
		for _, gone := range []string{id, "nonsense"} {
			_, err = r.leases.ReleaseVM(r.ctx(), &pb.ReleaseVMRequest{LeaseId: gone})
			if st := r.refused(err, codes.NotFound); strings.Contains(st.Message(), gone) {
				t.Errorf("lease ids are credentials: %s", st.Message())
			}
			_, err = r.leases.Heartbeat(r.ctx(), &pb.HeartbeatRequest{LeaseId: gone})
			r.refused(err, codes.NotFound)
		}
		_, err = r.leases.Heartbeat(r.ctx(), &pb.HeartbeatRequest{})
		r.refused(err, codes.InvalidArgument, "lease_id")
		if n := len(r.hosts[0].VMs()); n != 1 && n != 2 {
			t.Errorf("%d VMs", n)
		}
		r.hosts[0].Up()
		r.eventually("the VM is confirmed gone", func() bool { return len(r.replay(pb.EventType_VM_DELETED_ON_RELEASE)) == 1 })
		if strings.Contains(r.logs.String(), id) {
			t.Error("the lease id is in the log")
		}
	})
}

func TestALeaseWithoutHeartbeatsExpires(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		r.filled(spec(1))
		id := r.claim().GetLeaseId()
		r.pass(4*time.Minute + 59*time.Second)
		_, err := r.leases.Heartbeat(r.ctx(), &pb.HeartbeatRequest{LeaseId: id})
		r.must(err)
		r.pass(6 * time.Minute)
		_, err = r.leases.Heartbeat(r.ctx(), &pb.HeartbeatRequest{LeaseId: id})
		r.refused(err, codes.NotFound)
		if n := len(r.replay(pb.EventType_VM_EXPIRING_SOON)); n < 1 {
			t.Errorf("%d VM_EXPIRING_SOON", n)
		}
		if n := len(r.replay(pb.EventType_VM_DELETED_DUE_TO_EXPIRY)); n != 1 {
			t.Errorf("%d VM_DELETED_DUE_TO_EXPIRY", n)
		}
	})
}

func TestListLeasesOfOnePool(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		r.filled(spec(1))
		r.claim()
		other := spec(0)
		other.Name = "other"
		r.create(other)
		list, err := r.leases.ListLeases(r.ctx(), &pb.ListLeasesRequest{PoolRef: &pb.PoolRef{Name: "other", Namespace: "default"}})
		r.must(err)
		if len(list.GetLeases()) != 0 {
			t.Errorf("leases of another pool: %v", list)
		}
		_, err = r.leases.ListLeases(r.ctx(), &pb.ListLeasesRequest{PoolRef: &pb.PoolRef{Name: "nosuch", Namespace: "default"}})
		r.refused(err, codes.NotFound)
		_, err = r.leases.ListLeases(r.ctx(), &pb.ListLeasesRequest{PoolRef: &pb.PoolRef{Name: "web"}})
		r.refused(err, codes.InvalidArgument, "pool_ref.namespace")
	})
}

func TestVMsAreListedInPages(t *testing.T) {
	inBubble(t, 2, func(r *rig) {
		r.filled(spec(5))
		var ids []string
		req := &pb.ListVMsRequest{Pool: webRef, PageSize: 2}
		for {
			page, err := r.vms.ListVMs(r.ctx(), req)
			r.must(err)
			if len(page.GetVms()) > 2 {
				t.Fatalf("a page of %d", len(page.GetVms()))
			}
			for _, v := range page.GetVms() {
				ids = append(ids, v.GetId())
			}
			if req.PageToken = page.GetNextPageToken(); req.PageToken == "" {
				break
			}
		}
		if len(ids) != 5 || len(unique(ids)) != 5 {
			t.Errorf("pages: %v", ids)
		}
		one, err := r.vms.GetVM(r.ctx(), &pb.GetVMRequest{Id: ids[0]})
		r.must(err)
		if one.GetPhase() != pb.VMPhase_AVAILABLE || one.GetUid() == "" || one.GetName() != ids[0] || one.GetSlot() == "" ||
			one.GetRevision() != 1 || one.GetAvailableAt() == nil || one.LeaseId != nil || one.GetHealth() != "GOOD" {
			t.Errorf("VM: %v", one)
		}
		held := r.claim()
		leased, err := r.vms.ListVMs(r.ctx(), &pb.ListVMsRequest{Phases: []pb.VMPhase{pb.VMPhase_LEASED}, Host: held.GetHost().GetName()})
		r.must(err)
		if got := leased.GetVms(); len(got) != 1 || got[0].GetId() != held.GetVmId() || got[0].GetLeaseId() != held.GetLeaseId() {
			t.Errorf("leased VMs: %v", got)
		}
		_, err = r.vms.GetVM(r.ctx(), &pb.GetVMRequest{Id: "web-00000000"})
		r.refused(err, codes.NotFound, "web-00000000")
		_, err = r.vms.GetVM(r.ctx(), &pb.GetVMRequest{})
		r.refused(err, codes.InvalidArgument, "id")
		_, err = r.vms.ListVMs(r.ctx(), &pb.ListVMsRequest{PageSize: -1, Phases: []pb.VMPhase{99}})
		r.refused(err, codes.InvalidArgument, "page_size", "phases[0]")
	})
}

func unique(all []string) map[string]bool {
	set := map[string]bool{}
	for _, x := range all {
		set[x] = true
	}
	return set
}
