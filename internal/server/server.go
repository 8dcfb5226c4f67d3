package server

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"google.golang.org/grpc"

	pb "poolmgr/api/poolmgr/v1alpha1"
	"poolmgr/internal/host"
	"poolmgr/internal/lease"
	"poolmgr/internal/plan"
	"poolmgr/internal/pool"
	"poolmgr/internal/store"
)

// Config is what the services work on. Store, Leases, Fleet, CheckHost and Logger are required.
type Config struct {
	Store  store.Store
	Leases *lease.Manager
	Fleet  host.Fleet
	// CheckHost asks a host that may not be registered what it can do, over a connection of its own: the connection to
	// a registered host of that name is left alone. A *pool.Error says what is wrong with the host's settings.
	CheckHost func(context.Context, pool.Host) (host.Info, error)
	Limits    plan.Limits // the reconciler's, so that explanations are the ones it acts on
	Logger    *slog.Logger
	Now       func() time.Time // nil = time.Now
	// Stopping ends the streams that would otherwise last for ever, when the daemon drains; nil = never.
	Stopping <-chan struct{}
	// Cutoff ends the commands in guests that are under way then, some time after Stopping; nil = never.
	Cutoff <-chan struct{}
}

// Server implements the services of package poolmgr.v1alpha1.
type Server struct {
	cfg     Config
	log     *slog.Logger
	streams sync.WaitGroup // goroutines that read streams
}

// New makes the services.
func New(cfg Config) *Server {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	return &Server{cfg: cfg, log: cfg.Logger}
}

// Register adds every service to a gRPC server.
func (s *Server) Register(r grpc.ServiceRegistrar) {
	pb.RegisterPoolAdminServer(r, &poolAdmin{Server: s})
	pb.RegisterLeaseServer(r, &leases{Server: s})
	pb.RegisterEventsServer(r, &events{Server: s})
	pb.RegisterHostAdminServer(r, &hostAdmin{Server: s})
	pb.RegisterVMAdminServer(r, &vmAdmin{Server: s})
	pb.RegisterRolloutAdminServer(r, &rolloutAdmin{Server: s})
	pb.RegisterGuestServer(r, &guest{Server: s})
}

// Wait returns when every goroutine of the services has ended. Their streams end with the gRPC server, so stop it first.
func (s *Server) Wait() { s.streams.Wait() }

func (s *Server) hosts(ctx context.Context) ([]pool.Host, error) {
	loads, err := s.cfg.Store.ListHosts(ctx)
	if err != nil {
		return nil, err
	}
	hosts := make([]pool.Host, len(loads))
	for i, l := range loads {
		hosts[i] = l.Host
	}
	return hosts, nil
}

// later answers calls that a coming release completes; instead says what to do until then, if anything.
func later(what, instead string) error {
	if instead != "" {
		instead = "; until then, " + instead
	}
	return pool.Errorf(pool.CodeUnimplemented, "%s comes with a later release of poolmgr%s", what, instead)
}
