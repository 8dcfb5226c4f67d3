package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"time"

	pb "poolmgr/api/poolmgr/v1alpha1"
)

// DefaultResumeFor is how long Follow tries to get back to a daemon that went away.
const DefaultResumeFor = 2 * time.Minute

// settled is how long a stream must have lived for its end to count as news, and not as one more refusal.
const settled = time.Second

// EventOptions says which events to follow.
type EventOptions struct {
	Pool  *pb.PoolRef    // nil = every pool
	After int64          // the id of the last event that was seen; 0 = from the oldest that is kept
	Types []pb.EventType // empty = every type
	// NoFollow ends after what has happened so far.
	NoFollow bool
	// ResumeFor is how long to try to get back to a daemon that went away. 0 = DefaultResumeFor.
	ResumeFor time.Duration
}

// Follow yields events by growing id, each once. When the stream breaks, it is resumed after the last event that was
// yielded. A daemon that is not there at the beginning is an error at once; any error is yielded once, and last.
func (c *Client) Follow(ctx context.Context, o EventOptions) iter.Seq2[*pb.Event, error] {
	return func(yield func(*pb.Event, error) bool) {
		f := follower{client: c, options: o, after: o.After, yield: yield}
		if err := f.run(ctx); err != nil {
			yield(nil, fmt.Errorf("follow events: %w", err))
		}
	}
}

// errEnough says that the consumer of the sequence has stopped.
var errEnough = errors.New("enough")

// follower is one run of Follow.
type follower struct {
	client  *Client
	options EventOptions
	after   int64 // the cursor
	yield   func(*pb.Event, error) bool
}

func (f *follower) run(ctx context.Context) error {
	limit := f.options.ResumeFor
	if limit <= 0 {
		limit = DefaultResumeFor
	}
	space := newBackoff()
	connected, told := false, false
	lastGood := time.Now()
	for {
		begin := time.Now()
		opened, err := f.stream(ctx)
		switch {
		case err == nil, errors.Is(err, errEnough):
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		}
		connected = connected || opened
		if opened && time.Since(begin) > settled {
			lastGood, told = time.Now(), false
			space.Reset()
		}
		again := transient(err) || errors.Is(err, io.ErrUnexpectedEOF)
		if !again || !connected || time.Since(lastGood) > limit {
			return err
		}
		if !told {
			f.client.log.Info("event stream broke, resuming", "after", f.after, "error", err)
		}
		told = true
		if err := pause(ctx, space.NextBackOff()); err != nil {
			return err
		}
	}
}

// stream follows one stream to its end: nil when there is nothing more to come.
func (f *follower) stream(ctx context.Context) (opened bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := f.client.Events().Subscribe(ctx, &pb.SubscribeRequest{
		Pool: f.options.Pool, AfterId: f.after, Types: f.options.Types, NoFollow: f.options.NoFollow,
	})
	if err != nil {
		return false, err
	}
	for {
		event, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF) && f.options.NoFollow:
			return true, nil
		case errors.Is(err, io.EOF):
			return true, fmt.Errorf("the daemon ended the stream: %w", io.ErrUnexpectedEOF)
		case err != nil:
			return !Unreached(err), err
		case event.GetId() <= f.after:
			continue // seen before
		}
		f.after = event.GetId()
		if !f.yield(event, nil) {
			return true, errEnough
		}
	}
}
