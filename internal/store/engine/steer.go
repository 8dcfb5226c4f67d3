package engine

import (
	"context"
	"fmt"
	"strings"
	"time"

	"poolmgr/internal/pool"
	"poolmgr/internal/store"
)

// SteerRollout implements store.Pools.
func (e *Engine) SteerRollout(ctx context.Context, s store.SteerRollout) (pool.Pool, error) {
	var steered pool.Pool
	err := e.do(ctx, s.Now, func(x *tx) error {
		if err := x.updatable(s.Pool, s.Generation); err != nil {
			return err
		}
		if err := x.steer(s); err != nil {
			return err
		}
		steered = x.m.pools[s.Pool].pool.Clone()
		return nil
	})
	return steered, err
}

func (x *tx) steer(s store.SteerRollout) error {
	switch s.Verb {
	case store.RolloutPause:
		x.setPause(s.Pool, true, s.Actor)
	case store.RolloutResume:
		x.resume(s.Pool, s.Actor)
	case store.RolloutRestart:
		x.restart(s.Pool)
	case store.RolloutUndo:
		return x.undo(s)
	default:
		return pool.Errorf(pool.CodeInvalid, "%q is not something to do to a rollout; use %s, %s, %s or %s", s.Verb,
			store.RolloutPause, store.RolloutResume, store.RolloutRestart, store.RolloutUndo)
	}
	return nil
}

// setPause sets or lifts the pause, unless it is so already.
func (x *tx) setPause(key pool.Key, paused bool, actor string) {
	if x.m.pools[key].pool.Spec.Rollout.Paused == paused {
		return
	}
	x.editPool(key, func(p *pool.Pool) {
		p.Spec.Rollout.Paused = paused
		p.Generation++
	})
	x.notePause(key, actor)
}

// notePause announces a pause that was just set or lifted. The time of a pause is held against no rollout.
func (x *tx) notePause(key pool.Key, actor string) {
	what := pool.EventRolloutPaused
	if !x.m.pools[key].pool.Spec.Rollout.Paused {
		what = pool.EventRolloutResumed
		x.editPool(key, func(p *pool.Pool) {
			x.anew(p)
			p.Rollout.Announced = ""
		})
	} else if !x.m.pools[key].pool.Rollout.Completed {
		x.editPool(key, func(p *pool.Pool) { p.Rollout.Announced, p.Rollout.BlockedSince = pool.RolloutPaused, time.Time{} })
	}
	x.emitPause(key, what, actor, "")
}

// emitPause writes the event of a pause or of its end.
func (x *tx) emitPause(key pool.Key, what pool.EventType, actor, message string) {
	p := x.m.pools[key]
	with := payload{
		"revision": p.pool.Revision, "template_hash": p.pool.TemplateHash,
		"total": p.pool.Rollout.Total, "stale": p.staleWarm(), "available": p.readySlot, "desired": p.desired(),
	}
	with.text("actor", actor)
	with.text("message", message)
	x.emitPool(key, what, with)
}

// anew lets the clock of a rollout begin now, and forgets its failures.
func (x *tx) anew(p *pool.Pool) {
	p.Rollout.LastSuccess, p.Rollout.BlockedSince, p.Rollout.Failures = x.now, time.Time{}, nil
}

// resume lifts the pause. A rollout that is not paused but got stuck has another try, which is no change of state of
// its own and has no event.
func (x *tx) resume(key pool.Key, actor string) {
	p := x.m.pools[key].pool
	if p.Spec.Rollout.Paused {
		x.setPause(key, false, actor)
		return
	}
	if p.Rollout.Completed || len(p.Rollout.Failures) == 0 && !x.overdue(p) {
		return
	}
	x.editPool(key, func(p *pool.Pool) {
		x.anew(p)
		p.Generation++
	})
}

// overdue reports whether the last success of a rollout is longer ago than its pool allows.
func (x *tx) overdue(p *pool.Pool) bool {
	if s := p.Rollout.Announced; s == pool.RolloutPaused || s == pool.RolloutBlocked {
		return false // the clock stands still
	}
	return x.now.Sub(p.Rollout.LastSuccess) >= p.Spec.Rollout.Deadline()
}

// restart makes every VM stale without a change of the template: that its VMs boot stays known.
func (x *tx) restart(key pool.Key) {
	x.editPool(key, func(p *pool.Pool) {
		p.Restart++
		p.Generation++
		p.Rollout = pool.Rollout{
			LastCompleted: p.Rollout.LastCompleted, Proven: p.Rollout.Proven, StartedAt: x.now, LastSuccess: x.now,
		}
	})
	x.beginRollout(key)
}

// undo makes the template and the create commands of an earlier revision those of a new one.
func (x *tx) undo(s store.SteerRollout) error {
	p := x.m.pools[s.Pool]
	target, err := p.undoTarget(s.To)
	if err != nil {
		return err
	}
	spec := ownSpec(p.pool.Spec)
	spec.Template, spec.CreateCommands = target.Template, target.CreateCommands
	if spec.HasFixedAddress() && spec.CanHoldTwo() {
		return pool.Errorf(pool.CodeFailedPrecondition,
			"revision %d of pool %s has a fixed address, and the pool as it is now can hold two VMs; make it smaller first, or undo to another revision",
			target.Number, s.Pool)
	}
	from := p.pool.Revision
	r := newRevision(spec, from+1)
	r.CreatedAt = x.now
	x.editPool(s.Pool, func(p *pool.Pool) {
		p.Spec = ownSpec(spec)
		p.Generation++
	})
	x.makeCurrent(r)
	x.editPool(s.Pool, func(p *pool.Pool) { p.Rollout.RolledBackFrom = from })
	with := payload{"from": from, "to": target.Number, "revision": r.Number, "template_hash": r.TemplateHash}
	with.text("actor", s.Actor)
	x.emitPool(s.Pool, pool.EventRolloutRolledBack, with)
	x.beginRollout(s.Pool)
	return nil
}

// undoTarget finds the revision to go back to: the one that is named, or else the last completed one, or the newest of
// another template where the pool is at that already.
func (p *poolRows) undoTarget(to int64) (*pool.Revision, error) {
	key, current := p.pool.Key(), p.pool.TemplateHash
	if to != 0 {
		r := p.revision(to)
		switch {
		case r == nil:
			return nil, pool.Errorf(pool.CodeNotFound, "pool %s has no revision %d; stored are %s", key, to, p.numbers())
		case r.TemplateHash == current:
			return nil, pool.Errorf(pool.CodeFailedPrecondition, "pool %s has the template of revision %d already; stored are %s", key, to, p.numbers())
		}
		return r, nil
	}
	last := p.revision(p.pool.Rollout.LastCompleted)
	if last == nil {
		return nil, pool.Errorf(pool.CodeFailedPrecondition,
			"no revision of pool %s has completed a rollout yet, so there is none known to be good; name the one to go back to, of %s", key, p.numbers())
	}
	if last.TemplateHash != current {
		return last, nil
	}
	for i := len(p.revisions) - 1; i >= 0; i-- {
		if r := p.revisions[i]; r.TemplateHash != current {
			return r, nil
		}
	}
	return nil, pool.Errorf(pool.CodeFailedPrecondition, "pool %s has no stored revision of another template to go back to", key)
}

// numbers lists the stored revisions for people.
func (p *poolRows) numbers() string {
	all := make([]string, len(p.revisions))
	for i, r := range p.revisions {
		all[i] = fmt.Sprint(r.Number)
	}
	return strings.Join(all, ", ")
}
