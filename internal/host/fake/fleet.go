package fake

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"poolmgr/api/flintlock/vmtypes"
	"poolmgr/internal/host"
	"poolmgr/internal/pool"
)

// Fleet finds fake hosts by name.
type Fleet struct {
	mu    sync.Mutex
	hosts map[string]*Host
	conns map[string]host.Driver
}

var _ host.Fleet = (*Fleet)(nil)

// NewFleet makes a fleet of these hosts, found by Options.Name. Closing it leaves the hosts as they are, so a test can
// throw a manager away with its fleet and give the same hosts to the next one.
func NewFleet(hosts ...*Host) *Fleet {
	f := &Fleet{hosts: make(map[string]*Host), conns: make(map[string]host.Driver)}
	for _, h := range hosts {
		f.hosts[h.opts.Name] = h
	}
	return f
}

// Add puts another host into the fleet, or replaces the one of its name.
func (f *Fleet) Add(h *Host) {
	f.Forget(h.opts.Name)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.hosts[h.opts.Name] = h
}

// Host is the host of a name; nil when there is none.
func (f *Fleet) Host(name string) *Host {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.hosts[name]
}

// Driver implements host.Fleet.
func (f *Fleet) Driver(h pool.Host) (host.Driver, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if d, ok := f.conns[h.Name]; ok {
		return d, nil
	}
	found, ok := f.hosts[h.Name]
	if !ok {
		return nil, fmt.Errorf("reach host %s: the fake fleet has no host of that name; Add it", h.Name)
	}
	d := found.Dial()
	f.conns[h.Name] = d
	return d, nil
}

// Forget implements host.Fleet.
func (f *Fleet) Forget(name string) {
	f.mu.Lock()
	d, ok := f.conns[name]
	delete(f.conns, name)
	f.mu.Unlock()
	if ok {
		_ = d.Close() // never fails
	}
}

// Close implements host.Fleet.
func (f *Fleet) Close() error {
	f.mu.Lock()
	conns := f.conns
	f.conns = make(map[string]host.Driver)
	f.mu.Unlock()
	for _, d := range conns {
		_ = d.Close() // never fails
	}
	return nil
}

var errClosed = errors.New("the connection was closed")

// conn is one connection to a Host: closing it fails its own calls only.
type conn struct {
	host   *Host
	ctx    context.Context // the connection's life, ended by Close
	cancel context.CancelCauseFunc
}

// Dial makes a driver of its own for the host.
func (h *Host) Dial() host.Driver {
	ctx, cancel := context.WithCancelCause(context.Background())
	return &conn{host: h, ctx: ctx, cancel: cancel}
}

// Close implements host.Driver.
func (c *conn) Close() error {
	c.cancel(fmt.Errorf("%w: %w", host.ErrUnreachable, errClosed))
	return nil
}

// over runs a call that ends when the connection does, and says so when that was the cause.
func (c *conn) over(ctx context.Context, call func(context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stop := context.AfterFunc(c.ctx, func() { cancel(context.Cause(c.ctx)) })
	defer stop()
	if c.ctx.Err() != nil {
		return context.Cause(c.ctx)
	}
	err := call(ctx)
	if cause := context.Cause(ctx); err != nil && errors.Is(cause, errClosed) {
		return cause
	}
	return err
}

func (c *conn) Create(ctx context.Context, spec *vmtypes.MicroVMSpec) (vm host.VM, err error) {
	err = c.over(ctx, func(ctx context.Context) (err error) {
		vm, err = c.host.Create(ctx, spec)
		return err
	})
	return vm, err
}

func (c *conn) Get(ctx context.Context, uid string) (vm host.VM, err error) {
	err = c.over(ctx, func(ctx context.Context) (err error) {
		vm, err = c.host.Get(ctx, uid)
		return err
	})
	return vm, err
}

func (c *conn) List(ctx context.Context, namespace, name string) (vms []host.VM, err error) {
	err = c.over(ctx, func(ctx context.Context) (err error) {
		vms, err = c.host.List(ctx, namespace, name)
		return err
	})
	return vms, err
}

func (c *conn) Delete(ctx context.Context, uid string) error {
	return c.over(ctx, func(ctx context.Context) error { return c.host.Delete(ctx, uid) })
}

func (c *conn) Exec(ctx context.Context, req host.ExecRequest, streams host.ExecStreams) (code int, err error) {
	defer closeInput(streams.Stdin)
	err = c.over(ctx, func(ctx context.Context) (err error) {
		code, err = c.host.Exec(ctx, req, streams)
		return err
	})
	return code, err
}

func (c *conn) Info(ctx context.Context) (info host.Info, err error) {
	err = c.over(ctx, func(ctx context.Context) (err error) {
		info, err = c.host.Info(ctx)
		return err
	})
	return info, err
}
