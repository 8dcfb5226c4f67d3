package engine

import (
	"time"

	"poolmgr/internal/pool"
	"poolmgr/internal/store"
)

// leaseAt returns a lease of the pool if it still has the version that an action was computed from.
func (x *tx) leaseAt(p *poolRows, id string, version int64) (*pool.Lease, error) {
	l := x.m.leases[id] // ids of leases are credentials: no message names one
	switch {
	case l == nil || l.Pool != p.pool.Key():
		return nil, conflict("a lease of pool %s ended", p.pool.Key())
	case l.Version != version || l.Pending:
		return nil, conflict("the lease of VM %s moved", l.VM)
	case p.pool.Closing:
		return nil, conflict("pool %s is being deleted, and its leases have ended", p.pool.Key())
	}
	return l, nil
}

func (x *tx) expireLease(p *poolRows, a store.ExpireLease) error {
	l, err := x.leaseAt(p, a.Lease, a.Version)
	if err != nil {
		return err
	}
	if x.now.Before(l.ExpiresAt) {
		return conflict("the lease of VM %s has not ended yet", l.VM)
	}
	_, err = x.end(l, pool.ReasonExpired)
	return err
}

func (x *tx) warnLease(p *poolRows, a store.WarnLease) error {
	l, err := x.leaseAt(p, a.Lease, a.Version)
	if err != nil {
		return err
	}
	if l.Warned {
		return conflict("the consumer of VM %s was warned already", l.VM)
	}
	next := *l
	next.Warned = true
	x.putLease(next)
	with := payload{}
	with.text("consumer", l.Consumer)
	with.at("expires_at", l.ExpiresAt)
	x.emitVM(x.m.vms[l.VM], pool.EventVMExpiringSoon, with)
	return nil
}

func (x *tx) announce(p *poolRows, a store.Announce) error {
	if a.Short != nil && *a.Short != p.pool.Short {
		x.editPool(p.pool.Key(), func(p *pool.Pool) { p.Short = *a.Short })
		if *a.Short {
			with := payload{"available": a.Ready, "desired": a.Desired}
			with.text("message", clip(a.Why))
			x.emitPool(p.pool.Key(), pool.EventPoolBelowTarget, with)
		}
	}
	if a.CompletedRevision == 0 {
		return nil
	}
	return x.complete(p, a)
}

// complete ends the current rollout, once.
func (x *tx) complete(p *poolRows, a store.Announce) error {
	switch {
	case a.CompletedRevision != p.pool.Revision:
		return conflict("pool %s is at revision %d, not %d", p.pool.Key(), p.pool.Revision, a.CompletedRevision)
	case p.pool.Rollout.Completed:
		return conflict("the rollout of revision %d of pool %s is over already", p.pool.Revision, p.pool.Key())
	case p.staleWarm() > 0:
		return conflict("pool %s has %d stale VMs in its warm set", p.pool.Key(), p.staleWarm())
	}
	x.editPool(p.pool.Key(), func(p *pool.Pool) {
		p.Rollout.Completed, p.Rollout.CompletedAt = true, x.now
		p.Rollout.Announced, p.Rollout.BlockedSince = "", time.Time{}
		if p.Rollout.Proven {
			p.Rollout.LastCompleted = p.Revision
		}
	})
	if p.pool.Rollout.Started {
		x.emitPool(p.pool.Key(), pool.EventRolloutCompleted, payload{
			"revision": p.pool.Revision, "template_hash": p.pool.TemplateHash, "total": p.pool.Rollout.Total,
			"available": a.Ready, "desired": a.Desired,
		})
	}
	return nil
}

func (x *tx) removePool(p *poolRows) error {
	switch {
	case !p.pool.Closing:
		return conflict("pool %s is not being deleted", p.pool.Key())
	case p.vms.n > 0 || p.leases.n > 0:
		return conflict("pool %s has %d VMs left", p.pool.Key(), p.vms.n)
	}
	x.dropPool(p.pool.Key())
	return nil
}
