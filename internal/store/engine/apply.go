package engine

import (
	"context"
	"fmt"

	"poolmgr/internal/pool"
	"poolmgr/internal/store"
)

// Apply implements store.Store. When the pool is gone or at another generation, each action is a conflict.
func (e *Engine) Apply(ctx context.Context, s store.Step) ([]error, error) {
	if len(s.Actions) > store.MaxActions {
		return nil, fmt.Errorf("a step of %d actions for pool %s: at most %d fit in a transaction (this is a bug)", len(s.Actions), s.Pool, store.MaxActions)
	}
	results := make([]error, len(s.Actions))
	err := e.do(ctx, s.Now, func(x *tx) error {
		if s.Epoch != x.epoch {
			return fmt.Errorf("%w: a step of run %d for pool %s, but this is run %d", store.ErrFenced, s.Epoch, s.Pool, x.epoch)
		}
		for i, action := range s.Actions {
			results[i] = x.applyOne(s, action)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return results, nil
}

// applyOne carries out one action, all or nothing.
func (x *tx) applyOne(s store.Step, action store.Action) error {
	p := x.m.pools[s.Pool]
	if p == nil {
		return conflict("pool %s is gone", s.Pool)
	}
	if s.Generation != 0 && s.Generation != p.pool.Generation {
		return conflict("pool %s is at generation %d, not %d", s.Pool, p.pool.Generation, s.Generation)
	}
	before := x.mark()
	err := x.apply(p, action)
	if err != nil {
		x.rollback(before)
	}
	return err
}

func (x *tx) apply(p *poolRows, action store.Action) error {
	switch a := action.(type) {
	case store.Grow:
		return x.grow(p, a)
	case store.Surge:
		return x.surge(p, a)
	case store.Condemn:
		return x.condemn(p, a)
	case store.Place:
		return x.place(p, a)
	case store.Unplace:
		return x.unplace(p, a)
	case store.Accepted:
		return x.accepted(p, a)
	case store.Booted:
		return x.booted(p, a)
	case store.HooksDone:
		return x.hooksDone(p, a)
	case store.Fail:
		return x.fail(p, a)
	case store.Probed:
		return x.probed(p, a)
	case store.Gone:
		return x.gone(p, a)
	case store.ExpireLease:
		return x.expireLease(p, a)
	case store.WarnLease:
		return x.warnLease(p, a)
	case store.Announce:
		return x.announce(p, a)
	case store.AnnounceState:
		return x.announceState(p, a)
	case store.RemovePool:
		return x.removePool(p)
	}
	return fmt.Errorf("an action of type %T, which the store does not know (this is a bug)", action)
}

// conflict is the normal, silent refusal: the rows are not what the action was computed from.
func conflict(format string, args ...any) error {
	return fmt.Errorf("%w: %s", store.ErrConflict, fmt.Sprintf(format, args...))
}

// illegal is the loud refusal of an action on a row that it was never meant for.
func illegal(vm pool.VM, action string) error {
	return fmt.Errorf("%w: %s of VM %s, which is %s", store.ErrIllegalTransition, action, vm.ID, vm.Phase)
}

// at returns a copy of a VM's row if it still has the version that an action was computed from.
func (x *tx) at(p *poolRows, id string, version int64) (pool.VM, error) {
	vm := x.m.vms[id]
	switch {
	case vm == nil || vm.Pool != p.pool.Key():
		return pool.VM{}, conflict("VM %s is gone", id)
	case vm.Version != version:
		return pool.VM{}, conflict("VM %s is at version %d, not %d", id, vm.Version, version)
	}
	return *vm, nil
}
