package reconcile

import (
	"context"
	"fmt"
	"time"

	"poolmgr/internal/pool"
)

// queue says which pools wait for a pass. It holds keys and instants, never facts, and may be lost at any moment: the
// store's dirty set is full when a store is opened.
type queue struct {
	waiting []pool.Key             // in the order in which they were woken
	queued  map[pool.Key]bool      // those in waiting
	running map[pool.Key]bool      // value: woken again meanwhile
	wakes   map[pool.Key]time.Time // when to look again without being woken
}

func newQueue() *queue {
	return &queue{queued: map[pool.Key]bool{}, running: map[pool.Key]bool{}, wakes: map[pool.Key]time.Time{}}
}

func (q *queue) add(key pool.Key) {
	if _, busy := q.running[key]; busy {
		q.running[key] = true
		return
	}
	if !q.queued[key] {
		q.queued[key] = true
		q.waiting = append(q.waiting, key)
	}
}

// next takes the pool that waits longest.
func (q *queue) next() pool.Key {
	key := q.waiting[0]
	q.waiting = q.waiting[1:]
	delete(q.queued, key)
	delete(q.wakes, key)
	q.running[key] = false
	return key
}

// done ends a pass; a pool that was woken meanwhile waits again.
func (q *queue) done(key pool.Key, wake time.Time) {
	again := q.running[key]
	delete(q.running, key)
	if !wake.IsZero() {
		q.wakes[key] = wake
	}
	if again {
		q.add(key)
	}
}

// due queues the pools whose time has come and returns the earliest instant of the others; zero = none.
func (q *queue) due(now time.Time) time.Time {
	var first time.Time
	for key, at := range q.wakes {
		switch {
		case !now.Before(at):
			delete(q.wakes, key)
			q.add(key)
		case first.IsZero() || at.Before(first):
			first = at
		}
	}
	return first
}

// passed is the end of a pass.
type passed struct {
	key  pool.Key
	wake time.Time // zero: the pool is gone
}

// loop wakes, hands out passes and collects them, until ctx ends. One pool is worked on by one pass at a time; pools
// run side by side.
func (r *Reconciler) loop(ctx context.Context) error {
	q := newQueue()
	// What an earlier Reconciler of this store had taken from the dirty set is known to nobody now: look at every pool.
	views, err := r.cfg.Store.ListPools(ctx, "")
	switch {
	case ctx.Err() != nil:
		return nil // stopped before it began
	case err != nil:
		return fmt.Errorf("list the pools to begin with: %w", err)
	}
	for _, v := range views {
		q.add(v.Pool.Key())
	}
	ends := make(chan passed, r.cfg.Passes)
	dirty := r.cfg.Store.Dirty()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		now := r.cfg.Now()
		r.serving.turn(now)
		resetTimer(timer, now, q.due(now))
		for len(q.waiting) > 0 && len(q.running) < r.cfg.Passes && ctx.Err() == nil {
			key := q.next()
			go func() { ends <- passed{key, r.pass(ctx, key)} }()
		}
		select {
		case <-ctx.Done():
			for range len(q.running) {
				<-ends
			}
			return nil
		case <-dirty.Ready():
			for _, key := range dirty.Take() {
				q.add(key)
			}
		case key := <-r.poked:
			q.add(key)
		case end := <-ends:
			q.done(end.key, end.wake)
		case <-timer.C:
		}
	}
}

// tick is the longest time between two turns of the loop: what is longer was a gap, in which nobody could renew.
const tick = time.Second

// resetTimer arms the loop's timer for the earliest wake, at most a tick away.
func resetTimer(t *time.Timer, now, at time.Time) {
	d := tick
	if !at.IsZero() {
		d = min(d, max(0, at.Sub(now)))
	}
	t.Reset(d)
}
