package flintlock_test

import (
	"context"
	"testing"

	"google.golang.org/grpc"

	microvmv1alpha1 "poolmgr/api/flintlock/microvm/v1alpha1"
	microvmexecv1alpha1 "poolmgr/api/flintlock/microvmexec/v1alpha1"
)

type (
	request    = microvmexecv1alpha1.ExecCommandRequest
	response   = microvmexecv1alpha1.ExecCommandResponse
	execStream = grpc.BidiStreamingServer[request, response]
)

// stub is a host of which a test writes the answers it needs; everything else is UNIMPLEMENTED.
type stub struct {
	microvmv1alpha1.UnimplementedMicroVMServer
	microvmexecv1alpha1.UnimplementedMicroVMExecServer
	exec   func(execStream) error
	list   func(context.Context) (*microvmv1alpha1.ListMicroVMsResponse, error)
	get    func(context.Context) (*microvmv1alpha1.GetMicroVMResponse, error)
	create func(context.Context) (*microvmv1alpha1.CreateMicroVMResponse, error)
}

func (s *stub) ExecCommand(stream execStream) error {
	if s.exec == nil {
		return s.UnimplementedMicroVMExecServer.ExecCommand(stream)
	}
	return s.exec(stream)
}

func (s *stub) ListMicroVMs(
	ctx context.Context, req *microvmv1alpha1.ListMicroVMsRequest,
) (*microvmv1alpha1.ListMicroVMsResponse, error) {
	if s.list == nil {
		return s.UnimplementedMicroVMServer.ListMicroVMs(ctx, req)
	}
	return s.list(ctx)
}

func (s *stub) GetMicroVM(ctx context.Context, req *microvmv1alpha1.GetMicroVMRequest) (*microvmv1alpha1.GetMicroVMResponse, error) {
	if s.get == nil {
		return s.UnimplementedMicroVMServer.GetMicroVM(ctx, req)
	}
	return s.get(ctx)
}

func (s *stub) CreateMicroVM(
	ctx context.Context, req *microvmv1alpha1.CreateMicroVMRequest,
) (*microvmv1alpha1.CreateMicroVMResponse, error) {
	if s.create == nil {
		return s.UnimplementedMicroVMServer.CreateMicroVM(ctx, req)
	}
	return s.create(ctx)
}

func (s *stub) register(r grpc.ServiceRegistrar) {
	microvmv1alpha1.RegisterMicroVMServer(r, s)
	microvmexecv1alpha1.RegisterMicroVMExecServer(r, s)
}

func serveStub(t *testing.T, s *stub) *grpc.ClientConn {
	t.Helper()
	return serve(t, s.register)
}

func stdout(text string) *response {
	return &response{Payload: &microvmexecv1alpha1.ExecCommandResponse_Stdout{Stdout: []byte(text)}}
}

func exit(code int32) *response {
	return &response{Payload: &microvmexecv1alpha1.ExecCommandResponse_ExitCode{ExitCode: code}}
}

func complaint(text string) *response {
	return &response{Payload: &microvmexecv1alpha1.ExecCommandResponse_Error{Error: text}}
}

// answering is a host whose every command sends these responses and ends.
func answering(responses ...*response) *stub {
	return &stub{exec: func(stream execStream) error {
		if _, err := stream.Recv(); err != nil {
			return err
		}
		for _, r := range responses {
			if err := stream.Send(r); err != nil {
				return err
			}
		}
		return nil
	}}
}
