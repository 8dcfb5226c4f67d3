package storetest

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"poolmgr/internal/pool"
	"poolmgr/internal/store"
)

var warmTests = []test{
	{"GrowMakesSlots", testGrow},
	{"GrowKeepsToMaxSlots", testGrowMax},
	{"GrowOfATakenIDIsAConflict", testGrowTaken},
	{"SurgeIsTheSecondRowOfASlot", testSurge},
	{"SurgeConflicts", testSurgeConflicts},
	{"CondemnWithSuccessorIsOneChange", testSuccessor},
	{"CondemnRecountsReadySlots", testKeepReady},
	{"CondemnRecountsReadySlotsAsThePlannerDoes", testKeepReadyCounts},
	{"CondemnRecountsSlots", testKeepSlots},
	{"CondemnKeepsThePeer", testKeepPeer},
	{"CondemnOfAVMThatWasClaimedIsAConflict", testCondemnClaimed},
	{"CondemnNeverTakesAHeldVM", testCondemnHeld},
	{"CondemnOfALostVMEndsItsLease", testCondemnLost},
	{"EveryReasonHasItsEvent", testReasons},
	{"IllegalTransitionsAreRefused", testIllegal},
}

func testGrow(f *fixture) {
	f.pool()
	f.dirty()
	ids := f.grow(2)
	f.grow(1)
	vm := f.vm(ids[1])
	want := pool.VM{
		ID: ids[1], Pool: key, Slot: "s1", Phase: pool.Provisioning, Namespace: key.Namespace, Revision: 1,
		TemplateHash: f.view().Pool.TemplateHash, ForRollout: true, Health: pool.HealthGood,
		CreatedAt: f.now, UpdatedAt: f.now, Version: 1,
	}
	if d := diff(want, vm); d != "" {
		f.Fatalf("a new row (-want +got):\n%s", d)
	}
	var slots []string
	for _, vm := range f.snapshot().VMs {
		slots = append(slots, vm.Slot)
	}
	if !slices.Equal(slots, []string{"s0", "s1", "s2"}) || f.view().Pool.NextSlot != 3 {
		f.Fatalf("slots %v, next %d", slots, f.view().Pool.NextSlot)
	}
	e := f.told(0, pool.EventPoolReplenishing, pool.EventPoolReplenishing)[0]
	if number(e, "count") != 2 || number(e, "revision") != 1 || e.VM != "" {
		f.Fatalf("event %+v", e)
	}
	if !f.dirty() {
		f.Fatal("growth does not make the pool dirty")
	}
}

func testGrowMax(f *fixture) {
	f.pool()
	f.do(store.Grow{IDs: []string{"web-1", "web-2"}, Revision: 1, MaxSlots: 3})
	f.failed(f.tryOne(store.Grow{IDs: []string{"web-3", "web-4"}, Revision: 1, MaxSlots: 3}), store.ErrConflict)
	f.gone("web-3")
	f.do(store.Grow{IDs: []string{"web-3"}, Revision: 1, MaxSlots: 3})
	if err := f.tryOne(store.Grow{IDs: []string{"web-4"}, Revision: 9, MaxSlots: 9}); err == nil {
		f.Fatal("a row of a revision that does not exist")
	}
	f.told(0, pool.EventPoolReplenishing, pool.EventPoolReplenishing)
}

func testGrowTaken(f *fixture) {
	f.pool()
	id := f.grow(1)[0]
	f.failed(f.tryOne(store.Grow{IDs: []string{"web-new", id}, Revision: 1, MaxSlots: 9}), store.ErrConflict)
	f.gone("web-new")
	if next := f.view().Pool.NextSlot; next != 1 {
		f.Fatalf("a refused growth used a slot: the next is s%d", next)
	}
	f.failed(f.tryOne(store.Grow{IDs: []string{"web-twice", "web-twice"}, Revision: 1, MaxSlots: 9}), store.ErrConflict)
	f.gone("web-twice")
}

func testSurge(f *fixture) {
	f.pool()
	old := f.warm(1)[0]
	f.update(image("base:2"))
	f.do(store.Surge{ID: "web-new", Beside: old, Version: f.vm(old).Version, Revision: 2})
	vm := f.vm("web-new")
	if vm.Slot != "s0" || vm.Revision != 2 || !vm.ForRollout || vm.TemplateHash != f.view().Pool.TemplateHash {
		f.Fatalf("surge row %+v", vm)
	}
	f.failed(f.tryOne(store.Surge{ID: "web-more", Beside: old, Version: f.vm(old).Version, Revision: 2}), store.ErrConflict)
	f.boot("web-new")
	c := f.condemn(old, pool.ReasonRollout)
	c.KeepReady, c.KeepSlots, c.KeepPeer = 1, 1, true
	f.do(c)
	if got := f.vm(old); got.Slot != "" || got.Phase != pool.Deleting {
		f.Fatalf("the old half %+v", got)
	}
}

func testSurgeConflicts(f *fixture) {
	f.pool()
	ids := f.warm(1)
	version := f.vm(ids[0]).Version
	young := f.grow(1)[0]
	f.failed(f.tryOne(store.Surge{ID: "web-new", Beside: ids[0], Version: version - 1, Revision: 1}), store.ErrConflict)
	f.failed(f.tryOne(store.Surge{ID: "web-new", Beside: "web-none", Version: 1, Revision: 1}), store.ErrConflict)
	f.failed(f.tryOne(store.Surge{ID: "web-new", Beside: young, Version: f.vm(young).Version, Revision: 1}), store.ErrIllegalTransition)
	f.claim()
	f.failed(f.tryOne(store.Surge{ID: "web-new", Beside: ids[0], Version: version, Revision: 1}), store.ErrConflict)
	f.gone("web-new")
}

func testSuccessor(f *fixture) {
	f.pool()
	old := f.warm(1)[0]
	f.update(image("base:2"))
	f.pass(time.Minute)
	c := f.condemn(old, pool.ReasonRollout)
	c.Successor = &store.Successor{ID: "web-new", Revision: 2, Attempt: 2, NotBefore: f.now.Add(time.Second)}
	f.do(c)
	was, now := f.vm(old), f.vm("web-new")
	if was.Phase != pool.Deleting || was.Reason != pool.ReasonRollout || was.Slot != "" || !was.UpdatedAt.Equal(f.now) {
		f.Fatalf("condemned %+v", was)
	}
	if now.Slot != "s0" || now.Attempt != 2 || !now.NotBefore.Equal(c.Successor.NotBefore) || !now.ForRollout || now.Revision != 2 {
		f.Fatalf("successor %+v", now)
	}
	f.failed(f.tryOne(store.Place{VM: "web-new", Version: now.Version, Host: "host-a"}), store.ErrConflict) // backoff
	taken := f.condemn("web-new", pool.ReasonScaleDown)
	taken.Successor = &store.Successor{ID: old, Revision: 2}
	f.failed(f.tryOne(taken), store.ErrConflict)
	if f.vm("web-new").Phase != pool.Provisioning {
		f.Fatal("condemned without the successor it was to have")
	}
}

func testKeepReady(f *fixture) {
	f.pool()
	ids := f.warm(3)
	keep := func(id string, n int) error {
		c := f.condemn(id, pool.ReasonMaxAge)
		c.KeepReady = n
		c.Successor = &store.Successor{ID: f.id("web"), Revision: 1}
		return f.tryOne(c)
	}
	f.failed(keep(ids[0], 3), store.ErrConflict)
	f.must(keep(ids[0], 2))
	f.failed(keep(ids[1], 2), store.ErrConflict)
	f.do(store.Probed{VM: ids[2], Version: f.vm(ids[2]).Version, Health: pool.HealthUnknown})
	f.failed(keep(ids[1], 1), store.ErrConflict) // a VM that does not answer is not ready
	f.must(keep(ids[1], 0))
}

func testKeepReadyCounts(f *fixture) {
	f.host("host-b")
	f.pool(func(s *pool.Spec) { s.Rollout.MinReady = time.Minute })
	ids := f.warm(2)
	f.bootOn("host-b", f.grow(1)...)
	keep := func(n int) error {
		c := f.condemn(ids[0], pool.ReasonMaxAge)
		c.KeepReady, c.Successor = n, &store.Successor{ID: f.id("web"), Revision: 1}
		return f.tryOne(c)
	}
	f.failed(keep(1), store.ErrConflict) // younger than min_ready
	f.pass(time.Minute)
	f.must(f.store.SetReachable(f.Context(), "host-b", false, "", f.now))
	f.failed(keep(2), store.ErrConflict) // on a host that does not answer
	f.must(keep(1))
}

func testKeepSlots(f *fixture) {
	f.pool()
	ids := f.warm(2)
	f.grow(1)
	f.claim()
	keep := func(n int) error {
		c := f.condemn(ids[1], pool.ReasonScaleDown)
		c.KeepSlots = n
		return f.tryOne(c)
	}
	f.failed(keep(2), store.ErrConflict)
	f.must(keep(1))
}

func testKeepPeer(f *fixture) {
	f.pool()
	old := f.warm(1)[0]
	f.do(store.Surge{ID: "web-peer", Beside: old, Version: f.vm(old).Version, Revision: 1})
	keep := func() error {
		c := f.condemn(old, pool.ReasonExcess)
		c.KeepPeer = true
		return f.tryOne(c)
	}
	f.failed(keep(), store.ErrConflict) // the other one is not ready yet
	f.boot("web-peer")
	f.must(keep())
	if f.vm("web-peer").Slot != "s0" {
		f.Fatal("the slot lost its peer")
	}
}

func testCondemnClaimed(f *fixture) {
	f.pool()
	id := f.warm(1)[0]
	c := f.condemn(id, pool.ReasonRollout)
	f.claim()
	f.failed(f.tryOne(c), store.ErrConflict)
	if f.vm(id).Phase != pool.Leased {
		f.Fatal("a rollout took a VM that had been claimed")
	}
}

func testCondemnHeld(f *fixture) {
	f.pool()
	ids := f.warm(2)
	held, pending := f.claim(), f.claim(withHooks)
	for _, why := range []pool.Reason{pool.ReasonRollout, pool.ReasonScaleDown, pool.ReasonMaxAge, pool.ReasonUnhealthy} {
		f.failed(f.tryOne(f.condemn(ids[0], why)), store.ErrIllegalTransition)
		f.failed(f.tryOne(f.condemn(ids[1], why)), store.ErrIllegalTransition)
	}
	if f.vm(held.VM.ID).Phase != pool.Leased || f.vm(pending.VM.ID).Phase != pool.PreLeaseHookRunning {
		f.Fatal("a held VM was taken")
	}
}

func testCondemnLost(f *fixture) {
	f.pool()
	id := f.warm(1)[0]
	r := f.claim()
	c := f.condemn(id, pool.ReasonUnhealthy)
	c.Lost = true
	f.do(c)
	_, err := f.store.Renew(f.Context(), r.Lease.ID, f.now)
	f.refused(err, pool.CodeNotFound)
	mark := f.store.LastEvent()
	f.remove(id)
	f.told(mark, pool.EventVMDeletedUnhealthy)
}

func testReasons(f *fixture) {
	f.pool()
	for _, why := range []pool.Reason{
		pool.ReasonReleased, pool.ReasonExpired, pool.ReasonRollout, pool.ReasonPoolDeleted, pool.ReasonScaleDown, pool.ReasonUnhealthy,
		pool.ReasonAdmin, pool.ReasonFailed, pool.ReasonMaxAge, pool.ReasonDrain, pool.ReasonExcess,
	} {
		id := f.warm(1)[0]
		f.do(f.condemn(id, why))
		f.reopen() // however late the deletion is confirmed
		mark := f.store.LastEvent()
		f.remove(id)
		e := f.told(mark, why.DeletedEvent())[0]
		if e.Payload["reason"] != string(why) || e.Payload["vm_id"] != id || e.Payload["host"] != "host-a" || number(e, "revision") != 1 || e.UID != "uid-"+id {
			f.Fatalf("%s: event %+v", why, e)
		}
		f.gone(id)
	}
}

// testIllegal tries every action on a VM in every phase, with the right version: what the table forbids is refused,
// loudly, and changes nothing.
func testIllegal(f *fixture) {
	f.pool(createCommands("true"), func(s *pool.Spec) { s.HookFailurePolicy, s.Size = pool.Quarantine, 9 })
	ids := f.grow(4) // the first one stays PROVISIONING
	f.place("host-a", ids[0], ids[1])
	f.do(store.Booted{VM: ids[1], Version: f.vm(ids[1]).Version})
	f.place("host-a", ids[2])
	f.do(f.fail(ids[2]))
	f.do(f.condemn(ids[3], pool.ReasonScaleDown))
	leased := f.warm(1)[0]
	f.claim()
	pre := f.warm(1)[0]
	f.claim(withHooks)
	idle := f.warm(1)[0]
	in := map[pool.Phase]string{
		pool.Provisioning: ids[0], pool.CreateHookRunning: ids[1], pool.Quarantined: ids[2], pool.Deleting: ids[3],
		pool.Leased: leased, pool.PreLeaseHookRunning: pre, pool.Available: idle,
	}
	legal := map[string][]pool.Phase{
		"Booted":    {pool.Provisioning},
		"HooksDone": {pool.CreateHookRunning},
		"Fail":      {pool.Provisioning, pool.CreateHookRunning},
		"Probed":    {pool.Available},
		"Gone":      {pool.Deleting},
		"Condemn":   {pool.Provisioning, pool.CreateHookRunning, pool.Available, pool.Quarantined},
		"Place":     {pool.Provisioning},
		"Unplace":   {pool.Provisioning},
		"Surge":     {pool.Available},
	}
	for phase, id := range in {
		vm := f.vm(id)
		if vm.Phase != phase {
			f.Fatalf("VM %s is %s, want %s", id, vm.Phase, phase)
		}
		for name, action := range map[string]store.Action{
			"Booted":    store.Booted{VM: id, Version: vm.Version},
			"HooksDone": store.HooksDone{VM: id, Version: vm.Version},
			"Fail":      f.fail(id),
			"Probed":    store.Probed{VM: id, Version: vm.Version, Health: pool.HealthBroken},
			"Gone":      store.Gone{VM: id, Version: vm.Version},
			"Condemn":   f.condemn(id, pool.ReasonScaleDown),
			"Place":     store.Place{VM: id, Version: vm.Version, Host: "host-a"},
			"Unplace":   store.Unplace{VM: id, Version: vm.Version},
			"Surge":     store.Surge{ID: f.id("web"), Beside: id, Version: vm.Version, Revision: 1},
		} {
			if slices.Contains(legal[name], phase) {
				continue
			}
			what := fmt.Sprintf("%s of a VM that is %s", name, phase)
			if err := f.tryOne(action); !errors.Is(err, store.ErrIllegalTransition) {
				f.Errorf("%s: %v, want %v", what, err, store.ErrIllegalTransition)
			}
			if d := diff(vm, f.vm(id)); d != "" {
				f.Fatalf("%s changed it (-before +after):\n%s", what, d)
			}
		}
	}
}
