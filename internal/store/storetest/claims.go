package storetest

import (
	"slices"
	"time"

	"poolmgr/internal/pool"
	"poolmgr/internal/store"
)

var claimTests = []test{
	{"ClaimTakesTheVMAtOnce", testClaim},
	{"ClaimOfNothingIsRefused", testClaimRefused},
	{"RequestIDFindsItsLease", testRequestID},
	{"RequestIDsBelongToTheirPool", testRequestIDPerPool},
	{"OldestGoesFirstThenByID", testClaimOrder},
	{"CurrentFirst", testCurrentFirst},
	{"CurrentOnly", testCurrentOnly},
	{"OldestFirstWhateverTheRevision", testOldestFirst},
	{"CordonedHostsGoLast", testCordonedLast},
	{"UnreachableHostsGiveNothing", testUnreachable},
	{"ExcludedVMsAreNotTaken", testExclude},
	{"LongestLeaseBoundsTheExpiry", testMaxLease},
}

func testClaim(f *fixture) {
	f.pool()
	id := f.warm(1)[0]
	f.pass(time.Hour)
	f.dirty()
	mark := f.store.LastEvent()
	r := f.claim(func(c *store.Claim) {
		c.LeaseID, c.RequestID, c.Consumer, c.Actor = "secret-lease", "r1", "ci job 7", "anna"
	})
	want := pool.Lease{
		ID: "secret-lease", Pool: key, VM: id, RequestID: "r1", Consumer: "ci job 7", Owner: "anna", Epoch: f.store.Epoch(),
		ClaimedAt: f.now, LastHeartbeatAt: f.now, ExpiresAt: f.now.Add(pool.DefaultHeartbeatExpiry), Version: 1,
	}
	if d := diff(want, r.Lease); d != "" {
		f.Fatalf("lease (-want +got):\n%s", d)
	}
	if r.Replayed || r.Stale || r.VM.ID != id || r.VM.Phase != pool.Leased || r.Host.Name != "host-a" || r.Spec.Size != 3 {
		f.Fatalf("result %+v", r)
	}
	if vm := f.vm(id); vm.Slot != "" || vm.LeaseID != "secret-lease" || vm.UID == "" {
		f.Fatalf("claimed %+v", vm)
	}
	e := f.told(mark, pool.EventVMClaimed)[0]
	if e.Payload["consumer"] != "ci job 7" || e.Payload["expires_at"] != want.ExpiresAt.Format(time.RFC3339Nano) || e.Payload["slot"] != "s0" {
		f.Fatalf("payload %v", e.Payload)
	}
	if !f.dirty() {
		f.Fatal("a claim does not make the pool dirty")
	}
	if c := f.view().Counts; c.Held != 1 || c.Claimable != 0 {
		f.Fatalf("counts %+v", c)
	}
}

func testClaimRefused(f *fixture) {
	_, err := f.tryClaim()
	f.refused(err, pool.CodeNotFound)
	f.pool()
	_, err = f.tryClaim()
	f.refused(err, pool.CodeExhausted)
	f.grow(1)
	_, err = f.tryClaim()
	f.refused(err, pool.CodeExhausted)
	f.warm(1)
	first := f.claim()
	_, err = f.tryClaim()
	f.refused(err, pool.CodeExhausted)
	f.warm(1)
	if _, err = f.tryClaim(func(c *store.Claim) { c.LeaseID = first.Lease.ID }); err == nil {
		f.Fatal("two leases of one id")
	}
	if _, err = f.tryClaim(func(c *store.Claim) { c.LeaseID = "" }); err == nil {
		f.Fatal("a lease without an id")
	}
	f.must(f.store.ClosePool(f.Context(), store.ClosePool{Pool: key, Force: true, Now: f.now}))
	_, err = f.tryClaim()
	f.refused(err, pool.CodeNotFound)
}

func testRequestID(f *fixture) {
	f.pool()
	f.warm(3)
	first := f.claim(requestID("r1"))
	f.pass(time.Minute)
	mark := f.store.LastEvent()
	for range 2 {
		again := f.claim(requestID("r1"))
		if d := diff(first.Lease, again.Lease); d != "" || !again.Replayed || again.VM.ID != first.VM.ID || again.Host != first.Host {
			f.Fatalf("replayed %v, lease (-first +again):\n%s", again.Replayed, d)
		}
		f.reopen() // the second time over a reopening
	}
	replayOnly := func(c *store.Claim) { c.ReplayOnly = true }
	if found := f.claim(requestID("r1"), replayOnly); found.Lease.ID != first.Lease.ID || !found.Replayed {
		f.Fatalf("a claim that only looks found %+v", found)
	}
	_, err := f.tryClaim(requestID("r2"), replayOnly)
	f.refused(err, pool.CodeExhausted)
	f.told(mark)
	if other := f.claim(requestID("r2")); other.Replayed || other.VM.ID == first.VM.ID {
		f.Fatalf("another request found the lease: %+v", other)
	}
	f.must(f.store.Release(f.Context(), first.Lease.ID, "", f.now))
	if fresh := f.claim(requestID("r1")); fresh.Replayed || fresh.VM.ID == first.VM.ID {
		f.Fatalf("a released lease was found: %+v", fresh)
	}
}

func testRequestIDPerPool(f *fixture) {
	f.pool()
	f.warm(1)
	f.claim(requestID("r"))
	other := pool.Key{Namespace: key.Namespace, Name: "other"}
	_, err := f.store.CreatePool(f.Context(), store.CreatePool{Spec: spec(func(s *pool.Spec) { s.Key = other }), Now: f.now})
	f.must(err)
	_, err = f.tryClaim(requestID("r"), func(c *store.Claim) { c.Pool = other })
	f.refused(err, pool.CodeExhausted)
}

// order claims everything and tells in which order it came.
func (f *fixture) order() (got []string) {
	f.Helper()
	for {
		r, err := f.tryClaim()
		if err != nil {
			f.refused(err, pool.CodeExhausted)
			return got
		}
		got = append(got, r.VM.ID)
	}
}

func (f *fixture) wantOrder(want ...string) {
	f.Helper()
	if got := f.order(); !slices.Equal(got, want) {
		f.Fatalf("claimed %v, want %v", got, want)
	}
}

func testClaimOrder(f *fixture) {
	f.pool()
	ids := f.grow(4)
	f.boot(ids[3])
	f.place("host-a", ids[0], ids[1], ids[2])
	f.pass(time.Second)
	for _, id := range []string{ids[2], ids[0], ids[1]} { // at one instant
		f.do(store.Booted{VM: id, Version: f.vm(id).Version})
	}
	f.wantOrder(ids[3], ids[0], ids[1], ids[2])
}

func testCurrentFirst(f *fixture) {
	f.pool()
	old := f.warm(2)
	f.update(image("base:2"))
	current := f.warm(2)
	f.wantOrder(current[0], current[1], old[0], old[1])
	if c := f.view().Counts; c.StaleLeased != 2 {
		f.Fatalf("counts %+v", c)
	}
}

func testCurrentOnly(f *fixture) {
	only := func(s *pool.Spec) { s.ClaimPreference = pool.CurrentOnly }
	f.pool(only)
	f.warm(1)
	f.update(only, image("base:2"))
	f.wantOrder()
	current := f.warm(1)
	f.wantOrder(current...)
}

func testOldestFirst(f *fixture) {
	oldest := func(s *pool.Spec) { s.ClaimPreference = pool.OldestFirst }
	f.pool(oldest)
	ids := f.warm(1)
	f.update(oldest, image("base:2"))
	ids = append(ids, f.warm(1)...)
	f.update(oldest)
	ids = append(ids, f.warm(1)...)
	r := f.claim()
	if r.Stale || r.VM.ID != ids[0] {
		f.Fatalf("first %+v", r)
	}
	if r = f.claim(); !r.Stale || r.VM.ID != ids[1] {
		f.Fatalf("second %+v", r)
	}
	f.wantOrder(ids[2])
}

func testCordonedLast(f *fixture) {
	f.host("host-b")
	f.pool()
	ids := f.grow(4)
	f.bootOn("host-a", ids[0], ids[1])
	f.bootOn("host-b", ids[2], ids[3])
	_, err := f.store.CordonHost(f.Context(), "host-a", true, "", f.now)
	f.must(err)
	if c := f.view().Counts; c.Claimable != 4 {
		f.Fatalf("VMs on a cordoned host stay claimable: %+v", c)
	}
	f.wantOrder(ids[2], ids[3], ids[0], ids[1])
}

func testUnreachable(f *fixture) {
	f.host("host-b")
	f.pool()
	ids := f.grow(2)
	f.bootOn("host-a", ids[0])
	f.bootOn("host-b", ids[1])
	f.must(f.store.SetReachable(f.Context(), "host-a", false, "timeout", f.now))
	if c := f.view().Counts; c.Claimable != 1 {
		f.Fatalf("counts %+v", c)
	}
	f.wantOrder(ids[1])
	f.must(f.store.SetReachable(f.Context(), "host-a", true, "", f.now))
	f.wantOrder(ids[0])
}

func testExclude(f *fixture) {
	f.pool()
	ids := f.warm(3)
	exclude := func(c *store.Claim) { c.Exclude = ids[:2] }
	if r := f.claim(exclude); r.VM.ID != ids[2] {
		f.Fatalf("claimed %s", r.VM.ID)
	}
	_, err := f.tryClaim(exclude)
	f.refused(err, pool.CodeExhausted)
	f.wantOrder(ids[0], ids[1])
}

func testMaxLease(f *fixture) {
	f.pool(func(s *pool.Spec) { s.HeartbeatExpiry, s.MaxLeaseDuration = 5*time.Minute, 7*time.Minute })
	f.warm(1)
	start := f.now
	r := f.claim()
	renew := func() pool.Lease {
		renewed, err := f.store.Renew(f.Context(), r.Lease.ID, f.now)
		f.must(err)
		return renewed.Lease
	}
	f.pass(time.Minute)
	if l := renew(); !l.ExpiresAt.Equal(start.Add(6 * time.Minute)) {
		f.Fatalf("after a minute: %v", l.ExpiresAt.Sub(start))
	}
	f.pass(4 * time.Minute)
	l := renew()
	if !l.ExpiresAt.Equal(start.Add(7 * time.Minute)) {
		f.Fatalf("after five: %v", l.ExpiresAt.Sub(start))
	}
	f.do(store.WarnLease{Lease: l.ID, Version: l.Version})
	f.pass(time.Minute)
	if l = renew(); !l.Warned || !l.ExpiresAt.Equal(start.Add(7*time.Minute)) {
		f.Fatalf("the lease is at its end and is warned about again: %+v", l)
	}
}
