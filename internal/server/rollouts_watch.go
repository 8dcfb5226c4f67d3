package server

import (
	"context"
	"time"

	"google.golang.org/protobuf/proto"

	pb "poolmgr/api/poolmgr/v1alpha1"
	"poolmgr/internal/plan"
	"poolmgr/internal/pool"
)

// watchPace is the shortest time between two looks of one watcher. A busy store commits far more often than anybody can
// read; what changes in between is seen in the next look.
const watchPace = 100 * time.Millisecond

// WatchRollout sends the status at once and whenever it has changed. It ends with the pool: with FAILED_PRECONDITION
// when its deletion begins, as every other call about its rollout answers then.
func (s *rolloutAdmin) WatchRollout(req *pb.WatchRolloutRequest, stream pb.RolloutAdmin_WatchRolloutServer) error {
	key, err := keyOf("pool", req.GetPool())
	if err != nil {
		return err
	}
	var last *pb.RolloutStatus
	for {
		changed := s.cfg.Store.Changed() // before the read, so that nothing falls between the two
		now, wake, err := s.look(stream.Context(), key)
		if err != nil {
			return err
		}
		if last == nil || !proto.Equal(last, now) {
			if err := stream.Send(now); err != nil {
				return err
			}
			last = now
		}
		if err := s.idle(stream.Context(), changed, wake); err != nil {
			return err
		}
	}
}

// look reads the status of a rollout, and when it may change although no row does; zero = never.
func (s *rolloutAdmin) look(ctx context.Context, key pool.Key) (*pb.RolloutStatus, time.Time, error) {
	w, err := s.world(ctx, key)
	if err != nil {
		return nil, time.Time{}, err
	}
	if err := rolling(w.Pool); err != nil {
		return nil, time.Time{}, err
	}
	now := s.cfg.Now()
	p := plan.Compute(w, now)
	return rolloutStatus(w, p), p.Wake, nil
}

// idle waits for watchPace, and then until something changed or it is time to look again.
func (s *rolloutAdmin) idle(ctx context.Context, changed <-chan struct{}, wake time.Time) error {
	if err := s.until(ctx, time.After(watchPace), nil); err != nil {
		return err
	}
	var timer <-chan time.Time // nil = never
	if !wake.IsZero() {
		timer = time.After(wake.Sub(s.cfg.Now()))
	}
	return s.until(ctx, timer, changed)
}

// until waits for one of two signals; the end of the caller or of the daemon is an error.
func (s *rolloutAdmin) until(ctx context.Context, timer <-chan time.Time, changed <-chan struct{}) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-s.cfg.Stopping:
		return pool.Errorf(pool.CodeUnavailable, "the daemon is stopping; watch again in a moment")
	case <-timer:
	case <-changed:
	}
	return nil
}
