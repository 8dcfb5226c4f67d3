package reconcile_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"poolmgr/internal/host/fake"
	"poolmgr/internal/pool"
	"poolmgr/internal/store"
)

// holders is what the consumers of a test believe to hold, by the host's id of the VM.
type holders struct {
	mu    sync.Mutex
	uids  map[string]bool
	every map[string]bool // VMs that were ever handed out
}

// took notes a claim and reports whether its VM was never handed out before.
func (h *holders) took(uid string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	again := h.every[uid]
	h.uids[uid], h.every[uid] = true, true
	return !again
}

func (h *holders) gives(uid string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.uids, uid)
}

func (h *holders) has(uid string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.uids[uid]
}

// TestPitfall1And2ClaimsRaceEverythingThatTakesVMsAway: consumers claim, hold and release while the template, the size
// and the age limit change all the time, under each strategy. No host is ever told to delete a VM that somebody holds,
// and no VM is handed out twice.
func TestPitfall1And2ClaimsRaceEverythingThatTakesVMsAway(t *testing.T) {
	claims := int64(10_000) // over all strategies: about a minute with the race detector
	if testing.Short() {
		claims = 300
	}
	if n, err := strconv.ParseInt(os.Getenv("POOLMGR_TEST_CLAIMS"), 10, 64); err == nil {
		claims = n
	}
	instant := func(o *fake.Options) { o.BootDelay, o.GuestDelay, o.DeleteDelay = 0, 0, 0 }
	for _, s := range strategies {
		t.Run(string(s), func(t *testing.T) {
			inBubble(t, 6, instant, func(r *rig) { r.race(s, claims/int64(len(strategies))+1) })
		})
	}
}

// racingSpec is a pool of which the consumers of a race leave something to be taken away, whatever the strategy.
func racingSpec(s pool.Strategy, size int, version string) pool.Spec {
	if s == pool.ReplaceOnDelete {
		size += 16 // leased VMs are part of the size
	}
	p := strategySpec(s, size, version)
	if s == pool.MinSizeThreshold {
		p.MinSize = size - 1
	}
	return p
}

// race has consumers claim beside edits until there were enough claims.
func (r *rig) race(s pool.Strategy, claims int64) {
	h := &holders{uids: map[string]bool{}, every: map[string]bool{}}
	r.watch(func(c fake.Call) {
		if c.Op == fake.Delete && h.has(c.UID) {
			r.t.Errorf("a host is told to delete %s, which a consumer holds", c.UID)
		}
	})
	r.create(spec(12, "0"))
	r.until("the pool is full", r.full(12))
	var claimed, refused atomic.Int64
	var consumers sync.WaitGroup
	for i := range 16 {
		consumers.Go(func() { r.consume(i, claims, &claimed, &refused, h) })
	}
	edits := 0
	for claimed.Load() < claims && !r.t.Failed() {
		edits++
		next := racingSpec(s, 6+edits%7, fmt.Sprint(edits%5))
		next.Rollout.MaxUnavailable = pool.Limit{Kind: pool.LimitPercent, Value: 50}
		next.Rollout.MaxSurge = pool.Limit{Kind: pool.LimitCount, Value: edits % 3}
		if edits%4 == 0 {
			next.MaxWarmAge = 30 * time.Millisecond
		}
		r.update(next)
		r.pass(80 * time.Millisecond)
	}
	consumers.Wait()
	r.update(spec(5, "end"))
	r.eventually("the pool is full", 5*time.Minute, r.full(5))
	gone := 0
	for _, typ := range []pool.EventType{pool.EventVMDeletedRollout, pool.EventVMDeletedScaleDown, pool.EventVMDeletedMaxAge} {
		gone += r.count(typ)
	}
	r.t.Logf("%d claims (%d refused) beside %d VMs that were taken away by %d edits", claimed.Load(), refused.Load(), gone, edits)
	if gone < int(claims)/50 {
		r.t.Errorf("only %d VMs were taken away: that was no race", gone)
	}
}

// consume claims and releases until there were enough claims of all.
func (r *rig) consume(i int, enough int64, claimed, refused *atomic.Int64, h *holders) {
	random := rand.New(rand.NewPCG(uint64(i), 1)) // the same at every run
	for n := 0; claimed.Load() < enough && !r.t.Failed(); n++ {
		got, err := r.store.Claim(r.t.Context(), store.Claim{Pool: webKey, LeaseID: fmt.Sprintf("lease-%d-%d", i, n), Now: time.Now()})
		if pool.CodeOf(err) == pool.CodeExhausted && err != nil {
			refused.Add(1)
			<-time.After(time.Millisecond)
			continue
		}
		if err != nil {
			r.t.Errorf("claim: %v", err)
			return
		}
		claimed.Add(1)
		if !h.took(got.VM.UID) {
			r.t.Errorf("%s was handed out twice", got.VM.UID)
		}
		<-time.After(time.Duration(random.IntN(300)) * time.Millisecond)
		h.gives(got.VM.UID)
		if err := r.store.Release(r.t.Context(), got.Lease.ID, "", time.Now()); err != nil {
			r.t.Errorf("release: %v", err)
		}
	}
}

func TestPitfall3AsManyClaimsAsVMsAllSucceed(t *testing.T) {
	inBubble(t, 2, nil, func(r *rig) {
		r.create(spec(50, "1"))
		r.until("the pool is full", r.full(50))
		r.update(spec(50, "2")) // claims go on during the rollout: the one VM that it has taken may be missing
		var wg sync.WaitGroup
		var failed atomic.Int64
		for i := range 49 {
			wg.Go(func() {
				_, err := r.store.Claim(t.Context(), store.Claim{Pool: webKey, LeaseID: fmt.Sprintf("lease-of-%d", i), Now: time.Now()})
				if err != nil {
					failed.Add(1)
				}
			})
		}
		wg.Wait()
		if n := failed.Load(); n > 0 {
			t.Errorf("%d of 49 claims failed", n)
		}
	})
}

// TestPitfall8AHeartbeatAtTheVeryEnd: it comes first, and the lease lives, or it is told that there is none.
func TestPitfall8AHeartbeatAtTheVeryEnd(t *testing.T) {
	alive, ended := 0, 0
	for range 100 {
		inBubble(t, 1, nil, func(r *rig) {
			s := spec(1, "1")
			s.HeartbeatInterval, s.HeartbeatExpiry = 10*time.Second, time.Minute
			r.create(s)
			r.until("the pool is full", r.full(1))
			got, err := r.claim()
			r.must(err)
			<-time.After(time.Minute) // no Wait: the sweep is at it at this very instant
			_, err = r.store.Renew(t.Context(), got.Lease.ID, time.Now())
			r.pass(time.Second)
			_, _, gone := r.store.GetLease(t.Context(), got.Lease.ID)
			switch {
			case err == nil && gone == nil:
				alive++
			case err != nil && pool.CodeOf(gone) == pool.CodeNotFound:
				ended++
			default:
				t.Errorf("heartbeat: %v, and the lease: %v", err, gone)
			}
		})
	}
	t.Logf("%d lived, %d ended", alive, ended)
}

// TestPitfall9NoLeaseEndsBecauseTheProcessWasHeldUp: the clock is far ahead from one moment to the next, as after a
// SIGSTOP or a suspended machine. Whichever part goes on first, a lease has a full threshold from then.
func TestPitfall9NoLeaseEndsBecauseTheProcessWasHeldUp(t *testing.T) {
	for i := range 50 {
		inBubble(t, 1, nil, func(r *rig) {
			s := spec(2, "1")
			s.HeartbeatInterval, s.HeartbeatExpiry = 10*time.Second, time.Minute
			r.create(s)
			r.until("the pool is full", r.full(2))
			got, err := r.claim()
			r.must(err)
			r.pass(time.Duration(i) * 91 * time.Millisecond)
			// The pool is woken at the same moment at which the clock jumps.
			go r.skew.Store(int64(10 * time.Minute))
			go func() { s := spec(2, "1"); s.HeartbeatExpiry = time.Minute; r.update(s) }()
			r.pass(55 * time.Second)
			if _, err := r.store.Renew(t.Context(), got.Lease.ID, r.now()); err != nil {
				t.Fatalf("a heartbeat within a period of the gap: %v", err)
			}
			r.pass(62 * time.Second)
			if _, _, err := r.store.GetLease(t.Context(), got.Lease.ID); pool.CodeOf(err) != pool.CodeNotFound {
				t.Errorf("a period without heartbeats later: %v, want NOT_FOUND", err)
			}
		})
	}
}

func TestPitfall10And12ASlowTeardownIsNeitherWaitedForNorLeasedAgain(t *testing.T) {
	inBubble(t, 1, func(o *fake.Options) { o.DeleteDelay = time.Hour }, func(r *rig) {
		r.create(spec(1, "1"))
		r.until("the pool is full", r.full(1))
		seen := map[string]bool{}
		r.hosts[0].Inject(fake.Fault{Op: fake.Delete, Delay: 5 * time.Second})
		for range 5 {
			r.until("a VM is available", func() bool { return r.counts().Claimable == 1 })
			got, err := r.claim()
			r.must(err)
			if seen[got.VM.UID] {
				t.Errorf("%s was leased again", got.VM.UID)
			}
			seen[got.VM.UID] = true
			began := time.Now()
			r.must(r.store.Release(t.Context(), got.Lease.ID, "", time.Now()))
			if took := time.Since(began); took > 0 {
				t.Errorf("the release waited %s for the host", took)
			}
		}
	})
}

func TestPitfall13TheWarningComesOncePerLeasePeriod(t *testing.T) {
	inBubble(t, 1, nil, func(r *rig) {
		s := spec(1, "1")
		s.HeartbeatInterval, s.HeartbeatExpiry = 10*time.Second, time.Minute
		r.create(s)
		r.until("the pool is full", r.full(1))
		got, err := r.claim()
		r.must(err)
		for range 4 { // each heartbeat comes after its warning
			r.pass(55 * time.Second)
			r.amnesia()
			_, err := r.store.Renew(t.Context(), got.Lease.ID, time.Now())
			r.must(err)
		}
		for range 10 { // these come in time
			r.pass(20 * time.Second)
			_, err := r.store.Renew(t.Context(), got.Lease.ID, time.Now())
			r.must(err)
		}
		if n := r.count(pool.EventVMExpiringSoon); n != 4 {
			t.Errorf("%d VM_EXPIRING_SOON, want 4", n)
		}
	})
}
