package storetest

import (
	"context"
	"errors"
	"sync"

	"poolmgr/internal/pool"
	"poolmgr/internal/store"
)

var lifeTests = []test{
	{"ClosedStoreAnswersSo", testClosed},
	{"CallerThatIsGoneGetsNothing", testGoneCaller},
	{"LoneVerbIsOneCommit", testLoneCommit},
	{"RefusalsAndReplaysCommitNothing", testNoCommit},
	{"SecondOpenIsRefused", testLocked},
}

func testClosed(f *fixture) {
	f.pool()
	f.warm(1)
	s := f.store
	defer f.start() // for the check after the test
	f.must(s.Close())
	f.must(s.Close())
	_, err := s.Claim(f.Context(), store.Claim{Pool: key, LeaseID: "l", Now: f.now})
	f.failed(err, store.ErrClosed)
	_, err = s.Apply(f.Context(), store.Step{Pool: key, Epoch: s.Epoch(), Now: f.now})
	f.failed(err, store.ErrClosed)
	_, err = s.Snapshot(f.Context(), key)
	f.failed(err, store.ErrClosed)
	_, err = s.Since(f.Context(), store.EventQuery{})
	f.failed(err, store.ErrClosed)
}

func testGoneCaller(f *fixture) {
	f.pool()
	id := f.warm(1)[0]
	ctx, cancel := context.WithCancel(f.Context())
	cancel()
	_, err := f.store.Claim(ctx, store.Claim{Pool: key, LeaseID: "l", Now: f.now})
	f.failed(err, context.Canceled)
	if f.vm(id).Phase != pool.Available {
		f.Fatal("a caller that gave up consumed a VM")
	}
}

// commits is how many commits there were, where the store tells.
func (f *fixture) commits() (int64, bool) {
	s, ok := f.store.(interface{ Commits() int64 })
	if !ok {
		return 0, false
	}
	return s.Commits(), true
}

// wantCommits demands that the work takes n commits, where the store counts them.
func (f *fixture) wantCommits(n int64, work func()) {
	f.Helper()
	before, counts := f.commits()
	work()
	after, _ := f.commits()
	if counts && after-before != n {
		f.Fatalf("%d commits, want %d", after-before, n)
	}
}

func testLoneCommit(f *fixture) {
	f.pool()
	ids := f.warm(3)
	f.wantCommits(1, func() { f.claim() })
	f.wantCommits(1, func() { // a step is one commit, whatever it holds
		f.do(f.condemn(ids[1], pool.ReasonScaleDown), f.condemn(ids[2], pool.ReasonScaleDown))
	})
}

func testNoCommit(f *fixture) {
	f.pool()
	f.warm(1)
	f.claim(requestID("r"))
	f.wantCommits(0, func() {
		f.claim(requestID("r"))
		_, err := f.tryClaim()
		f.refused(err, pool.CodeExhausted)
		f.failed(f.tryOne(store.Gone{VM: "none", Version: 1}), store.ErrConflict)
		f.do(store.Announce{})
		f.must(f.store.SetReachable(f.Context(), "host-a", true, "", f.now))
	})
}

func testLocked(f *fixture) {
	s, err := f.open(f.Context())
	if err == nil {
		_ = s.Close()
		f.Fatal("two stores on one storage")
	}
	f.failed(err, store.ErrLocked)
	f.pool() // the first one goes on
}

// together runs n calls at once and returns their errors.
func together(n int, call func(i int) error) []error {
	errs := make([]error, n)
	var wg sync.WaitGroup
	start := make(chan struct{})
	for i := range n {
		wg.Go(func() {
			<-start
			errs[i] = call(i)
		})
	}
	close(start)
	wg.Wait()
	return errs
}

// succeeded counts the calls without an error and lists the errors of the others.
func succeeded(errs []error) (n int, others []error) {
	for _, err := range errs {
		if err == nil {
			n++
		} else {
			others = append(others, err)
		}
	}
	return n, others
}

// allOf demands that every error is one of the code or the sentinel.
func (f *fixture) allOf(errs []error, code pool.Code, sentinel error) {
	f.Helper()
	for _, err := range errs {
		if e := (*pool.Error)(nil); errors.As(err, &e) && e.Code == code || sentinel != nil && errors.Is(err, sentinel) {
			continue
		}
		f.Fatalf("error %v, want code %s or %v", err, code, sentinel)
	}
}
