package cli

import (
	"context"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "poolmgr/api/poolmgr/v1alpha1"
)

// fake is a poolmgrd of canned answers. What changes with time changes with the number of looks, so that tests need
// no clock.
type fake struct {
	pb.UnimplementedPoolAdminServer
	pb.UnimplementedLeaseServer
	pb.UnimplementedEventsServer
	pb.UnimplementedHostAdminServer
	pb.UnimplementedVMAdminServer
	pb.UnimplementedRolloutAdminServer

	mu       sync.Mutex
	pools    []*pb.Pool
	leases   map[string]*pb.LeaseRecord
	looks    map[string]int // GetPool and GetRollout by pool
	released []string
	token    string // of the last call

	guest
}

func newFake() *fake {
	return &fake{
		leases: map[string]*pb.LeaseRecord{}, looks: map[string]int{}, guest: guest{started: make(chan struct{}, 8)},
		pools: []*pb.Pool{
			canned("default", "web", 2, &pb.PoolStatus{AvailableCount: 2, DesiredCount: 2, Rollout: completed()}),
			canned("default", "busy", 3, &pb.PoolStatus{
				AvailableCount: 1, LeasedCount: 1, ProvisioningCount: 1, QuarantinedCount: 1, StaleCount: 2, DesiredCount: 3,
				Rollout:      &pb.RolloutStatus{State: pb.RolloutState_ROLLOUT_STATE_PROGRESSING, Revision: 2},
				Explanations: []string{"1 VM short: host a has no memory left (512 of 512 MiB)"},
			}),
			canned("team", "other", 0, &pb.PoolStatus{Rollout: completed()}),
		},
	}
}

func completed() *pb.RolloutStatus {
	return &pb.RolloutStatus{State: pb.RolloutState_ROLLOUT_STATE_COMPLETED, Revision: 1, LastCompletedRevision: 1}
}

// longAgo is an age whose text does not change while a test runs.
func longAgo() *timestamppb.Timestamp { return timestamppb.New(time.Now().Add(-73 * time.Hour)) }

func canned(namespace, name string, size int32, st *pb.PoolStatus) *pb.Pool {
	st.CreatedAt = longAgo()
	return &pb.Pool{Status: st, Spec: &pb.PoolSpec{
		Name: name, Namespace: namespace, Size: size, Generation: 1,
		ReplenishmentStrategy: &pb.ReplenishmentStrategy{Type: pb.ReplenishmentStrategyType_IMMEDIATE_ON_LEASE},
	}}
}

func unknown(ref *pb.PoolRef) error {
	return status.Errorf(codes.NotFound, "pool %s/%s does not exist", ref.GetNamespace(), ref.GetName())
}

func (f *fake) find(namespace, name string) *pb.Pool {
	for _, p := range f.pools {
		if p.GetSpec().GetNamespace() == namespace && p.GetSpec().GetName() == name {
			return p
		}
	}
	return nil
}

func (f *fake) CreatePool(_ context.Context, req *pb.CreatePoolRequest) (*pb.Pool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	spec := req.GetSpec()
	if spec.GetSize() < 0 {
		st, err := status.New(codes.InvalidArgument, "invalid pool spec: all of it").WithDetails(protoadapt.MessageV1Of(&errdetails.BadRequest{
			FieldViolations: []*errdetails.BadRequest_FieldViolation{
				{Field: "size", Description: "-1 is negative"},
				{Field: "microvm_template.kernel", Description: "is missing"},
			},
		}))
		if err != nil {
			return nil, err
		}
		return nil, st.Err()
	}
	if f.find(spec.GetNamespace(), spec.GetName()) != nil {
		return nil, status.Errorf(codes.AlreadyExists, "pool %s/%s exists already", spec.GetNamespace(), spec.GetName())
	}
	p := &pb.Pool{Spec: spec, Status: &pb.PoolStatus{ProvisioningCount: spec.GetSize(), CreatedAt: longAgo(), Rollout: completed()}}
	f.pools = append(f.pools, p)
	return p, nil
}

func (f *fake) UpdatePool(_ context.Context, req *pb.UpdatePoolRequest) (*pb.Pool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	p := f.find(req.GetSpec().GetNamespace(), req.GetSpec().GetName())
	if p == nil {
		return nil, unknown(&pb.PoolRef{Namespace: req.GetSpec().GetNamespace(), Name: req.GetSpec().GetName()})
	}
	p.Spec = req.GetSpec()
	p.Status.Rollout = &pb.RolloutStatus{State: pb.RolloutState_ROLLOUT_STATE_PROGRESSING, Revision: 2}
	return p, nil
}

// GetPool also plays pools that nobody made: "filling" has one VM more at each look, "never" has none, "flaky" answers
// every other time, "closing" is being deleted.
func (f *fake) GetPool(ctx context.Context, req *pb.GetPoolRequest) (*pb.Pool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if md, ok := metadata.FromIncomingContext(ctx); ok && len(md.Get("authorization")) > 0 {
		f.token = md.Get("authorization")[0]
	}
	name := req.GetRef().GetName()
	f.looks[name]++
	n := int32(f.looks[name])
	switch name {
	case "filling":
		return canned("default", name, 2, &pb.PoolStatus{AvailableCount: n - 1, ProvisioningCount: 3 - n}), nil
	case "never", "empty":
		return canned("default", name, 2, &pb.PoolStatus{DesiredCount: 2, Explanations: []string{"2 VMs short: no host is registered"}}), nil
	case "flaky":
		if n%2 == 0 {
			return nil, status.Error(codes.Unavailable, "the daemon is stopping; try again in a moment")
		}
		return canned("default", name, 2, &pb.PoolStatus{AvailableCount: n / 2}), nil
	case "closing":
		return canned("default", name, 2, &pb.PoolStatus{Deleting: true, DeletingCount: 2}), nil
	}
	if p := f.find(req.GetRef().GetNamespace(), name); p != nil {
		return p, nil
	}
	return nil, unknown(req.GetRef())
}

func (f *fake) ListPools(_ context.Context, req *pb.ListPoolsRequest) (*pb.ListPoolsResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := &pb.ListPoolsResponse{}
	for _, p := range f.pools {
		if req.Namespace == nil || req.GetNamespace() == p.GetSpec().GetNamespace() {
			out.Pools = append(out.Pools, p)
		}
	}
	return out, nil
}

func (f *fake) DeletePool(_ context.Context, req *pb.DeletePoolRequest) (*emptypb.Empty, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	p := f.find(req.GetRef().GetNamespace(), req.GetRef().GetName())
	switch {
	case p == nil:
		return nil, unknown(req.GetRef())
	case p.GetStatus().GetLeasedCount() > 0 && !req.GetForce():
		return nil, status.Error(codes.FailedPrecondition, "1 VM is leased; release it, or use --force")
	}
	p.Status.Deleting = true
	return &emptypb.Empty{}, nil
}

// GetRollout plays "rolling" (done at the fourth look), "stalled", "backed" (rolled back at the second look), "undone"
// (rolled back before anybody looked) and "stuck".
func (f *fake) GetRollout(_ context.Context, req *pb.GetRolloutRequest) (*pb.RolloutStatus, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	name := req.GetPool().GetName()
	f.looks[name]++
	n := int32(f.looks[name])
	r := &pb.RolloutStatus{State: pb.RolloutState_ROLLOUT_STATE_PROGRESSING, Revision: 2, LastCompletedRevision: 1, Total: 3, StartedAt: longAgo()}
	switch name {
	case "web":
		return completed(), nil
	case "rolling":
		if r.Replaced = n - 1; n == 4 {
			r.State, r.LastCompletedRevision = pb.RolloutState_ROLLOUT_STATE_COMPLETED, 2
		}
	case "stalled":
		r.State, r.Reason, r.Failures, r.LastError = pb.RolloutState_ROLLOUT_STATE_STALLED, "no success for 10m", 3, "web-1 on a: exit code 1"
	case "backed":
		if n > 1 {
			r.State, r.Revision, r.RolledBackFrom = pb.RolloutState_ROLLOUT_STATE_COMPLETED, 3, 2
		}
	case "undone":
		r.State, r.Revision, r.RolledBackFrom = pb.RolloutState_ROLLOUT_STATE_COMPLETED, 3, 2
	case "stuck":
		r.Explanations = []string{"waits for web-2 on a to boot"}
	default:
		return nil, unknown(req.GetPool())
	}
	return r, nil
}

// serve runs the fake on a port of its own and returns its address.
func (f *fake) serve(tb testing.TB) (addr string, stop func()) {
	tb.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	server := grpc.NewServer()
	pb.RegisterPoolAdminServer(server, f)
	pb.RegisterLeaseServer(server, f)
	pb.RegisterEventsServer(server, f)
	pb.RegisterHostAdminServer(server, f)
	pb.RegisterVMAdminServer(server, f)
	pb.RegisterRolloutAdminServer(server, f)
	pb.RegisterGuestServer(server, &f.guest)
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	return listener.Addr().String(), func() {
		server.Stop()
		if err := <-ended; err != nil {
			tb.Error(fmt.Errorf("serve: %w", err))
		}
	}
}
