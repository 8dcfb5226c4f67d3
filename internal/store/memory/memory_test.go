package memory_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"poolmgr/internal/pool"
	"poolmgr/internal/store"
	"poolmgr/internal/store/memory"
	"poolmgr/internal/store/storetest"
)

func TestStore(t *testing.T) {
	storetest.Run(t, func(*testing.T) storetest.Opener {
		storage := memory.NewStorage()
		return func(ctx context.Context) (store.Store, error) { return storage.Open(ctx) }
	})
}

func create(t *testing.T, s store.Store, name string) error {
	_, err := s.CreatePool(t.Context(), store.CreatePool{
		Spec: pool.Spec{Key: pool.Key{Namespace: "n", Name: name}, Size: 1},
		Now:  time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC),
	})
	return err
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestCrashLeavesWhatWasCommitted(t *testing.T) {
	storage := memory.NewStorage()
	first, err := storage.Open(t.Context())
	must(t, err)
	must(t, create(t, first, "kept"))
	storage.Crash()
	second, err := storage.Open(t.Context())
	must(t, err)
	if err := create(t, first, "late"); !errors.Is(err, store.ErrBroken) {
		t.Fatalf("a store that crashed goes on: %v", err)
	}
	must(t, first.Close()) // does not take the second one's lock
	if _, err := storage.Open(t.Context()); !errors.Is(err, store.ErrLocked) {
		t.Fatalf("a third store: %v", err)
	}
	views, err := second.ListPools(t.Context(), "")
	must(t, err)
	if len(views) != 1 || second.Epoch() <= first.Epoch() || storage.Commits() != 1 {
		t.Fatalf("%d pools, run %d after %d, %d commits", len(views), second.Epoch(), first.Epoch(), storage.Commits())
	}
	storetest.Check(t, second)
}

func TestFailedCommitsBreakTheStore(t *testing.T) {
	storage := memory.NewStorage()
	s, err := storage.Open(t.Context())
	must(t, err)
	full := errors.New("no space left on device")
	storage.FailCommits(full)
	if err := create(t, s, "lost"); !errors.Is(err, store.ErrBroken) || !errors.Is(err, full) {
		t.Fatalf("a failed commit: %v", err)
	}
	storage.FailCommits(nil)
	if err := create(t, s, "later"); !errors.Is(err, store.ErrBroken) {
		t.Fatalf("after it: %v", err)
	}
	must(t, s.Close())
	s, err = storage.Open(t.Context())
	must(t, err)
	must(t, create(t, s, "lost"))
	storetest.Check(t, s)
}

func TestNewIsEmptyAndItsOwn(t *testing.T) {
	a, b := memory.New(), memory.New()
	must(t, create(t, a, "x"))
	must(t, create(t, b, "x"))
	storetest.Check(t, a)
}
