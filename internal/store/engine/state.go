package engine

import (
	"cmp"
	"fmt"
	"time"

	"poolmgr/internal/pool"
	"poolmgr/internal/store"
)

// announceState writes down where a rollout stands, once for each change.
func (x *tx) announceState(p *poolRows, a store.AnnounceState) error {
	key, r := p.pool.Key(), p.pool.Rollout
	present := cmp.Or(r.Announced, pool.RolloutProgressing)
	switch {
	case a.To == "" || a.To == pool.RolloutCompleted:
		return fmt.Errorf("the state %q of pool %s is not one to announce (this is a bug)", a.To, key)
	case p.pool.Closing:
		return conflict("pool %s is being deleted", key)
	case a.Revision != p.pool.Revision:
		return conflict("pool %s is at revision %d, not %d", key, p.pool.Revision, a.Revision)
	case r.Completed:
		return conflict("the rollout of revision %d of pool %s is over", a.Revision, key)
	case present != a.From || a.From == a.To && a.Demand != r.BlockedSince.IsZero():
		return conflict("the rollout of pool %s is %s already, not %s", key, present, a.From)
	case !r.LastSuccess.Equal(a.LastSuccess):
		return conflict("the rollout of pool %s had a success meanwhile", key)
	}
	x.editPool(key, func(p *pool.Pool) { x.setState(&p.Rollout, a) })
	x.emitState(p, a)
	return nil
}

func (x *tx) setState(r *pool.Rollout, a store.AnnounceState) {
	r.Announced = a.To
	if a.To == pool.RolloutProgressing {
		r.Announced = ""
	}
	switch {
	case !a.Demand:
		r.BlockedSince = time.Time{}
	case r.BlockedSince.IsZero():
		r.BlockedSince = x.now
	}
	if a.From != a.To && (a.From == pool.RolloutBlocked || a.From == pool.RolloutPaused) {
		r.LastSuccess = x.now // the clock stood still
	}
}

func (x *tx) emitState(p *poolRows, a store.AnnounceState) {
	key, r := p.pool.Key(), p.pool.Rollout
	// A pause by request is told of when it is set and lifted; the first fill, which nobody was told of, is not paused.
	zero := r.Started && !p.pool.Spec.Rollout.Paused
	if zero && a.From == pool.RolloutPaused {
		x.emitPause(key, pool.EventRolloutResumed, "", a.Reason)
	}
	switch {
	case a.To == pool.RolloutPaused && zero:
		x.emitPause(key, pool.EventRolloutPaused, "", a.Reason)
	case a.To == pool.RolloutStalled:
		with := payload{
			"revision": p.pool.Revision, "template_hash": p.pool.TemplateHash, "failures": len(r.Failures),
			"available": a.Ready, "desired": a.Desired, "replaced": max(0, r.Total-p.staleWarm()), "total": r.Total,
		}
		with.text("message", clip(a.Reason))
		if n := len(r.Failures); n > 0 {
			with.text("last_error", r.Failures[n-1].String())
		}
		x.emitPool(key, pool.EventRolloutStalled, with)
	}
}
