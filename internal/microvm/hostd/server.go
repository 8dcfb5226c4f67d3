package hostd

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"
	"time"

	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/recovery"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/status"
)

// Limits of the server; grpc-go's own defaults are none, or far too high for a
// control plane.
const (
	maxStreams      = 256     // calls at one time, per connection
	maxMessageBytes = 1 << 20 // received; a spec with all its metadata has a few kilobytes
	maxHeaderBytes  = 16 << 10
	handshakeLimit  = 10 * time.Second
	stopLimit       = 10 * time.Second
)

// Server is a gRPC server with the host's services, health and reflection on it.
type Server struct {
	*grpc.Server
	health *health.Server
}

// NewServer makes the server of a host. Serve it on as many listeners as needed,
// then StopGently, then close the host.
func NewServer(h *Host, logger *slog.Logger) *Server {
	guard := recovery.WithRecoveryHandlerContext(func(_ context.Context, p any) error {
		// The stack is for our log; the caller learns that it was our fault.
		logger.Error("a call panicked: this is a bug", "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
		return status.Error(codes.Internal, "the host daemon failed inside; its log says where")
	})
	s := &Server{
		Server: grpc.NewServer(
			grpc.MaxConcurrentStreams(maxStreams),
			grpc.MaxRecvMsgSize(maxMessageBytes),
			grpc.MaxHeaderListSize(maxHeaderBytes),
			grpc.ConnectionTimeout(handshakeLimit),
			grpc.KeepaliveParams(keepalive.ServerParameters{Time: 30 * time.Second, Timeout: 10 * time.Second}),
			grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second, PermitWithoutStream: true}),
			grpc.WaitForHandlers(true),
			grpc.ChainUnaryInterceptor(recovery.UnaryServerInterceptor(guard)),
			grpc.ChainStreamInterceptor(recovery.StreamServerInterceptor(guard)),
		),
		health: health.NewServer(),
	}
	h.Register(s)
	healthpb.RegisterHealthServer(s, s.health)
	reflection.Register(s)
	return s
}

// StopGently takes no new calls, gives those in flight some seconds, and then
// ends them: a command that hangs must not keep the daemon from stopping.
func (s *Server) StopGently() {
	s.health.Shutdown()
	late := time.AfterFunc(stopLimit, s.Stop)
	defer late.Stop()
	s.GracefulStop()
}
