package server

import (
	"context"

	pb "poolmgr/api/poolmgr/v1alpha1"
	"poolmgr/internal/plan"
	"poolmgr/internal/pool"
)

// pool reads a pool and everything that is shown of it. The explanations come from the planner itself: what is printed
// is what the daemon acts on.
func (s *Server) pool(ctx context.Context, key pool.Key) (*pb.Pool, error) {
	view, err := s.cfg.Store.GetPool(ctx, key)
	if err != nil {
		return nil, err
	}
	w, err := s.world(ctx, key)
	if err != nil {
		return nil, err
	}
	p := plan.Compute(w, s.cfg.Now())
	spec := view.Pool.Spec.API()
	spec.Generation = view.Pool.Generation
	spec.TemplateHash = view.Pool.TemplateHash
	c := view.Counts
	return &pb.Pool{Spec: spec, Status: &pb.PoolStatus{
		AvailableCount: int32(c.Claimable), LeasedCount: int32(c.Held), ProvisioningCount: int32(c.Warming),
		QuarantinedCount: int32(c.Quarantined), StaleCount: int32(c.Stale), StaleLeasedCount: int32(c.StaleLeased),
		DeletingCount: int32(c.Deleting), FailedCount: int32(c.Failed), DesiredCount: int32(c.Desired),
		WaitingClaims: int32(s.cfg.Leases.Waiting(key)),
		Rollout:       rolloutStatus(w, p), Explanations: p.Explain,
		CreatedAt: stamp(view.Pool.CreatedAt), Deleting: view.Pool.Closing,
	}}, nil
}

// world is what the reconciler would plan from at this moment.
func (s *Server) world(ctx context.Context, key pool.Key) (plan.World, error) {
	snap, err := s.cfg.Store.Snapshot(ctx, key)
	if err != nil {
		return plan.World{}, err
	}
	return plan.World{
		Pool: snap.Pool, Revisions: snap.Revisions, VMs: snap.VMs, Hosts: snap.Hosts, Leases: snap.Leases,
		Limits: s.cfg.Limits, Epoch: s.cfg.Store.Epoch(), ServingSince: s.cfg.Now(),
	}, nil
}

func rolloutStatus(w plan.World, p plan.Plan) *pb.RolloutStatus {
	r := w.Pool.Rollout
	stale := 0
	for _, v := range w.VMs {
		if v.Phase.Warm() && v.Stale(w.Pool) {
			stale++
		}
	}
	out := &pb.RolloutStatus{
		State:  pb.RolloutState(pb.RolloutState_value["ROLLOUT_STATE_"+string(p.State)]),
		Reason: p.StateReason, Revision: w.Pool.Revision, LastCompletedRevision: r.LastCompleted,
		Replaced: int32(max(0, r.Total-stale)), Total: int32(r.Total), Failures: int32(len(r.Failures)),
		StartedAt: stamp(r.StartedAt), CompletedAt: stamp(r.CompletedAt), RolledBackFrom: r.RolledBackFrom,
		Explanations: p.Explain,
	}
	if n := len(r.Failures); n > 0 {
		out.LastError = r.Failures[n-1].String()
	}
	return out
}
