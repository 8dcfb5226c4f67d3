package engine

import (
	"context"
	"fmt"
	"slices"

	"poolmgr/internal/pool"
	"poolmgr/internal/store"
)

// CreatePool implements store.Pools.
func (e *Engine) CreatePool(ctx context.Context, c store.CreatePool) (pool.Pool, error) {
	var made pool.Pool
	err := e.do(ctx, c.Now, func(x *tx) error {
		key := c.Spec.Key
		if err := x.free(key); err != nil {
			return err
		}
		if err := x.knownHosts(c.Spec); err != nil {
			return err
		}
		r := newRevision(c.Spec, 1)
		r.CreatedAt = x.now
		x.putPool(pool.Pool{
			Spec:         ownSpec(c.Spec),
			Generation:   1,
			Revision:     r.Number,
			TemplateHash: r.TemplateHash,
			Rollout:      pool.Rollout{StartedAt: x.now, LastSuccess: x.now},
			Owner:        c.Actor,
			CreatedAt:    x.now,
		})
		x.addRevision(r)
		made = x.m.pools[key].pool.Clone()
		return nil
	})
	return made, err
}

// free refuses a pool's name that is taken.
func (x *tx) free(key pool.Key) error {
	p := x.m.pools[key]
	switch {
	case p != nil && p.pool.Closing:
		return pool.Errorf(pool.CodeAlreadyExists, "pool %s is being deleted; its name is free when its last VM is gone", key)
	case p != nil:
		return pool.Errorf(pool.CodeAlreadyExists, "there is a pool %s already; update it, or choose another name", key)
	case x.base.pools[key] != nil:
		return errLater // removed in this very commit
	}
	return nil
}

// knownHosts refuses a spec that names a host which is not registered (any more).
func (x *tx) knownHosts(s pool.Spec) error {
	var faults pool.Faults
	for i, name := range s.Hosts {
		if x.m.host(name) == nil {
			faults = append(faults, pool.Fault{
				Field:   fmt.Sprintf("flintlock_hosts[%d]", i),
				Message: fmt.Sprintf("there is no host %q; add it first", name),
			})
		}
	}
	return faults.Err()
}

// ownSpec copies what a caller could still write to. The template is shared: nobody writes to it.
func ownSpec(s pool.Spec) pool.Spec {
	s.Hosts = slices.Clone(s.Hosts)
	s.CreateCommands = slices.Clone(s.CreateCommands)
	s.PreLeaseCommands = slices.Clone(s.PreLeaseCommands)
	if s.MaxQuarantined != nil {
		n := *s.MaxQuarantined
		s.MaxQuarantined = &n
	}
	return s
}

// UpdatePool implements store.Pools.
func (e *Engine) UpdatePool(ctx context.Context, u store.UpdatePool) (pool.Pool, error) {
	var updated pool.Pool
	err := e.do(ctx, u.Now, func(x *tx) error {
		key := u.Spec.Key
		if err := x.updatable(key, u.Generation); err != nil {
			return err
		}
		if err := x.knownHosts(u.Spec); err != nil {
			return err
		}
		p := x.m.pools[key].pool
		r := newRevision(u.Spec, p.Revision+1)
		r.CreatedAt = x.now
		x.editPool(key, func(p *pool.Pool) {
			p.Spec = ownSpec(u.Spec)
			p.Generation++
		})
		if r.TemplateHash != p.TemplateHash {
			x.startRollout(r)
		}
		if paused := u.Spec.Rollout.Paused; paused != p.Spec.Rollout.Paused {
			x.notePause(key, u.Actor)
		}
		updated = x.m.pools[key].pool.Clone()
		return nil
	})
	return updated, err
}

// updatable refuses an update of a pool that is not there, is being deleted, or is not as the caller saw it.
func (x *tx) updatable(key pool.Key, generation int64) error {
	p := x.m.pools[key]
	switch {
	case p == nil:
		return noPool(key)
	case p.pool.Closing:
		return pool.Errorf(pool.CodeFailedPrecondition, "pool %s is being deleted and cannot be changed any more", key)
	case generation != 0 && generation != p.pool.Generation:
		return pool.Errorf(pool.CodeAborted, "pool %s is at generation %d, not %d: somebody changed it; read it again and repeat the change",
			key, p.pool.Generation, generation)
	}
	return nil
}

// ClosePool implements store.Pools.
func (e *Engine) ClosePool(ctx context.Context, c store.ClosePool) error {
	return e.do(ctx, c.Now, func(x *tx) error {
		p := x.m.pools[c.Pool]
		switch {
		case p == nil:
			return noPool(c.Pool)
		case p.pool.Closing:
			return nil
		case p.held() > 0 && !c.Force:
			return pool.Errorf(pool.CodeFailedPrecondition, "pool %s has %d leased VMs; release them first, or force the deletion", c.Pool, p.held())
		}
		x.editPool(c.Pool, func(p *pool.Pool) { p.Closing = true })
		return nil
	})
}
