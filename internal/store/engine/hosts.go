package engine

import (
	"context"
	"slices"
	"strings"
	"time"

	"poolmgr/internal/pool"
)

// AddHost implements store.Hosts.
func (e *Engine) AddHost(ctx context.Context, h pool.Host, now time.Time) (pool.Host, error) {
	return e.changeHost(ctx, h.Name, now, func(x *tx, old *pool.Host) (pool.Host, error) {
		if old != nil {
			return h, pool.Errorf(pool.CodeAlreadyExists, "there is a host %q already; update it, or choose another name", h.Name)
		}
		if x.base.host(h.Name) != nil {
			return h, errLater // removed in this very commit
		}
		if err := x.freeAddress(h); err != nil {
			return h, err
		}
		h.Reachable, h.Message, h.ChangedAt, h.Version = true, "", x.now, 0
		h.CordonedAt = time.Time{}
		if h.Cordoned {
			h.CordonedAt = x.now
		}
		return h, nil
	})
}

// UpdateHost implements store.Hosts.
func (e *Engine) UpdateHost(ctx context.Context, h pool.Host, now time.Time) (pool.Host, error) {
	return e.changeHost(ctx, h.Name, now, func(x *tx, old *pool.Host) (pool.Host, error) {
		if old == nil {
			return h, noHost(h.Name)
		}
		next := *old
		if h.Address != old.Address {
			if rows := x.m.hosts[h.Name].rows; rows > 0 {
				return h, pool.Errorf(pool.CodeFailedPrecondition, "host %q has %d VMs: its address cannot change while they are there; drain it first", h.Name, rows)
			}
			if err := x.freeAddress(h); err != nil {
				return h, err
			}
			next.Reachable, next.Message, next.ChangedAt = true, "", x.now
		}
		next.Address, next.TLS = h.Address, h.TLS
		next.MaxVMs, next.MemoryMB, next.MinVMMemoryMB = h.MaxVMs, h.MemoryMB, h.MinVMMemoryMB
		return next, nil
	})
}

// CordonHost implements store.Hosts.
func (e *Engine) CordonHost(ctx context.Context, name string, cordoned bool, reason string, now time.Time) (pool.Host, error) {
	return e.changeHost(ctx, name, now, func(x *tx, old *pool.Host) (pool.Host, error) {
		if old == nil {
			return pool.Host{}, noHost(name)
		}
		next := *old
		switch {
		case !cordoned:
			next.Cordoned, next.CordonedReason, next.CordonedAt = false, "", time.Time{}
		case !old.Cordoned:
			next.Cordoned, next.CordonedReason, next.CordonedAt = true, reason, x.now
		default:
			next.CordonedReason = reason
		}
		return next, nil
	})
}

// SetReachable implements store.Hosts.
func (e *Engine) SetReachable(ctx context.Context, name string, reachable bool, message string, now time.Time) error {
	_, err := e.changeHost(ctx, name, now, func(x *tx, old *pool.Host) (pool.Host, error) {
		if old == nil {
			return pool.Host{}, noHost(name)
		}
		next := *old
		if reachable != old.Reachable {
			next.Reachable, next.ChangedAt = reachable, x.now
		}
		next.Message = clip(message)
		return next, nil
	})
	return err
}

// changeHost writes what a change makes of a host's row; nothing when that is what it is.
func (e *Engine) changeHost(ctx context.Context, name string, now time.Time, change func(*tx, *pool.Host) (pool.Host, error)) (pool.Host, error) {
	var done pool.Host
	err := e.do(ctx, now, func(x *tx) error {
		old := x.m.host(name)
		next, err := change(x, old)
		if err != nil {
			return err
		}
		if old == nil || next != *old {
			x.putHost(next)
		}
		done = *x.m.host(name)
		return nil
	})
	return done, err
}

// freeAddress refuses an address that another host has: one machine under two names would be counted twice.
func (x *tx) freeAddress(h pool.Host) error {
	if other, taken := x.m.addresses[h.Address]; taken && other != h.Name {
		return pool.Errorf(pool.CodeFailedPrecondition, "host %q has the address %s already", other, h.Address)
	}
	return nil
}

func noHost(name string) error {
	return pool.Errorf(pool.CodeNotFound, "there is no host %q", name)
}

// RemoveHost implements store.Hosts.
func (e *Engine) RemoveHost(ctx context.Context, name string) error {
	return e.do(ctx, time.Time{}, func(x *tx) error {
		if x.m.host(name) == nil {
			return noHost(name)
		}
		var named []string
		for _, key := range x.m.keys() {
			if slices.Contains(x.m.pools[key].pool.Spec.Hosts, name) {
				named = append(named, key.String())
			}
		}
		rows := x.m.hosts[name].rows
		switch {
		case len(named) > 0:
			return pool.Errorf(pool.CodeFailedPrecondition, "host %q has %d VMs and is named by the pools %s; take it out of them first", name, rows, strings.Join(named, ", "))
		case rows > 0:
			return pool.Errorf(pool.CodeFailedPrecondition, "host %q has %d VMs; cordon and drain it first", name, rows)
		}
		x.dropHost(name)
		return nil
	})
}

// GetHost implements store.Hosts.
func (e *Engine) GetHost(ctx context.Context, name string) (pool.HostLoad, error) {
	var load pool.HostLoad
	err := e.read(ctx, func(m *mirror) error {
		if m.host(name) == nil {
			return noHost(name)
		}
		load = m.hosts[name].load()
		return nil
	})
	return load, err
}

// ListHosts implements store.Hosts.
func (e *Engine) ListHosts(ctx context.Context) ([]pool.HostLoad, error) {
	var loads []pool.HostLoad
	err := e.read(ctx, func(m *mirror) error {
		loads = m.loads()
		return nil
	})
	return loads, err
}

// loads lists every registered host in order of name.
func (m *mirror) loads() []pool.HostLoad {
	loads := make([]pool.HostLoad, 0, len(m.hosts))
	for _, h := range m.hosts {
		if h.host != nil {
			loads = append(loads, h.load())
		}
	}
	slices.SortFunc(loads, func(a, b pool.HostLoad) int { return strings.Compare(a.Name, b.Name) })
	return loads
}
