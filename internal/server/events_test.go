package server_test

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"

	pb "poolmgr/api/poolmgr/v1alpha1"
)

func TestSubscribeReplaysAndEndsWithoutFollow(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		r.filled(spec(2))
		r.claim()
		all := r.replay()
		var last int64
		for _, e := range all {
			if e.GetId() <= last || e.GetPoolName() != "web" || e.GetPoolNamespace() != "default" || e.GetCreatedAt() == nil ||
				e.GetType() == pb.EventType_EVENT_TYPE_UNSPECIFIED {
				t.Errorf("event %v after %d", e, last)
			}
			last = e.GetId()
			var payload map[string]any
			if err := json.Unmarshal([]byte(e.GetPayloadJson()), &payload); err != nil {
				t.Errorf("payload of %v: %v", e, err)
			}
			if _, leaks := payload["lease"]; leaks || strings.Contains(e.GetPayloadJson(), "lease_id") {
				t.Errorf("an event tells a lease id: %s", e.GetPayloadJson())
			}
		}
		if n := len(r.replay(pb.EventType_VM_AVAILABLE)); n != 2 {
			t.Errorf("%d VM_AVAILABLE", n)
		}
		cut := all[len(all)/2].GetId()
		stream, err := r.events.Subscribe(r.ctx(), &pb.SubscribeRequest{AfterId: cut, NoFollow: true})
		r.must(err)
		rest, err := drain(stream)
		r.must(err)
		if len(rest) == 0 || rest[0].GetId() != cut+1 {
			t.Errorf("after %d comes %v", cut, rest)
		}
	})
}

func TestSubscribeFollowsWithoutPolling(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		r.filled(spec(1))
		stream, err := r.events.Subscribe(r.ctx(), &pb.SubscribeRequest{
			Pool: webRef, AfterId: r.store.LastEvent(), Types: []pb.EventType{pb.EventType_VM_CLAIMED, pb.EventType_VM_RELEASED},
		})
		r.must(err)
		r.pass(50 * time.Minute) // longer than the age at which connections are changed
		began := time.Now()
		id := r.claim().GetLeaseId()
		claimed, err := stream.Recv()
		r.must(err)
		if took := time.Since(began); took != 0 || claimed.GetType() != pb.EventType_VM_CLAIMED {
			t.Errorf("%v came after %s: events are pushed", claimed, took)
		}
		_, err = r.leases.ReleaseVM(r.ctx(), &pb.ReleaseVMRequest{LeaseId: id})
		r.must(err)
		released, err := stream.Recv()
		r.must(err)
		if released.GetType() != pb.EventType_VM_RELEASED || released.GetId() <= claimed.GetId() {
			t.Errorf("then %v", released)
		}
	})
}

func TestSubscribeToAPoolThatIsToComeStaysOpen(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		ctx, hangUp := context.WithCancel(r.ctx())
		stream, err := r.events.Subscribe(ctx, &pb.SubscribeRequest{Pool: webRef})
		r.must(err)
		if _, err := stream.Header(); err != nil { // the answer that it is heard comes before the first event
			t.Fatal(err)
		}
		r.pass(time.Minute)
		r.filled(spec(1))
		var got []pb.EventType
		for len(got) < 4 {
			e, err := stream.Recv()
			r.must(err)
			got = append(got, e.GetType())
		}
		want := []pb.EventType{
			pb.EventType_POOL_REPLENISHING, pb.EventType_POOL_SIZE_BELOW_TARGET, pb.EventType_VM_PROVISIONED, pb.EventType_VM_AVAILABLE,
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		hangUp()
		_, err = stream.Recv()
		r.refused(err, codes.Canceled)
	})
}

// A subscriber that does not read holds up neither the store nor other subscribers, and misses nothing.
func TestASlowSubscriberHoldsUpNobody(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		slow, err := r.events.Subscribe(r.ctx(), &pb.SubscribeRequest{})
		r.must(err)
		r.filled(spec(1))
		for range 200 {
			id := r.claim().GetLeaseId()
			_, err := r.leases.ReleaseVM(r.ctx(), &pb.ReleaseVMRequest{LeaseId: id})
			r.must(err)
			r.eventually("the next VM", func() bool { return r.get().GetStatus().GetAvailableCount() == 1 })
		}
		last := r.store.LastEvent()
		for want := int64(1); want <= last; want++ {
			e, err := slow.Recv()
			r.must(err)
			if e.GetId() != want {
				t.Fatalf("event %d comes as %d", want, e.GetId())
			}
		}
	})
}

func TestSubscribeEndsWithAHintWhenTheDaemonStops(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		r.filled(spec(1))
		stream, err := r.events.Subscribe(r.ctx(), &pb.SubscribeRequest{AfterId: r.store.LastEvent()})
		r.must(err)
		synctest.Wait()
		close(r.stopping)
		_, err = stream.Recv()
		r.refused(err, codes.Unavailable, "subscribe again after id")
	})
}

func TestSubscriptionsThatAreRefused(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		for field, req := range map[string]*pb.SubscribeRequest{
			"after_id":       {AfterId: -1},
			"types[0]":       {Types: []pb.EventType{4711}},
			"types[1]":       {Types: []pb.EventType{pb.EventType_VM_AVAILABLE, pb.EventType_EVENT_TYPE_UNSPECIFIED}},
			"pool.namespace": {Pool: &pb.PoolRef{Name: "web"}},
		} {
			stream, err := r.events.Subscribe(r.ctx(), req)
			r.must(err)
			_, err = stream.Recv()
			r.refused(err, codes.InvalidArgument, field)
		}
	})
}
