package storetest

import (
	"slices"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"

	"poolmgr/internal/pool"
	"poolmgr/internal/store"
)

var poolTests = []test{
	{"CreateStoresTheSpecAsGenerationAndRevisionOne", testCreate},
	{"CreateOfATakenNameIsRefused", testCreateTaken},
	{"CreateWithAnUnknownHostIsRefused", testUnknownHost},
	{"UnsetAndZeroAreDifferentAfterReopening", testSpecRoundTrip},
	{"UpdateReplacesTheSpec", testUpdate},
	{"UpdateRefusals", testUpdateRefusals},
	{"CloseWithHeldVMsNeedsForce", testCloseHeld},
	{"CloseEndsLeasesAtOnce", testCloseEndsLeases},
	{"ClosedPoolLosesItsRowsInBatchesAndGoes", testCloseToTheEnd},
	{"NameIsFreeAfterRemoval", testNameIsFree},
	{"ListsAreSortedAndFiltered", testLists},
	{"ResultsShareNothingWithTheStore", testResultsAreCopies},
}

func testCreate(f *fixture) {
	f.host("host-a")
	p, err := f.store.CreatePool(f.Context(), store.CreatePool{Spec: spec(createCommands("true")), Actor: "anna", Now: f.now})
	f.must(err)
	if p.Generation != 1 || p.Revision != 1 || p.Version != 1 || p.Owner != "anna" || p.TemplateHash == "" || !p.CreatedAt.Equal(f.now) {
		f.Fatalf("created %+v", p)
	}
	if view := f.view(); !cmp.Equal(view.Pool, p, sameTemplate) || view.Counts != (store.Counts{Desired: 3}) {
		f.Fatalf("read back %+v", view)
	}
	revisions, err := f.store.Revisions(f.Context(), key)
	f.must(err)
	if len(revisions) != 1 || revisions[0].TemplateHash != p.TemplateHash || !slices.Equal(revisions[0].CreateCommands, []string{"true"}) {
		f.Fatalf("revisions %+v", revisions)
	}
	if !f.dirty() {
		f.Fatal("a new pool is not dirty")
	}
	f.told(0) // the first fill is announced by nothing but its growth
}

func testCreateTaken(f *fixture) {
	f.pool()
	_, err := f.store.CreatePool(f.Context(), store.CreatePool{Spec: spec(), Now: f.now})
	f.refused(err, pool.CodeAlreadyExists)
	f.warm(1)
	f.must(f.store.ClosePool(f.Context(), store.ClosePool{Pool: key, Now: f.now}))
	_, err = f.store.CreatePool(f.Context(), store.CreatePool{Spec: spec(), Now: f.now})
	f.refused(err, pool.CodeAlreadyExists)
	other := pool.Key{Namespace: "team-b", Name: key.Name}
	_, err = f.store.CreatePool(f.Context(), store.CreatePool{Spec: spec(func(s *pool.Spec) { s.Key = other }), Now: f.now})
	f.must(err) // another namespace is another pool
}

func testUnknownHost(f *fixture) {
	_, err := f.store.CreatePool(f.Context(), store.CreatePool{Spec: spec(func(s *pool.Spec) { s.Hosts = []string{"nowhere"} }), Now: f.now})
	f.refused(err, pool.CodeInvalid)
	f.pool()
	_, err = f.store.UpdatePool(f.Context(), store.UpdatePool{Spec: spec(func(s *pool.Spec) { s.Hosts = []string{"host-a", "nowhere"} }), Now: f.now})
	f.refused(err, pool.CodeInvalid)
}

func testSpecRoundTrip(f *fixture) {
	f.host("host-a")
	zero, two := 0, 2
	full := spec(createCommands("a", "b"), func(s *pool.Spec) {
		s.Name, s.Hosts, s.Strategy, s.MinSize = "full", []string{"host-a"}, pool.MinSizeThreshold, 2
		s.PreLeaseCommands, s.HookFailurePolicy, s.ClaimPreference = []string{"c"}, pool.Quarantine, pool.OldestFirst
		s.MaxLeaseDuration, s.MaxVMs, s.MaxWarmAge, s.MaxQuarantined = time.Hour, 9, 2*time.Hour, &two
		s.Template.Metadata = map[string]string{"k": "dg=="}
		s.Rollout = pool.RolloutPolicy{
			MaxUnavailable: pool.Limit{Kind: pool.LimitPercent, Value: 25}, MaxSurge: pool.Limit{Kind: pool.LimitCount, Value: 1},
			Paused: true, MinReady: time.Minute, ProgressDeadline: time.Hour, AutoRollback: true,
		}
	})
	specs := []pool.Spec{
		full,
		spec(func(s *pool.Spec) { s.Name = "unset" }),
		spec(func(s *pool.Spec) {
			s.Name, s.MaxQuarantined = "zero", &zero
			s.Rollout.MaxUnavailable = pool.Limit{Kind: pool.LimitCount}
			s.Rollout.MaxSurge = pool.Limit{Kind: pool.LimitPercent}
			s.Template.Initrd, s.Template.Provider = nil, proto.String("")
		}),
	}
	for _, s := range specs {
		_, err := f.store.CreatePool(f.Context(), store.CreatePool{Spec: s, Now: f.now})
		f.must(err)
	}
	before, err := f.store.ListPools(f.Context(), "")
	f.must(err)
	f.reopen()
	for i, want := range specs {
		view, err := f.store.GetPool(f.Context(), want.Key)
		f.must(err)
		if diff := cmp.Diff(want, view.Pool.Spec, sameTemplate, emptyIsNil); diff != "" {
			f.Errorf("spec %d changed over the reopening (-want +got):\n%s", i, diff)
		}
	}
	after, err := f.store.ListPools(f.Context(), "")
	f.must(err)
	if diff := cmp.Diff(before, after, sameTemplate, emptyIsNil); diff != "" {
		f.Errorf("pools changed over the reopening (-before +after):\n%s", diff)
	}
}

func testUpdate(f *fixture) {
	p := f.pool()
	f.pass(time.Minute)
	q := f.update(func(s *pool.Spec) { s.Size = 7 })
	if q.Generation != 2 || q.Revision != 1 || q.Version != p.Version+1 || q.Spec.Size != 7 || !q.UpdatedAt.Equal(f.now) {
		f.Fatalf("a larger pool: %+v", q)
	}
	if !cmp.Equal(q.Rollout, p.Rollout) {
		f.Fatalf("the size changed the rollout: %+v", q.Rollout)
	}
	q = f.update(image("base:2"))
	if q.Generation != 3 || q.Revision != 2 || q.TemplateHash == p.TemplateHash || q.Spec.Size != 3 {
		f.Fatalf("another template: %+v", q)
	}
	if q = f.update(image("base:1")); q.Revision != 3 || q.TemplateHash != p.TemplateHash {
		f.Fatalf("back to the first template: %+v", q)
	}
	if q = f.update(createCommands("true")); q.Revision != 4 || q.TemplateHash == p.TemplateHash {
		f.Fatalf("create commands are part of the template: %+v", q)
	}
	f.told(0) // nothing was stale: the rollouts of an empty pool are silent
}

func testUpdateRefusals(f *fixture) {
	_, err := f.store.UpdatePool(f.Context(), store.UpdatePool{Spec: spec(), Now: f.now})
	f.refused(err, pool.CodeNotFound)
	f.pool()
	_, err = f.store.UpdatePool(f.Context(), store.UpdatePool{Spec: spec(), Generation: 1, Now: f.now})
	f.must(err)
	_, err = f.store.UpdatePool(f.Context(), store.UpdatePool{Spec: spec(), Generation: 1, Now: f.now})
	f.refused(err, pool.CodeAborted)
	f.warm(1)
	f.must(f.store.ClosePool(f.Context(), store.ClosePool{Pool: key, Now: f.now}))
	_, err = f.store.UpdatePool(f.Context(), store.UpdatePool{Spec: spec(), Now: f.now})
	f.refused(err, pool.CodeFailedPrecondition)
}

func testCloseHeld(f *fixture) {
	closeIt := func(force bool) error {
		return f.store.ClosePool(f.Context(), store.ClosePool{Pool: key, Force: force, Now: f.now})
	}
	f.refused(closeIt(false), pool.CodeNotFound)
	f.pool()
	f.warm(2)
	before := f.claim(withHooks)
	f.refused(closeIt(false), pool.CodeFailedPrecondition)
	if f.view().Pool.Closing || f.vm(before.VM.ID).Phase != pool.PreLeaseHookRunning {
		f.Fatal("a refused deletion changed something")
	}
	f.must(closeIt(true))
	f.must(closeIt(false)) // again is fine, held VMs or not
	if !f.view().Pool.Closing {
		f.Fatal("the pool is not closing")
	}
}

func testCloseEndsLeases(f *fixture) {
	f.pool()
	f.warm(3)
	held, pending := f.claim(requestID("r")), f.claim(withHooks)
	f.must(f.store.ClosePool(f.Context(), store.ClosePool{Pool: key, Force: true, Now: f.now}))
	_, err := f.store.Renew(f.Context(), held.Lease.ID, f.now)
	f.refused(err, pool.CodeNotFound)
	f.refused(f.store.Release(f.Context(), held.Lease.ID, "", f.now), pool.CodeNotFound)
	_, _, err = f.store.GetLease(f.Context(), held.Lease.ID)
	f.refused(err, pool.CodeNotFound)
	_, err = f.store.CompleteClaim(f.Context(), pending.Lease.ID, f.now)
	f.refused(err, pool.CodeAborted)
	f.refused(f.store.FailClaim(f.Context(), store.FailClaim{Lease: pending.Lease.ID, Payload: map[string]any{}, Now: f.now}), pool.CodeAborted)
	_, err = f.tryClaim(requestID("r"))
	f.refused(err, pool.CodeNotFound)
	leases, err := f.store.ListLeases(f.Context(), &key)
	f.must(err)
	if len(leases) != 0 {
		f.Fatalf("%d leases of a pool that is being deleted", len(leases))
	}
	expire := store.ExpireLease{Lease: held.Lease.ID, Version: held.Lease.Version}
	f.pass(time.Hour)
	f.failed(f.tryOne(expire), store.ErrConflict)
	if events := f.events(0, pool.EventVMHookFailed); len(events) != 0 {
		f.Fatalf("a deletion is no failed hook: %v", events)
	}
}

func testCloseToTheEnd(f *fixture) {
	f.pool()
	ids := f.warm(3)
	ids = append(ids, f.grow(1)...)
	f.claim()
	f.claim(withHooks)
	f.must(f.store.ClosePool(f.Context(), store.ClosePool{Pool: key, Force: true, Now: f.now}))
	f.failed(f.tryOne(store.RemovePool{}), store.ErrConflict)
	f.failed(f.tryOne(store.Grow{IDs: []string{"web-late"}, Revision: 1, MaxSlots: 100}), store.ErrConflict)
	f.failed(f.tryOne(store.Place{VM: ids[3], Version: f.vm(ids[3]).Version, Host: "host-a"}), store.ErrConflict)
	withSuccessor := f.condemn(ids[3], pool.ReasonRollout)
	withSuccessor.Successor = &store.Successor{ID: "web-late", Revision: 1}
	f.failed(f.tryOne(withSuccessor), store.ErrConflict)
	mark := f.store.LastEvent()
	for _, id := range ids {
		f.do(f.condemn(id, pool.ReasonPoolDeleted))
		f.remove(id)
	}
	end := pool.EventVMDeletedPoolDelete
	f.told(mark, end, end, end, end)
	f.do(store.RemovePool{})
	_, err := f.store.GetPool(f.Context(), key)
	f.refused(err, pool.CodeNotFound)
	_, err = f.store.Snapshot(f.Context(), key)
	f.refused(err, pool.CodeNotFound)
	_, err = f.store.Revisions(f.Context(), key)
	f.refused(err, pool.CodeNotFound)
	f.failed(f.tryOne(store.RemovePool{}), store.ErrConflict)
}

func testNameIsFree(f *fixture) {
	f.pool()
	f.update(image("base:2"))
	f.failed(f.tryOne(store.RemovePool{}), store.ErrConflict) // not closing
	f.must(f.store.ClosePool(f.Context(), store.ClosePool{Pool: key, Now: f.now}))
	f.do(store.RemovePool{})
	p := f.pool(image("base:3"))
	if p.Generation != 1 || p.Revision != 1 || p.Version != 1 || p.NextSlot != 0 {
		f.Fatalf("the new pool took over from the old one: %+v", p)
	}
	f.warm(1)
	f.reopen()
	if got := f.view(); got.Pool.TemplateHash != p.TemplateHash || got.Counts.Claimable != 1 {
		f.Fatalf("after reopening: %+v", got)
	}
}

func testLists(f *fixture) {
	f.host("host-a")
	f.host("host-b")
	for _, k := range []pool.Key{{Namespace: "b", Name: "x"}, {Namespace: "a", Name: "z"}, key, {Namespace: "a", Name: "y"}} {
		_, err := f.store.CreatePool(f.Context(), store.CreatePool{Spec: spec(func(s *pool.Spec) { s.Key = k }), Now: f.now})
		f.must(err)
	}
	names := func(namespace string) (got []string) {
		views, err := f.store.ListPools(f.Context(), namespace)
		f.must(err)
		for _, v := range views {
			got = append(got, v.Pool.Key().String())
		}
		return got
	}
	if got := names(""); !slices.Equal(got, []string{"a/y", "a/z", "b/x", "team-a/web"}) {
		f.Fatalf("all pools: %v", got)
	}
	if got := names("a"); !slices.Equal(got, []string{"a/y", "a/z"}) {
		f.Fatalf("pools of a: %v", got)
	}
	ids := f.grow(4)
	f.bootOn("host-b", ids[1], ids[2])
	list := func(q store.VMQuery) (got []string) {
		vms, err := f.store.ListVMs(f.Context(), q)
		f.must(err)
		for _, vm := range vms {
			got = append(got, vm.ID)
		}
		return got
	}
	for name, c := range map[string]struct {
		q    store.VMQuery
		want []string
	}{
		"all":        {store.VMQuery{}, ids},
		"pool":       {store.VMQuery{Pool: &key}, ids},
		"other pool": {store.VMQuery{Pool: &pool.Key{Namespace: "a", Name: "y"}}, nil},
		"no pool":    {store.VMQuery{Pool: &pool.Key{Namespace: "a", Name: "none"}}, nil},
		"page":       {store.VMQuery{After: ids[0], Limit: 2}, ids[1:3]},
		"host":       {store.VMQuery{Host: "host-b"}, ids[1:3]},
		"phase":      {store.VMQuery{Phases: []pool.Phase{pool.Provisioning}}, []string{ids[0], ids[3]}},
		"both":       {store.VMQuery{Phases: []pool.Phase{pool.Available}, After: ids[1]}, ids[2:3]},
	} {
		if got := list(c.q); !slices.Equal(got, c.want) {
			f.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

func testResultsAreCopies(f *fixture) {
	s := spec(createCommands("a"))
	f.host("host-a")
	_, err := f.store.CreatePool(f.Context(), store.CreatePool{Spec: s, Now: f.now})
	f.must(err)
	s.CreateCommands[0] = "changed"
	id := f.grow(1)[0]
	f.place("host-a", id)
	nics := map[string]pool.Interface{"eth1": {HostDevice: "tap0", Index: 7, MAC: "02:00:00:00:00:01"}}
	f.do(store.Booted{VM: id, Version: f.vm(id).Version, Interfaces: nics})
	nics["eth1"] = pool.Interface{}
	f.vm(id).Interfaces["eth1"] = pool.Interface{}
	if got := f.view().Pool.Spec.CreateCommands[0]; got != "a" {
		f.Fatalf("the caller's slice reaches into the store: %q", got)
	}
	if got := f.vm(id).Interfaces["eth1"].Index; got != 7 {
		f.Fatalf("a map reaches into the store: index %d", got)
	}
	f.reopen()
	if got := f.vm(id).Interfaces["eth1"]; got != (pool.Interface{HostDevice: "tap0", Index: 7, MAC: "02:00:00:00:00:01"}) {
		f.Fatalf("the interface after reopening: %+v", got)
	}
}
