package lease

import (
	"context"
	"fmt"
	"time"
	"unicode/utf8"

	"poolmgr/internal/host"
	"poolmgr/internal/pool"
	"poolmgr/internal/store"
)

// Bounds of a claim.
const (
	MaxRequestIDLen = 255            // bytes
	MaxConsumerLen  = 1024           // bytes
	MaxWait         = 24 * time.Hour // in line
	maxTries        = 3              // VMs whose hooks may fail before the claim does
)

// Request asks for one VM of a pool.
type Request struct {
	Pool      pool.Key
	RequestID string        // repeating a claim with the same id finds its lease; scoped to the pool; empty = none
	Consumer  string        // free text for people
	Actor     string        // identity of the caller; empty until identities exist
	Wait      time.Duration // how long to stand in line when there is no VM; 0 = not at all
}

// Claimed is a lease with its VM.
type Claimed struct {
	Lease    pool.Lease
	VM       pool.VM
	Host     pool.Host
	Stale    bool // the VM is not of the pool's current revision
	Replayed bool // the request id found the lease of an earlier call; its expiry is untouched
}

func (r Request) check() error {
	var faults pool.Faults
	add := func(field, format string, args ...any) {
		faults = append(faults, pool.Fault{Field: field, Message: fmt.Sprintf(format, args...)})
	}
	if len(r.RequestID) > MaxRequestIDLen {
		add("request_id", "has %d bytes, at most %d are allowed", len(r.RequestID), MaxRequestIDLen)
	}
	if len(r.Consumer) > MaxConsumerLen {
		add("consumer", "has %d bytes, at most %d are allowed", len(r.Consumer), MaxConsumerLen)
	}
	if !utf8.ValidString(r.RequestID) || !utf8.ValidString(r.Consumer) {
		add("request_id", "and consumer must be UTF-8 text")
	}
	if r.Wait < 0 || r.Wait > MaxWait {
		add("wait", "is %s, must be from 0 to %s", r.Wait, MaxWait)
	}
	if len(faults) == 0 {
		return nil
	}
	return &pool.Error{Code: pool.CodeInvalid, Message: "invalid claim: " + faults[0].Field + " " + faults[0].Message, Faults: faults}
}

// claim is one call of Claim under way.
type claim struct {
	m      *Manager
	req    Request
	flight *flight              // nil without a request id
	failed []string             // VMs whose hooks failed
	last   *host.CommandFailure // why the last of them did
}

// taken is a VM that the store gave to this claim, or a lease that its request id found.
type taken struct {
	store.ClaimResult
	pool  pool.Pool // as it was just before
	probe bool      // it tries whether the pool's hooks work again
}

// Claim takes a VM of the pool, runs the pool's pre-lease commands in it, and returns its lease, which is durable by
// then. A caller whose ctx ends is given nothing.
//
// RESOURCE_EXHAUSTED when there is no VM to give out, or none became free within Wait; NOT_FOUND without the pool;
// INTERNAL when the pre-lease commands failed on three VMs; UNAVAILABLE while they fail for everybody, or when the
// daemon stops; ABORTED when the pool was deleted or the host lost while they ran.
func (m *Manager) Claim(ctx context.Context, req Request) (Claimed, error) {
	if err := req.check(); err != nil {
		return Claimed{}, err
	}
	ctx, end, err := m.begin(ctx)
	if err != nil {
		return Claimed{}, err
	}
	defer end()
	patience, cancel := context.WithTimeout(ctx, req.Wait)
	defer cancel()
	began := m.cfg.Now()
	c := &claim{m: m, req: req}
	if err := c.board(ctx, patience); err != nil {
		return Claimed{}, err
	}
	claimed, err := c.fly(ctx, patience)
	if err != nil {
		return Claimed{}, err
	}
	m.cfg.Observer.Claimed(req.Pool, claimed.Replayed)
	m.log.Info("claimed", "pool", req.Pool.String(), "vm", claimed.VM.ID, "host", claimed.VM.Host, "consumer", req.Consumer,
		"replayed", claimed.Replayed, "took", m.cfg.Now().Sub(began).Round(time.Microsecond))
	return claimed, nil
}

// fly runs the claim and tells those who wait for it, also when it panics.
func (c *claim) fly(ctx, patience context.Context) (claimed Claimed, err error) {
	defer func() { c.land(err) }()
	return c.run(ctx, patience)
}

// run takes VMs until one can be handed over.
func (c *claim) run(ctx, patience context.Context) (Claimed, error) {
	for {
		t, err := c.obtain(ctx, patience, len(c.failed) == 0)
		switch {
		case c.last != nil && isExhausted(err):
			return Claimed{}, c.spoilt()
		case err != nil:
			return Claimed{}, err
		case t.Replayed && t.Lease.Pending:
			if err := c.awaitOutcome(ctx, t.Lease); err != nil {
				return Claimed{}, err
			}
			continue
		}
		claimed, failure, err := c.handOver(ctx, t)
		if failure == nil {
			return claimed, err
		}
		c.failed, c.last = append(c.failed, t.VM.ID), failure
		if t.probe || len(c.failed) >= maxTries {
			return Claimed{}, c.spoilt()
		}
	}
}

// spoilt is the answer when the hooks failed on every VM that was tried.
func (c *claim) spoilt() error {
	return &pool.Error{
		Code: pool.CodeInternal, Err: c.last,
		Message: fmt.Sprintf("the pre-lease commands of pool %s failed on %d VMs; the last: %s", c.req.Pool, len(c.failed), c.last),
	}
}

// take asks the store for a VM.
func (c *claim) take(ctx context.Context) (taken, error) {
	return c.ask(ctx, store.Claim{LeaseID: c.m.cfg.NewID(), Exclude: c.failed})
}

// replay asks the store for the lease that the request id made before; RESOURCE_EXHAUSTED when there is none.
func (c *claim) replay(ctx context.Context) (taken, error) {
	if c.req.RequestID == "" {
		return taken{}, pool.Errorf(pool.CodeExhausted, "without a request id no earlier lease can be found")
	}
	return c.ask(ctx, store.Claim{ReplayOnly: true})
}

func (c *claim) ask(ctx context.Context, what store.Claim) (taken, error) {
	s := c.m.cfg.Store
	view, err := s.GetPool(ctx, c.req.Pool)
	if err != nil {
		return taken{}, c.mine(ctx, err)
	}
	t := taken{pool: view.Pool}
	spec := view.Pool.Spec
	if len(spec.PreLeaseCommands) > 0 && !what.ReplayOnly {
		what.Hooks = time.Duration(len(spec.PreLeaseCommands))*(spec.CommandTimeout+hookSlack) + hookSlack
		if t.probe, err = c.m.admit(view.Pool); err != nil {
			if found, replayErr := c.replay(ctx); replayErr == nil {
				return found, nil
			}
			return taken{}, err
		}
	}
	what.Pool, what.RequestID, what.Consumer, what.Actor = c.req.Pool, c.req.RequestID, c.req.Consumer, c.req.Actor
	what.Now = c.m.cfg.Now()
	t.ClaimResult, err = s.Claim(ctx, what)
	if err != nil || !t.Lease.Pending || t.Replayed {
		c.m.settle(t.pool, t.probe, false, nil) // no hook will run
		t.probe = false
	}
	if err != nil {
		return taken{}, c.mine(ctx, err)
	}
	return t, nil
}

// mine prefers what happened to this caller over what the store says about it.
func (c *claim) mine(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return gone(ctx, c.req.Pool)
	}
	return err
}

// awaitOutcome waits until a pending lease that the request id found is complete or gone. Within one daemon claims of
// one id wait for each other, so this is a lease of an earlier run: the next pass condemns its VM.
func (c *claim) awaitOutcome(ctx context.Context, l pool.Lease) error {
	limit := time.NewTimer(max(0, l.ExpiresAt.Sub(c.m.cfg.Now())) + hookSlack)
	defer limit.Stop()
	for {
		changed := c.m.cfg.Store.Changed()
		t, err := c.replay(ctx)
		switch {
		case isExhausted(err):
			return nil
		case err != nil:
			return err
		case !t.Lease.Pending:
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return gone(ctx, c.req.Pool)
		case <-c.m.draining:
			return stopping()
		case <-limit.C:
			return pool.Errorf(pool.CodeUnavailable, "an earlier call of this claim has no outcome yet; try again in a moment")
		}
	}
}
