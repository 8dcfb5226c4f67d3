package engine

import (
	"context"
	"slices"
	"strings"
	"time"

	"poolmgr/internal/pool"
	"poolmgr/internal/store"
)

// Renew implements store.Leases. It wakes the pool only when the lease ends earlier than before: a pass that comes for
// the old end looks again anyway.
func (e *Engine) Renew(ctx context.Context, lease string, now time.Time) (store.RenewResult, error) {
	var result store.RenewResult
	err := e.do(ctx, now, func(x *tx) error {
		old, err := x.m.live(lease)
		if err != nil {
			return err
		}
		p := x.m.pools[old.Pool].pool
		l := *old
		l.LastHeartbeatAt = x.now
		l.ExpiresAt = expiry(p.Spec, l, x.now)
		if l.ExpiresAt.After(old.ExpiresAt) {
			l.Warned = false // a lease at the end of its longest life stays warned
		}
		if l.ExpiresAt.Before(old.ExpiresAt) {
			x.putLease(l)
		} else {
			x.writeLease(l)
		}
		result = store.RenewResult{Lease: *x.m.leases[lease], Outdated: x.m.vms[l.VM].Stale(*p)}
		return nil
	})
	return result, err
}

// live finds a lease that a consumer has.
func (m *mirror) live(lease string) (*pool.Lease, error) {
	if l := m.leases[lease]; l != nil && !l.Pending && !m.pools[l.Pool].pool.Closing {
		return l, nil
	}
	return nil, pool.Errorf(pool.CodeNotFound, "there is no such lease: it was released, it expired, its pool was deleted, or it never was")
}

// Release implements store.Leases.
func (e *Engine) Release(ctx context.Context, lease, _ string, now time.Time) error {
	return e.do(ctx, now, func(x *tx) error {
		l, err := x.m.live(lease)
		if err != nil {
			return err
		}
		vm, err := x.end(l, pool.ReasonReleased)
		if err != nil {
			return err
		}
		with := payload{}
		with.text("consumer", l.Consumer)
		x.emitVM(vm, pool.EventVMReleased, with)
		return nil
	})
}

// end removes a lease and sets its VM DELETING.
func (x *tx) end(l *pool.Lease, why pool.Reason) (*pool.VM, error) {
	vm := *x.m.vms[l.VM]
	vm.Phase, vm.Reason = pool.Deleting, why
	if err := x.putVM(vm); err != nil {
		return nil, err
	}
	x.dropLease(l)
	return x.m.vms[l.VM], nil
}

// GetLease implements store.Leases.
func (e *Engine) GetLease(ctx context.Context, lease string) (pool.Lease, pool.VM, error) {
	var l pool.Lease
	var vm pool.VM
	err := e.read(ctx, func(m *mirror) error {
		found, err := m.live(lease)
		if err != nil {
			return err
		}
		l, vm = *found, m.vms[found.VM].Clone()
		return nil
	})
	return l, vm, err
}

// ListLeases implements store.Leases.
func (e *Engine) ListLeases(ctx context.Context, key *pool.Key) ([]store.LeaseView, error) {
	var views []store.LeaseView
	err := e.read(ctx, func(m *mirror) error {
		if key != nil && m.pools[*key] == nil {
			return noPool(*key)
		}
		for of, p := range m.pools {
			if key != nil && *key != of || p.pool.Closing {
				continue
			}
			for l := range p.leases.all() {
				if !l.Pending {
					views = append(views, store.LeaseView{Lease: *l, UID: m.vms[l.VM].UID})
				}
			}
		}
		return nil
	})
	slices.SortFunc(views, func(a, b store.LeaseView) int { return strings.Compare(a.Lease.ID, b.Lease.ID) })
	return views, err
}
