package storetest

import (
	"slices"
	"time"

	"poolmgr/internal/pool"
	"poolmgr/internal/store"
)

var leaseTests = []test{
	{"RenewMovesTheExpiry", testRenew},
	{"RenewOfAnUnknownLeaseIsRefused", testRenewUnknown},
	{"ReleaseEndsTheLeaseAtOnce", testRelease},
	{"HeartbeatThatComesFirstWins", testExpireRace},
	{"ExpiryEndsTheLease", testExpire},
	{"WarningOncePerPeriod", testWarn},
	{"ListAndGet", testLeaseReads},
	{"LeasesSurviveReopening", testLeaseReopen},
}

func testRenew(f *fixture) {
	f.pool()
	f.warm(1)
	r := f.claim()
	f.pass(4 * time.Minute)
	f.dirty()
	mark := f.store.LastEvent()
	got, err := f.store.Renew(f.Context(), r.Lease.ID, f.now)
	f.must(err)
	l := got.Lease
	if got.Outdated || !l.ExpiresAt.Equal(f.now.Add(5*time.Minute)) || !l.LastHeartbeatAt.Equal(f.now) || l.Version != 2 || !l.ClaimedAt.Equal(r.Lease.ClaimedAt) {
		f.Fatalf("renewed %+v", got)
	}
	f.told(mark)
	if f.dirty() {
		f.Fatal("a heartbeat wakes the pool for nothing")
	}
	f.update(image("base:2"), func(s *pool.Spec) { s.HeartbeatExpiry = time.Minute })
	f.dirty()
	if got, err = f.store.Renew(f.Context(), l.ID, f.now); err != nil || !got.Outdated || !got.Lease.ExpiresAt.Equal(f.now.Add(time.Minute)) {
		f.Fatalf("renewed under another spec: %+v, %v", got, err)
	}
	if !f.dirty() {
		f.Fatal("the lease ends earlier now and nobody looks")
	}
	f.pass(time.Hour) // until the sweep has ended it, a heartbeat renews a lease
	_, err = f.store.Renew(f.Context(), l.ID, f.now)
	f.must(err)
}

func testRenewUnknown(f *fixture) {
	_, err := f.store.Renew(f.Context(), "none", f.now)
	f.refused(err, pool.CodeNotFound)
	f.refused(f.store.Release(f.Context(), "none", "", f.now), pool.CodeNotFound)
	_, _, err = f.store.GetLease(f.Context(), "none")
	f.refused(err, pool.CodeNotFound)
}

func testRelease(f *fixture) {
	f.pool()
	id := f.warm(1)[0]
	r := f.claim(func(c *store.Claim) { c.Consumer = "ci" })
	f.dirty()
	mark := f.store.LastEvent()
	f.must(f.store.Release(f.Context(), r.Lease.ID, "anna", f.now))
	if vm := f.vm(id); vm.Phase != pool.Deleting || vm.Reason != pool.ReasonReleased || vm.LeaseID != "" {
		f.Fatalf("released %+v", vm)
	}
	f.refused(f.store.Release(f.Context(), r.Lease.ID, "anna", f.now), pool.CodeNotFound)
	_, err := f.store.Renew(f.Context(), r.Lease.ID, f.now)
	f.refused(err, pool.CodeNotFound)
	if !f.dirty() {
		f.Fatal("a release does not make the pool dirty")
	}
	f.remove(id)
	e := f.told(mark, pool.EventVMReleased, pool.EventVMDeletedRelease)[0]
	if e.Payload["consumer"] != "ci" || e.Payload["reason"] != "RELEASED" {
		f.Fatalf("payload %v", e.Payload)
	}
}

func testExpireRace(f *fixture) {
	f.pool()
	f.warm(1)
	r := f.claim()
	f.pass(5 * time.Minute)
	sweep := store.ExpireLease{Lease: r.Lease.ID, Version: r.Lease.Version}
	_, err := f.store.Renew(f.Context(), r.Lease.ID, f.now)
	f.must(err)
	f.failed(f.tryOne(sweep), store.ErrConflict)
	if _, _, err := f.store.GetLease(f.Context(), r.Lease.ID); err != nil {
		f.Fatalf("the sweep took a renewed lease: %v", err)
	}
}

func testExpire(f *fixture) {
	f.pool()
	id := f.warm(1)[0]
	r := f.claim(requestID("r"))
	sweep := store.ExpireLease{Lease: r.Lease.ID, Version: r.Lease.Version}
	f.pass(5*time.Minute - 1)
	f.failed(f.tryOne(sweep), store.ErrConflict) // not over yet
	f.pass(1)
	mark := f.store.LastEvent()
	f.do(sweep) // now >= expires_at is expired
	if vm := f.vm(id); vm.Phase != pool.Deleting || vm.Reason != pool.ReasonExpired {
		f.Fatalf("expired %+v", vm)
	}
	_, err := f.store.Renew(f.Context(), r.Lease.ID, f.now)
	f.refused(err, pool.CodeNotFound)
	f.failed(f.tryOne(sweep), store.ErrConflict)
	f.remove(id)
	f.told(mark, pool.EventVMDeletedExpiry)
}

func testWarn(f *fixture) {
	f.pool()
	f.warm(1)
	l := f.claim().Lease
	mark := f.store.LastEvent()
	warn := func() error { return f.tryOne(store.WarnLease{Lease: l.ID, Version: l.Version}) }
	f.must(warn())
	f.failed(warn(), store.ErrConflict) // the version moved
	l.Version++
	f.failed(warn(), store.ErrConflict) // warned already
	f.reopen()
	f.failed(warn(), store.ErrConflict)
	f.pass(time.Minute)
	renewed, err := f.store.Renew(f.Context(), l.ID, f.now)
	f.must(err)
	l = renewed.Lease
	if l.Warned {
		f.Fatal("a new period begins with its warning spent")
	}
	f.must(warn())
	events := f.told(mark, pool.EventVMExpiringSoon, pool.EventVMExpiringSoon)
	if events[1].Payload["expires_at"] != l.ExpiresAt.Format(time.RFC3339Nano) {
		f.Fatalf("payload %v", events[1].Payload)
	}
}

func testLeaseReads(f *fixture) {
	f.pool()
	f.warm(2)
	a := f.claim(func(c *store.Claim) { c.LeaseID = "lease-b" })
	b := f.claim(func(c *store.Claim) { c.LeaseID = "lease-a" })
	l, vm, err := f.store.GetLease(f.Context(), "lease-b")
	f.must(err)
	if l != a.Lease || diff(a.VM, vm) != "" {
		f.Fatalf("lease %+v of %+v", l, vm)
	}
	for _, of := range []*pool.Key{nil, &key} {
		leases, err := f.store.ListLeases(f.Context(), of)
		f.must(err)
		want := []store.LeaseView{{Lease: b.Lease, UID: b.VM.UID}, {Lease: a.Lease, UID: a.VM.UID}}
		if !slices.Equal(leases, want) {
			f.Fatalf("leases %+v", leases)
		}
	}
	_, err = f.store.ListLeases(f.Context(), &pool.Key{Namespace: "no", Name: "pool"})
	f.refused(err, pool.CodeNotFound)
}

func testLeaseReopen(f *fixture) {
	f.pool()
	f.warm(2)
	r := f.claim()
	f.claim(withHooks)
	before := f.snapshot()
	f.reopen()
	if d := diff(before, f.snapshot()); d != "" {
		f.Fatalf("changed over the reopening (-before +after):\n%s", d)
	}
	_, err := f.store.Renew(f.Context(), r.Lease.ID, f.now)
	f.must(err)
	f.must(f.store.Release(f.Context(), r.Lease.ID, "", f.now))
}
