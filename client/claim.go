package client

import (
	"context"
	"crypto/rand"
	"fmt"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	pb "poolmgr/api/poolmgr/v1alpha1"
)

// lostReplyGrace is how long a claim whose reply was lost is asked for again. Nothing else would return its VM before
// the lease expires.
const lostReplyGrace = 10 * time.Second

// abandonTimeout bounds the search for the lease of a claim that nobody waits for any more.
const abandonTimeout = 5 * time.Second

// ClaimOptions says which VM to claim.
type ClaimOptions struct {
	Namespace string // empty = "default"
	Pool      string // required
	// Wait is how long to queue for a VM, first come, first served. 0 = not at all.
	Wait time.Duration
	// RequestID makes the claim repeatable by the caller, also from another process: while its lease lives, the same
	// id gets the same lease. At most 255 bytes, scoped to the pool. Empty = one is made, for this call's own retries.
	RequestID string
	// Consumer tells people who claimed. May be empty.
	Consumer string
	// HeartbeatEvery overrides the pool's heartbeat_interval. 0 = the pool's.
	HeartbeatEvery time.Duration
	// NoHeartbeat leaves the heartbeats to somebody else, such as another process that is given the lease's id.
	NoHeartbeat bool
}

func (o ClaimOptions) request() *pb.ClaimVMRequest {
	req := &pb.ClaimVMRequest{
		Pool:      &pb.PoolRef{Namespace: o.Namespace, Name: o.Pool},
		RequestId: o.RequestID, Consumer: o.Consumer,
	}
	if req.Pool.Namespace == "" {
		req.Pool.Namespace = "default"
	}
	if req.RequestId == "" {
		req.RequestId = rand.Text()
	}
	return req
}

// Claim takes a VM and keeps its lease alive until Release, until ctx ends or until the lease is lost. Errors carry the
// daemon's gRPC status: RESOURCE_EXHAUSTED when there was no VM, NOT_FOUND for an unknown pool. A claim whose reply was
// lost is repeated under the same request id, so that no VM is taken twice; a daemon that was not there from the
// beginning is an error at once.
func (c *Client) Claim(ctx context.Context, o ClaimOptions) (*Lease, error) {
	req := o.request()
	resp, err := c.take(ctx, req, o.Wait)
	if err != nil {
		if o.RequestID == "" && uncertain(err) {
			c.abandon(ctx, req)
		}
		return nil, fmt.Errorf("claim a VM of pool %s/%s: %w", req.GetPool().GetNamespace(), req.GetPool().GetName(), err)
	}
	return c.keep(ctx, req.GetPool(), resp, o), nil
}

// take asks for a VM, and asks again under the same request id when the reply was lost.
func (c *Client) take(ctx context.Context, req *pb.ClaimVMRequest, wait time.Duration) (*pb.ClaimVMResponse, error) {
	begin := time.Now()
	space := newBackoff()
	for sent := false; ; {
		req.Wait = nil
		if left := wait - time.Since(begin); wait > 0 && left > 0 {
			req.Wait = durationpb.New(left)
		}
		resp, err := c.Leases().ClaimVM(ctx, req)
		if err == nil || !transient(err) {
			return resp, err
		}
		sent = sent || !Unreached(err)
		if !sent || time.Since(begin) > wait+lostReplyGrace {
			return nil, err
		}
		c.log.Info("claim again under the same request id", "pool", req.GetPool().GetName(), "error", err)
		if pause(ctx, space.NextBackOff()) != nil {
			return nil, err
		}
	}
}

// Unreached tells whether an error means that no connection was made, so that nothing was sent. grpc-go has no other
// sign of it than these words; a connection that is lost later reads differently.
func Unreached(err error) bool {
	return transient(err) && strings.Contains(err.Error(), "connection error:")
}

// abandon gives back the VM of a claim that was carried out although its caller is gone. The id was made here, so
// nobody else can come for it. What cannot be undone now ends by expiry.
func (c *Client) abandon(ctx context.Context, req *pb.ClaimVMRequest) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), abandonTimeout)
	defer cancel()
	list, err := c.Leases().ListLeases(ctx, &pb.ListLeasesRequest{PoolRef: req.GetPool()})
	if err != nil {
		c.log.Warn("a claim was given up; its lease, if any, ends by expiry", "pool", req.GetPool().GetName(), "error", err)
		return
	}
	for _, lease := range list.GetLeases() {
		if lease.GetRequestId() != req.GetRequestId() || lease.GetLeaseId() == "" {
			continue
		}
		if _, err := c.Leases().ReleaseVM(ctx, &pb.ReleaseVMRequest{LeaseId: lease.GetLeaseId()}); err != nil {
			c.log.Warn("a claim was given up; its lease ends by expiry", "vm", lease.GetVmId(), "error", err)
		}
	}
}
