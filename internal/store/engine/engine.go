package engine

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"

	"poolmgr/internal/pool"
	"poolmgr/internal/store"
)

// Engine is a store over a Log.
type Engine struct {
	log          Log
	logger       *slog.Logger
	epoch        int64
	installation string
	firstEvent   int64

	queue   queue
	working *mirror // of whoever leads
	broken  error   // of whoever leads: why there are no commits any more
	commits atomic.Int64

	mu        sync.RWMutex
	published *mirror // written only by whoever leads, with mu held

	dirty   *dirtySet
	changed *broadcast

	closing  sync.Once
	closed   atomic.Bool
	closeErr error
}

var _ store.Store = (*Engine)(nil)

// Options are what an engine can be given beside its log.
type Options struct {
	Logger *slog.Logger // nil = discard
}

// Open loads everything the log holds and returns the store. The engine owns the log from here on and closes it; when
// Open fails, it has closed it.
func Open(ctx context.Context, log Log, o Options) (*Engine, error) {
	state, err := log.Load(ctx)
	if err != nil {
		_ = log.Close() // the failure to load says more
		return nil, fmt.Errorf("load the store: %w", err)
	}
	e := &Engine{
		log:          log,
		logger:       o.Logger,
		epoch:        state.Epoch,
		installation: state.Installation,
		firstEvent:   state.FirstEvent,
		working:      newMirror(),
		published:    newMirror(),
		dirty:        newDirtySet(),
		changed:      newBroadcast(),
	}
	if e.logger == nil {
		e.logger = slog.New(slog.DiscardHandler)
	}
	for _, m := range []*mirror{e.working, e.published} {
		if err := m.load(state); err != nil {
			_ = log.Close() // the damage says more
			return nil, fmt.Errorf("load the store: %w", err)
		}
	}
	e.dirty.add(e.published.keys())
	return e, nil
}

// Epoch implements store.Store.
func (e *Engine) Epoch() int64 { return e.epoch }

// Installation implements store.Store.
func (e *Engine) Installation() string { return e.installation }

// Commits is the number of commits since the engine was opened.
func (e *Engine) Commits() int64 { return e.commits.Load() }

// Close refuses new verbs, waits for those that were asked before, and closes the log. Closing again does nothing.
func (e *Engine) Close() error {
	e.closing.Do(func() {
		e.queue.stop(store.ErrClosed)
		e.drain()
		e.closed.Store(true)
		if err := e.log.Close(); err != nil {
			e.closeErr = fmt.Errorf("close the store: %w", err)
		}
	})
	return e.closeErr
}

// drain waits until every queued verb has its answer: it is a last verb behind them, which does nothing.
func (e *Engine) drain() {
	v := &verb{ctx: context.Background(), run: func(*tx) error { return nil }, wake: make(chan bool, 1)}
	lead, err := e.queue.join(v, true)
	if err != nil {
		return
	}
	if lead || <-v.wake {
		e.lead()
		<-v.wake
	}
}

// read runs a read of the published rows.
func (e *Engine) read(ctx context.Context, what func(*mirror) error) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("reading the store: %w", err)
	}
	if e.closed.Load() {
		return store.ErrClosed
	}
	e.mu.RLock()
	defer e.mu.RUnlock()
	return what(e.published)
}

// noPool is the answer about a pool that is not there.
func noPool(key pool.Key) error {
	return pool.Errorf(pool.CodeNotFound, "there is no pool %s", key)
}
