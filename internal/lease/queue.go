package lease

import (
	"context"
	"slices"

	"poolmgr/internal/pool"
)

// MaxWaiting bounds the claims that wait for one pool; more are refused.
const MaxWaiting = 1024

// waiter is a claim in line. Only the first in line asks the store; turn wakes a waiter that has become the first.
type waiter struct{ turn chan struct{} }

// Waiting is the number of claims that wait for a VM of the pool.
func (m *Manager) Waiting(key pool.Key) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.lines[key])
}

// enqueue joins the line of a pool: at its end, or at its front for a claim that had its turn and needs another VM.
func (m *Manager) enqueue(key pool.Key, front bool) (*waiter, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	line := m.lines[key]
	w := &waiter{turn: make(chan struct{}, 1)}
	switch {
	case front: // not bounded: such a claim was counted before
		m.lines[key] = slices.Concat([]*waiter{w}, line)
	case len(line) >= MaxWaiting:
		return nil, pool.Errorf(pool.CodeExhausted, "too many claims (%d) wait for a VM of pool %s already; try again later, or make the pool larger", len(line), key)
	default:
		m.lines[key] = append(line, w)
	}
	return w, nil
}

// leave takes a waiter out of the line and wakes the one that is first now. An empty line is forgotten.
func (m *Manager) leave(key pool.Key, w *waiter) {
	m.mu.Lock()
	defer m.mu.Unlock()
	line := slices.DeleteFunc(slices.Clone(m.lines[key]), func(x *waiter) bool { return x == w })
	if len(line) == 0 {
		delete(m.lines, key)
		return
	}
	m.lines[key] = line
	select {
	case line[0].turn <- struct{}{}:
	default: // it was told already
	}
}

func (m *Manager) isFirst(key pool.Key, w *waiter) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.lines[key][0] == w
}

// obtain takes a VM: at once, or when it is this claim's turn. first is false for a claim that failed on a VM before.
// RESOURCE_EXHAUSTED when there is none and the claim does not want to wait (any longer).
func (c *claim) obtain(ctx, patience context.Context, first bool) (taken, error) {
	key := c.req.Pool
	if waiting := c.m.Waiting(key); first && waiting > 0 {
		// Others were here before. Only an answer that was given already needs no VM.
		if t, err := c.replay(ctx); !isExhausted(err) {
			return t, err
		}
		if patience.Err() != nil {
			return taken{}, pool.Errorf(pool.CodeExhausted, "other claims (%d) wait for a VM of pool %s already; wait for one too, or make the pool larger", waiting, key)
		}
	} else {
		t, err := c.take(ctx)
		if !isExhausted(err) || patience.Err() != nil {
			return t, err
		}
	}
	w, err := c.m.enqueue(key, !first)
	if err != nil {
		return taken{}, err
	}
	defer c.m.leave(key, w)
	c.enqueued()
	defer c.dequeued()
	return c.stand(ctx, patience, w)
}

// stand waits in line. The first in line tries whenever something in the store changes.
func (c *claim) stand(ctx, patience context.Context, w *waiter) (taken, error) {
	for {
		changed := c.m.cfg.Store.Changed()
		if !c.m.isFirst(c.req.Pool, w) {
			changed = nil
		} else if t, err := c.take(ctx); !isExhausted(err) {
			return t, err
		}
		select {
		case <-changed:
		case <-w.turn:
		case <-c.m.draining:
			return taken{}, stopping()
		case <-patience.Done():
			if ctx.Err() != nil {
				return taken{}, gone(ctx, c.req.Pool)
			}
			return taken{}, pool.Errorf(pool.CodeExhausted, "no VM of pool %s became free within %s; wait longer, or make the pool larger", c.req.Pool, c.req.Wait)
		}
	}
}
