package client

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"
	"google.golang.org/grpc"

	pb "poolmgr/api/poolmgr/v1alpha1"
)

// Client is a connection to one poolmgrd. It may be used by many goroutines at once.
type Client struct {
	conn *grpc.ClientConn
	settings

	closed context.Context // done once Close was called
	close  func() error    // what Close does, once
	leases sync.WaitGroup  // heartbeats that are running
}

// Dial prepares a connection to host:port, http://host:port, https://host:port or unix:/path. Without a scheme it is
// plain text on loopback and TLS elsewhere. It does not wait for the daemon: the first call connects.
func Dial(addr string, options ...Option) (*Client, error) {
	s := settings{callTimeout: DefaultCallTimeout, log: slog.New(slog.DiscardHandler)}
	for _, option := range options {
		option(&s)
	}
	target, plain, err := transport(addr)
	if err != nil {
		return nil, err
	}
	c := &Client{settings: s}
	conn, err := grpc.NewClient(target, append(s.dialOptions(plain), grpc.WithChainUnaryInterceptor(c.bounded))...)
	if err != nil {
		return nil, fmt.Errorf("connect to poolmgrd at %s: %w", addr, err)
	}
	c.conn = conn
	closed, cancel := context.WithCancel(context.Background())
	c.closed = closed
	c.close = sync.OnceValue(func() error {
		cancel()
		c.leases.Wait()
		return conn.Close()
	})
	return c, nil
}

// Close stops the heartbeats of every lease, waits for them and closes the connection. Leases are not released: those
// that are not heartbeated by somebody else expire. Closing again is harmless.
func (c *Client) Close() error { return c.close() }

// Pools makes, changes and removes pools.
func (c *Client) Pools() pb.PoolAdminClient { return pb.NewPoolAdminClient(c.conn) }

// Leases is the service below Claim, for callers who heartbeat by themselves.
func (c *Client) Leases() pb.LeaseClient { return pb.NewLeaseClient(c.conn) }

// Events is the service below Follow.
func (c *Client) Events() pb.EventsClient { return pb.NewEventsClient(c.conn) }

// Hosts registers and cordons hosts.
func (c *Client) Hosts() pb.HostAdminClient { return pb.NewHostAdminClient(c.conn) }

// VMs shows single VMs.
func (c *Client) VMs() pb.VMAdminClient { return pb.NewVMAdminClient(c.conn) }

// Rollouts watches and steers rollouts.
func (c *Client) Rollouts() pb.RolloutAdminClient { return pb.NewRolloutAdminClient(c.conn) }

// Guests is the service below Exec.
func (c *Client) Guests() pb.GuestClient { return pb.NewGuestClient(c.conn) }

// bounded gives every unary call a deadline.
func (c *Client) bounded(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, next grpc.UnaryInvoker, options ...grpc.CallOption) error {
	limit := c.callTimeout
	if claim, is := req.(*pb.ClaimVMRequest); is {
		limit += claim.GetWait().AsDuration()
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return next(ctx, method, req, reply, conn, options...)
}

// newBackoff spaces repeated requests: 100 ms at first, 2 s at most, with jitter.
func newBackoff() *backoff.ExponentialBackOff {
	b := backoff.NewExponentialBackOff()
	b.InitialInterval, b.MaxInterval = 100*time.Millisecond, 2*time.Second
	return b
}

// pause waits, and returns early with the reason when ctx ends.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
