// Package memory is a store for tests: the engine of store/engine over rows in maps. It refuses what a database would
// refuse, can be reopened like one, and can be told to fail. Nothing of it outlives the process.
package memory

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"poolmgr/internal/pool"
	"poolmgr/internal/store"
	"poolmgr/internal/store/engine"
)

// New returns an empty store.
func New() store.Store {
	e, err := NewStorage().Open(context.Background())
	if err != nil {
		panic(fmt.Sprintf("memory: an empty store does not open (this is a bug): %v", err)) // nothing can fail
	}
	return e
}

// Storage is what a database file is to a real store: it outlives the stores that are opened on it, one at a time.
type Storage struct {
	mu     sync.Mutex
	rows   rows
	epoch  int64 // of the latest opening
	open   bool
	fail   error // what commits answer; nil = they succeed
	commit int   // commits so far
}

// NewStorage returns an empty storage.
func NewStorage() *Storage { return &Storage{rows: newRows()} }

// Open opens a store on the storage. ErrLocked while another one is open.
func (s *Storage) Open(ctx context.Context) (*engine.Engine, error) {
	l, err := s.Log()
	if err != nil {
		return nil, err
	}
	return engine.Open(ctx, l, engine.Options{})
}

// Log takes the storage's lock and returns the log for an engine, for tests that put something between the two.
func (s *Storage) Log() (engine.Log, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open {
		return nil, store.ErrLocked
	}
	s.open = true
	s.epoch++
	return &log{storage: s, epoch: s.epoch}, nil
}

// Crash drops the lock of the store that is open, as if its process had died: it cannot commit any more, and another
// one can be opened.
func (s *Storage) Crash() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open = false
	s.epoch++
}

// FailCommits makes commits fail with err until it is called with nil.
func (s *Storage) FailCommits(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fail = err
}

// Commits is the number of commits that succeeded.
func (s *Storage) Commits() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.commit
}

// log is one opening of a storage.
type log struct {
	storage *Storage
	epoch   int64
}

var errNotOpen = errors.New("the storage was opened by somebody else since")

// Load implements engine.Log.
func (l *log) Load(context.Context) (engine.State, error) {
	l.storage.mu.Lock()
	defer l.storage.mu.Unlock()
	if l.storage.epoch != l.epoch {
		return engine.State{}, errNotOpen
	}
	return l.storage.rows.state(l.epoch), nil
}

// Commit implements engine.Log.
func (l *log) Commit(_ context.Context, c engine.Changes) error {
	s := l.storage
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.epoch != l.epoch || !s.open:
		return errNotOpen
	case s.fail != nil:
		return s.fail
	}
	if err := s.rows.check(c); err != nil {
		return err
	}
	if err := s.rows.apply(c); err != nil {
		return err
	}
	s.commit++
	return nil
}

// Events implements engine.Log.
func (l *log) Events(_ context.Context, q store.EventQuery, upTo int64) ([]pool.Event, error) {
	l.storage.mu.Lock()
	defer l.storage.mu.Unlock()
	return l.storage.rows.since(q, upTo), nil
}

// Close implements engine.Log.
func (l *log) Close() error {
	l.storage.mu.Lock()
	defer l.storage.mu.Unlock()
	if l.storage.epoch == l.epoch {
		l.storage.open = false
	}
	return nil
}
