package server

import (
	"context"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"

	pb "poolmgr/api/poolmgr/v1alpha1"
	"poolmgr/internal/pool"
	"poolmgr/internal/store"
)

// Bounds of a page of VMs. Rows carry the tail of a command's output, so that their number alone bounds nothing.
const (
	maxPage      = 1000
	maxPageBytes = 2 << 20
)

type vmAdmin struct {
	pb.UnimplementedVMAdminServer
	*Server
}

// ListVMs pages in order of id; the page token is the last id of the page before.
func (s *vmAdmin) ListVMs(ctx context.Context, req *pb.ListVMsRequest) (*pb.ListVMsResponse, error) {
	q, err := vmQuery(req)
	if err != nil {
		return nil, err
	}
	size := q.Limit
	q.Limit++ // tells whether there is more
	vms, err := s.cfg.Store.ListVMs(ctx, q)
	if err != nil {
		return nil, err
	}
	out, bytes := &pb.ListVMsResponse{}, 0
	for i, v := range vms {
		record := encodeVM(v)
		bytes += proto.Size(record)
		if i == size || (i > 0 && bytes > maxPageBytes) {
			out.NextPageToken = vms[i-1].ID
			break
		}
		out.Vms = append(out.Vms, record)
	}
	return out, nil
}

func vmQuery(req *pb.ListVMsRequest) (store.VMQuery, error) {
	var f faults
	key, err := optionalKey("pool", req.GetPool())
	if err != nil {
		return store.VMQuery{}, err
	}
	size := int(req.GetPageSize())
	switch {
	case size < 0 || size > maxPage:
		f.add("page_size", "is %d, must be from 0 (as many as fit) to %d", size, maxPage)
	case size == 0:
		size = maxPage
	}
	f.short("host", req.GetHost(), maxName)
	f.short("page_token", req.GetPageToken(), maxName)
	q := store.VMQuery{Pool: key, Host: req.GetHost(), After: req.GetPageToken(), Limit: size}
	for i, phase := range req.GetPhases() {
		if _, known := pb.VMPhase_name[int32(phase)]; !known {
			f.add(at("phases", i), "there is no phase %d", int32(phase))
		}
		q.Phases = append(q.Phases, pool.Phase(phase.String()))
	}
	return q, invalid(f.Faults)
}

func (s *vmAdmin) GetVM(ctx context.Context, req *pb.GetVMRequest) (*pb.VMRecord, error) {
	if err := oneName("id", req.GetId()); err != nil {
		return nil, err
	}
	v, err := s.cfg.Store.GetVM(ctx, req.GetId())
	if err != nil {
		return nil, err
	}
	return encodeVM(v), nil
}

func (s *vmAdmin) DeleteVM(context.Context, *pb.DeleteVMRequest) (*emptypb.Empty, error) {
	return nil, later("VMAdmin.DeleteVM", "claim the VM and release it")
}

func (s *vmAdmin) ReleaseQuarantinedVM(context.Context, *pb.ReleaseQuarantinedVMRequest) (*emptypb.Empty, error) {
	return nil, later("VMAdmin.ReleaseQuarantinedVM", "set max_quarantined with PoolAdmin.UpdatePool")
}
