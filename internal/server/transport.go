package server

import (
	"log/slog"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"
)

// Limits of the transport. grpc-go's own are meant for trusted peers: streams without number, headers of 16 MiB.
const (
	maxStreams      = 256
	maxMessageBytes = 1 << 20 // of a request; the largest is a spec
	maxAnswerBytes  = 4 << 20 // of an answer, which is what clients take by default
	maxHeaderBytes  = 16 << 10
	handshakeLimit  = 10 * time.Second
	maxIdle         = 5 * time.Minute
	maxAge          = 30 * time.Minute // after which clients are asked to connect anew; calls under way go on
)

// Options configures a gRPC server for the services: limits, keepalive, the error map, and a guard against panics, for
// each of which panicked is called.
func Options(log *slog.Logger, panicked func()) []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.MaxConcurrentStreams(maxStreams),
		grpc.MaxRecvMsgSize(maxMessageBytes),
		grpc.MaxSendMsgSize(maxAnswerBytes),
		grpc.MaxHeaderListSize(maxHeaderBytes),
		grpc.ConnectionTimeout(handshakeLimit),
		grpc.WaitForHandlers(true),
		grpc.KeepaliveParams(keepalive.ServerParameters{
			Time: 30 * time.Second, Timeout: 10 * time.Second,
			MaxConnectionIdle: maxIdle, MaxConnectionAge: maxAge, MaxConnectionAgeGrace: maxExec + time.Minute,
		}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second, PermitWithoutStream: true}),
		grpc.ChainUnaryInterceptor(UnaryErrors(log, panicked)),
		grpc.ChainStreamInterceptor(StreamErrors(log, panicked)),
	}
}

// Health is the standard health service of a gRPC server.
type Health struct {
	*health.Server
	services []string
}

// RegisterHealth adds the health service and reflection to a server that has every other service. The daemon ("") and
// each of its services are NOT_SERVING until told otherwise.
func RegisterHealth(rpc *grpc.Server) *Health {
	h := &Health{Server: health.NewServer(), services: []string{""}}
	for name := range rpc.GetServiceInfo() {
		h.services = append(h.services, name)
	}
	h.set(healthpb.HealthCheckResponse_NOT_SERVING)
	healthpb.RegisterHealthServer(rpc, h)
	reflection.Register(rpc)
	return h
}

// Serving says that the daemon serves; Shutdown ends that for good.
func (h *Health) Serving() { h.set(healthpb.HealthCheckResponse_SERVING) }

func (h *Health) set(status healthpb.HealthCheckResponse_ServingStatus) {
	for _, name := range h.services {
		h.SetServingStatus(name, status)
	}
}
