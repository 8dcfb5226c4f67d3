package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"syscall"

	"poolmgr/internal/microvm/hostd"
)

// Daemon is one run of microvmd.
type Daemon struct {
	Options hostd.Options
	// Listen is the address to serve on; port 0 takes a free one.
	Listen string
	// Insecure allows an address that other machines can reach.
	Insecure bool
	Logger   *slog.Logger
	// Ready, where set, is told the address once calls are served.
	Ready func(net.Addr)
}

// Run serves until the context ends, then stops gently; the VMs live on. It
// takes the port before the state folder: whoever is told "in use" has changed
// nothing.
func (d *Daemon) Run(ctx context.Context) error {
	if err := d.checkListen(); err != nil {
		return err
	}
	listener, err := d.listen(ctx)
	if err != nil {
		return err
	}
	defer listener.Close() // the server closes it too; this is for the ways out before that
	opts := d.Options
	if opts.Name == "" {
		opts.Name = d.Listen
	}
	host, err := hostd.Open(ctx, opts, d.Logger)
	if err != nil {
		return err
	}
	err = d.serve(ctx, host, listener)
	return errors.Join(err, host.Close())
}

// serve runs the server and ends when it has ended.
func (d *Daemon) serve(ctx context.Context, host *hostd.Host, listener net.Listener) error {
	server := hostd.NewServer(host, d.Logger)
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(listener) }()

	d.Logger.Info("microvmd serves", "addr", listener.Addr().String(), "backend", d.Options.Backend,
		"state_dir", d.Options.StateDir, "version", version)
	if d.Ready != nil {
		d.Ready(listener.Addr())
	}
	select {
	case err := <-failed:
		return fmt.Errorf("serve on %s: %w", listener.Addr(), err)
	case <-ctx.Done():
	}
	d.Logger.Info("microvmd stops; its microVMs live on")
	server.StopGently()
	if err := <-failed; err != nil {
		return fmt.Errorf("serve on %s: %w", listener.Addr(), err)
	}
	return nil
}

func (d *Daemon) listen(ctx context.Context) (net.Listener, error) {
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp", d.Listen)
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fmt.Errorf("listen on %s: the port is in use, perhaps by another microvmd: stop that one, or choose another port with --listen", d.Listen)
	case err != nil:
		return nil, fmt.Errorf("listen (choose another address with --listen): %w", err)
	}
	return listener, nil
}

// checkListen refuses to offer machines to a network by mistake: the API has
// neither TLS nor tokens yet, and whoever reaches it may run anything.
func (d *Daemon) checkListen() error {
	host, _, err := net.SplitHostPort(d.Listen)
	if err != nil {
		return fmt.Errorf("%w: --listen is %q; it must be HOST:PORT", errUsage, d.Listen)
	}
	if d.Insecure || host == "localhost" {
		return nil
	}
	if ip, err := netip.ParseAddr(host); err == nil && ip.IsLoopback() {
		return nil
	}
	return fmt.Errorf("--listen %s can be reached from other machines, and whoever reaches it may run anything in its microVMs: listen on 127.0.0.1, or say --insecure on a network you trust", d.Listen)
}
