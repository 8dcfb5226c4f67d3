package lease_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"poolmgr/internal/lease"
	"poolmgr/internal/pool"
	"poolmgr/internal/store"
)

func TestClaimHeartbeatRelease(t *testing.T) {
	inBubble(t, nil, func(r *rig) {
		r.warm(2)
		got, err := r.manager.Claim(r.Context(), lease.Request{Pool: web, Consumer: "ci job 7"})
		r.must(err)
		if got.VM.ID != "web-00000001" || got.VM.UID == "" || got.Host.Address != "192.0.2.1:9090" || got.Stale || got.Replayed {
			t.Errorf("claimed %+v", got)
		}
		if got.Lease.Consumer != "ci job 7" || !got.Lease.ExpiresAt.Equal(time.Now().Add(5*time.Minute)) {
			t.Errorf("lease %+v", got.Lease)
		}
		<-time.After(time.Minute)
		renewed, err := r.manager.Heartbeat(r.Context(), got.Lease.ID)
		r.must(err)
		if !renewed.Lease.ExpiresAt.Equal(time.Now().Add(5*time.Minute)) || renewed.Outdated {
			t.Errorf("renewed %+v", renewed)
		}
		list, err := r.manager.List(r.Context(), &web)
		r.must(err)
		if len(list) != 1 || list[0].UID != got.VM.UID {
			t.Errorf("leases %+v", list)
		}
		r.must(r.manager.Release(r.Context(), got.Lease.ID))
		if vm := r.vm(got.VM.ID); vm.Phase != pool.Deleting || vm.Reason != pool.ReasonReleased {
			t.Errorf("after the release the VM is %s %s", vm.Phase, vm.Reason)
		}
		_, err = r.manager.Heartbeat(r.Context(), got.Lease.ID)
		r.refused(err, pool.CodeNotFound)
		r.refused(r.manager.Release(r.Context(), got.Lease.ID), pool.CodeNotFound)
		if diff := cmp.Diff([]int{1, 0, 1, 0}, []int{r.seen.claims, r.seen.replays, r.seen.released, r.seen.hooks}); diff != "" {
			t.Errorf("observed claims, replays, releases, hooks (-want +got)\n%s", diff)
		}
		if n := len(r.events(pool.EventVMClaimed)); n != 1 {
			t.Errorf("%d VM_CLAIMED", n)
		}
	})
}

func TestClaimRefusals(t *testing.T) {
	inBubble(t, nil, func(r *rig) {
		_, err := r.claim("")
		r.refused(err, pool.CodeExhausted)
		_, err = r.manager.Claim(r.Context(), lease.Request{Pool: pool.Key{Namespace: "default", Name: "nowhere"}, Wait: time.Hour})
		r.refused(err, pool.CodeNotFound)
		r.warm(1)
		for field, req := range map[string]lease.Request{
			"request_id": {RequestID: strings.Repeat("x", 256)},
			"consumer":   {Consumer: strings.Repeat("x", lease.MaxConsumerLen+1)},
			"wait":       {Wait: -1},
		} {
			req.Pool = web
			_, err := r.manager.Claim(r.Context(), req)
			r.refused(err, pool.CodeInvalid, field)
		}
		_, err = r.claim(strings.Repeat("x", 255))
		r.must(err)
	})
}

// TestBurstOnExactlyEnough: N claims at once on N VMs all succeed, and no VM is handed out twice.
func TestBurstOnExactlyEnough(t *testing.T) {
	inBubble(t, nil, func(r *rig) {
		const n = 50
		r.warm(n)
		claims := make([]lease.Claimed, n)
		var wg sync.WaitGroup
		for i := range n {
			wg.Go(func() {
				var err error
				if claims[i], err = r.claim(""); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		r.distinct(claims)
	})
}

// TestClaimersOutnumberVMs: of 100 claims on 50 VMs exactly 50 succeed, hooks or not.
func TestClaimersOutnumberVMs(t *testing.T) {
	for name, hooks := range map[string][]string{"plain": nil, "hooks": {"sleep 1"}} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, hooks, func(r *rig) {
				r.warm(50)
				var mu sync.Mutex
				var claims []lease.Claimed
				var wg sync.WaitGroup
				for range 100 {
					wg.Go(func() {
						got, err := r.claim("")
						if err != nil {
							r.refused(err, pool.CodeExhausted)
							return
						}
						mu.Lock()
						defer mu.Unlock()
						claims = append(claims, got)
					})
				}
				wg.Wait()
				if len(claims) != 50 {
					t.Errorf("%d claims succeeded", len(claims))
				}
				r.distinct(claims)
			})
		})
	}
}

// TestRepeatedRequest: a lost reply leaks no VM.
func TestRepeatedRequest(t *testing.T) {
	inBubble(t, nil, func(r *rig) {
		r.warm(3)
		first, err := r.claim("job-1")
		r.must(err)
		<-time.After(time.Minute)
		again, err := r.claim("job-1")
		r.must(err)
		if again.Lease.ID != first.Lease.ID || again.VM.ID != first.VM.ID || !again.Replayed || !again.Lease.ExpiresAt.Equal(first.Lease.ExpiresAt) {
			t.Errorf("first %+v, again %+v", first, again)
		}
		other, err := r.claim("job-2")
		r.must(err)
		if other.VM.ID == first.VM.ID {
			t.Error("another request id got the same VM")
		}
		r.must(r.manager.Release(r.Context(), first.Lease.ID))
		fresh, err := r.claim("job-1")
		r.must(err)
		if fresh.Replayed || fresh.VM.ID == first.VM.ID {
			t.Errorf("after the release the id got %+v", fresh)
		}
		if r.seen.replays != 1 {
			t.Errorf("%d replays observed", r.seen.replays)
		}
	})
}

// cutter ends a caller's context right after the store took a VM for it: the answer finds nobody.
type cutter struct {
	store.Store
	cut context.CancelFunc
}

func (c *cutter) Claim(ctx context.Context, claim store.Claim) (store.ClaimResult, error) {
	result, err := c.Store.Claim(ctx, claim)
	if err == nil && c.cut != nil {
		c.cut()
	}
	return result, err
}

func (c *cutter) CompleteClaim(ctx context.Context, id string, now time.Time) (pool.Lease, error) {
	l, err := c.Store.CompleteClaim(ctx, id, now)
	if err == nil && c.cut != nil {
		c.cut()
	}
	return l, err
}

// TestGoneCallerIsGivenNothing: a caller that gave up does not consume a VM, whenever it did.
func TestGoneCallerIsGivenNothing(t *testing.T) {
	for _, row := range []struct {
		name   string
		hooks  []string
		before bool // the caller is gone before the call
		reason pool.Reason
	}{
		{"before", nil, true, ""},
		{"after the commit", nil, false, pool.ReasonReleased},
		{"in the hooks", []string{"sleep 5"}, false, pool.ReasonFailed},
	} {
		t.Run(row.name, func(t *testing.T) {
			inBubble(t, row.hooks, func(r *rig) {
				r.must(r.store.Close())
				c := &cutter{}
				r.open(func(s store.Store) store.Store { c.Store = s; return c })
				r.warm(1)
				ctx, cancel := context.WithCancel(r.Context())
				c.cut = cancel
				if row.before {
					cancel()
				}
				_, err := r.manager.Claim(ctx, lease.Request{Pool: web, RequestID: "job"})
				if err == nil {
					t.Fatal("the claim succeeded")
				}
				vm := r.vm("web-00000001")
				if vm.Reason != row.reason || vm.Phase.Held() {
					t.Errorf("the VM is %s %s, want reason %q", vm.Phase, vm.Reason, row.reason)
				}
				if n := len(r.events(pool.EventVMHookFailed)); n != 0 {
					t.Errorf("%d VM_HOOK_FAILED: giving up is no failure", n)
				}
				c.cut = nil
				r.warm(1)
				got, err := r.claim("job") // the id is free
				r.must(err)
				if got.Replayed {
					t.Error("the id still finds the lease of the caller that is gone")
				}
			})
		})
	}
}

func TestDeadlineBeforeCommit(t *testing.T) {
	inBubble(t, []string{"sleep 5"}, func(r *rig) {
		r.warm(1)
		ctx, cancel := context.WithTimeout(r.Context(), 2*time.Second)
		defer cancel()
		_, err := r.manager.Claim(ctx, lease.Request{Pool: web})
		r.refused(err, pool.CodeDeadline)
		if n := r.phases(); n[pool.Deleting] != 1 {
			t.Errorf("phases %v", n)
		}
	})
}

func TestStaleAndOutdated(t *testing.T) {
	inBubble(t, nil, func(r *rig) {
		r.warm(2)
		current, err := r.claim("")
		r.must(err)
		r.update(func(s *pool.Spec) { s.CreateCommands = []string{"true"} })
		renewed, err := r.manager.Heartbeat(r.Context(), current.Lease.ID)
		r.must(err)
		stale, err := r.claim("")
		r.must(err)
		if !renewed.Outdated || !stale.Stale {
			t.Errorf("outdated %t, stale %t", renewed.Outdated, stale.Stale)
		}
	})
}
