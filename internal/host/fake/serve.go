package fake

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"

	microvmv1alpha1 "poolmgr/api/flintlock/microvm/v1alpha1"
	microvmexecv1alpha1 "poolmgr/api/flintlock/microvmexec/v1alpha1"
	"poolmgr/api/flintlock/vmtypes"
	"poolmgr/internal/host"
)

// Register serves the host with flintlock's services, answers and error codes. With Options.NoExec the exec service is
// not there at all, as on a flintlockd where it is switched off.
func Register(s grpc.ServiceRegistrar, h *Host) {
	microvmv1alpha1.RegisterMicroVMServer(s, &vmService{host: h})
	if !h.opts.NoExec {
		microvmexecv1alpha1.RegisterMicroVMExecServer(s, &execService{host: h})
	}
}

// toStatus answers as flintlockd does: UNKNOWN with a text for nearly everything.
func toStatus(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, context.DeadlineExceeded):
		return status.Error(codes.DeadlineExceeded, err.Error())
	case errors.Is(err, context.Canceled):
		return status.Error(codes.Canceled, err.Error())
	case errors.Is(err, host.ErrUnreachable):
		return status.Error(codes.Unavailable, err.Error())
	case errors.Is(err, host.ErrNoCapacity):
		return status.Error(codes.ResourceExhausted, err.Error())
	case errors.Is(err, host.ErrExecDisabled):
		return status.Error(codes.Unimplemented, err.Error())
	default:
		return status.Error(codes.Unknown, err.Error())
	}
}

type vmService struct {
	microvmv1alpha1.UnimplementedMicroVMServer
	host *Host
}

// message is a VM as the API shows it: with the whole spec where the host knows it, and what a lie says otherwise.
func (s *vmService) message(vm host.VM) *vmtypes.MicroVM {
	s.host.mu.Lock()
	defer s.host.mu.Unlock()
	shown := &vmtypes.MicroVM{Spec: host.SpecFor(&vmtypes.MicroVMSpec{}, vm.Name, vm.Namespace, vm.Owner)}
	if m, ok := s.host.vms[vm.UID]; ok {
		shown = proto.CloneOf(m.message(time.Now()))
	}
	if shown.Status == nil {
		shown.Status = &vmtypes.MicroVMStatus{}
	}
	shown.Spec.Uid = &vm.UID
	shown.Status.State = vmtypes.MicroVMStatus_MicroVMState(vmtypes.MicroVMStatus_MicroVMState_value[string(vm.State)])
	return shown
}

func (s *vmService) CreateMicroVM(
	ctx context.Context, req *microvmv1alpha1.CreateMicroVMRequest,
) (*microvmv1alpha1.CreateMicroVMResponse, error) {
	if req.GetMicrovm() == nil {
		return nil, status.Error(codes.InvalidArgument, "invalid create microvm request: MicroVMSpec required")
	}
	vm, err := s.host.Create(ctx, req.GetMicrovm())
	if err != nil {
		return nil, toStatus(err)
	}
	return &microvmv1alpha1.CreateMicroVMResponse{Microvm: s.message(vm)}, nil
}

func (s *vmService) GetMicroVM(
	ctx context.Context, req *microvmv1alpha1.GetMicroVMRequest,
) (*microvmv1alpha1.GetMicroVMResponse, error) {
	vm, err := s.host.Get(ctx, req.GetUid())
	if err != nil {
		return nil, toStatus(err)
	}
	return &microvmv1alpha1.GetMicroVMResponse{Microvm: s.message(vm)}, nil
}

func (s *vmService) DeleteMicroVM(ctx context.Context, req *microvmv1alpha1.DeleteMicroVMRequest) (*emptypb.Empty, error) {
	if err := s.host.Delete(ctx, req.GetUid()); err != nil {
		return nil, toStatus(err)
	}
	return &emptypb.Empty{}, nil
}

func (s *vmService) ListMicroVMs(
	ctx context.Context, req *microvmv1alpha1.ListMicroVMsRequest,
) (*microvmv1alpha1.ListMicroVMsResponse, error) {
	vms, err := s.host.List(ctx, req.GetNamespace(), req.GetName())
	if err != nil {
		return nil, toStatus(err)
	}
	answer := &microvmv1alpha1.ListMicroVMsResponse{}
	for _, vm := range vms {
		answer.Microvm = append(answer.Microvm, s.message(vm))
	}
	return answer, nil
}

func (s *vmService) ListMicroVMsStream(
	req *microvmv1alpha1.ListMicroVMsRequest, stream grpc.ServerStreamingServer[microvmv1alpha1.ListMessage],
) error {
	vms, err := s.host.List(stream.Context(), req.GetNamespace(), req.GetName())
	if err != nil {
		return toStatus(err)
	}
	for _, vm := range vms {
		if err := stream.Send(&microvmv1alpha1.ListMessage{Microvm: s.message(vm)}); err != nil {
			return err
		}
	}
	return nil
}

type execService struct {
	microvmexecv1alpha1.UnimplementedMicroVMExecServer
	host *Host
}

type execStream = grpc.BidiStreamingServer[microvmexecv1alpha1.ExecCommandRequest, microvmexecv1alpha1.ExecCommandResponse]

func (s *execService) ExecCommand(stream execStream) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	start := first.GetStart()
	if start.GetUid() == "" || start.GetCmd() == "" {
		return status.Error(codes.InvalidArgument, "first message must be a start message with uid and cmd set")
	}
	var sending sync.Mutex
	streams := host.ExecStreams{
		Stdout: writer(func(p []byte) error {
			sending.Lock()
			defer sending.Unlock()
			out := &microvmexecv1alpha1.ExecCommandResponse_Stdout{Stdout: p}
			return stream.Send(&microvmexecv1alpha1.ExecCommandResponse{Payload: out})
		}),
		Stderr: writer(func(p []byte) error {
			sending.Lock()
			defer sending.Unlock()
			out := &microvmexecv1alpha1.ExecCommandResponse_Stderr{Stderr: p}
			return stream.Send(&microvmexecv1alpha1.ExecCommandResponse{Payload: out})
		}),
	}
	if start.GetHasStdin() {
		input, feed := io.Pipe()
		go receive(stream, feed) // ends with the stream, which ends with this call
		streams.Stdin = input
	}
	code, err := s.host.Exec(stream.Context(), host.ExecRequest{
		UID: start.GetUid(), Cmd: start.GetCmd(), Args: start.GetArgs(), Cwd: start.GetCwd(), Env: start.GetEnv(),
		Shell: start.GetShell(), User: start.GetUser(), Timeout: time.Duration(start.GetTimeoutSeconds()) * time.Second,
	}, streams)
	if err != nil {
		return toStatus(err)
	}
	exit := &microvmexecv1alpha1.ExecCommandResponse_ExitCode{ExitCode: int32(code)} // a test's own code
	return stream.Send(&microvmexecv1alpha1.ExecCommandResponse{Payload: exit})
}

// receive passes a command's input on until it ends.
func receive(stream execStream, feed *io.PipeWriter) {
	for {
		msg, err := stream.Recv()
		if err != nil || msg.GetStdinEof() {
			_ = feed.Close() // never fails
			return
		}
		if _, err := feed.Write(msg.GetStdin()); err != nil {
			return // the command has ended
		}
	}
}

// writer sends what is written, in pieces that fit a message.
type writer func([]byte) error

func (w writer) Write(p []byte) (int, error) {
	const piece = 32 << 10
	for sent := 0; sent < len(p); sent += piece {
		// A copy: the message may be read after Send returned.
		if err := w(append([]byte(nil), p[sent:min(len(p), sent+piece)]...)); err != nil {
			return sent, err
		}
	}
	return len(p), nil
}
