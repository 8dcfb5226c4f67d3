package reconcile

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"poolmgr/internal/plan"
	"poolmgr/internal/pool"
	"poolmgr/internal/store"
)

// conflictPause is how soon a pool is looked at again of whose plan something was refused.
const conflictPause = 200 * time.Millisecond

// passLimit bounds one pass: it only talks to the store.
const passLimit = 30 * time.Second

// pass looks at a pool, plans and executes, and starts work on the VMs that need some. It returns when to look again;
// zero when the pool is gone.
func (r *Reconciler) pass(ctx context.Context, key pool.Key) time.Time {
	call, cancel := context.WithTimeout(ctx, passLimit)
	defer cancel()
	began := r.cfg.Now()
	snap, err := r.cfg.Store.Snapshot(call, key)
	switch {
	case pool.CodeOf(err) == pool.CodeNotFound:
		return time.Time{}
	case err != nil:
		return r.failed(ctx, key, "read the pool", err)
	}
	r.serving.turn(began)
	p := plan.Compute(r.world(snap, began), began)
	actions := r.actions(snap, p, began)
	conflicts, err := r.apply(call, snap, began, actions)
	if err != nil {
		return r.failed(ctx, key, "carry out the plan", err)
	}
	if p.RollbackTo > 0 {
		r.rollBack(call, snap.Pool, p)
	}
	for _, v := range snap.VMs {
		r.tasks.ensure(ctx, v)
	}
	r.cfg.Observer.Planned(key, len(actions), r.cfg.Now().Sub(began))
	if len(actions) > 0 {
		r.logPlan(key, p)
	}
	wake := began.Add(r.cfg.Resync)
	if conflicts > 0 {
		// What changed made the pool dirty, unless it was another pool that took a host's room. Not at once: should the
		// planner and the store ever disagree, this would not end.
		wake = began.Add(r.jittered(conflictPause))
	}
	if !p.Wake.IsZero() && p.Wake.Before(wake) {
		wake = p.Wake
	}
	return wake
}

// rollBack restores the last completed revision, as the pool's policy asks for. It is conditional on the pool as it was
// when that was decided, so that it happens once.
func (r *Reconciler) rollBack(ctx context.Context, p pool.Pool, x plan.Plan) {
	next, err := r.cfg.Store.SteerRollout(ctx, store.SteerRollout{
		Pool: p.Key(), Verb: store.RolloutUndo, To: x.RollbackTo, Generation: p.Generation, Actor: "auto_rollback", Now: r.cfg.Now(),
	})
	switch code := pool.CodeOf(err); {
	case err == nil:
		r.log.Warn("rolled back", "pool", p.Key().String(), "from", p.Revision, "to", x.RollbackTo, "revision", next.Revision, "reason", x.StateReason)
	case code == pool.CodeAborted || code == pool.CodeNotFound || ctx.Err() != nil:
		// The pool is another one now: the next pass decides anew.
	default:
		r.log.Error("cannot roll back; undo by hand, or give the pool a good template", "pool", p.Key().String(), "to", x.RollbackTo, "error", err)
	}
}

// failed reports a pass that could not be finished and has it tried again soon. A store that is closed or fenced ends
// the daemon elsewhere; a pass cannot.
func (r *Reconciler) failed(ctx context.Context, key pool.Key, doing string, err error) time.Time {
	if ctx.Err() == nil {
		r.log.Error("pass failed; it is tried again", "pool", key.String(), "doing", doing, "error", err)
	}
	return r.cfg.Now().Add(time.Second)
}

func (r *Reconciler) world(s store.Snapshot, now time.Time) plan.World {
	return plan.World{
		Pool: s.Pool, Revisions: s.Revisions, VMs: s.VMs, Hosts: s.Hosts, Leases: s.Leases, Avoid: r.trouble.avoid(now),
		Limits: r.cfg.Limits, Epoch: r.cfg.Store.Epoch(), ServingSince: r.serving.since(s.Pool.Spec.HeartbeatExpiry),
	}
}

// apply sends the actions in steps of bounded size, and returns how many of them were refused because the rows changed.
// That is normal and silent: the next pass decides from fresh truth.
func (r *Reconciler) apply(ctx context.Context, snap store.Snapshot, now time.Time, actions []store.Action) (conflicts int, err error) {
	p := snap.Pool
	for len(actions) > 0 {
		n := batch(actions)
		results, err := r.cfg.Store.Apply(ctx, store.Step{
			Pool: p.Key(), Generation: p.Generation, Epoch: r.cfg.Store.Epoch(), Now: now, Actions: actions[:n],
		})
		if err != nil {
			return conflicts, err
		}
		for i, err := range results {
			if errors.Is(err, store.ErrConflict) {
				conflicts++
			} else {
				r.applied(snap, now, actions[i], err)
			}
		}
		actions = actions[n:]
	}
	return conflicts, nil
}

func (r *Reconciler) applied(snap store.Snapshot, now time.Time, a store.Action, err error) {
	key := snap.Pool.Key()
	if err != nil {
		r.log.Error("action refused", "pool", key.String(), "action", fmt.Sprintf("%T", a), "error", err)
		return
	}
	switch x := a.(type) {
	case store.Place:
		r.tasks.placed(x.VM)
	case store.ExpireLease:
		i := slices.IndexFunc(snap.Leases, func(l pool.Lease) bool { return l.ID == x.Lease })
		r.cfg.Observer.LeaseExpired(key, now.Sub(snap.Leases[i].ClaimedAt))
	}
}

func (r *Reconciler) logPlan(key pool.Key, p plan.Plan) {
	for _, c := range p.Condemn {
		r.log.Info("condemned", "pool", key.String(), "vm", c.VM, "reason", c.Reason, "successor", c.Successor)
	}
	for _, x := range p.Place {
		r.log.Info("placed", "pool", key.String(), "vm", x.VM, "host", x.Host)
	}
	if p.Grow > 0 || len(p.Surge) > 0 {
		r.log.Info("growing", "pool", key.String(), "slots", p.Grow, "surge", len(p.Surge))
	}
	if p.Announce {
		r.log.Info("rollout state", "pool", key.String(), "state", p.State, "reason", p.StateReason)
	}
	if p.Complete {
		r.log.Info("rollout completed", "pool", key.String(), "revision", p.Revision)
	}
}
