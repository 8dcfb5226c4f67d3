package engine

import (
	"slices"
	"sync"

	"poolmgr/internal/pool"
	"poolmgr/internal/store"
)

// dirtySet is the keys of pools that changed since they were last taken.
type dirtySet struct {
	mu    sync.Mutex
	keys  map[pool.Key]struct{}
	ready chan struct{} // one slot
}

func newDirtySet() *dirtySet {
	return &dirtySet{keys: map[pool.Key]struct{}{}, ready: make(chan struct{}, 1)}
}

// Dirty implements store.Store.
func (e *Engine) Dirty() store.DirtySet { return e.dirty }

func (d *dirtySet) add(keys []pool.Key) {
	if len(keys) == 0 {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, key := range keys {
		d.keys[key] = struct{}{}
	}
	select {
	case d.ready <- struct{}{}:
	default: // somebody was told and has not looked yet
	}
}

// Ready receives after keys were added. A receiver may find the set empty, when somebody took it in between.
func (d *dirtySet) Ready() <-chan struct{} { return d.ready }

// Take empties the set and returns its keys in order.
func (d *dirtySet) Take() []pool.Key {
	d.mu.Lock()
	defer d.mu.Unlock()
	keys := make([]pool.Key, 0, len(d.keys))
	for key := range d.keys {
		keys = append(keys, key)
	}
	clear(d.keys)
	slices.SortFunc(keys, pool.Key.Compare)
	return keys
}

// broadcast wakes everybody who waits, however many there are.
type broadcast struct {
	mu sync.Mutex
	ch chan struct{}
}

func newBroadcast() *broadcast { return &broadcast{ch: make(chan struct{})} }

func (b *broadcast) wait() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.ch
}

func (b *broadcast) broadcast() {
	b.mu.Lock()
	defer b.mu.Unlock()
	close(b.ch)
	b.ch = make(chan struct{})
}
