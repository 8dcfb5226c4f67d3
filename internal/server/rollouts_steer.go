package server

import (
	"context"

	pb "poolmgr/api/poolmgr/v1alpha1"
	"poolmgr/internal/store"
)

// PauseRollout holds the rollout of a pool back.
func (s *rolloutAdmin) PauseRollout(ctx context.Context, req *pb.PauseRolloutRequest) (*pb.RolloutStatus, error) {
	return s.steer(ctx, req.GetPool(), store.SteerRollout{Verb: store.RolloutPause})
}

// ResumeRollout lets a paused rollout go on.
func (s *rolloutAdmin) ResumeRollout(ctx context.Context, req *pb.ResumeRolloutRequest) (*pb.RolloutStatus, error) {
	return s.steer(ctx, req.GetPool(), store.SteerRollout{Verb: store.RolloutResume})
}

// RestartRollout replaces every warm VM of a pool.
func (s *rolloutAdmin) RestartRollout(ctx context.Context, req *pb.RestartRolloutRequest) (*pb.RolloutStatus, error) {
	return s.steer(ctx, req.GetPool(), store.SteerRollout{Verb: store.RolloutRestart})
}

// UndoRollout goes back to an earlier template.
func (s *rolloutAdmin) UndoRollout(ctx context.Context, req *pb.UndoRolloutRequest) (*pb.RolloutStatus, error) {
	if n := req.GetToRevision(); n < 0 {
		var f faults
		f.add("to_revision", "is %d, must not be negative; 0 asks for the one that last completed a rollout", n)
		return nil, invalid(f.Faults)
	}
	return s.steer(ctx, req.GetPool(), store.SteerRollout{Verb: store.RolloutUndo, To: req.GetToRevision()})
}

// steer carries out a verb and answers with where the rollout stands after it.
func (s *rolloutAdmin) steer(ctx context.Context, ref *pb.PoolRef, verb store.SteerRollout) (*pb.RolloutStatus, error) {
	key, err := keyOf("pool", ref)
	if err != nil {
		return nil, err
	}
	verb.Pool, verb.Now = key, s.cfg.Now()
	if _, err := s.cfg.Store.SteerRollout(ctx, verb); err != nil {
		return nil, err
	}
	now, _, err := s.look(ctx, key)
	return now, err
}
