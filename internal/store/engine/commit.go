package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"poolmgr/internal/pool"
	"poolmgr/internal/store"
)

// Bounds of the group commit.
const (
	MaxBatch = 256   // verbs that share a commit
	MaxQueue = 16384 // verbs that wait; more are refused
)

// verb is a change that somebody waits for.
type verb struct {
	ctx  context.Context
	now  time.Time
	run  func(*tx) error
	err  error
	wake chan bool // has room for one: true hands over the lead, false says that err is the answer
}

// queue is the verbs that wait for a commit.
type queue struct {
	mu      sync.Mutex
	waiting []*verb
	leading bool  // somebody runs commits
	stopped error // why new verbs are refused
}

// do runs a verb and returns when what it changed is durable. The verb runs all or nothing: what a verb with an error
// wrote is taken back. A caller that gave up before its verb ran gets nothing.
func (e *Engine) do(ctx context.Context, now time.Time, run func(*tx) error) error {
	v := &verb{ctx: ctx, now: instant(now), run: run, wake: make(chan bool, 1)}
	lead, err := e.queue.join(v, false)
	if err != nil {
		return err
	}
	if lead || <-v.wake {
		e.lead()
		<-v.wake
	}
	return v.err
}

// join queues a verb and reports whether its caller must lead. A last verb is taken after the queue was stopped.
func (q *queue) join(v *verb, last bool) (bool, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.stopped != nil && !last {
		return false, q.stopped
	}
	if len(q.waiting) >= MaxQueue && !last {
		return false, pool.Errorf(pool.CodeUnavailable, "%d changes wait to be written already; try again in a moment", len(q.waiting))
	}
	q.waiting = append(q.waiting, v)
	lead := !q.leading
	q.leading = true
	return lead, nil
}

// take removes the next batch from the queue.
func (q *queue) take() []*verb {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := min(len(q.waiting), MaxBatch)
	batch := slices.Clone(q.waiting[:n])
	q.waiting = slices.Delete(q.waiting, 0, n)
	return batch
}

// pass puts back what could not be part of the commit and hands the lead to the first verb that waits.
func (q *queue) pass(back []*verb) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.waiting = slices.Concat(back, q.waiting)
	q.leading = len(q.waiting) > 0
	if q.leading {
		q.waiting[0].wake <- true
	}
}

// stop refuses new verbs. The first reason stays.
func (q *queue) stop(why error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.stopped == nil {
		q.stopped = why
	}
}

// lead runs one batch, whose first verb is the leader's own, and hands the lead over.
func (e *Engine) lead() {
	batch := e.queue.take()
	x := &tx{m: e.working, base: e.published, epoch: e.epoch}
	var back []*verb
	for i, v := range batch {
		if v.err = e.runVerb(x, v); errors.Is(v.err, errLater) {
			v.err = nil
			batch, back = batch[:i], batch[i:]
			break
		}
	}
	// The commit belongs to everybody in the batch: that the leader's caller gave up must not stop it.
	if err := e.commit(context.WithoutCancel(batch[0].ctx), x); err != nil {
		for _, v := range batch { // their answers may rest on what is not durable
			v.err = err
		}
	}
	for _, v := range batch {
		v.wake <- false
	}
	e.queue.pass(back)
}

// runVerb runs one verb of a batch. A panic is the verb's error and leaves nothing of it.
func (e *Engine) runVerb(x *tx, v *verb) (err error) {
	if err := v.ctx.Err(); err != nil {
		return fmt.Errorf("waiting for the store's turn: %w", err)
	}
	x.now, x.journal = v.now, nil
	start := x.mark()
	defer func() {
		if p := recover(); p != nil {
			err = e.panicked(p)
		}
		if err != nil && !x.spoiled {
			e.takeBack(x, start)
		}
	}()
	return v.run(x)
}

// takeBack undoes a verb. When that panics too, the tx stays spoiled.
func (e *Engine) takeBack(x *tx, to mark) {
	defer func() {
		if p := recover(); p != nil {
			_ = e.panicked(p) // logged; the commit tells the callers
		}
	}()
	x.rollback(to)
}

// panicked logs a panic and makes it an error.
func (e *Engine) panicked(p any) error {
	e.logger.Error("a store verb panicked (this is a bug)", slog.Any("panic", p), slog.String("stack", string(debug.Stack())))
	return fmt.Errorf("a store verb panicked (this is a bug): %v", p)
}

// commit makes the work of a batch durable, publishes it and wakes those who wait for changes. After a failure the
// engine stops: nobody knows what the disk holds.
func (e *Engine) commit(ctx context.Context, x *tx) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = e.fail(e.panicked(p))
		}
	}()
	if e.broken != nil {
		return e.broken
	}
	if x.spoiled {
		return e.fail(errors.New("a verb that panicked could not be taken back (this is a bug)"))
	}
	x.wakeWaiting()
	changes := x.changes()
	if !changes.Empty() {
		if err := e.log.Commit(ctx, changes); err != nil {
			return e.fail(err)
		}
		e.commits.Add(1)
		e.publish(x, changes)
	}
	e.dirty.add(x.dirty)
	if len(x.dirty) > 0 || len(x.events) > 0 {
		e.changed.broadcast()
	}
	return nil
}

// fail stops the engine for ever.
func (e *Engine) fail(why error) error {
	e.broken = fmt.Errorf("%w: %w", store.ErrBroken, why)
	e.queue.stop(e.broken)
	e.logger.Error("the store stops", slog.Any("error", why))
	return e.broken
}

// publish shows a durable commit to the readers. Pools and hosts come before the rows that name them, and go after.
func (e *Engine) publish(x *tx, c Changes) {
	e.mu.Lock()
	defer e.mu.Unlock()
	m := e.published
	put(c.Pools, m.setPool)
	for i := range c.Revisions {
		m.addRevision(&c.Revisions[i])
	}
	put(c.Hosts, m.setHost)
	drop(c.Leases, m.setLease)
	for _, change := range c.VMs {
		m.setVM(change.Key, change.After)
	}
	for _, key := range c.Forgotten { // a removed VM's load was by the template of its revision
		m.dropRevision(key)
	}
	put(c.Leases, m.setLease)
	drop(c.Pools, m.setPool)
	drop(c.Hosts, m.setHost)
	m.lastEvent += int64(len(x.events))
}

// put publishes the rows that were not removed.
func put[R any, K comparable](changes []Change[R, K], set func(K, *R)) {
	for _, c := range changes {
		if c.After != nil {
			set(c.Key, c.After)
		}
	}
}

// drop publishes removals.
func drop[R any, K comparable](changes []Change[R, K], set func(K, *R)) {
	for _, c := range changes {
		if c.After == nil {
			set(c.Key, nil)
		}
	}
}

// changes is the difference between the working mirror and what is durable.
func (x *tx) changes() Changes {
	c := Changes{
		Pools:  diff(x.pools.order, x.base.poolRow, x.m.poolRow, func(p *pool.Pool) int64 { return p.Version }),
		VMs:    diff(x.vms.order, x.base.vm, x.m.vm, func(v *pool.VM) int64 { return v.Version }),
		Leases: diff(x.leases.order, x.base.lease, x.m.lease, func(l *pool.Lease) int64 { return l.Version }),
		Hosts:  diff(x.hosts.order, x.base.host, x.m.host, func(h *pool.Host) int64 { return h.Version }),
		Events: x.events,
	}
	c.Revisions, c.Forgotten = x.revisionChanges()
	return c
}

// diff lists the rows that differ, removed ones first. Rows are never written to, so another pointer is another value.
func diff[R any, K comparable](keys []K, before, after func(K) *R, version func(*R) int64) []Change[R, K] {
	var removed, written []Change[R, K]
	for _, key := range keys {
		old, now := before(key), after(key)
		change := Change[R, K]{Key: key, After: now}
		if old != nil {
			change.Before = version(old)
		}
		switch {
		case old == now:
		case now == nil:
			removed = append(removed, change)
		default:
			written = append(written, change)
		}
	}
	return slices.Concat(removed, written)
}

func (m *mirror) poolRow(key pool.Key) *pool.Pool {
	if p := m.pools[key]; p != nil {
		return p.pool
	}
	return nil
}

func (m *mirror) vm(id string) *pool.VM { return m.vms[id] }

func (m *mirror) lease(id string) *pool.Lease { return m.leases[id] }

// instant is the form in which the engine keeps times: UTC, without a monotonic part, as they come back from a log.
func instant(t time.Time) time.Time {
	if t.IsZero() {
		return time.Time{}
	}
	return t.Round(0).UTC()
}
