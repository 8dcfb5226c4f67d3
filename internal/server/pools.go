package server

import (
	"context"

	"google.golang.org/protobuf/types/known/emptypb"

	pb "poolmgr/api/poolmgr/v1alpha1"
	"poolmgr/internal/pool"
	"poolmgr/internal/store"
)

type poolAdmin struct {
	pb.UnimplementedPoolAdminServer
	*Server
}

func (s *poolAdmin) CreatePool(ctx context.Context, req *pb.CreatePoolRequest) (*pb.Pool, error) {
	spec, err := s.accept(ctx, req.GetSpec())
	if err != nil {
		return nil, err
	}
	if _, err := s.cfg.Store.CreatePool(ctx, store.CreatePool{Spec: spec, Now: s.cfg.Now()}); err != nil {
		return nil, err
	}
	return s.pool(ctx, spec.Key)
}

func (s *poolAdmin) UpdatePool(ctx context.Context, req *pb.UpdatePoolRequest) (*pb.Pool, error) {
	spec, err := s.accept(ctx, req.GetSpec())
	if err != nil {
		return nil, err
	}
	update := store.UpdatePool{Spec: spec, Generation: req.GetSpec().GetGeneration(), Now: s.cfg.Now()}
	if _, err := s.cfg.Store.UpdatePool(ctx, update); err != nil {
		return nil, err
	}
	return s.pool(ctx, spec.Key)
}

func (s *poolAdmin) DeletePool(ctx context.Context, req *pb.DeletePoolRequest) (*emptypb.Empty, error) {
	key, err := keyOf("ref", req.GetRef())
	if err != nil {
		return nil, err
	}
	return &emptypb.Empty{}, s.cfg.Store.ClosePool(ctx, store.ClosePool{Pool: key, Force: req.GetForce(), Now: s.cfg.Now()})
}

func (s *poolAdmin) GetPool(ctx context.Context, req *pb.GetPoolRequest) (*pb.Pool, error) {
	key, err := keyOf("ref", req.GetRef())
	if err != nil {
		return nil, err
	}
	return s.pool(ctx, key)
}

func (s *poolAdmin) ListPools(ctx context.Context, req *pb.ListPoolsRequest) (*pb.ListPoolsResponse, error) {
	views, err := s.cfg.Store.ListPools(ctx, req.GetNamespace())
	if err != nil {
		return nil, err
	}
	out := &pb.ListPoolsResponse{}
	for _, view := range views {
		p, err := s.pool(ctx, view.Pool.Key())
		if err != nil && pool.CodeOf(err) == pool.CodeNotFound {
			continue // it went between the two reads
		}
		if err != nil {
			return nil, err
		}
		out.Pools = append(out.Pools, p)
	}
	return out, nil
}

// accept converts and validates a spec against the registered hosts.
func (s *Server) accept(ctx context.Context, in *pb.PoolSpec) (pool.Spec, error) {
	hosts, err := s.hosts(ctx)
	if err != nil {
		return pool.Spec{}, err
	}
	spec, faults := pool.AcceptSpec(in, hosts)
	return spec, faults.Err()
}
