package reconcile_test

import (
	"fmt"
	"testing"
	"time"

	"poolmgr/api/flintlock/vmtypes"
	"poolmgr/internal/host"
	"poolmgr/internal/host/fake"
	"poolmgr/internal/pool"
	"poolmgr/internal/store"
)

// The tests here are lines of docs/pitfalls.md that concern hosts and provisioning, by number.

// rows are the pool's rows at the moment.
func (r *rig) rows() []pool.VM {
	r.t.Helper()
	snap, err := r.store.Snapshot(r.t.Context(), webKey)
	r.must(err)
	return snap.VMs
}

// until lets time pass in small steps until cond holds, and fails after a minute.
func (r *rig) until(what string, cond func() bool) {
	r.t.Helper()
	r.eventually(what, time.Minute, cond)
}

func TestPitfall15ALostCreateWithStaleListsLeavesOneVM(t *testing.T) {
	inBubble(t, 1, nil, func(r *rig) {
		thaw := r.hosts[0].FreezeLists()
		r.hosts[0].LoseReplies(fake.Create, 2)
		r.create(spec(1, "1"))
		r.pass(20 * time.Second)
		thaw()
		r.until("the pool is full, and the doubles gone", r.full(1))
		if n := r.hosts[0].TotalCreated(); n > 4 {
			t.Errorf("%d VMs were created behind stale lists: no pause between the tries", n)
		}
	})
}

func TestPitfall15ACreateOfADeadDaemonThatComesLate(t *testing.T) {
	for _, delay := range []time.Duration{time.Second, 3 * time.Second, 10 * time.Second} {
		t.Run(delay.String(), func(t *testing.T) {
			inBubble(t, 1, nil, func(r *rig) {
				r.hosts[0].Inject(fake.Fault{Op: fake.Create, Delay: delay, Times: 1})
				r.create(spec(1, "1"))
				r.until("the create is under way", func() bool { return r.hosts[0].Count(fake.Create) == 1 })
				r.killInFlight()
				r.eventually("one VM is left", 2*time.Minute, r.full(1))
				r.pass(time.Minute)
				if n := r.onHosts(); n != 1 {
					t.Errorf("%d VMs are on the host, want 1", n)
				}
			})
		})
	}
}

// TestPitfall15ARefusalForWantOfRoomDoesNotForgetAnEarlierCreate: the first create took the last place and its answer
// was lost; a stale list hides it, and the second finds no room. The row must not move to another host.
func TestPitfall15ARefusalForWantOfRoomDoesNotForgetAnEarlierCreate(t *testing.T) {
	inBubble(t, 2, nil, func(r *rig) {
		thaw := r.hosts[0].FreezeLists()
		r.hosts[0].LoseReplies(fake.Create, 1)
		r.hosts[0].Inject(fake.Fault{Op: fake.Create, Err: host.ErrNoCapacity})
		r.create(spec(1, "1"))
		r.pass(15 * time.Second)
		thaw()
		r.eventually("one VM is left in all", 2*time.Minute, r.full(1))
		if r.count(pool.EventVMHookFailed) != 0 {
			t.Error("no room is not a failure")
		}
	})
}

func TestARowCondemnedWhileItsCreateIsUnderWay(t *testing.T) {
	for _, delay := range []time.Duration{time.Second, 10 * time.Second} {
		t.Run(delay.String(), func(t *testing.T) {
			inBubble(t, 1, nil, func(r *rig) {
				r.hosts[0].Inject(fake.Fault{Op: fake.Create, Delay: delay, Times: 1})
				r.create(spec(1, "1"))
				r.until("the create is under way", func() bool { return r.hosts[0].Count(fake.Create) == 1 })
				id := r.rows()[0].ID
				r.update(spec(0, "1"))
				r.eventually("nothing is left", 2*time.Minute, r.full(0))
				want := 0
				if delay < 5*time.Second {
					want = 1 // the answer was waited for, and is told though the row was condemned
				}
				got := 0
				for _, typ := range r.types(id) {
					if typ == pool.EventVMProvisioned {
						got++
					}
				}
				if got != want {
					t.Errorf("%d VM_PROVISIONED, want %d: %v", got, want, r.types(id))
				}
			})
		})
	}
}

func TestPitfall17And18AHostThatDeletesLaterHoldsUpNoOtherDeletion(t *testing.T) {
	slow := func(o *fake.Options) { o.DeleteDelay = 2 * time.Hour }
	inBubble(t, 2, slow, func(r *rig) {
		s := spec(12, "1")
		s.Hosts = []string{"host-0"}
		r.create(s)
		r.until("the pool is full", func() bool { return r.counts().Claimable == 12 })
		r.update(func() pool.Spec { s := spec(0, "1"); s.Hosts = []string{"host-0"}; return s }())
		r.until("every one of the twelve deletions was sent", func() bool {
			n := 0
			for _, vm := range r.hosts[0].VMs() {
				if vm.State == host.Deleting {
					n++
				}
			}
			return n == 12
		})
		r.pass(time.Hour)
		if c := r.counts(); c.Deleting != 12 {
			t.Errorf("%d rows are DELETING while the host is at it, want 12", c.Deleting)
		}
		load, err := r.store.GetHost(t.Context(), "host-0")
		r.must(err)
		if load.Rows != 12 || load.Live != 0 {
			t.Errorf("the host counts %d rows, %d of them live; want 12 and 0", load.Rows, load.Live)
		}
		r.eventually("they are gone", 2*time.Hour, r.full(0))
	})
}

// TestAFewStuckDeletionsStarveNobody: ten VMs that the host cannot delete, which is more than it is asked for at once.
func TestAFewStuckDeletionsStarveNobody(t *testing.T) {
	inBubble(t, 1, nil, func(r *rig) {
		r.create(spec(11, "1"))
		r.until("the pool is full", r.full(11))
		last := r.rows()[10]
		heal := r.hosts[0].Inject(fake.Fault{
			Op: fake.Delete, Err: errStumble, Match: func(c fake.Call) bool { return c.UID != last.UID },
		})
		r.update(spec(0, "1"))
		r.until("the one that can go went", func() bool { return len(r.hosts[0].Find(last.ID)) == 0 })
		heal()
		r.until("all went", r.full(0))
	})
}

// TestPitfall19ANotFoundThatWeDidNotCauseIsAskedTwice: a host that has just started knows nothing for a moment.
func TestPitfall19ANotFoundThatWeDidNotCauseIsAskedTwice(t *testing.T) {
	inBubble(t, 1, nil, func(r *rig) {
		r.create(spec(1, "1"))
		r.until("the pool is full", r.full(1))
		image := r.hosts[0].Wipe()
		got, err := r.claim()
		r.must(err)
		r.update(spec(0, "1"))
		r.must(r.store.Release(t.Context(), got.Lease.ID, "", time.Now()))
		r.pass(time.Second)
		r.hosts[0].Restore(image)
		r.until("the VM is gone with its row", r.full(0))
	})
}

func TestPitfall19AVMThatTheHostForgotForAMomentIsNotGivenUp(t *testing.T) {
	inBubble(t, 1, func(o *fake.Options) { o.GuestDelay = 10 * time.Second }, func(r *rig) {
		r.create(spec(1, "1"))
		r.until("it is created", func() bool { return len(r.rows()) == 1 && r.rows()[0].UID != "" })
		r.hosts[0].Inject(fake.Fault{Op: fake.Get, Err: host.ErrNotFound, Times: 3})
		r.until("the pool is full", r.full(1))
		if n := r.hosts[0].TotalCreated(); n != 1 {
			t.Errorf("%d VMs were created, want 1: three answers within a second are one absence", n)
		}
	})
}

func TestAVMThatVanishesWhileItBootsIsReplaced(t *testing.T) {
	boot := func(o *fake.Options) {
		o.Boot = func(_ *vmtypes.MicroVMSpec, n int) fake.Boot {
			return fake.Boot{CreatedAfter: 20 * time.Second, VanishAfter: map[bool]time.Duration{true: time.Second}[n == 1]}
		}
	}
	inBubble(t, 1, boot, func(r *rig) {
		r.create(spec(1, "1"))
		r.until("the second is up", r.full(1))
	})
}

func TestPitfall20AShortListTakesNoLiveVM(t *testing.T) {
	inBubble(t, 1, nil, func(r *rig) {
		r.create(spec(3, "1"))
		r.until("the pool is full", r.full(3))
		heal := r.hosts[0].Inject(fake.Fault{Op: fake.List, List: func([]host.VM) []host.VM { return nil }})
		r.pass(10 * time.Minute)
		if c := r.counts(); c.Claimable != 3 || r.onHosts() != 3 {
			t.Errorf("%+v, %d VMs on the host; want 3 available, untouched", c, r.onHosts())
		}
		r.update(spec(1, "1"))
		r.until("a VM that the list does not show is deleted by its uid", r.full(1))
		heal()
	})
}

func TestPitfall21AHostThatFailsItsStartsDoesNotGetEveryVM(t *testing.T) {
	for _, fault := range []error{host.ErrNoCapacity, host.ErrRefused, errStumble} {
		t.Run(fault.Error(), func(t *testing.T) {
			inBubble(t, 2, nil, func(r *rig) {
				r.hosts[0].Inject(fake.Fault{Op: fake.Create, Err: fault})
				s := spec(4, "1")
				s.BootTimeout = 20 * time.Second
				r.create(s)
				r.eventually("the other host has all of them", 3*time.Minute, func() bool { return r.counts().Claimable == 4 })
				if n := len(r.hosts[1].VMs()); n != 4 {
					t.Errorf("host-1 has %d VMs, want 4", n)
				}
			})
		})
	}
}

func TestPitfall21AHostThatRecoversIsUsedAgain(t *testing.T) {
	inBubble(t, 2, nil, func(r *rig) {
		heal := r.hosts[0].Inject(fake.Fault{Op: fake.Create, Err: host.ErrNoCapacity})
		r.create(spec(2, "1"))
		r.until("the pool is full", r.full(2))
		heal()
		r.pass(6 * time.Minute)
		r.update(spec(4, "1"))
		r.until("the pool is full again", r.full(4))
		if n := len(r.hosts[0].VMs()); n != 2 {
			t.Errorf("host-0 has %d of 4 VMs, want 2: it is the emptier one, and well again", n)
		}
	})
}

func TestPitfall22ABlackHoledHostStopsNeitherExpiryNorDeletion(t *testing.T) {
	inBubble(t, 2, nil, func(r *rig) {
		s := spec(2, "1")
		s.HeartbeatInterval, s.HeartbeatExpiry = 10*time.Second, time.Minute
		r.create(s)
		r.until("the pool is full", r.full(2))
		var leases []store.ClaimResult
		for range 2 {
			got, err := r.claim()
			r.must(err)
			leases = append(leases, got)
		}
		r.hosts[0].Silence()
		r.pass(70 * time.Second)
		for _, l := range leases {
			v, err := r.store.GetVM(t.Context(), l.VM.ID)
			switch {
			case l.VM.Host == "host-1" && pool.CodeOf(err) != pool.CodeNotFound:
				t.Errorf("the VM on the healthy host is %s (%v) ten seconds after its lease ended, want gone", v.Phase, err)
			case l.VM.Host == "host-0" && (err != nil || v.Phase != pool.Deleting || v.Reason != pool.ReasonExpired):
				t.Errorf("the VM on the silent host is %s %s (%v), want DELETING (EXPIRED)", v.Phase, v.Reason, err)
			}
		}
	})
}

func TestPitfall23ASlowBootHoldsUpNothing(t *testing.T) {
	boot := func(o *fake.Options) {
		o.Boot = func(_ *vmtypes.MicroVMSpec, n int) fake.Boot {
			return fake.Boot{CreatedAfter: time.Second, GuestAfter: map[bool]time.Duration{true: time.Hour}[n == 1]}
		}
	}
	inBubble(t, 1, boot, func(r *rig) {
		s := spec(3, "1")
		s.BootTimeout = 2 * time.Hour
		r.create(s)
		r.until("the two others are up", func() bool { return r.counts().Claimable == 2 })
		got, err := r.claim()
		r.must(err)
		r.must(r.store.Release(t.Context(), got.Lease.ID, "", time.Now()))
		r.eventually("a claim is replaced and its VM removed", 5*time.Second, func() bool {
			_, err := r.store.GetVM(t.Context(), got.VM.ID)
			return r.counts().Claimable == 2 && pool.CodeOf(err) == pool.CodeNotFound
		})
	})
}

func TestPitfall24ThirtyVMsStartThreeAtATime(t *testing.T) {
	inBubble(t, 1, nil, func(r *rig) {
		r.create(spec(30, "1"))
		r.until("the pool is full", r.full(30))
		if n := r.hosts[0].PeakStarts(); n != 3 {
			t.Errorf("%d starts in flight at the peak, want 3", n)
		}
	})
}

func TestPitfall25TwoPoolsShareAHostWithinItsLimits(t *testing.T) {
	inBubble(t, 2, nil, func(r *rig) {
		for i := range 2 {
			h, err := r.store.GetHost(t.Context(), fmt.Sprintf("host-%d", i))
			r.must(err)
			h.MaxVMs = 5
			_, err = r.store.UpdateHost(t.Context(), h.Host, time.Now())
			r.must(err)
		}
		other := spec(5, "1")
		other.Name = "other"
		r.create(other)
		r.create(spec(5, "1"))
		r.until("both are full", func() bool {
			view, err := r.store.GetPool(t.Context(), other.Key)
			r.must(err)
			return view.Counts.Claimable == 5 && r.counts().Claimable == 5
		})
		for i, h := range r.hosts {
			if n := len(h.VMs()); n != 5 {
				t.Errorf("host %d has %d VMs, want 5", i, n)
			}
		}
	})
}

// TestPitfall27AGuestThatTakesItsTime: an answer that takes longer than the pause between two tries.
func TestPitfall27AGuestThatTakesItsTime(t *testing.T) {
	inBubble(t, 1, nil, func(r *rig) {
		r.hosts[0].Script("true", fake.Reply{Delay: 11 * time.Second / 10}, fake.Reply{Delay: 9 * time.Second})
		r.create(spec(3, "1"))
		r.until("the pool is full", r.full(3))
	})
}

func TestPitfall28AHookWithoutEndIsEnded(t *testing.T) {
	inBubble(t, 1, nil, func(r *rig) {
		r.hosts[0].Script("prepare", fake.Reply{Hang: true}, fake.Reply{})
		s := spec(1, "1")
		s.CreateCommands, s.CommandTimeout = []string{"prepare"}, 10*time.Second
		r.create(s)
		r.until("the second try is up", r.full(1))
		if n := r.count(pool.EventVMHookFailed); n != 1 {
			t.Errorf("%d VM_HOOK_FAILED, want 1", n)
		}
	})
}

func TestPitfall29NeitherAnUpdateNorAStopIsAFailure(t *testing.T) {
	inBubble(t, 1, func(o *fake.Options) { o.GuestDelay = 5 * time.Second }, func(r *rig) {
		r.hosts[0].Script("prepare", fake.Reply{Delay: 5 * time.Second})
		s := spec(3, "1")
		s.CreateCommands = []string{"prepare"}
		r.create(s)
		for range 14 {
			r.pass(700 * time.Millisecond)
			s.MaxVMs++
			s.MaxVMs = max(s.MaxVMs, 10)
			r.update(s)
		}
		r.stop()
		r.start()
		r.until("the pool is full", r.full(3))
		if n := r.hosts[0].TotalCreated(); n != 3 || r.count(pool.EventVMHookFailed) != 0 {
			t.Errorf("%d VMs were created and %d failed, want 3 and none", n, r.count(pool.EventVMHookFailed))
		}
	})
}

// TestAStopWithASilentHostIsShort: the create whose answer does not come is looked for by name later.
func TestAStopWithASilentHostIsShort(t *testing.T) {
	inBubble(t, 1, nil, func(r *rig) {
		r.hosts[0].Inject(fake.Fault{Op: fake.Create, Late: true, Hang: true, Times: 1})
		r.create(spec(1, "1"))
		r.until("the create is under way", func() bool { return r.hosts[0].Count(fake.Create) == 1 })
		began := time.Now()
		r.stop()
		if took := time.Since(began); took > 6*time.Second {
			t.Errorf("the stop took %s", took)
		}
		r.start()
		r.until("the pool is full", r.full(1))
		if n := r.hosts[0].TotalCreated(); n != 1 {
			t.Errorf("%d VMs were created, want 1", n)
		}
	})
}

func TestAHostWithoutExecIsNotTheTemplatesFault(t *testing.T) {
	inBubble(t, 1, func(o *fake.Options) { o.NoExec = true }, func(r *rig) {
		r.create(spec(1, "1"))
		r.pass(5 * time.Minute)
		view, err := r.store.GetPool(t.Context(), webKey)
		r.must(err)
		if n := len(view.Pool.Rollout.Failures); n != 0 || view.Counts.Claimable != 0 {
			t.Errorf("%d failures count against the template, %d VMs available; want none", n, view.Counts.Claimable)
		}
		if n := r.hosts[0].TotalCreated(); n < 3 || n > 20 {
			t.Errorf("%d VMs were tried in five minutes, want a few, further and further apart", n)
		}
	})
}

func TestAHostThatIsRemovedAndAddedAgainIsProbed(t *testing.T) {
	inBubble(t, 1, nil, func(r *rig) {
		for range 40 { // somewhere in there the probe looks while the host is not registered
			h, err := r.store.GetHost(t.Context(), "host-0")
			r.must(err)
			r.must(r.store.RemoveHost(t.Context(), "host-0"))
			r.pass(130 * time.Millisecond)
			_, err = r.store.AddHost(t.Context(), h.Host, time.Now())
			r.must(err)
			r.pass(130 * time.Millisecond)
		}
		r.hosts[0].Down()
		r.until("it is found unreachable", func() bool {
			h, err := r.store.GetHost(t.Context(), "host-0")
			r.must(err)
			return !h.Reachable
		})
	})
}

// TestAPoolClosedAtAnyMomentOfItsLifeLeavesNothing: while rows wait, creates are under way, guests boot, commands run, and
// with a lease.
func TestAPoolClosedAtAnyMomentOfItsLifeLeavesNothing(t *testing.T) {
	for i := range 40 {
		slow := func(o *fake.Options) { o.CallDelay = 40 * time.Millisecond }
		inBubble(t, 2, slow, func(r *rig) {
			r.hosts[0].Script("prepare", fake.Reply{Delay: 300 * time.Millisecond})
			s := spec(5, "1")
			s.CreateCommands = []string{"prepare"}
			r.create(s)
			r.pass(time.Duration(i) * 70 * time.Millisecond)
			_, _ = r.claim() // there may be no VM yet
			r.must(r.store.ClosePool(t.Context(), store.ClosePool{Pool: webKey, Force: true, Now: time.Now()}))
			if i%4 == 0 {
				r.kill()
			}
			r.until("the pool is gone", func() bool {
				_, err := r.store.GetPool(t.Context(), webKey)
				return pool.CodeOf(err) == pool.CodeNotFound && err != nil
			})
			if n := r.onHosts(); n != 0 {
				t.Errorf("%d VMs are left", n)
			}
			if n := r.count(pool.EventVMHookFailed); n != 0 {
				t.Errorf("%d VM_HOOK_FAILED, want none: to be deleted is no failure", n)
			}
		})
	}
}
