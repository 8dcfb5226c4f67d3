package server

import (
	"context"
	"slices"

	pb "poolmgr/api/poolmgr/v1alpha1"
	"poolmgr/internal/pool"
)

type rolloutAdmin struct {
	pb.UnimplementedRolloutAdminServer
	*Server
}

// GetRollout tells where the rollout of a pool stands.
func (s *rolloutAdmin) GetRollout(ctx context.Context, req *pb.GetRolloutRequest) (*pb.RolloutStatus, error) {
	key, err := keyOf("pool", req.GetPool())
	if err != nil {
		return nil, err
	}
	now, _, err := s.look(ctx, key)
	return now, err
}

// rolling refuses to talk of the rollouts of a pool that is being deleted.
func rolling(p pool.Pool) error {
	if p.Closing {
		return pool.Errorf(pool.CodeFailedPrecondition, "pool %s is being deleted and has no rollout any more", p.Key())
	}
	return nil
}

// ListRevisions shows the stored revisions of a pool, the latest first.
func (s *rolloutAdmin) ListRevisions(ctx context.Context, req *pb.ListRevisionsRequest) (*pb.ListRevisionsResponse, error) {
	key, err := keyOf("pool", req.GetPool())
	if err != nil {
		return nil, err
	}
	view, err := s.cfg.Store.GetPool(ctx, key)
	if err != nil {
		return nil, err
	}
	if err := rolling(view.Pool); err != nil {
		return nil, err
	}
	revisions, err := s.cfg.Store.Revisions(ctx, key)
	if err != nil {
		return nil, err
	}
	return encodeRevisions(view.Pool, revisions), nil
}

func encodeRevisions(p pool.Pool, revisions []pool.Revision) *pb.ListRevisionsResponse {
	out := &pb.ListRevisionsResponse{}
	for _, r := range slices.Backward(revisions) {
		out.Revisions = append(out.Revisions, &pb.Revision{
			Number: r.Number, TemplateHash: r.TemplateHash, CreatedAt: stamp(r.CreatedAt), Template: r.Template,
			CreateCommands: r.CreateCommands, Current: r.Number == p.Revision,
			LastCompleted: r.Number == p.Rollout.LastCompleted,
		})
	}
	return out
}
