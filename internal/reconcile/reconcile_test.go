package reconcile_test

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"poolmgr/api/flintlock/vmtypes"
	"poolmgr/internal/host"
	"poolmgr/internal/host/fake"
	"poolmgr/internal/pool"
	"poolmgr/internal/store"
)

func TestAPoolFillsAndRests(t *testing.T) {
	inBubble(t, 2, nil, func(r *rig) {
		r.create(spec(4, "1"))
		r.eventually("the pool is full", time.Minute, r.full(4))
		for _, h := range r.hosts {
			if n := len(h.VMs()); n != 2 {
				t.Errorf("spread: a host has %d of 4 VMs, want 2", n)
			}
		}
		snap, err := r.store.Snapshot(t.Context(), webKey)
		r.must(err)
		want := []pool.EventType{pool.EventVMProvisioned, pool.EventVMAvailable}
		if diff := cmp.Diff(want, r.types(snap.VMs[0].ID)); diff != "" {
			t.Errorf("events of a new VM (-want +got)\n%s", diff)
		}
		commits := r.storage.Commits()
		r.pass(5 * time.Minute)
		if got := r.storage.Commits(); got != commits {
			t.Errorf("%d commits while nothing happened, want 0", got-commits)
		}
		if !r.rolloutCompleted(1)() || r.count(pool.EventRolloutCompleted) != 0 {
			t.Error("the first fill is rollout 1: completed without an event")
		}
	})
}

func TestAUsedVMIsDestroyedAndReplaced(t *testing.T) {
	inBubble(t, 1, nil, func(r *rig) {
		r.create(spec(2, "1"))
		r.eventually("the pool is full", time.Minute, r.full(2))
		got, err := r.claim()
		r.must(err)
		r.eventually("the lease is replaced beside it", time.Minute, r.full(2))
		r.must(r.store.Release(t.Context(), got.Lease.ID, "", time.Now()))
		r.eventually("the used VM is gone", time.Minute, r.full(2))
		want := []pool.EventType{
			pool.EventVMProvisioned, pool.EventVMAvailable, pool.EventVMClaimed, pool.EventVMReleased, pool.EventVMDeletedRelease,
		}
		if diff := cmp.Diff(want, r.types(got.VM.ID)); diff != "" {
			t.Errorf("events of a used VM (-want +got)\n%s", diff)
		}
	})
}

func TestALostCreateReplyIsAdoptedNotRepeated(t *testing.T) {
	inBubble(t, 1, nil, func(r *rig) {
		r.hosts[0].LoseReplies(fake.Create, 2)
		r.create(spec(2, "1"))
		r.eventually("the pool is full", 2*time.Minute, r.full(2))
		if n := r.hosts[0].TotalCreated(); n != 2 {
			t.Errorf("%d VMs were created, want 2", n)
		}
	})
}

func TestAFailedBootIsReplacedAfterABackoff(t *testing.T) {
	boot := func(o *fake.Options) {
		o.Boot = func(_ *vmtypes.MicroVMSpec, n int) fake.Boot {
			return fake.Boot{CreatedAfter: time.Second, Fail: n <= 2}
		}
	}
	inBubble(t, 1, boot, func(r *rig) {
		r.create(spec(1, "1"))
		r.eventually("the third try is up", time.Minute, r.full(1))
		if got := r.count(pool.EventVMHookFailed); got != 2 {
			t.Errorf("%d VM_HOOK_FAILED, want 2", got)
		}
		if got := r.count(pool.EventVMDeletedFailure); got != 2 {
			t.Errorf("%d VM_DELETED_AFTER_FAILURE, want 2", got)
		}
		snap, err := r.store.Snapshot(t.Context(), webKey)
		r.must(err)
		if got := snap.VMs[0]; got.Attempt != 2 || got.Slot != "s0" {
			t.Errorf("the successor is attempt %d of slot %q, want 2 of s0", got.Attempt, got.Slot)
		}
	})
}

func TestADeadGuestIsGivenUpAtTheBootDeadline(t *testing.T) {
	boot := func(o *fake.Options) {
		o.Boot = func(_ *vmtypes.MicroVMSpec, n int) fake.Boot {
			return fake.Boot{CreatedAfter: time.Second, DeadGuest: n == 1}
		}
	}
	inBubble(t, 1, boot, func(r *rig) {
		s := spec(1, "1")
		s.BootTimeout = 30 * time.Second
		r.create(s)
		r.pass(25 * time.Second)
		if r.counts().Claimable != 0 {
			t.Fatal("a VM whose guest is dead was made available")
		}
		r.eventually("another VM is up", time.Minute, r.full(1))
	})
}

func TestCreateCommandsRunBeforeAVMIsAvailable(t *testing.T) {
	inBubble(t, 1, nil, func(r *rig) {
		r.hosts[0].Script("prepare", fake.Reply{Code: 3, Stderr: "no disk\n"}, fake.Reply{})
		s := spec(1, "1")
		s.CreateCommands = []string{"true", "prepare"}
		r.create(s)
		r.eventually("the second try is up", time.Minute, r.full(1))
		for _, e := range r.events() {
			if e.Type != pool.EventVMHookFailed {
				continue
			}
			if e.Payload["exit_code"] != 3 && e.Payload["exit_code"] != float64(3) || e.Payload["stderr_tail"] != "no disk\n" {
				t.Errorf("payload %v, want exit_code 3 and the stderr tail", e.Payload)
			}
		}
	})
}

func TestAFailedHookQuarantinesWithinTheLimit(t *testing.T) {
	inBubble(t, 1, nil, func(r *rig) {
		r.hosts[0].Script("prepare", fake.Reply{Code: 1}, fake.Reply{Code: 1}, fake.Reply{})
		s := spec(1, "1")
		s.CreateCommands, s.HookFailurePolicy = []string{"prepare"}, pool.Quarantine
		one := 1
		s.MaxQuarantined = &one
		r.create(s)
		r.eventually("one is quarantined, the second failure deleted, the third up", time.Minute, func() bool {
			c := r.counts()
			return c.Quarantined == 1 && c.Claimable == 1 && c.Deleting == 0
		})
	})
}

func TestAHostThatHangsDelaysNobodyElse(t *testing.T) {
	inBubble(t, 2, nil, func(r *rig) {
		sick := spec(2, "1")
		sick.Name, sick.Hosts = "sick", []string{"host-1"}
		r.hosts[1].Silence()
		r.create(sick)
		s := spec(2, "1")
		s.Hosts = []string{"host-0"}
		r.create(s)
		r.eventually("the healthy host's pool is full", 10*time.Second, func() bool { return r.counts().Claimable == 2 })
		got, err := r.claim()
		r.must(err)
		r.must(r.store.Release(t.Context(), got.Lease.ID, "", time.Now()))
		r.eventually("the released VM is replaced", 10*time.Second, r.full(2))
	})
}

func TestALeaseEndsWithoutHeartbeatsOnly(t *testing.T) {
	inBubble(t, 1, nil, func(r *rig) {
		s := spec(2, "1")
		s.HeartbeatInterval, s.HeartbeatExpiry = 10*time.Second, time.Minute
		r.create(s)
		r.eventually("the pool is full", time.Minute, r.full(2))
		kept, err := r.claim()
		r.must(err)
		lost, err := r.claim()
		r.must(err)
		for range 20 {
			r.pass(10 * time.Second)
			_, err := r.store.Renew(t.Context(), kept.Lease.ID, time.Now())
			r.must(err)
		}
		want := []pool.EventType{
			pool.EventVMProvisioned, pool.EventVMAvailable, pool.EventVMClaimed, pool.EventVMExpiringSoon, pool.EventVMDeletedExpiry,
		}
		if diff := cmp.Diff(want, r.types(lost.VM.ID)); diff != "" {
			t.Errorf("events of the lost lease (-want +got)\n%s", diff)
		}
		if got := r.types(kept.VM.ID); len(got) != 3 {
			t.Errorf("events of the kept lease: %v, want the first three only", got)
		}
	})
}

func TestNoLeaseEndsBecauseTheDaemonWasAway(t *testing.T) {
	inBubble(t, 1, nil, func(r *rig) {
		s := spec(1, "1")
		s.HeartbeatInterval, s.HeartbeatExpiry = 10*time.Second, time.Minute
		r.create(s)
		r.eventually("the pool is full", time.Minute, r.full(1))
		got, err := r.claim()
		r.must(err)
		r.stop()
		r.pass(time.Hour)
		r.start()
		r.pass(50 * time.Second)
		if _, err := r.store.Renew(t.Context(), got.Lease.ID, time.Now()); err != nil {
			t.Fatalf("a heartbeat within a period of the restart: %v", err)
		}
	})
}

func TestDeletingAPoolEndsWhenTheLastVMIsGone(t *testing.T) {
	inBubble(t, 1, nil, func(r *rig) {
		r.create(spec(3, "1"))
		r.eventually("the pool is full", time.Minute, r.full(3))
		got, err := r.claim()
		r.must(err)
		if err := r.store.ClosePool(t.Context(), store.ClosePool{Pool: webKey, Now: time.Now()}); pool.CodeOf(err) != pool.CodeFailedPrecondition {
			t.Fatalf("close with a held VM: %v, want FAILED_PRECONDITION", err)
		}
		r.must(r.store.ClosePool(t.Context(), store.ClosePool{Pool: webKey, Force: true, Now: time.Now()}))
		if _, err := r.store.Renew(t.Context(), got.Lease.ID, time.Now()); pool.CodeOf(err) != pool.CodeNotFound {
			t.Fatalf("heartbeat after a forced delete: %v, want NOT_FOUND", err)
		}
		r.eventually("the pool is gone", time.Minute, func() bool {
			_, err := r.store.GetPool(t.Context(), webKey)
			return pool.CodeOf(err) == pool.CodeNotFound && err != nil
		})
		if n := r.onHosts(); n != 0 {
			t.Errorf("%d VMs are left on the hosts", n)
		}
	})
}

func TestARowGoesOnlyWhenItsHostConfirms(t *testing.T) {
	inBubble(t, 1, nil, func(r *rig) {
		r.create(spec(1, "1"))
		r.eventually("the pool is full", time.Minute, r.full(1))
		got, err := r.claim()
		r.must(err)
		r.hosts[0].Down()
		r.must(r.store.Release(t.Context(), got.Lease.ID, "", time.Now()))
		r.pass(10 * time.Minute)
		v, err := r.store.GetVM(t.Context(), got.VM.ID)
		r.must(err)
		if v.Phase != pool.Deleting || v.Reason != pool.ReasonReleased {
			t.Fatalf("the row is %s (%s) while the host does not answer, want DELETING (RELEASED)", v.Phase, v.Reason)
		}
		r.hosts[0].Up()
		r.eventually("the row went", time.Minute, r.full(1))
	})
}

func TestARefusedTemplateFailsWithoutTryingTheHostForEver(t *testing.T) {
	inBubble(t, 1, nil, func(r *rig) {
		r.hosts[0].FailNext(fake.Create, 1, host.ErrRefused)
		r.create(spec(1, "1"))
		r.eventually("the successor is up", time.Minute, r.full(1))
		if r.count(pool.EventVMHookFailed) != 1 {
			t.Error("a refused template is one failed boot")
		}
	})
}

func TestAFullHostIsNotAFailure(t *testing.T) {
	inBubble(t, 2, nil, func(r *rig) {
		r.hosts[0].FailNext(fake.Create, 1, host.ErrNoCapacity)
		r.create(spec(2, "1"))
		r.eventually("the pool is full", time.Minute, r.full(2))
		if r.count(pool.EventVMHookFailed) != 0 {
			t.Error("no room is not a failure")
		}
	})
}

func TestABootDeadlineThatPassedWhileTheDaemonWasAwayIsNoFailure(t *testing.T) {
	inBubble(t, 1, nil, func(r *rig) {
		r.hosts[0].Silence()
		r.create(spec(1, "1"))
		r.eventually("the row is placed", time.Minute, func() bool {
			snap, err := r.store.Snapshot(t.Context(), webKey)
			r.must(err)
			return len(snap.VMs) == 1 && snap.VMs[0].Host != ""
		})
		r.stop()
		r.pass(time.Hour)
		r.hosts[0].Up()
		r.start()
		r.eventually("the pool is full", time.Minute, r.full(1))
		if got := r.count(pool.EventVMHookFailed); got != 0 {
			t.Errorf("%d VM_HOOK_FAILED, want none", got)
		}
	})
}

func TestACreateThatKeepsFailingEndsAtTheBootDeadline(t *testing.T) {
	inBubble(t, 1, nil, func(r *rig) {
		r.hosts[0].Inject(fake.Fault{Op: fake.Create, Err: errStumble})
		s := spec(1, "1")
		s.BootTimeout = 30 * time.Second
		r.create(s)
		r.eventually("the second row is on its way", 90*time.Second, func() bool {
			return r.count(pool.EventVMDeletedFailure) == 1 && r.counts().Warming == 1
		})
		if n := r.hosts[0].Count(fake.Create); n > 40 {
			t.Errorf("%d creates were tried within a minute: no backoff", n)
		}
	})
}

var errStumble = errors.New("the host stumbled")

// TestCreateCommandsRunOnceInEachVM: a pass that saw a row before a task moved it on must not start the work again.
func TestCreateCommandsRunOnceInEachVM(t *testing.T) {
	for range 5 {
		quick := func(o *fake.Options) { o.BootDelay, o.GuestDelay = 10*time.Millisecond, 0 }
		inBubble(t, 1, quick, func(r *rig) {
			var ran atomic.Int64
			count := func(c fake.Call) {
				if c.Op == fake.Exec && c.Line == "prepare" {
					ran.Add(1)
				}
			}
			r.onCall.Store(&count)
			s := spec(50, "1")
			s.CreateCommands = []string{"prepare"}
			r.create(s)
			r.eventually("the pool is full", time.Minute, r.full(50))
			if got := ran.Load(); got != 50 {
				t.Errorf("create commands ran %d times in 50 VMs", got)
			}
		})
	}
}
