package cli

import (
	"context"
	"errors"
	"io"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/timestamppb"

	vmtypes "poolmgr/api/flintlock/vmtypes"
	pb "poolmgr/api/poolmgr/v1alpha1"
)

// ClaimVM has VMs in every pool but "empty".
func (f *fake) ClaimVM(ctx context.Context, req *pb.ClaimVMRequest) (*pb.ClaimVMResponse, error) {
	if req.GetPool().GetName() == "empty" {
		if wait := req.GetWait().AsDuration(); wait > 0 {
			select {
			case <-time.After(wait):
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}
		return nil, status.Error(codes.ResourceExhausted, "pool default/empty has no VM to claim")
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.find(req.GetPool().GetNamespace(), req.GetPool().GetName()) == nil {
		return nil, unknown(req.GetPool())
	}
	id := "lease-" + req.GetRequestId()
	f.leases[id] = &pb.LeaseRecord{
		LeaseId: id, RequestId: req.GetRequestId(), Consumer: req.GetConsumer(), VmId: "web-00000001", VmUid: "uid-1",
		PoolName: req.GetPool().GetName(), PoolNamespace: req.GetPool().GetNamespace(), ClaimedAt: longAgo(),
		ExpiresAt: timestamppb.New(time.Now().Add(101 * time.Hour)), LastHeartbeatAt: longAgo(),
	}
	return &pb.ClaimVMResponse{
		LeaseId: id, VmId: "web-00000001", VmUid: "uid-1", TemplateHash: "h1", ExpiresAt: f.leases[id].GetExpiresAt(),
		Host:              &pb.HostInfo{Name: "a", Address: "127.0.0.1:9090"},
		NetworkInterfaces: map[string]*vmtypes.NetworkInterfaceStatus{"eth1": {MacAddress: "02:00:00:00:00:01"}},
	}, nil
}

func (f *fake) Heartbeat(_ context.Context, req *pb.HeartbeatRequest) (*pb.HeartbeatResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.leases[req.GetLeaseId()] == nil {
		return nil, status.Error(codes.NotFound, "the lease does not exist, or has ended")
	}
	return &pb.HeartbeatResponse{ExpiresAt: f.leases[req.GetLeaseId()].GetExpiresAt()}, nil
}

func (f *fake) ReleaseVM(_ context.Context, req *pb.ReleaseVMRequest) (*emptypb.Empty, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.leases[req.GetLeaseId()] == nil {
		return nil, status.Error(codes.NotFound, "the lease does not exist, or has ended")
	}
	delete(f.leases, req.GetLeaseId())
	f.released = append(f.released, req.GetLeaseId())
	return &emptypb.Empty{}, nil
}

func (f *fake) ListLeases(_ context.Context, req *pb.ListLeasesRequest) (*pb.ListLeasesResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := &pb.ListLeasesResponse{Leases: []*pb.LeaseRecord{{
		PoolName: "other", PoolNamespace: "team", VmId: "other-00000001", Consumer: "ci\x1b[2Jjob", ClaimedAt: longAgo(),
		ExpiresAt: timestamppb.New(time.Now().Add(101 * time.Hour)),
	}}}
	if req.GetPoolRef() != nil {
		out.Leases = nil
	}
	for _, l := range f.leases {
		out.Leases = append(out.Leases, l)
	}
	return out, nil
}

// ListVMs pages by two.
func (f *fake) ListVMs(_ context.Context, req *pb.ListVMsRequest) (*pb.ListVMsResponse, error) {
	all := []*pb.VMRecord{
		{Id: "web-00000001", Uid: "uid-1", PoolName: "web", PoolNamespace: "default", FlintlockHost: "a", Phase: pb.VMPhase_AVAILABLE, Revision: 1, Health: "GOOD", CreatedAt: longAgo(), Slot: "s1"},
		{Id: "web-00000002", PoolName: "web", PoolNamespace: "default", Phase: pb.VMPhase_PROVISIONING, Revision: 1, CreatedAt: longAgo(), Slot: "s2"},
		{Id: "other-00000001", Uid: "uid-3", PoolName: "other", PoolNamespace: "team", FlintlockHost: "b", Phase: pb.VMPhase_QUARANTINED, Revision: 1, Reason: "HOOK_FAILED", Message: "exit code 1:\nno space left", CreatedAt: longAgo()},
	}
	if ref := req.GetPool(); ref != nil {
		kept := all[:0]
		for _, v := range all {
			if v.GetPoolName() == ref.GetName() && v.GetPoolNamespace() == ref.GetNamespace() {
				kept = append(kept, v)
			}
		}
		all = kept
	}
	from := 0
	if token := req.GetPageToken(); token != "" {
		from, _ = strconv.Atoi(token)
	}
	out := &pb.ListVMsResponse{Vms: all[from:min(len(all), from+2)]}
	if from+2 < len(all) {
		out.NextPageToken = strconv.Itoa(from + 2)
	}
	return out, nil
}

func (f *fake) GetVM(ctx context.Context, req *pb.GetVMRequest) (*pb.VMRecord, error) {
	for token := ""; ; {
		page, err := f.ListVMs(ctx, &pb.ListVMsRequest{PageToken: token})
		if err != nil {
			return nil, err
		}
		for _, v := range page.GetVms() {
			if v.GetId() == req.GetId() {
				return v, nil
			}
		}
		if token = page.GetNextPageToken(); token == "" {
			return nil, status.Errorf(codes.NotFound, "VM %s does not exist", req.GetId())
		}
	}
}

func (f *fake) ListHosts(context.Context, *pb.ListHostsRequest) (*pb.ListHostsResponse, error) {
	return &pb.ListHostsResponse{Hosts: []*pb.HostStatus{
		{Host: &pb.Host{Name: "a", Address: "127.0.0.1:9090"}, Reachable: true, VmCount: 2, MaxVms: 8, MemoryMb: 4096},
		{Host: &pb.Host{Name: "b", Address: "127.0.0.1:9091", Cordoned: true, CordonedReason: "new disk"}, Reachable: true},
		{Host: &pb.Host{Name: "c", Address: "127.0.0.1:9092"}, Message: "connection refused"},
	}}, nil
}

func (f *fake) GetHost(ctx context.Context, req *pb.GetHostRequest) (*pb.HostStatus, error) {
	list, err := f.ListHosts(ctx, nil)
	for _, h := range list.GetHosts() {
		if h.GetHost().GetName() == req.GetName() {
			return h, err
		}
	}
	return nil, status.Errorf(codes.NotFound, "host %s is not registered", req.GetName())
}

func (f *fake) AddHost(_ context.Context, req *pb.AddHostRequest) (*pb.Host, error) {
	if !req.GetSkipValidation() {
		return nil, status.Errorf(codes.FailedPrecondition, "host %s is not reachable", req.GetHost().GetName())
	}
	return req.GetHost(), nil
}

func (f *fake) CordonHost(_ context.Context, req *pb.CordonHostRequest) (*pb.Host, error) {
	return &pb.Host{Name: req.GetName(), Address: "127.0.0.1:9090", Cordoned: true, CordonedReason: req.GetReason()}, nil
}

func (f *fake) UncordonHost(_ context.Context, req *pb.UncordonHostRequest) (*pb.Host, error) {
	return &pb.Host{Name: req.GetName(), Address: "127.0.0.1:9090"}, nil
}

func (f *fake) RemoveHost(_ context.Context, req *pb.RemoveHostRequest) (*emptypb.Empty, error) {
	if !req.GetForce() {
		return nil, status.Error(codes.FailedPrecondition, "2 VMs are on host a")
	}
	return &emptypb.Empty{}, nil
}

// Subscribe has three events, and then nothing more happens.
func (f *fake) Subscribe(req *pb.SubscribeRequest, stream pb.Events_SubscribeServer) error {
	at := timestamppb.New(time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC))
	for _, e := range []*pb.Event{
		{Id: 1, Type: pb.EventType_VM_AVAILABLE, PoolName: "web", PoolNamespace: "default", VmUid: "uid-1", CreatedAt: at, PayloadJson: `{"revision":1}`},
		{Id: 2, Type: pb.EventType_VM_CLAIMED, PoolName: "other", PoolNamespace: "team", VmUid: "uid-3", CreatedAt: at},
		{Id: 3, Type: pb.EventType_POOL_REPLENISHING, PoolName: "web", PoolNamespace: "default", CreatedAt: at},
	} {
		wanted := len(req.GetTypes()) == 0
		for _, t := range req.GetTypes() {
			wanted = wanted || t == e.GetType()
		}
		if req.GetPool() != nil && req.GetPool().GetName() != e.GetPoolName() || e.GetId() <= req.GetAfterId() || !wanted {
			continue
		}
		if err := stream.Send(e); err != nil {
			return err
		}
	}
	if req.GetNoFollow() {
		return nil
	}
	<-stream.Context().Done()
	return stream.Context().Err()
}

// guest plays the commands of a VM: cat, echo, warn (to stderr), exit N and hang.
type guest struct {
	pb.UnimplementedGuestServer
	started chan struct{} // one for every hang that began
}

func (g *guest) Exec(stream pb.Guest_ExecServer) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	start := first.GetStart()
	if !strings.HasPrefix(start.GetLeaseId(), "lease-") {
		return status.Error(codes.NotFound, "the lease does not exist, or has ended")
	}
	words := strings.Join(start.GetArgs(), " ")
	exit := 0
	switch start.GetCmd() {
	case "cat":
		for {
			in, err := stream.Recv()
			if errors.Is(err, io.EOF) || in.GetStdinEof() {
				break
			}
			if err != nil {
				return err
			}
			if err := stream.Send(&pb.GuestExecResponse{Payload: &pb.GuestExecResponse_Stdout{Stdout: in.GetStdin()}}); err != nil {
				return err
			}
		}
	case "echo":
		err = stream.Send(&pb.GuestExecResponse{Payload: &pb.GuestExecResponse_Stdout{Stdout: []byte(words + "\n")}})
	case "warn":
		err = stream.Send(&pb.GuestExecResponse{Payload: &pb.GuestExecResponse_Stderr{Stderr: []byte(words + "\n")}})
	case "exit":
		exit, err = strconv.Atoi(words)
	case "hang":
		g.started <- struct{}{}
		<-stream.Context().Done()
		return stream.Context().Err()
	default:
		return stream.Send(&pb.GuestExecResponse{Payload: &pb.GuestExecResponse_Error{Error: "the guest does not answer"}})
	}
	if err != nil {
		return err
	}
	return stream.Send(&pb.GuestExecResponse{Payload: &pb.GuestExecResponse_ExitCode{ExitCode: int32(exit)}})
}
