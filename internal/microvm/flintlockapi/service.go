// Package flintlockapi serves flintlock's gRPC API (MicroVM, MicroVMExec and,
// for its name only, MicroVMSSHProxy) over a microvm.Backend, and behaves as a
// flintlockd does, down to the codes of its errors. It refuses specs that no
// backend could run, carries a command's streams, and keeps nothing itself.
package flintlockapi

import (
	"context"
	"log/slog"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	microvmv1alpha1 "poolmgr/api/flintlock/microvm/v1alpha1"
	microvmexecv1alpha1 "poolmgr/api/flintlock/microvmexec/v1alpha1"
	microvmsshproxyv1alpha1 "poolmgr/api/flintlock/microvmsshproxy/v1alpha1"
	"poolmgr/api/flintlock/vmtypes"
	"poolmgr/internal/microvm"
)

// DefaultMinMemoryMB and DefaultMaxMemoryMB bound a machine's memory where the
// options do not: our kernel boots from 128 MiB, flintlock takes up to 32 GiB.
const (
	DefaultMinMemoryMB = 128
	DefaultMaxMemoryMB = 32768
)

// Options of the served API. The zero value is good but for the logger.
type Options struct {
	// MinMemoryMB and MaxMemoryMB bound a machine's memory, in MiB; 0 = the defaults.
	MinMemoryMB, MaxMemoryMB int
	// HostMaxVMs and HostMemoryMB are what the whole host takes; 0 = no limit.
	// They are told, and enforced by the backend.
	HostMaxVMs, HostMemoryMB int
	// DisableExec leaves MicroVMExec out, as a flintlockd does whose switch for
	// it is off: calls answer UNIMPLEMENTED.
	DisableExec bool
	// Logger must be set.
	Logger *slog.Logger
}

// Register serves the backend on a gRPC server, before that server starts. The
// backend stays the caller's: close it after the server has stopped.
func Register(registrar grpc.ServiceRegistrar, backend microvm.Backend, opts Options) {
	if opts.MinMemoryMB == 0 {
		opts.MinMemoryMB = DefaultMinMemoryMB
	}
	if opts.MaxMemoryMB == 0 {
		opts.MaxMemoryMB = DefaultMaxMemoryMB
	}
	microvmv1alpha1.RegisterMicroVMServer(registrar, &machineService{backend: backend, opts: opts})
	microvmsshproxyv1alpha1.RegisterMicroVMSSHProxyServer(registrar, sshService{})
	if !opts.DisableExec {
		microvmexecv1alpha1.RegisterMicroVMExecServer(registrar, &execService{backend: backend, log: opts.Logger})
	}
}

// machineService is flintlock's service for machines.
type machineService struct {
	microvmv1alpha1.UnimplementedMicroVMServer
	backend microvm.Backend
	opts    Options
}

// CreateMicroVM answers as soon as the machine is written down. The request's
// metadata is about the request, not for the machine, and is not kept.
func (s *machineService) CreateMicroVM(ctx context.Context, req *microvmv1alpha1.CreateMicroVMRequest) (*microvmv1alpha1.CreateMicroVMResponse, error) {
	if req.GetMicrovm() == nil {
		return nil, status.Error(codes.InvalidArgument, "create: the request has no microvm")
	}
	if err := s.opts.checkSpec(req.GetMicrovm()); err != nil {
		return nil, toStatus(err)
	}
	made, err := s.backend.Create(ctx, req.GetMicrovm())
	if err != nil {
		return nil, toStatus(err)
	}
	return &microvmv1alpha1.CreateMicroVMResponse{Microvm: made}, nil
}

// DeleteMicroVM answers as soon as the deletion is written down.
func (s *machineService) DeleteMicroVM(ctx context.Context, req *microvmv1alpha1.DeleteMicroVMRequest) (*emptypb.Empty, error) {
	if req.GetUid() == "" {
		return nil, status.Error(codes.InvalidArgument, "delete: the request has no uid")
	}
	if err := s.backend.Delete(ctx, req.GetUid()); err != nil {
		return nil, toStatus(err)
	}
	return &emptypb.Empty{}, nil
}

// GetMicroVM shows one machine.
func (s *machineService) GetMicroVM(ctx context.Context, req *microvmv1alpha1.GetMicroVMRequest) (*microvmv1alpha1.GetMicroVMResponse, error) {
	if req.GetUid() == "" {
		return nil, status.Error(codes.InvalidArgument, "get: the request has no uid")
	}
	found, err := s.backend.Get(ctx, req.GetUid())
	if err != nil {
		return nil, toStatus(err)
	}
	return &microvmv1alpha1.GetMicroVMResponse{Microvm: found}, nil
}

// ListMicroVMs shows machines in one answer, whose header tells the host's
// limits.
func (s *machineService) ListMicroVMs(ctx context.Context, req *microvmv1alpha1.ListMicroVMsRequest) (*microvmv1alpha1.ListMicroVMsResponse, error) {
	found, err := s.list(ctx, req)
	if err != nil {
		return nil, err
	}
	_ = grpc.SetHeader(ctx, s.opts.limits()) // it fails only outside a gRPC call, and callers do without
	return &microvmv1alpha1.ListMicroVMsResponse{Microvm: found}, nil
}

// ListMicroVMsStream shows machines one by one, for lists that are too long for
// one message.
func (s *machineService) ListMicroVMsStream(req *microvmv1alpha1.ListMicroVMsRequest, stream grpc.ServerStreamingServer[microvmv1alpha1.ListMessage]) error {
	found, err := s.list(stream.Context(), req)
	if err != nil {
		return err
	}
	for _, vm := range found {
		if err := stream.Send(&microvmv1alpha1.ListMessage{Microvm: vm}); err != nil {
			return err
		}
	}
	return nil
}

func (s *machineService) list(ctx context.Context, req *microvmv1alpha1.ListMicroVMsRequest) ([]*vmtypes.MicroVM, error) {
	found, err := s.backend.List(ctx, req.GetNamespace(), req.GetName())
	if err != nil {
		return nil, toStatus(err)
	}
	return found, nil
}

// sshService is there to say why it is not.
type sshService struct {
	microvmsshproxyv1alpha1.UnimplementedMicroVMSSHProxyServer
}

// SSHProxy refuses every call.
func (sshService) SSHProxy(grpc.BidiStreamingServer[microvmsshproxyv1alpha1.SSHProxyRequest, microvmsshproxyv1alpha1.SSHProxyResponse]) error {
	return status.Error(codes.Unimplemented, "ssh proxy: this host's guests run no SSH server; use MicroVMExec.ExecCommand to run commands")
}
