package reconcile_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"poolmgr/internal/host/fake"
	"poolmgr/internal/plan"
	"poolmgr/internal/pool"
	"poolmgr/internal/reconcile"
	"poolmgr/internal/store"
	"poolmgr/internal/store/engine"
	"poolmgr/internal/store/memory"
	"poolmgr/internal/store/storetest"
)

var webKey = pool.Key{Namespace: "default", Name: "web"}

// rig is a daemon's inside over scripted hosts: the real store, planner and reconciler in a bubble of time.
type rig struct {
	t       *testing.T
	storage *memory.Storage
	store   store.Store
	hosts   []*fake.Host
	fleet   *fake.Fleet
	stop    func()
	ids     int
	onCall  atomic.Pointer[func(fake.Call)] // sees every call to a host as it arrives; nil = nobody
	wrap    func(engine.Log) engine.Log
	skew    atomic.Int64 // how far the daemon's clock is ahead of the hosts', in nanoseconds
	passes  atomic.Int64
	lines   atomic.Int64 // logged
}

// inBubble runs a test with a rig of n hosts whose VMs take a second to boot, and checks at the end that nothing leaked.
func inBubble(t *testing.T, n int, shape func(*fake.Options), test func(*rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := &rig{t: t, storage: memory.NewStorage()}
		for i := range n {
			opts := fake.Options{
				Name: fmt.Sprintf("host-%d", i), MinMemoryMB: 128,
				BootDelay: 500 * time.Millisecond, GuestDelay: 500 * time.Millisecond, DeleteDelay: 300 * time.Millisecond,
			}
			opts.OnCall = r.called
			if shape != nil {
				shape(&opts)
			}
			r.hosts = append(r.hosts, fake.New(opts))
		}
		r.fleet = fake.NewFleet(r.hosts...)
		r.openStore()
		for i := range n {
			_, err := r.store.AddHost(t.Context(), pool.Host{
				Name: fmt.Sprintf("host-%d", i), Address: fmt.Sprintf("10.0.0.%d:9090", i+1), Reachable: true, MinVMMemoryMB: 128,
			}, time.Now())
			r.must(err)
		}
		r.start()
		t.Cleanup(r.end) // runs in the bubble, also after a failure
		test(r)
	})
}

// end stops the reconciler, whose goroutines must all end with it, and checks the rows that it leaves.
func (r *rig) end() {
	r.stop()
	storetest.Check(r.t, r.store)
	if err := r.store.Close(); err != nil {
		r.t.Error(err)
	}
}

func (r *rig) openStore() {
	log, err := r.storage.Log()
	r.must(err)
	if r.wrap != nil {
		log = r.wrap(log)
	}
	st, err := engine.Open(context.Background(), log, engine.Options{})
	r.must(err)
	r.store = st
}

// called checks that no host is ever told to delete a VM whose row does not say so.
func (r *rig) called(c fake.Call) {
	if see := r.onCall.Load(); see != nil {
		(*see)(c)
	}
	if c.Op != fake.Delete {
		return
	}
	vms, err := r.store.ListVMs(context.Background(), store.VMQuery{Limit: 100_000})
	if err != nil {
		r.t.Errorf("list the rows at a delete: %v", err)
	}
	for _, v := range vms {
		if v.UID == c.UID && v.Phase != pool.Deleting {
			r.t.Errorf("a host is told to delete vm %s, which is %s", v.ID, v.Phase)
		}
	}
}

// watch has every call to a host seen as it arrives.
func (r *rig) watch(see func(fake.Call)) { r.onCall.Store(&see) }

// now is the daemon's clock.
func (r *rig) now() time.Time { return time.Now().Add(time.Duration(r.skew.Load())) }

// observer counts passes.
type observer struct{ *rig }

func (observer) Provisioned(pool.Key, time.Duration)           {}
func (observer) HookRan(pool.Key, string, time.Duration, bool) {}
func (observer) LeaseExpired(pool.Key, time.Duration)          {}
func (o observer) Planned(pool.Key, int, time.Duration)        { o.passes.Add(1) }

// Write counts the lines of the log, and fails the test when one is about a bug.
func (r *rig) Write(line []byte) (int, error) {
	r.lines.Add(1)
	if bytes.Contains(line, []byte("this is a bug")) || bytes.Contains(line, []byte("action refused")) {
		r.t.Errorf("logged: %s", line)
	}
	return len(line), nil
}

func (r *rig) must(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

// start runs a new reconciler, which knows nothing but the store.
func (r *rig) start() {
	ctx, cancel := context.WithCancel(context.Background())
	rec := reconcile.New(reconcile.Config{
		Store: r.store, Fleet: r.fleet, Logger: slog.New(slog.NewTextHandler(r, nil)), Observer: observer{r},
		Random: func() float64 { return 0.5 }, Now: r.now,
	})
	done := make(chan error, 1)
	go func() { done <- rec.Run(ctx) }()
	r.stop = func() {
		cancel()
		if err := <-done; err != nil {
			r.t.Error(err)
		}
	}
}

// amnesia throws the reconciler away and makes a new one.
func (r *rig) amnesia() {
	r.stop()
	r.start()
}

// kill loses everything but what the storage keeps, as kill -9 would, and starts anew.
func (r *rig) kill() {
	r.storage.Crash()
	r.stop()
	r.openStore()
	r.start()
}

// killInFlight is kill, with the dead daemon's calls to hosts still on their way: they are carried out later.
func (r *rig) killInFlight() {
	r.storage.Crash()
	dead := r.stop
	r.openStore()
	r.start()
	stop := r.stop
	r.stop = func() { stop(); dead() }
}

func (r *rig) pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

// eventually lets time pass until cond holds; a minute too late is never.
func (r *rig) eventually(what string, limit time.Duration, cond func() bool) {
	r.t.Helper()
	for end := time.Now().Add(limit); time.Now().Before(end); {
		synctest.Wait()
		if cond() {
			return
		}
		r.pass(50 * time.Millisecond)
	}
	view, err := r.store.GetPool(r.t.Context(), webKey)
	snap, _ := r.store.Snapshot(r.t.Context(), webKey)
	for _, v := range snap.VMs {
		r.t.Logf("%s slot %q %s host %q uid %q attempt %d: %s", v.ID, v.Slot, v.Phase, v.Host, v.UID, v.Attempt, v.Message)
	}
	p := plan.Compute(plan.World{Pool: snap.Pool, VMs: snap.VMs, Hosts: snap.Hosts, Leases: snap.Leases}, time.Now())
	r.t.Fatalf("not within %s: %s; counts %+v (%v); %q", limit, what, view.Counts, err, p.Explain)
}

// spec is a valid pool of a size; version changes the template.
func spec(size int, version string) pool.Spec {
	tmpl := fake.Template()
	tmpl.MemoryInMb = 128
	if tmpl.Kernel.Cmdline == nil {
		tmpl.Kernel.Cmdline = map[string]string{}
	}
	tmpl.Kernel.Cmdline["version"] = version
	return pool.Spec{Key: webKey, Template: tmpl, Size: size}.WithDefaults()
}

func (r *rig) create(s pool.Spec) {
	r.t.Helper()
	_, err := r.store.CreatePool(r.t.Context(), store.CreatePool{Spec: s, Now: time.Now()})
	r.must(err)
}

func (r *rig) update(s pool.Spec) {
	r.t.Helper()
	_, err := r.store.UpdatePool(r.t.Context(), store.UpdatePool{Spec: s, Now: time.Now()})
	r.must(err)
}

func (r *rig) counts() store.Counts {
	r.t.Helper()
	view, err := r.store.GetPool(r.t.Context(), webKey)
	r.must(err)
	return view.Counts
}

func (r *rig) claim() (store.ClaimResult, error) {
	r.ids++
	return r.store.Claim(r.t.Context(), store.Claim{Pool: webKey, LeaseID: fmt.Sprintf("lease-%d", r.ids), Now: time.Now()})
}

func (r *rig) rolloutCompleted(revision int64) func() bool {
	return func() bool {
		view, err := r.store.GetPool(r.t.Context(), webKey)
		r.must(err)
		return view.Pool.Revision == revision && view.Pool.Rollout.Completed
	}
}

// full reports whether the pool is at its size with nothing on the way, in the store and on the hosts.
func (r *rig) full(size int) func() bool {
	return func() bool {
		c := r.counts()
		return c.Claimable == size && c.Warming == 0 && c.Deleting == 0 && c.Stale == c.StaleLeased &&
			r.onHosts() == size+c.Held+c.Quarantined
	}
}

func (r *rig) onHosts() int {
	n := 0
	for _, h := range r.hosts {
		n += len(h.VMs())
	}
	return n
}

func (r *rig) events() []pool.Event {
	r.t.Helper()
	page, err := r.store.Since(r.t.Context(), store.EventQuery{Pool: &webKey, Limit: 10000})
	r.must(err)
	return page.Events
}

func (r *rig) count(t pool.EventType) int {
	n := 0
	for _, e := range r.events() {
		if e.Type == t {
			n++
		}
	}
	return n
}

// types is what happened to one VM, in order.
func (r *rig) types(vm string) []pool.EventType {
	var out []pool.EventType
	for _, e := range r.events() {
		if e.VM == vm {
			out = append(out, e.Type)
		}
	}
	return slices.Clip(out)
}
