package storetest

import (
	"time"

	"poolmgr/internal/pool"
	"poolmgr/internal/store"
)

var hostTests = []test{
	{"AddGetListRemove", testHostLife},
	{"OneAddressOneHost", testHostAddress},
	{"UpdateReplacesAddressAndLimits", testHostUpdate},
	{"CordonAndUncordon", testCordon},
	{"RemoveOfAHostInUseIsRefused", testHostInUse},
	{"ReachabilityIsStoredAndWakesPools", testReachable},
	{"RoomOnAHostWakesThoseWhoWait", testRoomWakes},
	{"LoadCountsAllPools", testLoad},
	{"UnknownHosts", testHostUnknown},
}

func testHostLife(f *fixture) {
	f.host("host-b")
	h, err := f.store.AddHost(f.Context(), pool.Host{
		Name: "host-a", Address: "a:1", TLS: pool.HostTLS{CAFile: "/ca", CertFile: "/c", KeyFile: "/k"},
		MaxVMs: 5, MemoryMB: 4096, MinVMMemoryMB: 128,
	}, f.now)
	f.must(err)
	if !h.Reachable || h.Version != 1 || !h.UpdatedAt.Equal(f.now) || h.TLS.KeyFile != "/k" || h.MinVMMemoryMB != 128 {
		f.Fatalf("added %+v", h)
	}
	_, err = f.store.AddHost(f.Context(), pool.Host{Name: "host-a", Address: "z:1"}, f.now)
	f.refused(err, pool.CodeAlreadyExists)
	f.reopen()
	hosts, err := f.store.ListHosts(f.Context())
	f.must(err)
	if len(hosts) != 2 || hosts[0] != (pool.HostLoad{Host: h}) || hosts[1].Name != "host-b" {
		f.Fatalf("hosts %+v", hosts)
	}
	f.must(f.store.RemoveHost(f.Context(), "host-a"))
	_, err = f.store.GetHost(f.Context(), "host-a")
	f.refused(err, pool.CodeNotFound)
	h, err = f.store.AddHost(f.Context(), pool.Host{Name: "host-a", Address: "a:1"}, f.now)
	f.must(err)
	if h.Version != 1 || h.MaxVMs != 0 {
		f.Fatalf("added again %+v", h)
	}
}

func testHostAddress(f *fixture) {
	f.host("host-a")
	_, err := f.store.AddHost(f.Context(), pool.Host{Name: "other", Address: "host-a:9090"}, f.now)
	f.refused(err, pool.CodeFailedPrecondition)
	f.host("host-b")
	_, err = f.store.UpdateHost(f.Context(), pool.Host{Name: "host-b", Address: "host-a:9090"}, f.now)
	f.refused(err, pool.CodeFailedPrecondition)
	_, err = f.store.UpdateHost(f.Context(), pool.Host{Name: "host-a", Address: "new:1"}, f.now)
	f.must(err)
	_, err = f.store.AddHost(f.Context(), pool.Host{Name: "other", Address: "host-a:9090"}, f.now)
	f.must(err) // the address is free again
}

func testHostUpdate(f *fixture) {
	f.pool()
	_, err := f.store.CordonHost(f.Context(), "host-a", true, "why", f.now)
	f.must(err)
	f.pass(time.Minute)
	h, err := f.store.UpdateHost(f.Context(), pool.Host{Name: "host-a", Address: "new:1", MaxVMs: 3, TLS: pool.HostTLS{Insecure: true}}, f.now)
	f.must(err)
	if h.Address != "new:1" || h.MaxVMs != 3 || !h.TLS.Insecure || !h.Cordoned || h.CordonedReason != "why" || !h.Reachable || h.Version != 3 {
		f.Fatalf("updated %+v", h)
	}
	_, err = f.store.CordonHost(f.Context(), "host-a", false, "", f.now)
	f.must(err)
	f.warm(1)
	_, err = f.store.UpdateHost(f.Context(), pool.Host{Name: "host-a", Address: "other:1"}, f.now)
	f.refused(err, pool.CodeFailedPrecondition)
	_, err = f.store.UpdateHost(f.Context(), pool.Host{Name: "host-a", Address: "new:1", MaxVMs: 9}, f.now)
	f.must(err)
}

func testCordon(f *fixture) {
	f.pool()
	f.dirty()
	cordon := func(on bool, why string) pool.Host {
		f.Helper()
		h, err := f.store.CordonHost(f.Context(), "host-a", on, why, f.now)
		f.must(err)
		return h
	}
	h := cordon(true, "upgrade")
	if !h.Cordoned || h.CordonedReason != "upgrade" || !h.CordonedAt.Equal(f.now) || !f.dirty() {
		f.Fatalf("cordoned %+v", h)
	}
	f.pass(time.Minute)
	if again := cordon(true, "upgrade"); again != h || f.dirty() {
		f.Fatalf("cordoned again %+v", again)
	}
	f.reopen()
	if h = cordon(false, "ignored"); h.Cordoned || h.CordonedReason != "" || !h.CordonedAt.IsZero() || !f.dirty() {
		f.Fatalf("uncordoned %+v", h)
	}
}

func testHostInUse(f *fixture) {
	f.host("host-b")
	f.pool(func(s *pool.Spec) { s.Hosts = []string{"host-a", "host-b"} })
	f.refused(f.store.RemoveHost(f.Context(), "host-b"), pool.CodeFailedPrecondition)
	id := f.grow(1)[0]
	f.bootOn("host-b", id)
	f.update()
	f.refused(f.store.RemoveHost(f.Context(), "host-b"), pool.CodeFailedPrecondition)
	f.do(f.condemn(id, pool.ReasonDrain))
	f.refused(f.store.RemoveHost(f.Context(), "host-b"), pool.CodeFailedPrecondition) // not confirmed gone
	f.remove(id)
	f.must(f.store.RemoveHost(f.Context(), "host-b"))
}

func testReachable(f *fixture) {
	f.host("host-b")
	f.pool(func(s *pool.Spec) { s.Hosts = []string{"host-a"} })
	f.warm(1)
	f.dirty()
	f.pass(time.Minute)
	set := func(name string, reachable bool, message string) pool.Host {
		f.Helper()
		f.must(f.store.SetReachable(f.Context(), name, reachable, message, f.now))
		h, err := f.store.GetHost(f.Context(), name)
		f.must(err)
		return h.Host
	}
	set("host-b", false, "x")
	if f.dirty() {
		f.Fatal("a host that the pool does not use woke it")
	}
	h := set("host-a", false, "timeout")
	if h.Reachable || h.Message != "timeout" || !h.ChangedAt.Equal(f.now) || !f.dirty() {
		f.Fatalf("unreachable %+v", h)
	}
	f.pass(time.Minute)
	if again := set("host-a", false, "timeout"); again != h || f.dirty() {
		f.Fatalf("no news: %+v", again)
	}
	if later := set("host-a", false, "refused"); later.Message != "refused" || !later.ChangedAt.Equal(h.ChangedAt) {
		f.Fatalf("another message: %+v", later)
	}
	f.update(func(s *pool.Spec) { s.Hosts = []string{"host-b"} })
	f.dirty()
	if set("host-a", true, ""); !f.dirty() {
		f.Fatal("a host with VMs of the pool did not wake it")
	}
}

// testRoomWakes: a pool that waits for room on a host is dirty when another pool's VM leaves it.
func testRoomWakes(f *fixture) {
	f.host("host-a", func(h *pool.Host) { h.MaxVMs = 1 })
	waiting := pool.Key{Namespace: "team-b", Name: "waiting"}
	_, err := f.store.CreatePool(f.Context(), store.CreatePool{Spec: spec(func(s *pool.Spec) { s.Key = waiting }), Now: f.now})
	f.must(err)
	f.pool()
	id := f.warm(1)[0]
	f.do(f.condemn(id, pool.ReasonScaleDown))
	f.store.Dirty().Take()
	f.remove(id)
	for _, k := range f.store.Dirty().Take() {
		if k == waiting {
			return
		}
	}
	f.Fatal("nobody told the pool that waits for room")
}

func testLoad(f *fixture) {
	other := pool.Key{Namespace: "team-b", Name: "big"}
	f.pool()
	ids := f.warm(2)
	f.place("host-a", f.grow(1)...)
	f.do(f.condemn(ids[0], pool.ReasonScaleDown))
	_, err := f.store.CreatePool(f.Context(), store.CreatePool{Spec: spec(func(s *pool.Spec) { s.Key, s.Template.MemoryInMb = other, 1024 }), Now: f.now})
	f.must(err)
	results, err := f.store.Apply(f.Context(), store.Step{Pool: other, Epoch: f.store.Epoch(), Now: f.now, Actions: []store.Action{
		store.Grow{IDs: []string{"big-1", "big-2"}, Revision: 1, MaxSlots: 2}, store.Place{VM: "big-1", Version: 1, Host: "host-a"},
	}})
	f.must(err)
	f.must(results[0])
	f.must(results[1])
	want := pool.HostLoad{Rows: 4, Live: 3, Starts: 2, MemoryMB: 3*256 + 1024}
	for range 2 {
		h := f.snapshot().Hosts[0]
		want.Host = h.Host
		if h != want {
			f.Fatalf("load %+v, want %+v", h, want)
		}
		f.reopen()
	}
}

func testHostUnknown(f *fixture) {
	_, err := f.store.UpdateHost(f.Context(), pool.Host{Name: "none"}, f.now)
	f.refused(err, pool.CodeNotFound)
	_, err = f.store.CordonHost(f.Context(), "none", true, "", f.now)
	f.refused(err, pool.CodeNotFound)
	f.refused(f.store.RemoveHost(f.Context(), "none"), pool.CodeNotFound)
	f.refused(f.store.SetReachable(f.Context(), "none", true, "", f.now), pool.CodeNotFound)
	_, err = f.store.GetHost(f.Context(), "none")
	f.refused(err, pool.CodeNotFound)
}
