package lease_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"poolmgr/internal/host"
	"poolmgr/internal/host/fake"
	"poolmgr/internal/lease"
	"poolmgr/internal/pool"
	"poolmgr/internal/store"
	"poolmgr/internal/store/memory"
	"poolmgr/internal/store/storetest"
)

var web = pool.Key{Namespace: "default", Name: "web"}

// rig is a manager over the real store's verbs and a scripted host, in a bubble of time. Nothing plans: tests make VMs
// available and take them away themselves.
type rig struct {
	*testing.T
	storage *memory.Storage
	store   store.Store
	host    *fake.Host
	fleet   *fake.Fleet
	manager *lease.Manager
	seen    *observer
	logs    *bytes.Buffer
	made    int
}

// inBubble runs a test with a pool "web" of the given hooks. Afterwards the manager must be idle, the rows consistent,
// and no lease id in the log.
func inBubble(t *testing.T, hooks []string, test func(*rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := &rig{T: t, storage: memory.NewStorage(), host: fake.New(fake.Options{Name: "host-a"}), logs: &bytes.Buffer{}}
		r.fleet = fake.NewFleet(r.host)
		r.open(nil)
		_, err := r.store.AddHost(t.Context(), pool.Host{Name: "host-a", Address: "192.0.2.1:9090", Reachable: true}, time.Now())
		r.must(err)
		_, err = r.store.CreatePool(t.Context(), store.CreatePool{Spec: spec(hooks), Now: time.Now()})
		r.must(err)
		test(r)
		r.must(r.manager.Close())
		if n := r.manager.Waiting(web); n != 0 {
			t.Errorf("%d claims wait after the end", n)
		}
		storetest.Check(t, r.store)
		r.must(r.store.Close())
	})
}

// open opens the storage anew and makes a manager on it; wrap may put something between the two.
func (r *rig) open(wrap func(store.Store) store.Store) {
	r.Helper()
	s, err := r.storage.Open(r.Context())
	r.must(err)
	r.store = s
	if wrap != nil {
		r.store = wrap(s)
	}
	r.seen = &observer{}
	ids := 0
	r.manager = lease.New(lease.Config{
		Store: r.store, Fleet: r.fleet, Observer: r.seen,
		Logger: slog.New(slog.NewTextHandler(&leakGuard{rig: r}, &slog.HandlerOptions{Level: slog.LevelDebug})),
		NewID: func() string {
			r.seen.mu.Lock()
			defer r.seen.mu.Unlock()
			ids++
			return fmt.Sprintf("secret-%d-%d", s.Epoch(), ids)
		},
	})
}

// leakGuard fails the test when a lease id is logged.
type leakGuard struct{ rig *rig }

func (g *leakGuard) Write(p []byte) (int, error) {
	if bytes.Contains(p, []byte("secret-")) {
		g.rig.Errorf("a lease id is in the log: %s", p)
	}
	return g.rig.logs.Write(p)
}

type observer struct {
	mu                        sync.Mutex
	claims, replays, released int
	hooks, hooksFailed        int
}

func (o *observer) Claimed(_ pool.Key, replayed bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.claims++
	if replayed {
		o.replays++
	}
}

func (o *observer) Released(pool.Key, time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.released++
}

func (o *observer) HookRan(_ pool.Key, _ string, _ time.Duration, failed bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.hooks++
	if failed {
		o.hooksFailed++
	}
}

func spec(hooks []string) pool.Spec {
	return pool.Spec{Key: web, Template: fake.Template(), Size: 3, PreLeaseCommands: hooks, CommandTimeout: time.Minute}.WithDefaults()
}

func (r *rig) must(err error) {
	r.Helper()
	if err != nil {
		r.Fatal(err)
	}
}

func (r *rig) update(edit func(*pool.Spec)) {
	r.Helper()
	view, err := r.store.GetPool(r.Context(), web)
	r.must(err)
	s := view.Pool.Spec
	edit(&s)
	_, err = r.store.UpdatePool(r.Context(), store.UpdatePool{Spec: s, Now: time.Now()})
	r.must(err)
}

func (r *rig) apply(actions ...store.Action) {
	r.Helper()
	results, err := r.store.Apply(r.Context(), store.Step{Pool: web, Epoch: r.store.Epoch(), Now: time.Now(), Actions: actions})
	r.must(err)
	for _, err := range results {
		r.must(err)
	}
}

// warm makes n VMs available, one after the other, on the host too.
func (r *rig) warm(n int) {
	r.Helper()
	for range n {
		r.made++
		id := fmt.Sprintf("web-%08x", r.made)
		view, err := r.store.GetPool(r.Context(), web)
		r.must(err)
		r.apply(store.Grow{IDs: []string{id}, Revision: view.Pool.Revision, MaxSlots: 1000})
		vm := r.vm(id)
		r.apply(store.Place{VM: id, Version: vm.Version, Host: "host-a"})
		made, err := r.host.Create(r.Context(), host.SpecFor(fake.Template(), id, web.Namespace, "owner"))
		r.must(err)
		r.apply(store.Accepted{VM: id, Version: r.vm(id).Version, UID: made.UID})
		r.apply(store.Booted{VM: id, Version: r.vm(id).Version})
		<-time.After(time.Millisecond) // so that the VMs have an order of age
	}
}

func (r *rig) vm(id string) pool.VM {
	r.Helper()
	vm, err := r.store.GetVM(r.Context(), id)
	r.must(err)
	return vm
}

// phases counts the pool's VMs.
func (r *rig) phases() map[pool.Phase]int {
	r.Helper()
	vms, err := r.store.ListVMs(r.Context(), store.VMQuery{Pool: &web})
	r.must(err)
	n := map[pool.Phase]int{}
	for _, vm := range vms {
		n[vm.Phase]++
	}
	return n
}

// events lists the pool's events of a type.
func (r *rig) events(what pool.EventType) []pool.Event {
	r.Helper()
	page, err := r.store.Since(r.Context(), store.EventQuery{Pool: &web, Types: []pool.EventType{what}})
	r.must(err)
	return page.Events
}

// claim asks at once.
func (r *rig) claim(id string) (lease.Claimed, error) {
	return r.manager.Claim(r.Context(), lease.Request{Pool: web, RequestID: id})
}

func (r *rig) refused(err error, code pool.Code, words ...string) {
	r.Helper()
	if err == nil || pool.CodeOf(err) != code {
		r.Errorf("error %v, want %s", err, code)
		return
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			r.Errorf("error %q does not say %q", err, w)
		}
	}
}

// pending is a claim on its own goroutine.
type pending struct {
	cancel context.CancelFunc
	result chan lease.Claimed
	err    chan error
}

// start claims in the background and returns when the claim can get no further.
func (r *rig) start(req lease.Request) *pending {
	r.Helper()
	ctx, cancel := context.WithCancel(r.Context())
	p := &pending{cancel: cancel, result: make(chan lease.Claimed, 1), err: make(chan error, 1)}
	req.Pool = web
	go func() {
		defer cancel()
		claimed, err := r.manager.Claim(ctx, req)
		p.result <- claimed
		p.err <- err
	}()
	synctest.Wait()
	return p
}

// done reports whether the claim was answered.
func (p *pending) done() bool { return len(p.err) == 1 }

func (p *pending) wait() (lease.Claimed, error) { return <-p.result, <-p.err }

// distinct fails when two leases have one VM.
func (r *rig) distinct(claims []lease.Claimed) {
	r.Helper()
	var vms []string
	for _, c := range claims {
		vms = append(vms, c.VM.ID)
	}
	slices.Sort(vms)
	if len(slices.Compact(slices.Clone(vms))) != len(claims) {
		r.Errorf("a VM was handed out twice: %v", vms)
	}
}
