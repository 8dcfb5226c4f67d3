package cli

import (
	"context"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "poolmgr/api/poolmgr/v1alpha1"
)

// PlanUpdate plays "web", whose two VMs would be replaced, "busy", where nothing could move, and "stuck", which is being
// deleted; any other pool does not exist.
func (f *fake) PlanUpdate(_ context.Context, req *pb.PlanUpdateRequest) (*pb.PlanUpdateResponse, error) {
	out := &pb.PlanUpdateResponse{FromHash: "v1:0123456789abcdef0123", ToHash: "v1:fedcba9876543210fedc", HashChanges: true}
	switch req.GetSpec().GetName() {
	case "web":
		out.VmIdsInOrder, out.Batches, out.LowestAvailable = []string{"web-00000002", "web-00000001"}, 2, 1
		out.Estimate = durationpb.New(9 * time.Second)
	case "busy":
		out.LowestAvailable, out.Explanations = 1, []string{"VMs due for replacement that wait: 1; no host fits: a full 4/4"}
	case "stuck":
		return nil, status.Error(codes.FailedPrecondition, "pool default/stuck is being deleted and cannot be changed any more")
	default:
		out.FromHash = ""
	}
	return out, nil
}
