package storetest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"poolmgr/internal/pool"
	"poolmgr/internal/store"
)

var raceTests = []test{
	{"100ClaimersOn50VMs", func(f *fixture) { claimers(f, 100, 50) }},
	{"50ClaimersOn50VMsAllSucceed", func(f *fixture) { claimers(f, 50, 50) }},
	{"OneRequestIDFromEverybody", testRequestRace},
	{"ClaimsAgainstCondemnations", testClaimCondemnRace},
	{"ClaimsAgainstTheBudget", testBudgetRace},
	{"HeartbeatsAgainstTheSweep", testRenewExpireRace},
	{"ReleasesOfOneLease", testReleaseRace},
	{"EverythingAtOnce", testEverything},
}

// warmQuickly boots n VMs in few steps.
func (f *fixture) warmQuickly(n int) []string {
	f.Helper()
	ids := f.grow(n)
	for i, steps := range [][]store.Action{make([]store.Action, n), make([]store.Action, n), make([]store.Action, n)} {
		for j, id := range ids {
			steps[j] = []store.Action{
				store.Place{VM: id, Version: 1, Host: "host-a"},
				store.Accepted{VM: id, Version: 2, UID: "uid-" + id},
				store.Booted{VM: id, Version: 3},
			}[i]
		}
		f.do(steps...)
	}
	return ids
}

func claimers(f *fixture, callers, vms int) {
	f.pool()
	f.warmQuickly(vms)
	ctx, now := f.Context(), f.now
	var taken sync.Map
	before, counts := f.commits()
	errs := together(callers, func(i int) error {
		r, err := f.store.Claim(ctx, store.Claim{Pool: key, LeaseID: fmt.Sprintf("lease-%03d", i), Now: now})
		if err != nil {
			return err
		}
		if other, twice := taken.LoadOrStore(r.VM.ID, i); twice {
			return fmt.Errorf("callers %d and %v both have VM %s", i, other, r.VM.ID)
		}
		return nil
	})
	n, others := succeeded(errs)
	if n != vms {
		f.Fatalf("%d claims succeeded on %d VMs: %v", n, vms, others)
	}
	f.allOf(others, pool.CodeExhausted, nil)
	if after, _ := f.commits(); counts && after-before > int64(vms) {
		f.Fatalf("%d commits for %d claims", after-before, vms)
	}
	f.reopen()
	leases, err := f.store.ListLeases(f.Context(), &key)
	f.must(err)
	if len(leases) != vms {
		f.Fatalf("%d leases after reopening", len(leases))
	}
}

func testRequestRace(f *fixture) {
	f.pool()
	f.warmQuickly(5)
	ctx, now := f.Context(), f.now
	var fresh atomic.Int64
	errs := together(20, func(i int) error {
		r, err := f.store.Claim(ctx, store.Claim{Pool: key, LeaseID: fmt.Sprintf("lease-%d", i), RequestID: "r", Now: now})
		if err == nil && !r.Replayed {
			fresh.Add(1)
		}
		return err
	})
	if n, others := succeeded(errs); n != 20 || fresh.Load() != 1 || f.view().Counts.Held != 1 {
		f.Fatalf("%d answers, %d fresh, held %d: %v", n, fresh.Load(), f.view().Counts.Held, others)
	}
}

func testClaimCondemnRace(f *fixture) {
	f.pool()
	ids := f.warmQuickly(40)
	ctx, now, epoch := f.Context(), f.now, f.store.Epoch()
	var versions []int64
	for _, id := range ids {
		versions = append(versions, f.vm(id).Version)
	}
	var claims, condemned atomic.Int64
	errs := together(80, func(i int) error {
		if i%2 == 0 {
			_, err := f.store.Claim(ctx, store.Claim{Pool: key, LeaseID: fmt.Sprintf("lease-%d", i), Now: now})
			if err == nil {
				claims.Add(1)
			}
			return err
		}
		results, err := f.store.Apply(ctx, store.Step{Pool: key, Epoch: epoch, Now: now, Actions: []store.Action{
			store.Condemn{VM: ids[i/2], Version: versions[i/2], Reason: pool.ReasonScaleDown, KeepReady: -1, KeepSlots: -1},
		}})
		if err != nil {
			return err
		}
		if results[0] == nil {
			condemned.Add(1)
		}
		return results[0]
	})
	_, others := succeeded(errs)
	f.allOf(others, pool.CodeExhausted, store.ErrConflict)
	c := f.view().Counts
	if int64(c.Held) != claims.Load() || int64(c.Deleting) != condemned.Load() || c.Held+c.Deleting != 40 {
		f.Fatalf("%d claims, %d condemned, counts %+v", claims.Load(), condemned.Load(), c)
	}
}

// testBudgetRace: however claims and refreshes interleave, no refresh leaves fewer ready slots than it was to keep.
func testBudgetRace(f *fixture) {
	const vms, keep = 30, 20
	f.pool()
	ids := f.warmQuickly(vms)
	ctx, now, epoch := f.Context(), f.now, f.store.Epoch()
	var taken, claimed atomic.Int64
	together(vms+10, func(i int) error {
		if i < 10 {
			_, err := f.store.Claim(ctx, store.Claim{Pool: key, LeaseID: fmt.Sprintf("lease-%d", i), Now: now})
			if err == nil {
				claimed.Add(1)
			}
			return err
		}
		id := ids[i-10]
		results, err := f.store.Apply(ctx, store.Step{Pool: key, Epoch: epoch, Now: now, Actions: []store.Action{store.Condemn{
			VM: id, Version: 4, Reason: pool.ReasonMaxAge, KeepReady: keep, KeepSlots: -1,
			Successor: &store.Successor{ID: "next-" + id, Revision: 1},
		}}})
		if err == nil && results[0] == nil {
			taken.Add(1)
		}
		return err
	})
	if claimed.Load() != 10 || taken.Load() > vms-keep {
		f.Fatalf("%d claims, %d refreshed of %d that must keep %d", claimed.Load(), taken.Load(), vms, keep)
	}
}

func testRenewExpireRace(f *fixture) {
	f.pool()
	f.warmQuickly(20)
	var leases []pool.Lease
	for range 20 {
		leases = append(leases, f.claim().Lease)
	}
	f.pass(pool.DefaultHeartbeatExpiry)
	ctx, now, epoch := f.Context(), f.now, f.store.Epoch()
	var renewed, expired [20]atomic.Bool
	together(40, func(i int) error {
		l := leases[i/2]
		if i%2 == 0 {
			_, err := f.store.Renew(ctx, l.ID, now)
			renewed[i/2].Store(err == nil)
			return err
		}
		results, err := f.store.Apply(ctx, store.Step{Pool: key, Epoch: epoch, Now: now, Actions: []store.Action{
			store.ExpireLease{Lease: l.ID, Version: l.Version},
		}})
		expired[i/2].Store(err == nil && results[0] == nil)
		return err
	})
	for i := range leases {
		if renewed[i].Load() == expired[i].Load() {
			f.Errorf("lease %d: renewed %v, expired %v", i, renewed[i].Load(), expired[i].Load())
		}
	}
}

func testReleaseRace(f *fixture) {
	f.pool()
	f.warmQuickly(1)
	l := f.claim().Lease
	ctx, now := f.Context(), f.now
	errs := together(10, func(int) error { return f.store.Release(ctx, l.ID, "", now) })
	n, others := succeeded(errs)
	if n != 1 {
		f.Fatalf("%d releases of one lease succeeded", n)
	}
	f.allOf(others, pool.CodeNotFound, nil)
}

// testEverything runs claimers, a sweeper of pools and readers side by side; the check after the test judges.
func testEverything(f *fixture) {
	f.pool()
	f.warmQuickly(30)
	ctx := f.Context()
	errs := together(12, func(i int) error {
		for n := range 10 {
			if err := f.visit(ctx, i, n); err != nil {
				return err
			}
		}
		return nil
	})
	if _, others := succeeded(errs); len(others) > 0 {
		f.Fatalf("errors: %v", others)
	}
	for _, l := range f.snapshot().Leases {
		f.must(f.store.Release(f.Context(), l.ID, "", f.now))
	}
}

// visit is one of the things that go on at once.
func (f *fixture) visit(ctx context.Context, i, n int) error {
	switch i % 4 {
	case 0: // claim, renew, release
		r, err := f.store.Claim(ctx, store.Claim{Pool: key, LeaseID: fmt.Sprintf("lease-%d-%d", i, n), Now: f.now})
		if err != nil && pool.CodeOf(err) == pool.CodeExhausted {
			return nil
		}
		if err != nil {
			return err
		}
		if _, err := f.store.Renew(ctx, r.Lease.ID, f.now); err != nil {
			return err
		}
		return f.store.Release(ctx, r.Lease.ID, "", f.now)
	case 1: // remove what is DELETING, grow
		return f.tend(ctx, fmt.Sprintf("web-%d-%d", i, n))
	case 2: // change the host and the pool
		if err := f.store.SetReachable(ctx, "host-a", n%2 == 1, "", f.now); err != nil {
			return err
		}
		_, err := f.store.UpdatePool(ctx, store.UpdatePool{Spec: spec(image(fmt.Sprintf("base:%d", n%3))), Now: f.now})
		return err
	default: // read
		if _, err := f.store.Snapshot(ctx, key); err != nil {
			return err
		}
		_, err := f.store.Since(ctx, store.EventQuery{Limit: 5})
		return err
	}
}

// tend is a pass over the pool as a reconciler would make it; conflicts are normal.
func (f *fixture) tend(ctx context.Context, id string) error {
	s, err := f.store.Snapshot(ctx, key)
	if err != nil {
		return err
	}
	step := store.Step{Pool: key, Epoch: f.store.Epoch(), Now: f.now, Actions: []store.Action{
		store.Grow{IDs: []string{id}, Revision: s.Pool.Revision, MaxSlots: 100},
	}}
	for _, vm := range s.VMs {
		switch {
		case vm.Phase == pool.Deleting:
			step.Actions = append(step.Actions, store.Gone{VM: vm.ID, Version: vm.Version})
		case vm.Phase == pool.Available && vm.Stale(s.Pool):
			step.Actions = append(step.Actions, store.Condemn{VM: vm.ID, Version: vm.Version, Reason: pool.ReasonRollout, KeepReady: 1, KeepSlots: -1})
		}
	}
	results, err := f.store.Apply(ctx, step)
	if err != nil {
		return err
	}
	for _, err := range results {
		if err != nil && !errors.Is(err, store.ErrConflict) {
			return err
		}
	}
	return nil
}
