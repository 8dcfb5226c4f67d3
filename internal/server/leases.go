package server

import (
	"context"

	"google.golang.org/protobuf/types/known/emptypb"

	pb "poolmgr/api/poolmgr/v1alpha1"
	"poolmgr/internal/lease"
)

type leases struct {
	pb.UnimplementedLeaseServer
	*Server
}

func (s *leases) ClaimVM(ctx context.Context, req *pb.ClaimVMRequest) (*pb.ClaimVMResponse, error) {
	key, err := keyOf("pool", req.GetPool())
	if err != nil {
		return nil, err
	}
	var f faults
	if f.duration("wait", req.GetWait()); len(f.Faults) > 0 {
		return nil, invalid(f.Faults)
	}
	got, err := s.cfg.Leases.Claim(ctx, lease.Request{
		Pool: key, RequestID: req.GetRequestId(), Consumer: req.GetConsumer(), Wait: req.GetWait().AsDuration(),
	})
	if err != nil {
		return nil, err
	}
	return &pb.ClaimVMResponse{
		LeaseId: got.Lease.ID, VmUid: got.VM.UID, VmId: got.VM.ID,
		NetworkInterfaces: encodeInterfaces(got.VM.Interfaces),
		Host:              &pb.HostInfo{Name: got.Host.Name, Address: got.Host.Address},
		ExpiresAt:         stamp(got.Lease.ExpiresAt), TemplateHash: got.VM.TemplateHash, Stale: got.Stale,
	}, nil
}

func (s *leases) Heartbeat(ctx context.Context, req *pb.HeartbeatRequest) (*pb.HeartbeatResponse, error) {
	if err := oneName("lease_id", req.GetLeaseId()); err != nil {
		return nil, err
	}
	renewed, err := s.cfg.Leases.Heartbeat(ctx, req.GetLeaseId())
	if err != nil {
		return nil, err
	}
	return &pb.HeartbeatResponse{ExpiresAt: stamp(renewed.Lease.ExpiresAt), Outdated: renewed.Outdated}, nil
}

func (s *leases) ReleaseVM(ctx context.Context, req *pb.ReleaseVMRequest) (*emptypb.Empty, error) {
	if err := oneName("lease_id", req.GetLeaseId()); err != nil {
		return nil, err
	}
	return &emptypb.Empty{}, s.cfg.Leases.Release(ctx, req.GetLeaseId())
}

func (s *leases) ListLeases(ctx context.Context, req *pb.ListLeasesRequest) (*pb.ListLeasesResponse, error) {
	key, err := optionalKey("pool_ref", req.GetPoolRef())
	if err != nil {
		return nil, err
	}
	list, err := s.cfg.Leases.List(ctx, key)
	if err != nil {
		return nil, err
	}
	out := &pb.ListLeasesResponse{}
	for _, l := range list {
		out.Leases = append(out.Leases, encodeLease(l))
	}
	return out, nil
}
