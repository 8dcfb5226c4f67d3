package storetest

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"poolmgr/api/flintlock/vmtypes"
	"poolmgr/internal/pool"
	"poolmgr/internal/store"
)

// fixture is a store with the steps that tests are made of. Its clock stands still until a test moves it.
type fixture struct {
	*testing.T
	store store.Store
	open  Opener
	now   time.Time
	ids   int
}

var key = pool.Key{Namespace: "team-a", Name: "web"}

func newFixture(t *testing.T, open Opener) *fixture {
	t.Helper()
	f := &fixture{T: t, open: open, now: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)}
	f.start()
	t.Cleanup(func() {
		f.Helper()
		Check(t, f.store)
		if err := f.store.Close(); err != nil {
			t.Errorf("close the store: %v", err)
		}
	})
	return f
}

func (f *fixture) start() {
	f.Helper()
	s, err := f.open(f.Context())
	if err != nil {
		f.Fatalf("open the store: %v", err)
	}
	f.store = s
}

// reopen closes the store and opens its storage again.
func (f *fixture) reopen() {
	f.Helper()
	Check(f, f.store)
	if err := f.store.Close(); err != nil {
		f.Fatalf("close the store: %v", err)
	}
	f.start()
}

// pass moves the clock.
func (f *fixture) pass(d time.Duration) { f.now = f.now.Add(d) }

// id is a new id with the prefix.
func (f *fixture) id(prefix string) string {
	f.ids++
	return fmt.Sprintf("%s-%08x", prefix, f.ids)
}

// template is a template that differs by its image.
func template(image string) *vmtypes.MicroVMSpec {
	return &vmtypes.MicroVMSpec{
		Vcpu: 1, MemoryInMb: 256,
		Kernel:     &vmtypes.Kernel{Image: "kernel:1"},
		RootVolume: &vmtypes.Volume{Id: "root", Source: &vmtypes.VolumeSource{ContainerSource: &image}},
	}
}

// spec is a valid spec with its defaults filled in, changed by the edits.
func spec(edits ...func(*pool.Spec)) pool.Spec {
	s := pool.Spec{
		Key: key, Template: template("base:1"), Size: 3,
		Strategy: pool.ImmediateOnLease, HookFailurePolicy: pool.DeleteAndReplace, ClaimPreference: pool.CurrentFirst,
		HeartbeatInterval: pool.DefaultHeartbeatInterval, HeartbeatExpiry: pool.DefaultHeartbeatExpiry,
		BootTimeout: pool.DefaultBootTimeout, CommandTimeout: pool.DefaultCommandTimeout,
	}
	for _, edit := range edits {
		edit(&s)
	}
	return s
}

func image(name string) func(*pool.Spec) { return func(s *pool.Spec) { s.Template = template(name) } }

func createCommands(lines ...string) func(*pool.Spec) {
	return func(s *pool.Spec) { s.CreateCommands = lines }
}

// must fails the test on an error.
func (f *fixture) must(err error) {
	f.Helper()
	if err != nil {
		f.Fatal(err)
	}
}

// refused demands an error of the code.
func (f *fixture) refused(err error, code pool.Code) {
	f.Helper()
	if e := (*pool.Error)(nil); !errors.As(err, &e) || e.Code != code {
		f.Fatalf("error %v, want one of code %s", err, code)
	}
}

// failed demands an error of the sentinel.
func (f *fixture) failed(err, sentinel error) {
	f.Helper()
	if !errors.Is(err, sentinel) {
		f.Fatalf("error %v, want %v", err, sentinel)
	}
}

// host registers a host named so.
func (f *fixture) host(name string, edits ...func(*pool.Host)) {
	f.Helper()
	h := pool.Host{Name: name, Address: name + ":9090"}
	for _, edit := range edits {
		edit(&h)
	}
	_, err := f.store.AddHost(f.Context(), h, f.now)
	f.must(err)
}

// pool creates the pool of the spec, with host-a to place VMs on.
func (f *fixture) pool(edits ...func(*pool.Spec)) pool.Pool {
	f.Helper()
	if _, err := f.store.GetHost(f.Context(), "host-a"); err != nil {
		f.host("host-a")
	}
	p, err := f.store.CreatePool(f.Context(), store.CreatePool{Spec: spec(edits...), Now: f.now})
	f.must(err)
	return p
}

func (f *fixture) update(edits ...func(*pool.Spec)) pool.Pool {
	f.Helper()
	p, err := f.store.UpdatePool(f.Context(), store.UpdatePool{Spec: spec(edits...), Now: f.now})
	f.must(err)
	return p
}

func (f *fixture) view() store.PoolView {
	f.Helper()
	view, err := f.store.GetPool(f.Context(), key)
	f.must(err)
	return view
}

// try applies actions to the pool and returns their results.
func (f *fixture) try(actions ...store.Action) []error {
	f.Helper()
	results, err := f.store.Apply(f.Context(), store.Step{Pool: key, Epoch: f.store.Epoch(), Now: f.now, Actions: actions})
	f.must(err)
	if len(results) != len(actions) {
		f.Fatalf("%d results for %d actions", len(results), len(actions))
	}
	return results
}

// tryOne applies one action.
func (f *fixture) tryOne(action store.Action) error {
	f.Helper()
	return f.try(action)[0]
}

// do applies actions that must succeed.
func (f *fixture) do(actions ...store.Action) {
	f.Helper()
	for i, err := range f.try(actions...) {
		if err != nil {
			f.Fatalf("%T: %v", actions[i], err)
		}
	}
}

func (f *fixture) vm(id string) pool.VM {
	f.Helper()
	vm, err := f.store.GetVM(f.Context(), id)
	f.must(err)
	return vm
}

// gone demands that there is no row of the id.
func (f *fixture) gone(id string) {
	f.Helper()
	_, err := f.store.GetVM(f.Context(), id)
	f.refused(err, pool.CodeNotFound)
}

// grow makes n PROVISIONING rows of the current revision.
func (f *fixture) grow(n int) []string {
	f.Helper()
	var ids []string
	for range n {
		ids = append(ids, f.id("web"))
	}
	f.do(store.Grow{IDs: ids, Revision: f.view().Pool.Revision, MaxSlots: 1000})
	return ids
}

// place puts rows on a host, which accepts them.
func (f *fixture) place(host string, ids ...string) {
	f.Helper()
	for _, id := range ids {
		f.do(store.Place{VM: id, Version: f.vm(id).Version, Host: host})
		f.do(store.Accepted{VM: id, Version: f.vm(id).Version, UID: "uid-" + id})
	}
}

// boot brings rows to AVAILABLE on host-a, each a second after the one before.
func (f *fixture) boot(ids ...string) {
	f.Helper()
	f.bootOn("host-a", ids...)
}

func (f *fixture) bootOn(host string, ids ...string) {
	f.Helper()
	for _, id := range ids {
		f.pass(time.Second)
		f.place(host, id)
		f.do(store.Booted{VM: id, Version: f.vm(id).Version})
		if f.vm(id).Phase == pool.CreateHookRunning {
			f.do(store.HooksDone{VM: id, Version: f.vm(id).Version})
		}
	}
}

// warm grows the pool by n VMs and boots them.
func (f *fixture) warm(n int) []string {
	f.Helper()
	ids := f.grow(n)
	f.boot(ids...)
	return ids
}

// condemn is a condemnation of a VM as its row is now, without recounts.
func (f *fixture) condemn(id string, why pool.Reason) store.Condemn {
	f.Helper()
	return store.Condemn{VM: id, Version: f.vm(id).Version, Reason: why, KeepReady: -1, KeepSlots: -1}
}

// remove confirms that DELETING VMs are gone.
func (f *fixture) remove(ids ...string) {
	f.Helper()
	for _, id := range ids {
		f.do(store.Gone{VM: id, Version: f.vm(id).Version})
	}
}

// claim takes a VM, which must succeed.
func (f *fixture) claim(edits ...func(*store.Claim)) store.ClaimResult {
	f.Helper()
	r, err := f.tryClaim(edits...)
	f.must(err)
	return r
}

func (f *fixture) tryClaim(edits ...func(*store.Claim)) (store.ClaimResult, error) {
	c := store.Claim{Pool: key, LeaseID: f.id("lease"), Now: f.now}
	for _, edit := range edits {
		edit(&c)
	}
	return f.store.Claim(f.Context(), c)
}

func withHooks(c *store.Claim) { c.Hooks = time.Minute }

func requestID(id string) func(*store.Claim) { return func(c *store.Claim) { c.RequestID = id } }

// events lists all events after a cursor, of the types where some are given.
func (f *fixture) events(after int64, types ...pool.EventType) []pool.Event {
	f.Helper()
	page, err := f.store.Since(f.Context(), store.EventQuery{After: after, Types: types, Limit: 10_000})
	f.must(err)
	return page.Events
}

// told demands the types of all events after a cursor, in order.
func (f *fixture) told(after int64, want ...pool.EventType) []pool.Event {
	f.Helper()
	events := f.events(after)
	var got []pool.EventType
	for _, e := range events {
		got = append(got, e.Type)
	}
	if !slices.Equal(got, want) {
		f.Fatalf("events %v, want %v", got, want)
	}
	return events
}

// number reads a number of a payload, which storages may keep as another type of number.
func number(e pool.Event, key string) int64 {
	switch n := e.Payload[key].(type) {
	case int:
		return int64(n)
	case int64:
		return n
	case float64:
		return int64(n)
	case interface{ Int64() (int64, error) }: // json.Number
		i, err := n.Int64()
		if err == nil {
			return i
		}
	}
	return -1
}

// snapshot is one consistent read of the pool.
func (f *fixture) snapshot() store.Snapshot {
	f.Helper()
	s, err := f.store.Snapshot(f.Context(), key)
	f.must(err)
	return s
}

// dirty takes the dirty keys and reports whether the pool is among them.
func (f *fixture) dirty() bool { return slices.Contains(f.store.Dirty().Take(), key) }
