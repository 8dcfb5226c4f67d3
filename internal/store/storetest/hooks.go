package storetest

import (
	"time"

	"poolmgr/internal/pool"
	"poolmgr/internal/store"
)

var hookTests = []test{
	{"PendingThenLeased", testPendingComplete},
	{"PendingLeaseIsNotShown", testPendingHidden},
	{"FailedHookDeletesTheVM", testFailClaim},
	{"FailedHookQuarantinesTheVM", testFailClaimQuarantine},
	{"CallerThatGaveUpIsNoFailedHook", testFailClaimGaveUp},
	{"SecondCallerWaitsForTheOutcome", testPendingReplay},
	{"PendingLeaseOfAnEarlierRunIsCondemned", testPendingOldRun},
	{"PendingLeasePastItsDeadlineIsCondemned", testPendingDeadline},
}

func testPendingComplete(f *fixture) {
	f.pool()
	id := f.warm(1)[0]
	mark := f.store.LastEvent()
	r := f.claim(withHooks)
	if !r.Lease.Pending || !r.Lease.ExpiresAt.Equal(f.now.Add(time.Minute)) || r.VM.Phase != pool.PreLeaseHookRunning || r.VM.Slot != "" {
		f.Fatalf("pending %+v", r)
	}
	f.told(mark)
	f.pass(30 * time.Second)
	l, err := f.store.CompleteClaim(f.Context(), r.Lease.ID, f.now)
	f.must(err)
	if l.Pending || !l.ClaimedAt.Equal(f.now) || !l.LastHeartbeatAt.Equal(f.now) || !l.ExpiresAt.Equal(f.now.Add(pool.DefaultHeartbeatExpiry)) {
		f.Fatalf("completed %+v", l)
	}
	if f.vm(id).Phase != pool.Leased {
		f.Fatal("the VM is not leased")
	}
	f.told(mark, pool.EventVMClaimed)
	_, err = f.store.CompleteClaim(f.Context(), r.Lease.ID, f.now)
	f.refused(err, pool.CodeFailedPrecondition)
	f.refused(f.store.FailClaim(f.Context(), store.FailClaim{Lease: r.Lease.ID, Now: f.now}), pool.CodeFailedPrecondition)
	_, err = f.store.CompleteClaim(f.Context(), "none", f.now)
	f.refused(err, pool.CodeAborted)
}

func testPendingHidden(f *fixture) {
	f.pool()
	f.warm(1)
	r := f.claim(withHooks)
	_, err := f.store.Renew(f.Context(), r.Lease.ID, f.now)
	f.refused(err, pool.CodeNotFound)
	f.refused(f.store.Release(f.Context(), r.Lease.ID, "", f.now), pool.CodeNotFound)
	_, _, err = f.store.GetLease(f.Context(), r.Lease.ID)
	f.refused(err, pool.CodeNotFound)
	leases, err := f.store.ListLeases(f.Context(), nil)
	f.must(err)
	if len(leases) != 0 {
		f.Fatalf("%d leases are shown", len(leases))
	}
	if s := f.snapshot(); len(s.Leases) != 1 || !s.Leases[0].Pending {
		f.Fatalf("a pass does not see the pending lease: %+v", s.Leases)
	}
	f.failed(f.tryOne(store.WarnLease{Lease: r.Lease.ID, Version: r.Lease.Version}), store.ErrConflict)
	f.pass(time.Hour)
	f.failed(f.tryOne(store.ExpireLease{Lease: r.Lease.ID, Version: r.Lease.Version}), store.ErrConflict)
}

func (f *fixture) failClaim(lease string, payload map[string]any) {
	f.Helper()
	f.must(f.store.FailClaim(f.Context(), store.FailClaim{Lease: lease, Message: "no luck", Payload: payload, Now: f.now}))
}

func testFailClaim(f *fixture) {
	f.pool()
	ids := f.warm(2)
	mark := f.store.LastEvent()
	r := f.claim(withHooks, requestID("r"))
	f.failClaim(r.Lease.ID, map[string]any{"hook": "pre_lease_commands", "exit_code": 3, "stderr_tail": "oops"})
	if vm := f.vm(ids[0]); vm.Phase != pool.Deleting || vm.Reason != pool.ReasonFailed || vm.Message != "no luck" {
		f.Fatalf("failed %+v", vm)
	}
	e := f.told(mark, pool.EventVMHookFailed)[0]
	if e.VM != ids[0] || number(e, "exit_code") != 3 || e.Payload["stderr_tail"] != "oops" {
		f.Fatalf("event %+v", e)
	}
	if again := f.claim(withHooks, requestID("r")); again.Replayed || again.VM.ID != ids[1] {
		f.Fatalf("the request id is not free: %+v", again)
	}
	f.refused(f.store.FailClaim(f.Context(), store.FailClaim{Lease: r.Lease.ID, Now: f.now}), pool.CodeAborted)
	if r := f.view().Pool.Rollout; len(r.Failures) != 0 {
		f.Fatalf("a pre-lease hook counts against the rollout: %+v", r)
	}
}

func testFailClaimQuarantine(f *fixture) {
	f.pool(func(s *pool.Spec) { s.HookFailurePolicy, s.Size = pool.Quarantine, 2 }) // max_quarantined unset: the size
	ids := f.warm(3)
	for range ids {
		f.failClaim(f.claim(withHooks).Lease.ID, map[string]any{"hook": "pre_lease_commands"})
	}
	for i, want := range []pool.Phase{pool.Quarantined, pool.Quarantined, pool.Deleting} {
		if got := f.vm(ids[i]).Phase; got != want {
			f.Errorf("VM %d is %s, want %s", i, got, want)
		}
	}
	if c := f.view().Counts; c.Quarantined != 2 || c.Held != 0 {
		f.Fatalf("counts %+v", c)
	}
}

func testFailClaimGaveUp(f *fixture) {
	f.pool(func(s *pool.Spec) { s.HookFailurePolicy = pool.Quarantine })
	id := f.warm(1)[0]
	mark := f.store.LastEvent()
	f.failClaim(f.claim(withHooks).Lease.ID, nil)
	if vm := f.vm(id); vm.Phase != pool.Deleting || vm.Reason != pool.ReasonFailed {
		f.Fatalf("a touched VM: %+v", vm)
	}
	f.told(mark)
}

func testPendingReplay(f *fixture) {
	f.pool()
	f.warm(2)
	first := f.claim(withHooks, requestID("r"))
	second := f.claim(withHooks, requestID("r"))
	if !second.Replayed || !second.Lease.Pending || second.Lease.ID != first.Lease.ID {
		f.Fatalf("the second caller: %+v", second)
	}
	changed := f.store.Changed()
	_, err := f.store.CompleteClaim(f.Context(), first.Lease.ID, f.now)
	f.must(err)
	select {
	case <-changed:
	default:
		f.Fatal("nobody is told of the outcome")
	}
	if third := f.claim(withHooks, requestID("r")); !third.Replayed || third.Lease.Pending || third.VM.ID != first.VM.ID {
		f.Fatalf("after the outcome: %+v", third)
	}
}

func testPendingOldRun(f *fixture) {
	f.pool()
	ids := f.warm(2)
	r := f.claim(withHooks, requestID("r"))
	f.failed(f.tryOne(f.condemn(ids[0], pool.ReasonFailed)), store.ErrIllegalTransition)
	f.reopen()
	_, err := f.store.CompleteClaim(f.Context(), r.Lease.ID, f.now)
	f.refused(err, pool.CodeAborted)
	mark := f.store.LastEvent()
	f.do(f.condemn(ids[0], pool.ReasonFailed))
	if vm := f.vm(ids[0]); vm.Phase != pool.Deleting || vm.Reason != pool.ReasonFailed || len(f.snapshot().Leases) != 0 {
		f.Fatalf("condemned %+v", vm)
	}
	f.told(mark)
	if again := f.claim(withHooks, requestID("r")); again.Replayed || again.VM.ID != ids[1] {
		f.Fatalf("the request id is not free: %+v", again)
	}
}

func testPendingDeadline(f *fixture) {
	f.pool()
	id := f.warm(1)[0]
	r := f.claim(withHooks)
	f.pass(time.Minute - 1)
	f.failed(f.tryOne(f.condemn(id, pool.ReasonFailed)), store.ErrIllegalTransition)
	f.pass(1)
	f.do(f.condemn(id, pool.ReasonFailed))
	_, err := f.store.CompleteClaim(f.Context(), r.Lease.ID, f.now)
	f.refused(err, pool.CodeAborted)
}
