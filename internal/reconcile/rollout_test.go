package reconcile_test

import (
	"testing"
	"time"

	"poolmgr/api/flintlock/vmtypes"
	"poolmgr/internal/host"
	"poolmgr/internal/host/fake"
	"poolmgr/internal/pool"
)

var strategies = []pool.Strategy{pool.ImmediateOnLease, pool.MinSizeThreshold, pool.ReplaceOnDelete}

func strategySpec(s pool.Strategy, size int, version string) pool.Spec {
	p := spec(size, version)
	p.Strategy = s
	if s == pool.MinSizeThreshold {
		p.MinSize = 1
	}
	return p
}

// watchFloor samples availability at every change until the rollout is over, and fails below the floor.
func (r *rig) watchFloor(floor int, limit time.Duration, revision int64) {
	r.t.Helper()
	r.eventually("the rollout is completed", limit, func() bool {
		if got := r.counts().Claimable; got < floor {
			r.t.Fatalf("%d available during the rollout, the budget demands %d", got, floor)
		}
		return r.rolloutCompleted(revision)()
	})
}

func TestARolloutReplacesIdleVMsWithinItsBudget(t *testing.T) {
	for _, s := range strategies {
		t.Run(string(s), func(t *testing.T) {
			inBubble(t, 2, nil, func(r *rig) {
				r.create(strategySpec(s, 3, "1"))
				r.eventually("the pool is full", time.Minute, r.full(3))
				r.update(strategySpec(s, 3, "2"))
				r.watchFloor(2, 5*time.Minute, 2)
				r.eventually("the pool is full of current VMs", time.Minute, r.full(3))
				for typ, want := range map[pool.EventType]int{
					pool.EventRolloutStarted: 1, pool.EventRolloutCompleted: 1, pool.EventVMDeletedRollout: 3,
				} {
					if got := r.count(typ); got != want {
						t.Errorf("%d %s, want %d", got, typ, want)
					}
				}
			})
		})
	}
}

func TestARolloutWithASlowReplacementKeepsTheRest(t *testing.T) {
	boot := func(o *fake.Options) {
		o.Boot = func(_ *vmtypes.MicroVMSpec, n int) fake.Boot {
			return fake.Boot{CreatedAfter: time.Second, GuestAfter: map[bool]time.Duration{true: time.Hour}[n > 3]}
		}
	}
	for _, s := range strategies {
		t.Run(string(s), func(t *testing.T) {
			inBubble(t, 1, boot, func(r *rig) {
				r.create(strategySpec(s, 3, "1"))
				r.eventually("the pool is full", time.Minute, r.full(3))
				next := strategySpec(s, 3, "2")
				next.BootTimeout = 10 * time.Minute
				r.update(next)
				for range 600 {
					r.pass(time.Second)
					if got := r.counts().Claimable; got < 2 {
						t.Fatalf("%d available while the replacement does not come up, want 2", got)
					}
				}
			})
		})
	}
}

func TestARolloutWhoseCreatesFailDoesNotDrainThePool(t *testing.T) {
	for _, s := range strategies {
		t.Run(string(s), func(t *testing.T) {
			inBubble(t, 1, nil, func(r *rig) {
				r.create(strategySpec(s, 3, "1"))
				r.eventually("the pool is full", time.Minute, r.full(3))
				broken := r.hosts[0].Inject(fake.Fault{Op: fake.Create, Err: host.ErrRefused})
				r.update(strategySpec(s, 3, "2"))
				for range 600 {
					r.pass(time.Second)
					if got := r.counts().Claimable; got < 2 {
						t.Fatalf("%d available while creates fail, want 2", got)
					}
				}
				broken()
				r.watchFloor(2, 10*time.Minute, 2)
			})
		})
	}
}

func TestASurgeMakesBeforeItBreaks(t *testing.T) {
	inBubble(t, 1, nil, func(r *rig) {
		surge := func(version string) pool.Spec {
			s := spec(3, version)
			s.Rollout.MaxUnavailable = pool.Limit{Kind: pool.LimitCount, Value: 0}
			s.Rollout.MaxSurge = pool.Limit{Kind: pool.LimitCount, Value: 1}
			return s
		}
		r.create(surge("1"))
		r.eventually("the pool is full", time.Minute, r.full(3))
		r.update(surge("2"))
		r.watchFloor(3, 5*time.Minute, 2)
	})
}

func TestARolloutNeverTakesAHeldVM(t *testing.T) {
	for _, s := range strategies {
		t.Run(string(s), func(t *testing.T) {
			inBubble(t, 1, nil, func(r *rig) {
				r.create(strategySpec(s, 3, "1"))
				r.eventually("the pool is full", time.Minute, r.full(3))
				held, err := r.claim()
				r.must(err)
				r.update(strategySpec(s, 3, "2"))
				r.eventually("the rollout is completed beside the lease", 5*time.Minute, r.rolloutCompleted(2))
				if _, _, err := r.store.GetLease(t.Context(), held.Lease.ID); err != nil {
					t.Fatalf("the lease: %v", err)
				}
				if c := r.counts(); c.StaleLeased != 1 || c.Stale != 1 {
					t.Errorf("stale %d, of them leased %d; want 1 and 1", c.Stale, c.StaleLeased)
				}
			})
		})
	}
}

// TestAmnesia throws the reconciler away every 70 ms of a fill and a rollout with claims: nothing changes but delay.
func TestAmnesia(t *testing.T) {
	inBubble(t, 2, nil, func(r *rig) {
		r.create(spec(3, "1"))
		forget := func(cond func() bool) func() bool {
			return func() bool {
				r.amnesia()
				r.pass(70 * time.Millisecond)
				return cond()
			}
		}
		r.eventually("the pool is full", 5*time.Minute, forget(r.full(3)))
		got, err := r.claim()
		r.must(err)
		r.update(spec(3, "2"))
		r.must(r.store.Release(t.Context(), got.Lease.ID, "", time.Now()))
		r.eventually("the rollout is completed", 10*time.Minute, forget(r.rolloutCompleted(2)))
		r.eventually("the pool is full", 5*time.Minute, forget(r.full(3)))
		if got := r.count(pool.EventRolloutCompleted); got != 1 {
			t.Errorf("%d POOL_ROLLOUT_COMPLETED, want 1", got)
		}
	})
}

// TestKill loses the process at many moments of a rollout; the storage alone says what is left to do.
func TestKill(t *testing.T) {
	inBubble(t, 2, nil, func(r *rig) {
		r.create(spec(3, "1"))
		crash := func(cond func() bool) func() bool {
			n := 0
			return func() bool {
				if n++; n%4 == 0 {
					r.kill()
				}
				return cond()
			}
		}
		r.eventually("the pool is full", 5*time.Minute, crash(r.full(3)))
		r.update(spec(3, "2"))
		r.eventually("the rollout is completed", 10*time.Minute, crash(r.rolloutCompleted(2)))
		r.eventually("the pool is full", 5*time.Minute, r.full(3))
		for typ, want := range map[pool.EventType]int{pool.EventRolloutStarted: 1, pool.EventRolloutCompleted: 1} {
			if got := r.count(typ); got != want {
				t.Errorf("%d %s, want %d", got, typ, want)
			}
		}
	})
}

func TestAnEditInTheMiddleAndTheWayBack(t *testing.T) {
	inBubble(t, 1, nil, func(r *rig) {
		r.create(spec(4, "1"))
		r.eventually("the pool is full", time.Minute, r.full(4))
		r.update(spec(4, "2"))
		r.pass(500 * time.Millisecond)
		r.update(spec(4, "3"))
		r.pass(500 * time.Millisecond)
		r.update(spec(4, "1"))
		r.watchFloor(3, 5*time.Minute, 4)
		r.eventually("the pool is full", time.Minute, r.full(4))
		// One slot was given up by the first edit and changed hands at each of the next; the other three stayed.
		if got := r.count(pool.EventVMDeletedRollout); got != 3 {
			t.Errorf("%d VMs went for the rollouts, want 3: going back finds the old ones current again", got)
		}
	})
}
