package client

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "poolmgr/api/poolmgr/v1alpha1"
)

// Bounds of the time between heartbeats.
const (
	minHeartbeat     = 100 * time.Millisecond
	defaultHeartbeat = 30 * time.Second // poolmgr's own default, for a pool that cannot be read
)

// Lease is the right to one VM. It heartbeats by itself until Release, until the context of its Claim ends, or until
// the daemon says that it has ended. While the daemon cannot be reached, it goes on trying: the daemon counts no time
// against leases in which it was away itself.
type Lease struct {
	client *Client
	claim  *pb.ClaimVMResponse
	pool   *pb.PoolRef
	every  time.Duration // 0 = the pool's
	silent bool          // somebody else heartbeats

	ctx  context.Context // done when the heartbeats are to stop, with the reason as its cause
	stop context.CancelCauseFunc
	done chan struct{} // closed when they have

	mu        sync.Mutex // guards the rest
	expiresAt time.Time
	outdated  bool
	err       error
	released  bool
}

// keep starts the heartbeats of a lease.
func (c *Client) keep(ctx context.Context, pool *pb.PoolRef, claim *pb.ClaimVMResponse, o ClaimOptions) *Lease {
	l := &Lease{
		client: c, claim: claim, pool: pool, every: o.HeartbeatEvery, silent: o.NoHeartbeat,
		done: make(chan struct{}), expiresAt: claim.GetExpiresAt().AsTime(), outdated: claim.GetStale(),
	}
	l.ctx, l.stop = context.WithCancelCause(ctx)
	unhook := context.AfterFunc(c.closed, func() { l.stop(ErrClosed) })
	c.leases.Go(func() {
		defer close(l.done)
		defer unhook()
		l.end(l.heartbeats())
	})
	return l
}

// ID is the lease's id. It is a secret: whoever knows it may extend and release the lease and run commands in the VM.
func (l *Lease) ID() string { return l.claim.GetLeaseId() }

// VM is the claim's whole answer: the VM, its host, its network interfaces. It must not be changed.
func (l *Lease) VM() *pb.ClaimVMResponse { return l.claim }

// ExpiresAt is when the lease ends unless another heartbeat gets through, by the daemon's clock.
func (l *Lease) ExpiresAt() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.expiresAt
}

// Outdated tells whether the pool's template has changed since the VM was made: a consumer may want another one.
func (l *Lease) Outdated() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.outdated
}

// Done is closed when the lease is no longer kept alive; Err then tells why.
func (l *Lease) Done() <-chan struct{} { return l.done }

// Err is nil while the lease is kept alive. After that it is ErrReleased, ErrLost, ErrClosed or the cause with which the
// context of the claim ended, to be compared with errors.Is.
func (l *Lease) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// Exec runs a command inside the VM; see Client.Exec. It is cut off when the lease is no longer kept alive.
func (l *Lease) Exec(ctx context.Context, command Command) (exitCode int, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	unhook := context.AfterFunc(l.ctx, func() { cancel(context.Cause(l.ctx)) })
	defer unhook()
	return l.client.Exec(ctx, l.ID(), command)
}

// Release gives the VM back, to be destroyed, and stops the heartbeats. It repeats the request while the daemon cannot
// be reached, until ctx ends or the limit of a call is over; after a failure it may be called again. Releasing a lease
// that Release has already given back is harmless; one that ended otherwise is ErrLost.
func (l *Lease) Release(ctx context.Context) error {
	l.stop(ErrReleased)
	<-l.done
	l.mu.Lock()
	released := l.released
	l.mu.Unlock()
	if released {
		return nil
	}
	if err := l.client.release(ctx, l.ID()); err != nil {
		return fmt.Errorf("release the lease of VM %s: %w", l.claim.GetVmId(), err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.released = true
	return nil
}

func (c *Client) release(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(ctx, c.callTimeout)
	defer cancel()
	space := newBackoff()
	for sent := false; ; {
		_, err := c.Leases().ReleaseVM(ctx, &pb.ReleaseVMRequest{LeaseId: id})
		switch {
		case err == nil:
			return nil
		case status.Code(err) == codes.NotFound && sent:
			return nil // an earlier request was carried out, and its reply lost
		case status.Code(err) == codes.NotFound:
			return fmt.Errorf("%w (%w)", ErrLost, err)
		case !transient(err):
			return err
		}
		sent = sent || !Unreached(err)
		if pause(ctx, space.NextBackOff()) != nil {
			return err
		}
	}
}

// end writes down why the lease is no longer kept alive.
func (l *Lease) end(reason error) {
	l.stop(reason)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.err = reason
}

// heartbeats extends the lease until it ends, and returns why it did. What fails is tried again sooner than the next
// heartbeat would be due.
func (l *Lease) heartbeats() error {
	if l.silent {
		<-l.ctx.Done()
		return context.Cause(l.ctx)
	}
	every := l.interval()
	space := newBackoff()
	for wait := every; ; {
		if err := pause(l.ctx, wait); err != nil {
			return err
		}
		err := l.heartbeat(every)
		switch {
		case err == nil:
			wait = every
			space.Reset()
			continue
		case l.ctx.Err() != nil:
			return context.Cause(l.ctx)
		case errors.Is(err, ErrLost):
			return err
		}
		wait = min(every, space.NextBackOff())
		l.client.log.Warn("heartbeat failed, trying again", "vm", l.claim.GetVmId(), "in", wait, "error", err)
	}
}

func (l *Lease) heartbeat(limit time.Duration) error {
	ctx, cancel := context.WithTimeout(l.ctx, max(limit, time.Second))
	defer cancel()
	resp, err := l.client.Leases().Heartbeat(ctx, &pb.HeartbeatRequest{LeaseId: l.ID()})
	if status.Code(err) == codes.NotFound {
		return fmt.Errorf("%w (%w)", ErrLost, err)
	}
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.expiresAt, l.outdated = resp.GetExpiresAt().AsTime(), resp.GetOutdated()
	return nil
}

// interval is the time between heartbeats: what was asked for, or the pool's own, and never more than a third of what a
// lease lives without one. The pool is asked, since expires_at alone cannot be read without trusting two clocks.
func (l *Lease) interval() time.Duration {
	if l.every > 0 {
		return max(l.every, minHeartbeat)
	}
	every := defaultHeartbeat
	if left := time.Until(l.expiresAt); left > 0 {
		every = min(every, left/3)
	}
	got, err := l.client.Pools().GetPool(l.ctx, &pb.GetPoolRequest{Ref: l.pool})
	if err != nil && l.ctx.Err() != nil {
		return max(every, minHeartbeat) // the lease was given back meanwhile: there is nothing to tell
	}
	if err != nil {
		l.client.log.Info("pool could not be read, heartbeats by the lease's end", "pool", l.pool.GetName(), "every", every, "error", err)
		return max(every, minHeartbeat)
	}
	if d := got.GetSpec().GetHeartbeatInterval().AsDuration(); d > 0 {
		every = d
	}
	if d := got.GetSpec().GetHeartbeatExpiryThreshold().AsDuration(); d > 0 {
		every = min(every, d/3)
	}
	return max(every, minHeartbeat)
}
