package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"golang.org/x/sync/errgroup"

	"poolmgr/internal/host/flintlock"
	"poolmgr/internal/server"
	"poolmgr/internal/store"
	"poolmgr/internal/store/sqlite"
)

// Daemon is a whole poolmgrd, as a value that tests can run, once.
type Daemon struct {
	Config Config
	Logger *slog.Logger // required
	// Started, when set, is told the addresses that are served, once they are.
	Started func(grpcAddr, httpAddr net.Addr)
	// Grace is how long claims and commands under way may go on when the daemon stops; 0 = 10 s.
	Grace time.Duration

	serving atomic.Pointer[parts] // nil while the daemon is not ready
}

const defaultGrace = 10 * time.Second

// Run starts the daemon and serves until ctx ends, then drains and closes everything. It returns nil after a drain.
func (d *Daemon) Run(ctx context.Context) (err error) {
	grpcLn, err := listen("--listen", d.Config.Listen)
	if err != nil {
		return err
	}
	defer closing(&err, ignoreClosed(grpcLn))
	httpLn, err := listen("--http-listen", d.Config.HTTPListen)
	if err != nil {
		return err
	}
	d.Logger.Info("starting", "version", version, "db", d.Config.DB)
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	web := startWeb(httpLn, server.HTTP(registry, d.ready, d.Logger), d.Logger)
	defer web.stop()

	st, err := sqlite.Open(ctx, d.Config.DB, sqlite.Options{Logger: d.Logger})
	if err != nil {
		return d.notStarted(ctx, err)
	}
	defer closing(&err, st.Close)
	embedded, err := openEmbedded(ctx, &d.Config, st, d.Logger)
	if err != nil {
		return d.notStarted(ctx, err)
	}
	defer closing(&err, embedded.close)
	fleet := flintlock.NewFleet(flintlock.FleetConfig{Logger: d.Logger, InProcess: embedded.inProcess()})
	defer closing(&err, fleet.Close)

	p := d.assemble(st, fleet, registry)
	return d.serve(ctx, p, web, grpcLn, httpLn.Addr())
}

// notStarted is the end of a start: no failure when somebody asked for it.
func (d *Daemon) notStarted(ctx context.Context, err error) error {
	if ctx.Err() == nil {
		return err
	}
	d.Logger.Info("stopped while starting", "error", err)
	return nil
}

// serve runs the parts until ctx ends or one of them fails.
func (d *Daemon) serve(ctx context.Context, p *parts, web *website, grpcLn net.Listener, httpAddr net.Addr) error {
	// The work ends on a signal of its own, after the drain, so that nothing is cut off at once.
	working, endWork := context.WithCancel(context.WithoutCancel(ctx))
	defer endWork()
	group, failed := errgroup.WithContext(working)
	group.Go(func() error { return p.reconcile(failed) })
	group.Go(func() error { return p.serveRPC(grpcLn) })
	group.Go(func() error { return p.watch.run(failed) })
	group.Go(func() error { return web.wait(failed) })

	d.serving.Store(p)
	p.health.Serving()
	d.Logger.Info("serving", "version", version, "grpc", grpcLn.Addr().String(), "http", httpAddr.String(), "db", d.Config.DB)
	if d.Started != nil {
		d.Started(grpcLn.Addr(), httpAddr)
	}
	select {
	case <-ctx.Done():
		d.Logger.Info("stopping: no new claims; what is under way may end")
	case <-failed.Done():
		d.Logger.Error("stopping after a failure", "error", context.Cause(failed))
	}
	d.serving.Store(nil)
	p.health.Shutdown()
	grace := d.Grace
	if grace <= 0 {
		grace = defaultGrace
	}
	stuck := p.drain(grace)
	endWork()
	err := errors.Join(group.Wait(), stuck)
	d.Logger.Info("stopped")
	return err
}

var errNotReady = errors.New("the daemon is starting or stopping")

// ready says why the daemon does not serve.
func (d *Daemon) ready(context.Context) error {
	p := d.serving.Load()
	if p == nil {
		return errNotReady
	}
	return p.watch.ready(time.Now())
}

// listen opens an address, with an error that says which flag to change.
func listen(flag, addr string) (net.Listener, error) {
	ln, err := net.Listen("tcp", addr)
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, fmt.Errorf("%s: %s is in use by another program; stop it, or choose another address with %s", flag, addr, flag)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: cannot listen on %s: %w", flag, addr, err)
	}
	return ln, nil
}

// closing adds a close's error to the error that a function returns.
func closing(err *error, closeIt func() error) { *err = errors.Join(*err, closeIt()) }

// ignoreClosed closes a listener that its server may have closed already.
func ignoreClosed(ln net.Listener) func() error {
	return func() error {
		if err := ln.Close(); !errors.Is(err, net.ErrClosed) {
			return err
		}
		return nil
	}
}

// storeWatch asks the store from time to time whether it still writes. A store that stopped answers nothing any more, and
// a new start is what helps.
type storeWatch struct {
	store store.Store
	asked atomic.Int64 // when the question under way was asked, in nanoseconds since 1970; 0 = none is
}

const (
	watchEvery = time.Second
	watchLimit = 10 * time.Second // after which a store that does not answer makes the daemon not ready
)

// run returns when ctx ends or the store has stopped.
func (w *storeWatch) run(ctx context.Context) error {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		now := time.Now()
		w.asked.Store(now.UnixNano())
		// A step without actions changes nothing, and is refused when no step would be taken.
		_, err := w.store.Apply(ctx, store.Step{Epoch: w.store.Epoch(), Now: now})
		w.asked.Store(0)
		if errors.Is(err, store.ErrBroken) || errors.Is(err, store.ErrFenced) || errors.Is(err, store.ErrClosed) {
			return fmt.Errorf("the database: %w", err)
		}
	}
}

func (w *storeWatch) ready(now time.Time) error {
	if asked := w.asked.Load(); asked != 0 {
		if waits := now.Sub(time.Unix(0, asked)); waits > watchLimit {
			return fmt.Errorf("the database has not answered for %s", waits.Round(time.Second))
		}
	}
	return nil
}
