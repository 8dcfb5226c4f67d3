package engine_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"poolmgr/internal/pool"
	"poolmgr/internal/store"
	"poolmgr/internal/store/engine"
	"poolmgr/internal/store/memory"
	"poolmgr/internal/store/storetest"
)

var (
	key   = pool.Key{Namespace: "team-a", Name: "web"}
	start = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
)

// gate is a log whose commits wait for permission: each takes one value from pass, which is what it answers.
type gate struct {
	engine.Log
	pass    chan error
	commits []engine.Changes // those that were let through
}

func (g *gate) Commit(ctx context.Context, c engine.Changes) error {
	if err := <-g.pass; err != nil {
		return err
	}
	g.commits = append(g.commits, c)
	return g.Log.Commit(ctx, c)
}

// open returns an engine with a gate between it and a storage in memory.
func open(t *testing.T) (*engine.Engine, *gate) {
	t.Helper()
	l, err := memory.NewStorage().Log()
	if err != nil {
		t.Fatal(err)
	}
	g := &gate{Log: l, pass: make(chan error, 1000)}
	e, err := engine.Open(t.Context(), g, engine.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return e, g
}

func create(ctx context.Context, e *engine.Engine, name string) error {
	_, err := e.CreatePool(ctx, store.CreatePool{Spec: pool.Spec{Key: pool.Key{Namespace: key.Namespace, Name: name}, Size: 1}, Now: start})
	return err
}

// must fails the test on an error.
func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// crowd starts n creations at once, whose outcomes are there when wait returns.
func crowd(t *testing.T, e *engine.Engine, n int) (errs []error, wait func()) {
	var wg sync.WaitGroup
	errs = make([]error, n)
	for i := range n {
		wg.Go(func() { errs[i] = create(t.Context(), e, fmt.Sprintf("crowd-%d", i)) })
	}
	return errs, wg.Wait
}

func TestVerbsThatComeDuringACommitShareTheNext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, g := open(t)
		done := make(chan error)
		go func() { done <- create(t.Context(), e, "first") }()
		synctest.Wait() // the first one is in its commit
		errs, wait := crowd(t, e, 64)
		synctest.Wait()
		if views, err := e.ListPools(t.Context(), ""); err != nil || len(views) != 0 {
			t.Fatalf("%d pools are shown before their commit, %v", len(views), err)
		}
		g.pass <- nil
		must(t, <-done)
		g.pass <- nil
		wait()
		must(t, errors.Join(errs...))
		if e.Commits() != 2 || len(g.commits[1].Pools) != 64 {
			t.Fatalf("%d commits, the second of %d pools", e.Commits(), len(g.commits[1].Pools))
		}
		storetest.Check(t, e)
		must(t, e.Close())
	})
}

func TestCommitsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, g := open(t)
		const callers = 2*engine.MaxBatch + 7
		errs, wait := crowd(t, e, callers)
		synctest.Wait()
		for range callers {
			g.pass <- nil
		}
		wait()
		must(t, errors.Join(errs...))
		total := 0
		for _, c := range g.commits {
			if total += len(c.Pools); len(c.Pools) > engine.MaxBatch {
				t.Errorf("a commit of %d verbs", len(c.Pools))
			}
		}
		if total != callers || len(g.commits) > 4 {
			t.Fatalf("%d verbs in %d commits", total, len(g.commits))
		}
		must(t, e.Close())
	})
}

func TestFailedCommitStopsTheStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, g := open(t)
		g.pass <- nil
		must(t, create(t.Context(), e, "durable"))
		done := make(chan error)
		go func() { done <- create(t.Context(), e, "lost") }()
		synctest.Wait()
		errs, wait := crowd(t, e, 5) // behind it
		synctest.Wait()
		full := errors.New("no space left on device")
		g.pass <- full
		if err := <-done; !errors.Is(err, store.ErrBroken) || !errors.Is(err, full) {
			t.Fatalf("the caller of the failed commit: %v", err)
		}
		wait()
		for _, err := range append(errs, create(t.Context(), e, "later")) {
			if !errors.Is(err, store.ErrBroken) {
				t.Fatalf("after the failure: %v", err)
			}
		}
		views, err := e.ListPools(t.Context(), "")
		must(t, err)
		if len(views) != 1 || len(g.commits) != 1 {
			t.Fatalf("%d pools are shown, %d commits tried", len(views), len(g.commits))
		}
		must(t, e.Close())
	})
}

// TestRefusalsOfAFailedBatch: a verb that was refused because of another one, whose commit then failed, is not told
// something that never became true.
func TestRefusalsOfAFailedBatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, g := open(t)
		done := make(chan error)
		go func() { done <- create(t.Context(), e, "first") }()
		synctest.Wait()
		results := make(chan error, 2)
		for range 2 {
			go func() { results <- create(t.Context(), e, "same") }()
		}
		synctest.Wait()
		g.pass <- nil
		must(t, <-done)
		g.pass <- errors.New("input/output error")
		for range 2 {
			if err := <-results; !errors.Is(err, store.ErrBroken) {
				t.Fatalf("a verb of the failed batch: %v", err)
			}
		}
		must(t, e.Close())
	})
}

func TestCallerThatGivesUpInTheQueueGetsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, g := open(t)
		done, late := make(chan error), make(chan error)
		go func() { done <- create(t.Context(), e, "first") }()
		synctest.Wait()
		ctx, cancel := context.WithCancel(t.Context())
		go func() { late <- create(ctx, e, "late") }()
		synctest.Wait()
		cancel()
		g.pass <- nil
		must(t, <-done)
		if err := <-late; !errors.Is(err, context.Canceled) {
			t.Fatalf("the caller that gave up: %v", err)
		}
		if e.Commits() != 1 {
			t.Fatalf("%d commits", e.Commits())
		}
		must(t, e.Close())
	})
}

// TestNameIsFreeOnlyAfterTheCommitThatRemovesIt: a removal and a creation of one name never meet in one commit.
func TestNameIsFreeOnlyAfterTheCommitThatRemovesIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, g := open(t)
		for range 10 {
			g.pass <- nil
		}
		must(t, create(t.Context(), e, key.Name))
		must(t, e.ClosePool(t.Context(), store.ClosePool{Pool: key, Now: start}))
		for len(g.pass) > 0 {
			<-g.pass
		}
		done, removed, made := make(chan error), make(chan error), make(chan error)
		go func() { done <- create(t.Context(), e, "first") }()
		synctest.Wait()
		go func() {
			results, err := e.Apply(t.Context(), store.Step{Pool: key, Epoch: e.Epoch(), Now: start, Actions: []store.Action{store.RemovePool{}}})
			removed <- errors.Join(append(results, err)...)
		}()
		synctest.Wait()
		go func() { made <- create(t.Context(), e, key.Name) }()
		synctest.Wait()
		for range 3 {
			g.pass <- nil
		}
		must(t, <-done)
		must(t, <-removed)
		must(t, <-made)
		if n := len(g.commits); n != 5 || g.commits[n-2].Pools[0].After != nil || g.commits[n-1].Pools[0].Before != 0 {
			t.Fatalf("%d commits: %+v", n, g.commits)
		}
		storetest.Check(t, e)
		must(t, e.Close())
	})
}

func TestCloseWaitsForTheVerbsBeforeIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, g := open(t)
		errs, wait := crowd(t, e, 5)
		synctest.Wait()
		closed := make(chan error)
		go func() { closed <- e.Close() }()
		synctest.Wait()
		if err := create(t.Context(), e, "late"); !errors.Is(err, store.ErrClosed) {
			t.Fatalf("a verb after Close: %v", err)
		}
		for range 5 {
			g.pass <- nil
		}
		wait()
		must(t, errors.Join(errs...))
		must(t, <-closed)
	})
}

func TestDamagedRowsAreRefused(t *testing.T) {
	lease := pool.Lease{ID: "l", Pool: key, VM: "web-1"}
	p := pool.Pool{Spec: pool.Spec{Key: key}, Revision: 1}
	r := pool.Revision{Pool: key, Number: 1}
	for name, s := range map[string]engine.State{
		"a revision of no pool": {Revisions: []pool.Revision{r}},
		"a VM of no pool":       {VMs: []pool.VM{{ID: "web-1", Pool: key}}},
		"a VM of no revision":   {Pools: []pool.Pool{p}, VMs: []pool.VM{{ID: "web-1", Pool: key, Revision: 1}}},
		"a lease of no VM":      {Pools: []pool.Pool{p}, Leases: []pool.Lease{lease}},
		"a lease of a free VM": {
			Pools: []pool.Pool{p}, Revisions: []pool.Revision{r}, Leases: []pool.Lease{lease},
			VMs: []pool.VM{{ID: "web-1", Pool: key, Revision: 1, Phase: pool.Available}},
		},
	} {
		l := &fixed{state: s}
		if _, err := engine.Open(t.Context(), l, engine.Options{}); !errors.Is(err, engine.ErrCorrupt) || !l.closed {
			t.Errorf("%s: %v, closed: %v", name, err, l.closed)
		}
	}
}

// fixed is a log that holds a state and takes nothing.
type fixed struct {
	state  engine.State
	closed bool
}

func (f *fixed) Load(context.Context) (engine.State, error)   { return f.state, nil }
func (f *fixed) Commit(context.Context, engine.Changes) error { return errors.New("read only") }
func (f *fixed) Events(context.Context, store.EventQuery, int64) ([]pool.Event, error) {
	return nil, nil
}
func (f *fixed) Close() error { f.closed = true; return nil }

func TestEventsThatAreNotKeptAnyMore(t *testing.T) {
	e, err := engine.Open(t.Context(), &fixed{state: engine.State{FirstEvent: 10, LastEvent: 20}}, engine.Options{})
	must(t, err)
	for after, want := range map[int64]pool.Code{0: pool.CodeOutOfRange, 8: pool.CodeOutOfRange, 9: "", 20: "", 30: ""} {
		_, err := e.Since(t.Context(), store.EventQuery{After: after})
		if want == "" && err != nil || want != "" && pool.CodeOf(err) != want {
			t.Errorf("after %d: %v, want %q", after, err, want)
		}
	}
	must(t, e.Close())
}
