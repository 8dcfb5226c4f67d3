package flintlock

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"

	"google.golang.org/grpc"

	"poolmgr/internal/host"
	"poolmgr/internal/pool"
)

// FleetConfig is what a Fleet needs.
type FleetConfig struct {
	Logger *slog.Logger // required
	// InProcess are connections to hosts that run in this process, by host name; their address is not used, and they
	// stay their owner's.
	InProcess map[string]grpc.ClientConnInterface
	Token     string // basic-auth token that all other hosts want; empty = none
	Limits    Limits // of each host
}

// Fleet keeps a driver for every host that it was asked for, with a connection for each.
type Fleet struct {
	cfg FleetConfig

	mu      sync.Mutex
	closed  bool
	drivers map[string]member
}

// member is a driver with what it was made from.
type member struct {
	driver  *Driver
	address string
	tls     pool.HostTLS
}

var _ host.Fleet = (*Fleet)(nil)

// NewFleet makes a fleet without drivers; they are made when they are asked for.
func NewFleet(cfg FleetConfig) *Fleet {
	return &Fleet{cfg: cfg, drivers: make(map[string]member)}
}

// Driver implements host.Fleet. A host whose address or TLS settings changed gets a new driver, and the calls of the old
// one fail.
func (f *Fleet) Driver(h pool.Host) (host.Driver, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return nil, fmt.Errorf("connect to host %s: the fleet is closed", h.Name)
	}
	old, known := f.drivers[h.Name]
	if known && old.address == h.Address && old.tls == h.TLS {
		return old.driver, nil
	}
	d, err := f.newDriver(h)
	if err != nil {
		return nil, err
	}
	if known {
		f.dismiss(h.Name, old)
	}
	f.drivers[h.Name] = member{driver: d, address: h.Address, tls: h.TLS}
	return d, nil
}

func (f *Fleet) newDriver(h pool.Host) (*Driver, error) {
	cfg := Config{Name: h.Name, Logger: f.cfg.Logger, Token: f.cfg.Token, Limits: f.cfg.Limits}
	if conn, ok := f.cfg.InProcess[h.Name]; ok {
		cfg.Token = ""
		return New(conn, cfg), nil
	}
	return Dial(h.Address, h.TLS, cfg)
}

// Forget implements host.Fleet.
func (f *Fleet) Forget(name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if old, known := f.drivers[name]; known {
		delete(f.drivers, name)
		f.dismiss(name, old)
	}
}

// dismiss closes a driver that nobody is given any more.
func (f *Fleet) dismiss(name string, old member) {
	if err := old.driver.Close(); err != nil {
		f.cfg.Logger.Warn("an old connection to a host did not close", "host", name, "error", err)
	}
}

// Close implements host.Fleet: it closes every driver, and none is made afterwards.
func (f *Fleet) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed = true
	var errs []error
	for name, m := range f.drivers {
		if err := m.driver.Close(); err != nil {
			errs = append(errs, fmt.Errorf("host %s: %w", name, err))
		}
	}
	clear(f.drivers)
	return errors.Join(errs...)
}
