package plan

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"poolmgr/internal/pool"
)

// State is where a rollout stands, with the API's words.
type State = pool.RolloutState

// The states.
const (
	Progressing = pool.RolloutProgressing
	Paused      = pool.RolloutPaused
	Blocked     = pool.RolloutBlocked
	Stalled     = pool.RolloutStalled
	Completed   = pool.RolloutCompleted
)

// RolloutState derives the state of a pool's rollout and the reason for it.
func RolloutState(w World, now time.Time) (State, string) {
	p := Compute(w, now)
	return p.State, p.StateReason
}

// judge finds the state of the rollout after this plan; the first match wins. It is to be written down when it is
// another than the one that was.
func (p *pass) judge() {
	p.plan.State, p.plan.StateReason = p.state()
	was := cmp.Or(p.pool.Rollout.Announced, Progressing)
	p.plan.Demand = p.heldByDemand()
	p.plan.Announce = p.plan.State != Completed && (p.plan.State != was || p.causeChanged())
	f := p.fallback
	if p.plan.State == Stalled && was == Stalled && f.target != nil && p.pool.Spec.Rollout.AutoRollback {
		p.plan.RollbackTo = f.target.Number
	}
}

// causeChanged reports whether demand began or ceased to be the cause. A claim makes a BLOCKED rollout PROGRESSING for
// the moment in which its successor is made, which ends nothing.
func (p *pass) causeChanged() bool {
	if p.pool.Rollout.BlockedSince.IsZero() {
		return p.plan.Demand && p.plan.State == Blocked
	}
	return !p.plan.Demand
}

// heldByDemand reports whether the budget is used up by slots that wait for VMs of other causes than the rollout, and
// nothing stale goes for that reason.
func (p *pass) heldByDemand() bool {
	if p.plan.State != Blocked && p.plan.State != Progressing || p.refused == 0 || p.failures() > 0 || p.replaces() {
		return false
	}
	held := p.holdups()
	if held.moving || held.waiting > 0 || held.host != "" {
		return false
	}
	return p.plan.MaxUnavailable > 0 && p.plan.Desired-p.ready() >= p.plan.MaxUnavailable
}

// replaces reports whether this plan replaces a stale VM.
func (p *pass) replaces() bool {
	return len(p.plan.Surge) > 0 ||
		slices.ContainsFunc(p.plan.Condemn, func(c Condemn) bool { return c.Reason == pool.ReasonRollout })
}

func (p *pass) state() (State, string) {
	if p.rolloutOver() || p.plan.Complete {
		return Completed, ""
	}
	if p.paused() {
		return Paused, p.pauseReason()
	}
	if p.fallback.stalled {
		return Stalled, p.fallback.why
	}
	if why := p.blockedBy(); why != "" {
		return Blocked, why
	}
	return Progressing, ""
}

func (p *pass) paused() bool { return p.pauseReason() != "" }

// pauseReason says why the rollout is paused; empty when it is not.
func (p *pass) pauseReason() string {
	switch {
	case p.pool.Spec.Rollout.Paused:
		return "paused by request (rollout_policy.paused)"
	case p.plan.Desired > 0 && p.plan.MaxUnavailable == 0 && p.plan.MaxSurge == 0:
		return "max_unavailable and max_surge are both 0"
	default:
		return ""
	}
}

// blockedBy says why the rollout cannot move, when the template is not the reason; empty while it moves, and when nothing
// holds it up.
func (p *pass) blockedBy() string {
	if p.replaces() || p.plan.Grow > 0 {
		return ""
	}
	held := p.holdups()
	if held.moving {
		return ""
	}
	missing := p.pool.NextSlot == 0 && len(p.slots) < p.plan.Desired // the first fill has not begun
	switch {
	case held.waiting == 0 && p.refused == 0 && !missing && held.host == "":
		return ""
	case p.noRoom != "":
		return p.noRoom
	case held.host != "":
		return "host " + held.host + " does not answer"
	case held.message != "":
		return held.message
	case p.refused > 0 && p.failures() == 0:
		return fmt.Sprintf("budget %d/%d is used up by slots that wait for VMs of other causes than the rollout",
			max(0, p.plan.Desired-p.ready()), p.plan.MaxUnavailable)
	default:
		return ""
	}
}

// holdup is what the rows of the rollout wait for.
type holdup struct {
	moving  bool   // one of them is on its way
	waiting int    // those that wait for room
	message string // what a host said to one that it had no room for
	host    string // one that does not answer
}

// holdups looks at the rows that were made for the rollout, and at the stale ones that nothing is known of.
func (p *pass) holdups() holdup {
	var h holdup
	for _, s := range p.slots {
		for _, r := range s.rows {
			p.holdsUp(r, &h)
		}
	}
	return h
}

func (p *pass) holdsUp(r *row, h *holdup) {
	v := r.vm
	switch {
	case r.planned:
	case v.Host != "" && !p.hosts[v.Host]:
		if v.ForRollout && v.Phase.Warming() || p.stale(r) {
			h.host = cmp.Or(h.host, v.Host)
		}
	case !v.ForRollout || !p.comesUp(r):
	case v.Phase != pool.Provisioning || v.UID != "":
		h.moving = true
	case v.Host == "" && (r.stuck || v.Attempt == 0 && p.now.Before(v.NotBefore)):
		h.waiting++
		h.message = cmp.Or(h.message, v.Message)
	case p.pool.Rollout.Announced == Blocked && v.Attempt == 0:
		h.waiting++ // a host was asked once more: it has moved when one says yes
		h.message = cmp.Or(h.message, v.Message, "no host has accepted vm "+v.ID+" yet")
	default:
		h.moving = true
	}
}
