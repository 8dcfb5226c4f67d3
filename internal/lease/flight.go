package lease

import (
	"context"
	"errors"

	"poolmgr/internal/host"
	"poolmgr/internal/pool"
)

// requestKey is the scope of a request id.
type requestKey struct {
	pool pool.Key
	id   string
}

// flight is a claim with a request id under way. Of several at once with the same id one flies and the others wait for
// it: they take no VM and run no hook.
type flight struct {
	done     chan struct{} // closed at its end
	err      error         // an outcome that those who wait share; read after done
	enqueued chan struct{} // closed when it stands in line for the first time
	inLine   bool          // guarded by Manager.mu
	stood    bool          // guarded by Manager.mu: enqueued is closed
}

// board makes the claim the one that flies for its request id; without an id there is nothing to do.
func (c *claim) board(ctx, patience context.Context) error {
	if c.req.RequestID == "" {
		return nil
	}
	key := requestKey{c.req.Pool, c.req.RequestID}
	for {
		other := c.join(key)
		if other == nil {
			return nil
		}
		if err := c.await(ctx, patience, other); err != nil {
			return err
		}
	}
}

// join registers the claim's flight, or returns the one that is there.
func (c *claim) join(key requestKey) *flight {
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	if other := c.m.flights[key]; other != nil {
		return other
	}
	c.flight = &flight{done: make(chan struct{}), enqueued: make(chan struct{})}
	c.m.flights[key] = c.flight
	return nil
}

// await waits for another claim with the same request id. Nil means: look again. A claim that does not want to wait
// for a VM need not wait for one that stands in line either, but for the hooks of one that has a VM.
func (c *claim) await(ctx, patience context.Context, other *flight) error {
	enqueued, impatient := other.enqueued, patience.Done()
	for {
		if patience.Err() != nil && c.m.standsInLine(other) {
			return pool.Errorf(pool.CodeExhausted, "an earlier call of this claim still waits for a VM of pool %s", c.req.Pool)
		}
		select {
		case <-other.done:
			return other.err
		case <-ctx.Done():
			return gone(ctx, c.req.Pool)
		case <-enqueued:
			enqueued = nil
		case <-impatient:
			impatient = nil
		}
	}
}

func (m *Manager) standsInLine(f *flight) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return f.inLine
}

// land ends the flight. What the pool's hooks did is the outcome for everybody who waits; what concerns this caller
// only is not: the next one tries for itself, or finds the lease.
func (c *claim) land(err error) {
	if c.flight == nil {
		return
	}
	var failure *host.CommandFailure
	if errors.As(err, &failure) || pool.CodeOf(err) == pool.CodeAborted {
		c.flight.err = err
	}
	c.m.mu.Lock()
	delete(c.m.flights, requestKey{c.req.Pool, c.req.RequestID})
	c.m.mu.Unlock()
	close(c.flight.done)
}

func (c *claim) enqueued() {
	if c.flight == nil {
		return
	}
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	c.flight.inLine = true
	if !c.flight.stood {
		c.flight.stood = true
		close(c.flight.enqueued)
	}
}

func (c *claim) dequeued() {
	if c.flight == nil {
		return
	}
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	c.flight.inLine = false
}
