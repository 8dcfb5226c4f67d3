package reconcile_test

import (
	"testing"
	"time"

	"poolmgr/internal/host"
	"poolmgr/internal/host/fake"
	"poolmgr/internal/pool"
	"poolmgr/internal/store"
)

func TestPitfall33AMaxAgeForAllAtOnceKeepsTheFloor(t *testing.T) {
	for _, s := range strategies {
		t.Run(string(s), func(t *testing.T) {
			inBubble(t, 2, nil, func(r *rig) {
				p := strategySpec(s, 5, "1")
				p.MaxWarmAge = 10 * time.Minute
				r.create(p)
				r.until("the pool is full", r.full(5))
				for range 1500 {
					r.pass(time.Second)
					if got := r.counts().Claimable; got < 4 {
						t.Fatalf("%d available while VMs come of age, want 4", got)
					}
				}
				if n := r.count(pool.EventVMDeletedMaxAge); n < 10 || n > 15 {
					t.Errorf("%d VM_DELETED_MAX_AGE in 25 minutes, want each of five refreshed twice", n)
				}
			})
		})
	}
}

// TestPitfall39AQuarantinedReplacementKeepsItsSlotCharged: whatever becomes of the replacement, after restarts too.
func TestPitfall39AQuarantinedReplacementKeepsItsSlotCharged(t *testing.T) {
	for _, s := range strategies {
		t.Run(string(s), func(t *testing.T) {
			inBubble(t, 1, nil, func(r *rig) {
				r.create(strategySpec(s, 3, "1"))
				r.until("the pool is full", r.full(3))
				r.hosts[0].Script("prepare", fake.Reply{Code: 1})
				next := strategySpec(s, 3, "2")
				next.CreateCommands, next.HookFailurePolicy = []string{"prepare"}, pool.Quarantine
				r.update(next)
				for i := range 300 {
					if r.pass(time.Second); i%10 == 0 {
						r.kill()
					}
					if got := r.counts().Claimable; got < 2 {
						t.Fatalf("%d available while every replacement is quarantined, want 2", got)
					}
				}
				if c := r.counts(); c.Quarantined != 3 {
					t.Errorf("%d are quarantined, want 3: as many as the pool's size", c.Quarantined)
				}
			})
		})
	}
}

// TestPitfall41NeitherALeasedNorAQuarantinedStaleVMHoldsUpTheEnd: done means that no stale VM is warm.
func TestPitfall41NeitherALeasedNorAQuarantinedStaleVMHoldsUpTheEnd(t *testing.T) {
	inBubble(t, 1, nil, func(r *rig) {
		r.hosts[0].Script("prepare", fake.Reply{Code: 1}, fake.Reply{})
		s := spec(2, "1")
		s.CreateCommands, s.HookFailurePolicy = []string{"prepare"}, pool.Quarantine
		r.create(s)
		r.until("one is quarantined, two are up", func() bool { c := r.counts(); return c.Quarantined == 1 && c.Claimable == 2 })
		_, err := r.claim()
		r.must(err)
		s = spec(2, "2")
		s.HookFailurePolicy = pool.Quarantine
		r.update(s)
		r.until("the rollout is completed", r.rolloutCompleted(2))
		if c := r.counts(); c.Stale != 2 || c.StaleLeased != 1 {
			t.Errorf("%+v, want the quarantined and the leased VM stale", c)
		}
	})
}

// TestPitfall44NoCapacityIsNeitherAFailureNorASuccess: the rollout waits, with what the budget gave it, and goes on.
func TestPitfall44NoCapacityIsNeitherAFailureNorASuccess(t *testing.T) {
	inBubble(t, 1, nil, func(r *rig) {
		r.create(spec(3, "1"))
		r.until("the pool is full", r.full(3))
		heal := r.hosts[0].Inject(fake.Fault{Op: fake.Create, Err: host.ErrNoCapacity})
		r.update(spec(3, "2"))
		r.pass(30 * time.Minute)
		view, err := r.store.GetPool(t.Context(), webKey)
		r.must(err)
		if f := view.Pool.Rollout; f.Completed || len(f.Failures) != 0 || view.Counts.Claimable != 2 {
			t.Errorf("completed %v, %d failures, %d available; want a rollout that waits with 2", f.Completed, len(f.Failures), view.Counts.Claimable)
		}
		if n := r.count(pool.EventVMHookFailed); n != 0 {
			t.Errorf("%d VM_HOOK_FAILED, want none", n)
		}
		heal()
		r.eventually("the rollout is completed", 3*time.Minute, r.rolloutCompleted(2))
	})
}

// TestAFullHostRollsOverInPlace: each VM makes the room for its successor, which waits until it is gone.
func TestAFullHostRollsOverInPlace(t *testing.T) {
	full := func(o *fake.Options) { o.MaxVMs = 3 }
	inBubble(t, 1, full, func(r *rig) {
		h, err := r.store.GetHost(t.Context(), "host-0")
		r.must(err)
		h.MaxVMs = 3
		_, err = r.store.UpdateHost(t.Context(), h.Host, time.Now())
		r.must(err)
		r.create(spec(3, "1"))
		r.until("the pool is full", r.full(3))
		next := spec(3, "2")
		next.Rollout.MaxSurge = pool.Limit{Kind: pool.LimitCount, Value: 2}
		r.update(next)
		r.watchFloor(2, 5*time.Minute, 2)
		r.until("the pool is full", r.full(3))
	})
}

// TestPitfall46ALateDeletionStillSaysRollout: the host refuses to delete for an hour, and the daemon dies meanwhile.
func TestPitfall46ALateDeletionStillSaysRollout(t *testing.T) {
	inBubble(t, 1, nil, func(r *rig) {
		r.create(spec(2, "1"))
		r.until("the pool is full", r.full(2))
		heal := r.hosts[0].Inject(fake.Fault{Op: fake.Delete, Err: errStumble})
		r.update(spec(2, "2"))
		r.eventually("the rollout is completed", 5*time.Minute, r.rolloutCompleted(2))
		r.pass(time.Hour)
		r.kill()
		heal()
		r.eventually("the old VMs are gone", 2*time.Minute, r.full(2))
		r.update(spec(2, "2"))
		r.pass(time.Minute)
		for typ, want := range map[pool.EventType]int{
			pool.EventVMDeletedRollout: 2, pool.EventRolloutStarted: 1, pool.EventRolloutCompleted: 1,
		} {
			if got := r.count(typ); got != want {
				t.Errorf("%d %s, want %d", got, typ, want)
			}
		}
	})
}

func TestPitfall46AnUpdateThatLeavesNothingStaleStartsNothing(t *testing.T) {
	inBubble(t, 1, nil, func(r *rig) {
		r.create(spec(0, "1"))
		r.until("nothing is what it takes", r.rolloutCompleted(1))
		r.update(spec(0, "2"))
		r.until("nor does the next take more", r.rolloutCompleted(2))
		r.update(spec(2, "2"))
		r.until("the pool is full", r.full(2))
		if n := r.count(pool.EventRolloutStarted) + r.count(pool.EventRolloutCompleted); n != 0 {
			t.Errorf("%d events of rollouts, want none", n)
		}
		view, err := r.store.GetPool(t.Context(), webKey)
		r.must(err)
		if got := view.Pool.Rollout.LastCompleted; got != 2 {
			t.Errorf("the last completed revision is %d, want 2: its VMs came up", got)
		}
	})
}

// TestAFailureDuringAnEditIsSucceededByTheNewTemplate: what fails is succeeded by a VM of the template that is current
// then, not of the one that was when it began to boot.
func TestAFailureDuringAnEditIsSucceededByTheNewTemplate(t *testing.T) {
	inBubble(t, 1, nil, func(r *rig) {
		r.hosts[0].Script("prepare", fake.Reply{Delay: 10 * time.Second, Code: 1}, fake.Reply{})
		s := spec(1, "1")
		s.CreateCommands = []string{"prepare"}
		r.create(s)
		r.until("its commands run", func() bool { return len(r.rows()) == 1 && r.rows()[0].Phase == pool.CreateHookRunning })
		next := spec(1, "2")
		next.Rollout.Paused = true // so that the VM is not condemned for the edit
		r.update(next)
		r.until("another VM is up", r.full(1))
		if got := r.rows()[0]; got.Revision != 2 || got.Attempt != 1 {
			t.Errorf("the successor is of revision %d, attempt %d; want 2 and 1", got.Revision, got.Attempt)
		}
	})
}

// TestALargePoolIsMadeInBoundedSteps: a step writes 256 rows at most, and a threshold pool grows to its size all the same.
func TestALargePoolIsMadeInBoundedSteps(t *testing.T) {
	inBubble(t, 1, func(o *fake.Options) { o.BootDelay, o.GuestDelay = 0, 0 }, func(r *rig) {
		s := strategySpec(pool.MinSizeThreshold, 300, "1")
		s.MinSize = 10
		r.create(s)
		r.until("all rows are there", func() bool { return r.counts().Desired == 300 && len(r.rows()) == 300 })
		r.must(r.store.ClosePool(t.Context(), store.ClosePool{Pool: webKey, Now: time.Now()}))
		r.eventually("the pool is gone", 5*time.Minute, func() bool {
			_, err := r.store.GetPool(t.Context(), webKey)
			return pool.CodeOf(err) == pool.CodeNotFound && err != nil
		})
		if n := r.onHosts(); n != 0 {
			t.Errorf("%d VMs are left", n)
		}
	})
}

// TestTwoPoolsThatFightForTheLastPlace: each sees the room that the other takes. A refusal is not a reason to look again
// at once.
func TestTwoPoolsThatFightForTheLastPlace(t *testing.T) {
	inBubble(t, 1, nil, func(r *rig) {
		h, err := r.store.GetHost(t.Context(), "host-0")
		r.must(err)
		h.MaxVMs = 3
		_, err = r.store.UpdateHost(t.Context(), h.Host, time.Now())
		r.must(err)
		other := spec(3, "1")
		other.Name = "other"
		r.create(other)
		r.create(spec(3, "1"))
		r.pass(time.Minute)
		commits, passes := r.storage.Commits(), r.passes.Load()
		r.pass(time.Hour)
		if n := r.storage.Commits() - commits; n > 10 {
			t.Errorf("%d commits in an hour in which nothing can change", n)
		}
		if n := r.passes.Load() - passes; n > 2*800 {
			t.Errorf("%d passes of two pools in an hour in which nothing can change", n)
		}
	})
}
