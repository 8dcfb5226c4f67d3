package main

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"

	"poolmgr/internal/host/flintlock"
	"poolmgr/internal/lease"
	"poolmgr/internal/plan"
	"poolmgr/internal/reconcile"
	"poolmgr/internal/server"
	"poolmgr/internal/store"
)

// parts is what works in a daemon between its opening and its closing.
type parts struct {
	log      *slog.Logger
	work     *reconcile.Reconciler
	leases   *lease.Manager
	services *server.Server
	rpc      *grpc.Server
	health   *server.Health
	watch    *storeWatch

	stopping chan struct{} // closed when the drain begins
	cutoff   chan struct{} // closed when commands under way must end
}

func (d *Daemon) assemble(st store.Store, fleet *flintlock.Fleet, registry prometheus.Registerer) *parts {
	metrics := server.NewMetrics(registry, st)
	limits := plan.Limits{StartsPerHost: d.Config.StartsPerHost}
	p := &parts{
		log:      d.Logger,
		leases:   lease.New(lease.Config{Store: st, Fleet: fleet, Logger: d.Logger, Observer: metrics}),
		watch:    &storeWatch{store: st},
		stopping: make(chan struct{}),
		cutoff:   make(chan struct{}),
	}
	p.work = reconcile.New(reconcile.Config{Store: st, Fleet: fleet, Logger: d.Logger, Observer: metrics, Limits: limits})
	p.services = server.New(server.Config{
		Store: st, Leases: p.leases, Fleet: fleet, CheckHost: fleet.Check, Limits: limits, Logger: d.Logger,
		Stopping: p.stopping, Cutoff: p.cutoff,
	})
	// grpc-go's own transport, its limits lowered to what a control plane needs.
	p.rpc = grpc.NewServer(server.Options(d.Logger, metrics.Panicked)...)
	p.services.Register(p.rpc)
	p.health = server.RegisterHealth(p.rpc)
	return p
}

// reconcile works the pools until ctx ends.
func (p *parts) reconcile(ctx context.Context) error {
	if err := p.work.Run(ctx); err != nil && ctx.Err() == nil {
		return err
	}
	return nil
}

// serveRPC serves until the server is stopped, which may be before it began.
func (p *parts) serveRPC(ln net.Listener) error {
	if err := p.rpc.Serve(ln); !errors.Is(err, grpc.ErrServerStopped) {
		return err
	}
	return nil
}

// cutLimit is how long calls may take to end after they were told to, and again after their connections were cut.
const cutLimit = 5 * time.Second

var errStuck = errors.New("some calls do not end, and were left behind (this is a bug)")

// drain ends the service step by step: no new claims, and streams get a hint to come back; then claims and commands that
// are still under way are ended, with an answer; then connections are cut.
func (p *parts) drain(grace time.Duration) error {
	p.leases.Drain()
	close(p.stopping)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		p.rpc.GracefulStop()
		_ = p.leases.Close() // never fails; no call is left that could use it
		p.services.Wait()
	}()
	if within(ended, grace) {
		return nil
	}
	p.log.Warn("ending the claims and commands that are still under way", "after", grace)
	close(p.cutoff)
	interrupted := make(chan struct{})
	go func() {
		defer close(interrupted)
		_ = p.leases.Close() // never fails
	}()
	if within(ended, cutLimit) && within(interrupted, cutLimit) {
		return nil
	}
	p.log.Warn("cutting the connections of calls that do not end", "after", cutLimit)
	go p.rpc.Stop() // ends with GracefulStop, whose end is waited for
	if within(ended, cutLimit) && within(interrupted, cutLimit) {
		return nil
	}
	return errStuck
}

// within waits for the end of something for a while.
func within(ended <-chan struct{}, limit time.Duration) bool {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-ended:
		return true
	case <-timer.C:
		return false
	}
}
