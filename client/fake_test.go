package client

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "poolmgr/api/poolmgr/v1alpha1"
)

// daemon is a poolmgrd in memory: leases live in a map, and every reply may be lost on the way.
type daemon struct {
	pb.UnimplementedLeaseServer
	pb.UnimplementedPoolAdminServer
	pb.UnimplementedEventsServer
	pb.UnimplementedGuestServer

	mu        sync.Mutex
	threshold time.Duration
	interval  time.Duration
	leases    map[string]*pb.LeaseRecord // by lease id
	calls     map[string]int             // by method
	lose      map[string]int             // by method: how many replies to lose after the work was done
	taken     int                        // VMs handed out
	hang      bool                       // ClaimVM does its work and then waits for the caller to go
	slowPool  bool                       // GetPool waits for the caller to go
	subs      []*pb.SubscribeRequest
	batches   [][]int64 // ids that each Subscribe sends before it breaks; after the last it follows
}

func newDaemon() *daemon {
	return &daemon{
		threshold: 5 * time.Minute, interval: 30 * time.Second,
		leases: map[string]*pb.LeaseRecord{}, calls: map[string]int{}, lose: map[string]int{},
	}
}

// reply loses the reply to a call whose work is done, when the test said so.
func (d *daemon) reply(method string) error {
	d.calls[method]++
	if d.lose[method] > 0 {
		d.lose[method]--
		return status.Error(codes.Unavailable, "connection closed before the reply")
	}
	return nil
}

func (d *daemon) count(method string) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.calls[method]
}

// held is how many leases live.
func (d *daemon) held() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.leases)
}

// handedOut is how many VMs were taken.
func (d *daemon) handedOut() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.taken
}

func (d *daemon) ClaimVM(ctx context.Context, req *pb.ClaimVMRequest) (*pb.ClaimVMResponse, error) {
	d.mu.Lock()
	if req.GetPool().GetName() == "empty" {
		defer d.mu.Unlock()
		d.calls["ClaimVM"]++
		return nil, status.Error(codes.ResourceExhausted, "no VM is claimable")
	}
	id := "lease-of-" + req.GetRequestId()
	if d.leases[id] == nil {
		d.taken++
		d.leases[id] = &pb.LeaseRecord{LeaseId: id, RequestId: req.GetRequestId(), VmId: "quickstart-00000001"}
	}
	expires := timestamppb.New(time.Now().Add(d.threshold))
	err := d.reply("ClaimVM")
	hang := d.hang
	d.mu.Unlock()
	if hang {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	if err != nil {
		return nil, err
	}
	return &pb.ClaimVMResponse{LeaseId: id, VmId: "quickstart-00000001", ExpiresAt: expires}, nil
}

func (d *daemon) Heartbeat(_ context.Context, req *pb.HeartbeatRequest) (*pb.HeartbeatResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.leases[req.GetLeaseId()] == nil {
		return nil, status.Error(codes.NotFound, "no such lease")
	}
	if err := d.reply("Heartbeat"); err != nil {
		return nil, err
	}
	return &pb.HeartbeatResponse{ExpiresAt: timestamppb.New(time.Now().Add(d.threshold)), Outdated: true}, nil
}

func (d *daemon) ReleaseVM(_ context.Context, req *pb.ReleaseVMRequest) (*emptypb.Empty, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.leases[req.GetLeaseId()] == nil {
		return nil, status.Error(codes.NotFound, "no such lease")
	}
	delete(d.leases, req.GetLeaseId())
	return &emptypb.Empty{}, d.reply("ReleaseVM")
}

func (d *daemon) ListLeases(context.Context, *pb.ListLeasesRequest) (*pb.ListLeasesResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := &pb.ListLeasesResponse{Leases: []*pb.LeaseRecord{{LeaseId: "somebody-else", RequestId: "theirs"}}}
	for _, lease := range d.leases {
		out.Leases = append(out.Leases, lease)
	}
	return out, nil
}

// expire ends every lease, as the daemon's sweep does.
func (d *daemon) expire() {
	d.mu.Lock()
	defer d.mu.Unlock()
	clear(d.leases)
}

func (d *daemon) GetPool(ctx context.Context, _ *pb.GetPoolRequest) (*pb.Pool, error) {
	if d.slowPool {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return &pb.Pool{Spec: &pb.PoolSpec{
		HeartbeatInterval: durationpb.New(d.interval), HeartbeatExpiryThreshold: durationpb.New(d.threshold),
	}}, nil
}

func (d *daemon) Subscribe(req *pb.SubscribeRequest, stream pb.Events_SubscribeServer) error {
	d.mu.Lock()
	d.subs = append(d.subs, req)
	n := len(d.subs)
	d.mu.Unlock()
	if n > len(d.batches) {
		<-stream.Context().Done()
		return stream.Context().Err()
	}
	for _, id := range d.batches[n-1] {
		if err := stream.Send(&pb.Event{Id: id}); err != nil {
			return err
		}
	}
	if req.GetNoFollow() {
		return nil
	}
	return status.Error(codes.Unavailable, "the daemon is stopping; subscribe again")
}

// Exec plays a guest that knows: cat (input to both outputs), exit3, refuse, vanish (the stream ends without an exit
// code) and hang.
func (d *daemon) Exec(stream pb.Guest_ExecServer) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	start := first.GetStart()
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
		if err := stream.Send(&pb.GuestExecResponse{Payload: &pb.GuestExecResponse_Stderr{Stderr: []byte("done")}}); err != nil {
			return err
		}
		return stream.Send(&pb.GuestExecResponse{Payload: &pb.GuestExecResponse_ExitCode{}})
	case "exit":
		return stream.Send(&pb.GuestExecResponse{Payload: &pb.GuestExecResponse_ExitCode{ExitCode: 3}})
	case "refuse":
		return stream.Send(&pb.GuestExecResponse{Payload: &pb.GuestExecResponse_Error{Error: "no agent in this VM"}})
	case "hang":
		<-stream.Context().Done()
		return stream.Context().Err()
	default:
		return nil
	}
}

// connect serves a daemon in memory and dials it.
func connect(t *testing.T, d *daemon, options ...Option) *Client {
	t.Helper()
	listener := bufconn.Listen(1 << 20)
	server := grpc.NewServer()
	pb.RegisterLeaseServer(server, d)
	pb.RegisterPoolAdminServer(server, d)
	pb.RegisterEventsServer(server, d)
	pb.RegisterGuestServer(server, d)
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	options = append(options, WithDialOptions(grpc.WithContextDialer(
		func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) })))
	c, err := Dial("127.0.0.1:1", options...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		server.Stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return c
}
