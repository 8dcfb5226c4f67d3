package flintlock

import (
	"context"
	"fmt"
	"time"
)

// Limits bound the calls in flight to one host; zero means the default.
type Limits struct {
	Calls      int // everything but commands; default 16
	ShortExecs int // commands with 30 s or less to their deadline, such as probes; default 32
	LongExecs  int // other commands; default 128
}

// shortExec is the longest time to its deadline with which a command counts as short.
const shortExec = 30 * time.Second

// lanes are the slots of one host, by kind of call.
type lanes struct {
	calls, short, long lane
}

func newLanes(l Limits) lanes {
	size := func(n, standard int) lane {
		if n <= 0 {
			n = standard
		}
		return make(lane, n)
	}
	return lanes{calls: size(l.Calls, 16), short: size(l.ShortExecs, 32), long: size(l.LongExecs, 128)}
}

// forExec picks the lane by how long the command can hold its slot at most.
func (l lanes) forExec(ctx context.Context) lane {
	if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) <= shortExec {
		return l.short
	}
	return l.long
}

// lane is a set of slots: its buffer holds one value for each call in flight.
type lane chan struct{}

// enter waits for a slot for as long as the context allows. That none came free says nothing about the host, so the
// error is none of the driver's sentinels.
func (l lane) enter(ctx context.Context) (release func(), err error) {
	select {
	case l <- struct{}{}:
		return func() { <-l }, nil
	default:
	}
	select {
	case l <- struct{}{}:
		return func() { <-l }, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("%d calls of this kind are in flight and none ended: %w", cap(l), ctx.Err())
	}
}
