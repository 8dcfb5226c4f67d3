package storetest

import (
	"strings"
	"time"

	"poolmgr/internal/pool"
	"poolmgr/internal/store"
)

var bootTests = []test{
	{"PlaceNamesTheHostAndStartsTheClock", testPlace},
	{"PlaceRespectsTheHostsLimits", testPlaceLimits},
	{"PlaceRefusesUnfitHosts", testPlaceUnfit},
	{"UnplaceWaitsAgain", testUnplace},
	{"AcceptedIsReportedOnce", testAccepted},
	{"AcceptedOfACondemnedVMKeepsItsID", testAcceptedLate},
	{"BootedWithoutCommandsIsAvailable", testBooted},
	{"BootedWithCommandsRunsThemFirst", testBootedCommands},
	{"FailDeletesAndReplaces", testFail},
	{"FailQuarantinesWithinTheLimit", testFailQuarantine},
	{"FailInAClosingPoolHasNoSuccessor", testFailClosing},
	{"ProbesChangeWhatIsClaimable", testProbed},
	{"StaleVersionsAreConflicts", testStaleVersions},
}

func testPlace(f *fixture) {
	f.pool()
	id := f.grow(1)[0]
	f.pass(time.Minute)
	f.do(store.Place{VM: id, Version: 1, Host: "host-a"})
	vm := f.vm(id)
	if vm.Host != "host-a" || !vm.SentAt.Equal(f.now) || vm.Version != 2 || vm.Phase != pool.Provisioning {
		f.Fatalf("placed %+v", vm)
	}
	f.failed(f.tryOne(store.Place{VM: id, Version: 2, Host: "host-a"}), store.ErrConflict)
	h, err := f.store.GetHost(f.Context(), "host-a")
	f.must(err)
	if h.Rows != 1 || h.Live != 1 || h.Starts != 1 || h.MemoryMB != 256 {
		f.Fatalf("load %+v", h)
	}
}

func testPlaceLimits(f *fixture) {
	f.host("rows", func(h *pool.Host) { h.MaxVMs = 2 })
	f.host("memory", func(h *pool.Host) { h.MemoryMB = 600 })
	f.host("starts")
	f.pool()
	ids := f.grow(9)
	place := func(host string, starts int) error {
		a := store.Place{VM: ids[0], Version: f.vm(ids[0]).Version, Host: host, MaxStarts: starts}
		ids = ids[1:]
		return f.tryOne(a)
	}
	for _, host := range []string{"rows", "memory"} {
		f.must(place(host, 0))
		f.must(place(host, 0))
		f.failed(place(host, 0), store.ErrConflict)
	}
	first := ids[0]
	f.must(place("starts", 1))
	f.failed(place("starts", 1), store.ErrConflict)
	f.do(store.Accepted{VM: first, Version: f.vm(first).Version, UID: "u"})
	f.failed(place("starts", 1), store.ErrConflict) // accepted is not answered yet
	f.do(store.Booted{VM: first, Version: f.vm(first).Version})
	ids = f.grow(1)
	f.must(place("starts", 1))
}

func testPlaceUnfit(f *fixture) {
	f.host("cordoned")
	f.host("silent")
	f.pool(func(s *pool.Spec) { s.Hosts = []string{"cordoned", "silent", "host-a"} })
	f.host("foreign")
	_, err := f.store.CordonHost(f.Context(), "cordoned", true, "upgrade", f.now)
	f.must(err)
	f.must(f.store.SetReachable(f.Context(), "silent", false, "no answer", f.now))
	id := f.grow(1)[0]
	for _, host := range []string{"cordoned", "silent", "foreign", "nowhere"} {
		f.failed(f.tryOne(store.Place{VM: id, Version: 1, Host: host}), store.ErrConflict)
	}
	f.do(store.Place{VM: id, Version: 1, Host: "host-a"})
}

func testUnplace(f *fixture) {
	f.pool()
	id := f.grow(1)[0]
	f.failed(f.tryOne(store.Unplace{VM: id, Version: 1}), store.ErrConflict)
	f.do(store.Place{VM: id, Version: 1, Host: "host-a"})
	until := f.now.Add(time.Second)
	f.do(store.Unplace{VM: id, Version: 2, NotBefore: until, Message: "no room"})
	vm := f.vm(id)
	if vm.Host != "" || !vm.SentAt.IsZero() || !vm.NotBefore.Equal(until) || vm.Message != "no room" || vm.Slot != "s0" {
		f.Fatalf("taken back %+v", vm)
	}
	f.failed(f.tryOne(store.Place{VM: id, Version: 3, Host: "host-a"}), store.ErrConflict)
	f.pass(time.Second)
	f.place("host-a", id)
	f.failed(f.tryOne(store.Unplace{VM: id, Version: f.vm(id).Version}), store.ErrConflict) // accepted
}

func testAccepted(f *fixture) {
	f.pool()
	id := f.grow(1)[0]
	f.failed(f.tryOne(store.Accepted{VM: id, Version: 1, UID: "u1"}), store.ErrIllegalTransition) // on no host
	f.do(store.Place{VM: id, Version: 1, Host: "host-a"})
	mark := f.store.LastEvent()
	f.do(store.Accepted{VM: id, Version: 2, UID: "u1"}, store.Accepted{VM: id, Version: 3, UID: "u1"})
	f.failed(f.tryOne(store.Accepted{VM: id, Version: 3, UID: "u2"}), store.ErrConflict)
	e := f.told(mark, pool.EventVMProvisioned)[0]
	if e.VM != id || e.UID != "u1" || e.Payload["slot"] != "s0" || e.Payload["host"] != "host-a" {
		f.Fatalf("event %+v", e)
	}
}

func testAcceptedLate(f *fixture) {
	f.pool()
	id := f.grow(1)[0]
	f.do(store.Place{VM: id, Version: 1, Host: "host-a"})
	f.do(f.condemn(id, pool.ReasonScaleDown))
	f.failed(f.tryOne(store.Accepted{VM: id, Version: 2, UID: "u"}), store.ErrConflict)
	f.do(store.Accepted{VM: id, Version: 3, UID: "u"})
	if vm := f.vm(id); vm.UID != "u" || vm.Phase != pool.Deleting {
		f.Fatalf("accepted %+v", vm)
	}
}

func testBooted(f *fixture) {
	f.pool()
	id := f.grow(1)[0]
	f.do(store.Place{VM: id, Version: 1, Host: "host-a"})
	f.failed(f.tryOne(store.Booted{VM: id, Version: 2}), store.ErrIllegalTransition) // not accepted yet
	f.do(store.Accepted{VM: id, Version: 2, UID: "u"})
	f.pass(time.Minute)
	mark := f.store.LastEvent()
	f.do(store.Booted{VM: id, Version: 3})
	vm := f.vm(id)
	if vm.Phase != pool.Available || !vm.AvailableAt.Equal(f.now) || !vm.ProbedAt.Equal(f.now) || vm.Health != pool.HealthGood || vm.Slot != "s0" {
		f.Fatalf("booted %+v", vm)
	}
	f.told(mark, pool.EventVMAvailable)
	if c := f.view().Counts; c.Claimable != 1 || c.Warming != 0 {
		f.Fatalf("counts %+v", c)
	}
}

func testBootedCommands(f *fixture) {
	f.pool(createCommands("true"))
	id := f.grow(1)[0]
	f.place("host-a", id)
	mark := f.store.LastEvent()
	f.do(store.Booted{VM: id, Version: f.vm(id).Version, Interfaces: map[string]pool.Interface{"eth1": {MAC: "m"}}})
	vm := f.vm(id)
	if vm.Phase != pool.CreateHookRunning || vm.Interfaces["eth1"].MAC != "m" || !vm.AvailableAt.IsZero() {
		f.Fatalf("booted %+v", vm)
	}
	f.told(mark)
	h, err := f.store.GetHost(f.Context(), "host-a")
	f.must(err)
	if h.Starts != 0 {
		f.Fatalf("a VM that answered is a start in flight: %+v", h)
	}
	f.update() // the create commands of its own revision count, not the pool's present ones
	f.do(store.HooksDone{VM: id, Version: vm.Version})
	f.told(f.events(mark, pool.EventRolloutStarted)[0].ID, pool.EventVMAvailable)
}

func testFail(f *fixture) {
	f.pool()
	id := f.grow(1)[0]
	f.place("host-a", id)
	mark := f.store.LastEvent()
	a := f.fail(id, func(a *store.Fail) {
		a.Message = strings.Repeat("x", 10_000) + "the end\xff"
		a.Payload = map[string]any{"hook": "create_commands", "command": "false", "exit_code": 1, "stderr_tail": "oops"}
	})
	f.do(a)
	vm, next := f.vm(id), f.vm(a.Successor.ID)
	if vm.Phase != pool.Deleting || vm.Reason != pool.ReasonFailed || vm.Slot != "" {
		f.Fatalf("failed %+v", vm)
	}
	if len(vm.Message) > 5000 || !strings.HasSuffix(vm.Message, "the end\uFFFD") {
		f.Fatalf("message of %d bytes, ends with %q", len(vm.Message), vm.Message[len(vm.Message)-12:])
	}
	if next.Slot != "s0" || next.Attempt != 1 || !next.NotBefore.Equal(a.Successor.NotBefore) || !next.ForRollout {
		f.Fatalf("successor %+v", next)
	}
	e := f.told(mark, pool.EventVMHookFailed)[0]
	if e.Payload["stderr_tail"] != "oops" || number(e, "exit_code") != 1 || e.Payload["slot"] != "s0" || e.Payload["vm_id"] != id {
		f.Fatalf("payload %v", e.Payload)
	}
	f.do(f.fail(next.ID, func(a *store.Fail) { a.Payload = nil }))
	f.told(e.ID)
}

func testFailQuarantine(f *fixture) {
	one := 1
	f.pool(func(s *pool.Spec) { s.HookFailurePolicy, s.MaxQuarantined = pool.Quarantine, &one })
	ids := f.grow(4)
	f.do(f.fail(ids[3])) // never on a host: nothing to keep
	f.place("host-a", ids[0], ids[1], ids[2])
	f.do(f.fail(ids[0], func(a *store.Fail) { a.Innocent = true }), f.fail(ids[1]), f.fail(ids[2]))
	for i, want := range []pool.Phase{pool.Deleting, pool.Quarantined, pool.Deleting, pool.Deleting} {
		if got := f.vm(ids[i]); got.Phase != want || got.Slot != "" || got.Reason != pool.ReasonFailed {
			f.Errorf("VM %d: %+v, want %s", i, got, want)
		}
	}
	f.do(f.condemn(ids[1], pool.ReasonAdmin))
	mark := f.store.LastEvent()
	f.remove(ids[1])
	f.told(mark, pool.EventVMDeletedAdmin)
}

func testFailClosing(f *fixture) {
	f.pool(func(s *pool.Spec) { s.HookFailurePolicy = pool.Quarantine })
	id := f.grow(1)[0]
	f.place("host-a", id)
	f.must(f.store.ClosePool(f.Context(), store.ClosePool{Pool: key, Now: f.now}))
	a := f.fail(id)
	f.do(a)
	f.gone(a.Successor.ID)
	if vm := f.vm(id); vm.Phase != pool.Deleting {
		f.Fatalf("failed %+v", vm)
	}
}

func testProbed(f *fixture) {
	f.pool()
	id := f.warm(1)[0]
	f.dirty()
	probe := func(h pool.Health, failed int, at time.Time) {
		f.Helper()
		f.do(store.Probed{VM: id, Version: f.vm(id).Version, Health: h, FailedProbes: failed, At: at})
	}
	before := f.vm(id)
	probe(pool.HealthGood, 0, time.Time{})
	if d := diff(before, f.vm(id)); d != "" {
		f.Fatalf("a probe that told nothing new wrote (-before +after):\n%s", d)
	}
	mark := f.store.LastEvent()
	probe(pool.HealthGood, 2, time.Time{})
	if vm := f.vm(id); vm.FailedProbes != 2 || f.view().Counts.Claimable != 1 {
		f.Fatalf("probed %+v", vm)
	}
	for _, h := range []pool.Health{pool.HealthUnknown, pool.HealthBroken} {
		f.dirty()
		probe(h, 3, time.Time{})
		if f.view().Counts.Claimable != 0 || !f.dirty() {
			f.Fatalf("%s is claimable, or nobody is woken", h)
		}
		_, err := f.tryClaim()
		f.refused(err, pool.CodeExhausted)
	}
	f.pass(time.Minute)
	probe(pool.HealthGood, 0, f.now)
	if vm := f.vm(id); !vm.ProbedAt.Equal(f.now) || f.view().Counts.Claimable != 1 {
		f.Fatalf("probed %+v", vm)
	}
	f.told(mark)
}

func testStaleVersions(f *fixture) {
	f.pool()
	ids := f.warm(1)
	old := f.vm(ids[0]).Version - 1
	late := f.grow(1)[0]
	for _, a := range []store.Action{
		store.Condemn{VM: ids[0], Version: old},
		store.Probed{VM: ids[0], Version: old},
		store.Gone{VM: ids[0], Version: old},
		store.Place{VM: late, Version: 9, Host: "host-a"},
		store.Unplace{VM: late, Version: 9},
		store.Accepted{VM: late, Version: 9},
		store.Booted{VM: late, Version: 9},
		store.HooksDone{VM: late, Version: 9},
		store.Fail{VM: late, Version: 9},
		store.Gone{VM: "web-none", Version: 1},
	} {
		f.failed(f.tryOne(a), store.ErrConflict)
	}
}
