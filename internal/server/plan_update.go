package server

import (
	"context"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	pb "poolmgr/api/poolmgr/v1alpha1"
	"poolmgr/internal/plan"
	"poolmgr/internal/pool"
)

// PlanUpdate tells what an update of a pool would do, or the creation of one that does not exist, and changes nothing.
// It refuses what the update would be refused for.
func (s *rolloutAdmin) PlanUpdate(ctx context.Context, req *pb.PlanUpdateRequest) (*pb.PlanUpdateResponse, error) {
	spec, err := s.accept(ctx, req.GetSpec())
	if err != nil {
		return nil, err
	}
	w, err := s.worldOrNew(ctx, spec.Key)
	if err != nil {
		return nil, err
	}
	if err := changeable(w.Pool, req.GetSpec().GetGeneration()); err != nil {
		return nil, err
	}
	now := s.cfg.Now()
	f := plan.Preview(w, updated(w.Pool, spec, now), now)
	out := &pb.PlanUpdateResponse{
		HashChanges: f.HashChanges, FromHash: f.FromHash, ToHash: f.ToHash, VmIdsInOrder: f.Order,
		Batches: int32(f.Batches), LowestAvailable: int32(f.LowestReady), Explanations: f.Explain,
	}
	if f.Estimate > 0 {
		out.Estimate = durationpb.New(f.Estimate)
	}
	return out, nil
}

// worldOrNew is the world of a pool, or of one that does not exist yet: it has the hosts and nothing else.
func (s *Server) worldOrNew(ctx context.Context, key pool.Key) (plan.World, error) {
	w, err := s.world(ctx, key)
	if err == nil || pool.CodeOf(err) != pool.CodeNotFound {
		return w, err
	}
	hosts, err := s.cfg.Store.ListHosts(ctx)
	if err != nil {
		return plan.World{}, err
	}
	return plan.World{Hosts: hosts, Limits: s.cfg.Limits, Epoch: s.cfg.Store.Epoch(), ServingSince: s.cfg.Now()}, nil
}

// changeable refuses what the store would refuse of an update. A pool that does not exist has no generation to match.
func changeable(p pool.Pool, generation int64) error {
	switch {
	case p.Generation == 0:
		return nil
	case p.Closing:
		return pool.Errorf(pool.CodeFailedPrecondition, "pool %s is being deleted and cannot be changed any more", p.Key())
	case generation != 0 && generation != p.Generation:
		return pool.Errorf(pool.CodeAborted, "pool %s is at generation %d, not %d: somebody changed it; read it again and repeat the change",
			p.Key(), p.Generation, generation)
	}
	return nil
}

// updated is the pool as the update would leave it.
func updated(p pool.Pool, spec pool.Spec, now time.Time) pool.Pool {
	p.Spec = spec
	p.Generation++
	if hash := pool.TemplateHash(spec.Template, spec.CreateCommands); hash != p.TemplateHash {
		p.Revision, p.TemplateHash = p.Revision+1, hash
		p.Rollout = pool.Rollout{LastCompleted: p.Rollout.LastCompleted, StartedAt: now, LastSuccess: now}
	}
	return p
}
