package storetest

import (
	"time"

	"poolmgr/internal/pool"
	"poolmgr/internal/store"
)

var stepTests = []test{
	{"ActionsSucceedOrFailEachOnItsOwn", testEachOnItsOwn},
	{"AnotherGenerationIsAConflict", testGeneration},
	{"AnotherEpochIsFenced", testEpoch},
	{"TooManyActionsAreRefused", testTooMany},
	{"RowsOfOtherPoolsAreOutOfReach", testOtherPool},
	{"ShortIsAnnouncedOncePerShortage", testShort},
}

func testEachOnItsOwn(f *fixture) {
	f.pool()
	ids := f.grow(2)
	mark := f.store.LastEvent()
	bad := f.condemn(ids[1], pool.ReasonScaleDown)
	bad.KeepSlots = 2
	results := f.try(
		store.Place{VM: ids[0], Version: 1, Host: "host-a"},
		bad,
		store.Accepted{VM: ids[0], Version: 2, UID: "u"},
		store.Place{VM: ids[0], Version: 1, Host: "host-a"},
	)
	f.must(results[0])
	f.failed(results[1], store.ErrConflict)
	f.must(results[2])
	f.failed(results[3], store.ErrConflict)
	f.told(mark, pool.EventVMProvisioned)
	if vm := f.vm(ids[1]); vm.Version != 1 || vm.Phase != pool.Provisioning || vm.Slot != "s1" {
		f.Fatalf("a refused action left something: %+v", vm)
	}
	f.reopen()
	if vm := f.vm(ids[0]); vm.UID != "u" || vm.Version != 3 {
		f.Fatalf("after reopening: %+v", vm)
	}
}

func testGeneration(f *fixture) {
	f.pool()
	step := store.Step{
		Pool: key, Generation: 1, Epoch: f.store.Epoch(), Now: f.now,
		Actions: []store.Action{store.Grow{IDs: []string{"web-1"}, Revision: 1, MaxSlots: 3}},
	}
	f.update(func(s *pool.Spec) { s.Size = 0 })
	results, err := f.store.Apply(f.Context(), step)
	f.must(err)
	f.failed(results[0], store.ErrConflict)
	f.gone("web-1")
	step.Generation = 2
	results, err = f.store.Apply(f.Context(), step)
	f.must(err)
	f.must(results[0])
	step.Pool.Name = "none"
	results, err = f.store.Apply(f.Context(), step)
	f.must(err)
	f.failed(results[0], store.ErrConflict)
}

func testEpoch(f *fixture) {
	f.pool()
	id := f.grow(1)[0]
	first, installation := f.store.Epoch(), f.store.Installation()
	f.reopen()
	if f.store.Epoch() != first+1 || f.store.Installation() != installation || installation == "" {
		f.Fatalf("run %d after %d, installation %q after %q", f.store.Epoch(), first, f.store.Installation(), installation)
	}
	_, err := f.store.Apply(f.Context(), store.Step{
		Pool: key, Epoch: first, Now: f.now, Actions: []store.Action{store.Place{VM: id, Version: 1, Host: "host-a"}},
	})
	f.failed(err, store.ErrFenced)
	if f.vm(id).Host != "" {
		f.Fatal("a fenced step did something")
	}
}

func testTooMany(f *fixture) {
	f.pool()
	step := store.Step{Pool: key, Epoch: f.store.Epoch(), Now: f.now, Actions: make([]store.Action, store.MaxActions+1)}
	if _, err := f.store.Apply(f.Context(), step); err == nil {
		f.Fatal("a step without bound")
	}
}

func testOtherPool(f *fixture) {
	f.pool()
	ids := f.warm(1)
	r := f.claim()
	id := f.grow(1)[0]
	other := pool.Key{Namespace: "team-b", Name: "web"}
	_, err := f.store.CreatePool(f.Context(), store.CreatePool{Spec: spec(func(s *pool.Spec) { s.Key = other }), Now: f.now})
	f.must(err)
	f.pass(time.Hour)
	results, err := f.store.Apply(f.Context(), store.Step{Pool: other, Epoch: f.store.Epoch(), Now: f.now, Actions: []store.Action{
		f.condemn(id, pool.ReasonScaleDown),
		store.ExpireLease{Lease: r.Lease.ID, Version: r.Lease.Version},
		store.WarnLease{Lease: r.Lease.ID, Version: r.Lease.Version},
		store.Grow{IDs: []string{ids[0]}, Revision: 1, MaxSlots: 9}, // ids are unique over all pools
	}})
	f.must(err)
	for _, err := range results {
		f.failed(err, store.ErrConflict)
	}
}

func testShort(f *fixture) {
	f.pool()
	yes, no := true, false
	mark := f.store.LastEvent()
	f.do(store.Announce{Short: &yes, Ready: 1, Desired: 3, Why: "host-a is full"})
	f.do(store.Announce{Short: &yes, Ready: 0, Desired: 3})
	f.reopen()
	f.do(store.Announce{Short: &yes, Ready: 0, Desired: 3})
	f.do(store.Announce{})
	e := f.told(mark, pool.EventPoolBelowTarget)[0]
	if number(e, "available") != 1 || number(e, "desired") != 3 || e.Payload["message"] != "host-a is full" {
		f.Fatalf("payload %v", e.Payload)
	}
	f.do(store.Announce{Short: &no})
	if f.view().Pool.Short {
		f.Fatal("still short")
	}
	f.do(store.Announce{Short: &yes})
	f.told(e.ID, pool.EventPoolBelowTarget)
}
