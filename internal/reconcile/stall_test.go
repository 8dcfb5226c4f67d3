package reconcile_test

import (
	"testing"
	"time"

	"poolmgr/api/flintlock/vmtypes"
	"poolmgr/internal/host"
	"poolmgr/internal/host/fake"
	"poolmgr/internal/plan"
	"poolmgr/internal/pool"
	"poolmgr/internal/store"
)

// bad are the ways in which a template may be bad. Each makes every VM of version 2 fail and no other.
var bad = map[string]func(*fake.Options){
	"boots fail": func(o *fake.Options) {
		o.Boot = func(s *vmtypes.MicroVMSpec, _ int) fake.Boot {
			return fake.Boot{CreatedAfter: time.Second, Fail: isVersion(s, "2")}
		}
	},
	"boots are not answered": func(o *fake.Options) {
		o.Boot = func(s *vmtypes.MicroVMSpec, _ int) fake.Boot {
			if isVersion(s, "2") {
				return fake.Boot{CreatedAfter: time.Second, GuestAfter: time.Hour}
			}
			return fake.Boot{CreatedAfter: time.Second}
		}
	},
}

func isVersion(s *vmtypes.MicroVMSpec, version string) bool {
	return s.GetKernel().GetCmdline()["version"] == version
}

// badSpec gives up early on a guest that does not answer.
func badSpec(s pool.Strategy, size int, version string) pool.Spec {
	p := strategySpec(s, size, version)
	p.BootTimeout = 10 * time.Second
	return p
}

func (r *rig) rollout() pool.Pool {
	r.t.Helper()
	view, err := r.store.GetPool(r.t.Context(), webKey)
	r.must(err)
	return view.Pool
}

func (r *rig) is(state pool.RolloutState) func() bool {
	return func() bool { return r.rollout().State() == state }
}

func (r *rig) want(typ pool.EventType, n int) {
	r.t.Helper()
	if got := r.count(typ); got != n {
		r.t.Errorf("%d %s, want %d", got, typ, n)
	}
}

// stalled fills a pool and updates it to the bad version, until that is known.
func (r *rig) stalled(s pool.Spec) {
	r.t.Helper()
	first := s
	first.Template = spec(1, "1").Template
	r.create(first)
	r.eventually("the first rollout is completed", time.Minute, r.rolloutCompleted(1))
	r.update(s)
	r.eventually("the rollout is STALLED", 3*time.Minute, func() bool {
		if got := r.counts().Claimable; got < s.Size-1 {
			r.t.Fatalf("%d available, the budget demands %d", got, s.Size-1)
		}
		return r.is(plan.Stalled)()
	})
}

// eachBad runs a test for every strategy and every way in which a template may be bad.
func eachBad(t *testing.T, test func(*rig, pool.Strategy)) {
	for how, shape := range bad {
		for _, s := range strategies {
			t.Run(how+"/"+string(s), func(t *testing.T) {
				inBubble(t, 2, shape, func(r *rig) { test(r, s) })
			})
		}
	}
}

func TestABadTemplateStallsAndThePoolGoesOnServing(t *testing.T) {
	eachBad(t, func(r *rig, s pool.Strategy) {
		r.stalled(badSpec(s, 4, "2"))
		for range 20 { // demand is met with VMs of the last completed revision
			got, err := r.claim()
			r.must(err)
			if got.VM.Revision != 1 {
				r.t.Fatalf("claimed %s of revision %d", got.VM.ID, got.VM.Revision)
			}
			r.pass(5 * time.Second)
			r.must(r.store.Release(r.t.Context(), got.Lease.ID, "", time.Now()))
			r.pass(15 * time.Second)
			if c := r.counts(); s != pool.MinSizeThreshold && c.Claimable < 3 {
				r.t.Fatalf("%d available after a claim was made up for, want 3", c.Claimable)
			}
		}
		r.want(pool.EventRolloutStalled, 1)
		r.want(pool.EventVMDeletedRollout, 1) // the first, by the budget; nothing more goes for a template that is bad
		tries := 0
		snap, err := r.store.Snapshot(r.t.Context(), webKey)
		r.must(err)
		for _, v := range snap.VMs {
			if v.Phase.Warm() && v.Revision == 2 {
				tries++
			}
		}
		if tries != 1 {
			r.t.Errorf("%d slots try the bad revision, want 1", tries)
		}
	})
}

func TestAGoodTemplateHealsAStalledRollout(t *testing.T) {
	eachBad(t, func(r *rig, s pool.Strategy) {
		r.stalled(badSpec(s, 3, "2"))
		r.update(badSpec(s, 3, "3"))
		r.watchFloor(2, 3*time.Minute, 3)
		r.eventually("the pool is full", time.Minute, r.full(3))
		if last := r.rollout().Rollout.LastCompleted; last != 3 {
			r.t.Errorf("last completed %d, want 3", last)
		}
	})
}

func TestUndoHealsAStalledRollout(t *testing.T) {
	eachBad(t, func(r *rig, s pool.Strategy) {
		r.stalled(badSpec(s, 3, "2"))
		_, err := r.store.SteerRollout(r.t.Context(), store.SteerRollout{Pool: webKey, Verb: store.RolloutUndo, Now: time.Now()})
		r.must(err)
		r.watchFloor(2, 3*time.Minute, 3)
		r.eventually("the pool is full", time.Minute, r.full(3))
		r.want(pool.EventVMDeletedRollout, 2) // the first of revision 1, and the try of revision 2
	})
}

func TestAutoRollbackUndoesAStalledRolloutOnce(t *testing.T) {
	eachBad(t, func(r *rig, s pool.Strategy) {
		p := badSpec(s, 3, "2")
		p.Rollout.AutoRollback = true
		r.create(badSpec(s, 3, "1"))
		r.eventually("the first rollout is completed", time.Minute, r.rolloutCompleted(1))
		r.update(p)
		r.watchFloor(2, 3*time.Minute, 3)
		r.pass(10 * time.Minute)
		r.want(pool.EventRolloutStalled, 1)
		r.want(pool.EventRolloutRolledBack, 1)
		if got := r.rollout(); got.Rollout.RolledBackFrom != 2 || got.Revision != 3 || !r.full(3)() {
			r.t.Errorf("revision %d, rolled back from %d", got.Revision, got.Rollout.RolledBackFrom)
		}
	})
}

// TestCreatesThatAreRefusedStallARollout: nothing comes up at all meanwhile, so that what is there must stay.
func TestCreatesThatAreRefusedStallARollout(t *testing.T) {
	for _, s := range strategies {
		t.Run(string(s), func(t *testing.T) {
			inBubble(t, 2, nil, func(r *rig) {
				r.create(strategySpec(s, 3, "1"))
				r.eventually("the first rollout is completed", time.Minute, r.rolloutCompleted(1))
				for _, h := range r.hosts {
					h.Inject(fake.Fault{Op: fake.Create, Err: host.ErrRefused})
				}
				p := strategySpec(s, 3, "2")
				p.Rollout.MaxUnavailable = pool.Limit{Kind: pool.LimitCount, Value: 2}
				r.update(p)
				for range 1200 {
					r.pass(time.Second)
					if got := r.counts().Claimable; got < 1 {
						t.Fatalf("%d available, the budget demands 1", got)
					}
				}
				r.want(pool.EventRolloutStalled, 1)
			})
		})
	}
}

// TestAStalledRolloutResumesByItself: the host was in trouble, not the template.
func TestAStalledRolloutResumesByItself(t *testing.T) {
	for _, s := range strategies {
		t.Run(string(s), func(t *testing.T) {
			inBubble(t, 1, nil, func(r *rig) {
				r.create(strategySpec(s, 3, "1"))
				r.eventually("the first rollout is completed", time.Minute, r.rolloutCompleted(1))
				heal := r.hosts[0].Inject(fake.Fault{Op: fake.Create, Err: host.ErrRefused})
				r.update(strategySpec(s, 3, "2"))
				r.eventually("the rollout is STALLED", time.Minute, r.is(plan.Stalled))
				heal()
				r.watchFloor(2, 3*time.Minute, 2)
				r.want(pool.EventRolloutStalled, 1)
				r.want(pool.EventRolloutCompleted, 1)
			})
		})
	}
}

func TestAFirstFillThatFailsGoesOnOneAtATime(t *testing.T) {
	inBubble(t, 1, nil, func(r *rig) {
		heal := r.hosts[0].Inject(fake.Fault{Op: fake.Create, Err: host.ErrRefused})
		r.create(spec(4, "1"))
		r.eventually("it is STALLED", time.Minute, r.is(plan.Stalled))
		r.pass(5 * time.Minute)
		r.want(pool.EventRolloutStalled, 1)
		heal()
		r.eventually("the pool is full", 3*time.Minute, r.full(4))
	})
}

// TestBlockedOnAFullHost: no capacity is no failure, however long it lasts, and no success either.
func TestBlockedOnAFullHost(t *testing.T) {
	inBubble(t, 1, func(o *fake.Options) { o.MaxVMs = 4 }, func(r *rig) {
		other := spec(1, "1")
		other.Name = "other"
		r.create(other)
		p := spec(3, "1")
		p.Rollout.MaxUnavailable = pool.Limit{Kind: pool.LimitCount}
		p.Rollout.MaxSurge = pool.Limit{Kind: pool.LimitCount, Value: 1}
		r.create(p)
		r.eventually("the first rollout is completed", time.Minute, r.rolloutCompleted(1))
		r.pass(10 * time.Second) // the host told its limit
		p.Template = spec(3, "2").Template
		r.update(p)
		r.eventually("the rollout is BLOCKED", time.Minute, r.is(plan.Blocked))
		before := r.rollout().Version
		r.pass(time.Hour)
		if got := r.rollout(); got.State() != plan.Blocked || r.counts().Claimable != 3 || got.Version != before {
			t.Errorf("%s with %d available and %d writes, want BLOCKED with 3 and none", got.State(), r.counts().Claimable, got.Version-before)
		}
		r.want(pool.EventRolloutStalled, 0)
		r.must(r.store.ClosePool(t.Context(), store.ClosePool{Pool: other.Key, Now: time.Now()}))
		r.watchFloor(3, 3*time.Minute, 2)
	})
}

// TestBlockedByAHostThatRefusesForWantOfRoom: it is asked again and again, which is no progress.
func TestBlockedByAHostThatRefusesForWantOfRoom(t *testing.T) {
	inBubble(t, 1, nil, func(r *rig) {
		r.create(spec(3, "1"))
		r.eventually("the first rollout is completed", time.Minute, r.rolloutCompleted(1))
		heal := r.hosts[0].Inject(fake.Fault{Op: fake.Create, Err: host.ErrNoCapacity})
		r.update(spec(3, "2"))
		r.eventually("the rollout is BLOCKED", time.Minute, r.is(plan.Blocked))
		for range 3600 {
			if r.pass(time.Second); !r.is(plan.Blocked)() {
				t.Fatalf("%s, want BLOCKED all the while", r.rollout().State())
			}
		}
		r.want(pool.EventRolloutStalled, 0)
		heal()
		r.watchFloor(2, 3*time.Minute, 2)
	})
}

func TestAGuestThatNeverAnswersStallsAtTheDeadline(t *testing.T) {
	inBubble(t, 1, bad["boots are not answered"], func(r *rig) {
		r.create(spec(3, "1"))
		r.eventually("the first rollout is completed", time.Minute, r.rolloutCompleted(1))
		p := spec(3, "2")
		p.BootTimeout, p.Rollout.ProgressDeadline = time.Hour, 30*time.Second
		r.update(p)
		r.pass(29 * time.Second)
		r.want(pool.EventRolloutStalled, 0)
		r.pass(2 * time.Second)
		r.want(pool.EventRolloutStalled, 1)
		r.kill()
		r.pass(2 * time.Minute)
		r.want(pool.EventRolloutStalled, 1) // it is not news to the next run
		if got := r.counts().Claimable; got != 2 {
			t.Errorf("%d available, want 2", got)
		}
	})
}

func TestPausedByAZeroBudgetIsToldOnce(t *testing.T) {
	inBubble(t, 1, nil, func(r *rig) {
		p := spec(3, "1")
		p.Rollout.MaxUnavailable = pool.Limit{Kind: pool.LimitCount}
		r.create(p)
		r.eventually("the first rollout is completed", time.Minute, r.rolloutCompleted(1))
		p.Template = spec(3, "2").Template
		r.update(p)
		r.pass(time.Hour)
		r.kill()
		r.pass(time.Hour)
		r.want(pool.EventRolloutPaused, 1)
		p.Rollout.MaxUnavailable.Value = 1
		r.update(p)
		r.watchFloor(2, 3*time.Minute, 2)
		r.want(pool.EventRolloutPaused, 1)
		r.want(pool.EventRolloutResumed, 1)
		r.want(pool.EventRolloutStalled, 0)
	})
}

// TestStalledIsToldOnceHoweverOftenTheDaemonDies: and what it does meanwhile stays within the budget.
func TestStalledIsToldOnceHoweverOftenTheDaemonDies(t *testing.T) {
	for name, lose := range map[string]func(*rig){"amnesia": (*rig).amnesia, "kill": (*rig).kill} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, 1, bad["boots fail"], func(r *rig) {
				r.create(spec(3, "1"))
				r.eventually("the first rollout is completed", time.Minute, r.rolloutCompleted(1))
				r.update(spec(3, "2"))
				for range 300 {
					r.pass(700 * time.Millisecond)
					lose(r)
					if got := r.counts().Claimable; got < 2 {
						t.Fatalf("%d available, want 2", got)
					}
				}
				r.eventually("the rollout is STALLED", time.Minute, r.is(plan.Stalled))
				r.want(pool.EventRolloutStalled, 1)
				r.update(spec(3, "3"))
				r.watchFloor(2, 3*time.Minute, 3)
				r.want(pool.EventRolloutCompleted, 1)
			})
		})
	}
}
