package cli

import (
	"context"
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	vmtypes "poolmgr/api/flintlock/vmtypes"
	pb "poolmgr/api/poolmgr/v1alpha1"
)

// digits make the hashes longer than a table shows.
const digits = "012345678901234567890123"

// steer plays a pool whose rollout can be steered, "web" of any namespace.
func steer(ref *pb.PoolRef, r *pb.RolloutStatus) (*pb.RolloutStatus, error) {
	if ref.GetName() != "web" {
		return nil, unknown(ref)
	}
	r.StartedAt, r.LastCompletedRevision = longAgo(), 1
	return r, nil
}

func (f *fake) PauseRollout(_ context.Context, req *pb.PauseRolloutRequest) (*pb.RolloutStatus, error) {
	return steer(req.GetPool(), &pb.RolloutStatus{
		State: pb.RolloutState_ROLLOUT_STATE_PAUSED, Reason: "paused by request (rollout_policy.paused)", Revision: 2, Replaced: 1, Total: 3,
	})
}

func (f *fake) ResumeRollout(_ context.Context, req *pb.ResumeRolloutRequest) (*pb.RolloutStatus, error) {
	return steer(req.GetPool(), &pb.RolloutStatus{State: pb.RolloutState_ROLLOUT_STATE_PROGRESSING, Revision: 2, Replaced: 1, Total: 3})
}

func (f *fake) RestartRollout(_ context.Context, req *pb.RestartRolloutRequest) (*pb.RolloutStatus, error) {
	return steer(req.GetPool(), &pb.RolloutStatus{State: pb.RolloutState_ROLLOUT_STATE_PROGRESSING, Revision: 2, Total: 3})
}

// UndoRollout goes back to revision 1 or, without a number, tells that there is nothing to go back to.
func (f *fake) UndoRollout(_ context.Context, req *pb.UndoRolloutRequest) (*pb.RolloutStatus, error) {
	switch {
	case req.GetPool().GetName() == "fresh" && req.GetToRevision() == 0:
		return nil, status.Error(codes.FailedPrecondition, "pool default/fresh has no earlier revision to go back to")
	case req.GetToRevision() > 2:
		return nil, status.Errorf(codes.NotFound, "pool default/web has no revision %d; stored are 1, 2", req.GetToRevision())
	}
	return steer(req.GetPool(), &pb.RolloutStatus{
		State: pb.RolloutState_ROLLOUT_STATE_PROGRESSING, Revision: 3, RolledBackFrom: 2, Total: 3,
	})
}

func (f *fake) ListRevisions(_ context.Context, req *pb.ListRevisionsRequest) (*pb.ListRevisionsResponse, error) {
	if req.GetPool().GetName() != "web" {
		return nil, unknown(req.GetPool())
	}
	template := &vmtypes.MicroVMSpec{
		Kernel:     &vmtypes.Kernel{Image: "local:kernel"},
		RootVolume: &vmtypes.Volume{Source: &vmtypes.VolumeSource{ContainerSource: new("local:root")}},
	}
	revisions := []*pb.Revision{
		{Number: 1, TemplateHash: "v1:aaaa" + digits, CreatedAt: longAgo(), Template: template, LastCompleted: true},
		{Number: 2, TemplateHash: "v1:bbbb" + digits, CreatedAt: longAgo(), Template: template, CreateCommands: []string{"true", "sleep 1"}, Current: true},
	}
	slices.Reverse(revisions)
	return &pb.ListRevisionsResponse{Revisions: revisions}, nil
}
