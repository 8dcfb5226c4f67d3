package plan

import (
	"fmt"
	"slices"
	"time"

	"poolmgr/internal/pool"
)

// stallFailures is how many VMs in a row must fail before a revision counts as one that does not boot.
const stallFailures = 3

// fallback is what a pass knows of a rollout that does not get on, from stored facts only: it is judged before the steps,
// which depend on it.
type fallback struct {
	failing bool // several VMs failed, and none came up since
	stalled bool // the rollout is STALLED
	why     string
	// target is the revision that new VMs are made from meanwhile; nil = go on with the current one, of which one VM at a
	// time is started while the rollout fails or stalls.
	target *pool.Revision
	// trial is the slot that goes on trying the current revision, so that a rollout resumes by itself when the template
	// was not to blame. Empty = there is none yet, and the next row that is made is one.
	trial string
}

// active reports whether new VMs are made with caution.
func (f fallback) active() bool { return f.failing || f.stalled }

// meanwhile says for people how the pool goes on.
func (f fallback) meanwhile(p pool.Pool) string {
	if f.target == nil {
		return "there is no completed revision of another template to fall back on, so that one VM at a time is tried"
	}
	return fmt.Sprintf("new VMs are made from revision %d, and one slot goes on trying revision %d", f.target.Number, p.Revision)
}

// fallBack judges the rollout.
func (p *pass) fallBack() {
	f := &p.fallback
	f.failing = p.failing()
	if f.failing {
		f.why = fmt.Sprintf("%d VMs failed and none came up since; the last was %s", p.failures(), p.lastFailure())
	}
	if over := p.rolloutOver() || p.paused(); !over {
		f.stalled = f.failing || p.overdue()
	}
	if f.stalled && !f.failing {
		f.why = fmt.Sprintf("no VM of the current revision became available within progress_deadline (%s)", p.pool.Spec.Rollout.Deadline())
		if p.failures() > 0 {
			f.why += "; the last failure was " + p.lastFailure()
		}
	}
	if !f.active() {
		return
	}
	f.trial = p.trialSlot()
	last := p.pool.Rollout.LastCompleted
	i := slices.IndexFunc(p.world.Revisions, func(r pool.Revision) bool { return r.Number == last })
	if i < 0 || p.world.Revisions[i].TemplateHash == p.pool.TemplateHash {
		return
	}
	f.target = &p.world.Revisions[i]
	if p.pool.Spec.Strategy == pool.MinSizeThreshold && p.triesAlone() && len(p.slots)-1 < p.pool.Spec.MinSize {
		p.want(p.pool.Spec.Size) // or the slot that tries would keep the pool from being refilled for ever
	}
	p.plan.Revision = f.target.Number
	p.rooms.memory = int(f.target.Template.GetMemoryInMb())
}

func (p *pass) rolloutOver() bool { return p.pool.Rollout.Completed }

func (p *pass) failures() int { return len(p.pool.Rollout.Failures) }

func (p *pass) lastFailure() string {
	return p.pool.Rollout.Failures[p.failures()-1].String()
}

// failing reports whether enough different VMs failed since the last success, on two hosts where there are two: a host
// on which nothing starts says little of a template.
func (p *pass) failing() bool {
	vms, hosts := map[string]bool{}, map[string]bool{}
	for _, f := range p.pool.Rollout.Failures {
		vms[f.VM], hosts[f.Host] = true, true
	}
	if len(vms) < stallFailures {
		return false
	}
	usable := 0
	for _, h := range p.rooms.hosts {
		if h.Reachable && !h.Cordoned {
			usable++
		}
	}
	return len(hosts) >= min(2, usable)
}

// overdue reports whether the last success is too long ago. The clock stands still while the rollout is BLOCKED, and
// while the daemon was away, unless it was told of the stall already.
func (p *pass) overdue() bool {
	r := p.pool.Rollout
	if r.LastSuccess.IsZero() || r.Announced == Blocked || r.Announced == Paused {
		return false
	}
	at := p.deadline()
	p.wake(at)
	return !p.now.Before(at)
}

func (p *pass) deadline() time.Time {
	from := p.pool.Rollout.LastSuccess
	if p.world.ServingSince.After(from) && p.pool.Rollout.Announced != Stalled {
		from = p.world.ServingSince
	}
	return from.Add(p.pool.Spec.Rollout.Deadline())
}

// trialSlot is the slot that tries the current revision: the lowest with a row of it on its way, else the lowest with
// nothing in it that is or may become available.
func (p *pass) trialSlot() string {
	empty := ""
	for _, s := range p.slots {
		warming := false
		for _, r := range s.rows {
			if r.vm.Phase.Warming() && !p.stale(r) {
				return s.id
			}
			warming = warming || r.vm.Phase.Warming()
		}
		if empty == "" && !warming && p.best(s) == nil {
			empty = s.id
		}
	}
	return empty
}

// triesAlone reports whether the slot that tries the current revision has nothing to hand out.
func (p *pass) triesAlone() bool {
	i := slices.IndexFunc(p.slots, func(s *slot) bool { return s.id == p.fallback.trial })
	return i >= 0 && p.best(p.slots[i]) == nil
}

// revisionFor is the revision of a new row in a slot.
func (p *pass) revisionFor(slot string) int64 {
	f := &p.fallback
	if f.trial == "" {
		f.trial = slot
	}
	if f.target == nil || f.trial == slot {
		return p.pool.Revision
	}
	return f.target.Number
}

// stays reports whether a stale row is kept for the time being: nothing stale is replaced while the rollout is paused or
// STALLED, and what was made from the last completed revision meanwhile is as good as current.
func (p *pass) stays(r *row) bool {
	f := p.fallback
	return p.pool.Spec.Rollout.Paused || f.stalled || f.target != nil && r.vm.TemplateHash == f.target.TemplateHash
}

// lacksTrial reports whether the rollout is STALLED and nothing tries its revision any more: the VM was claimed, or its
// slot went with a smaller pool. Then one stale VM makes way for a try, within the budget.
func (p *pass) lacksTrial() bool {
	f := p.fallback
	return f.stalled && f.trial == ""
}

// SuccessorRevision is the revision of the row that follows a VM which failed. With blamed, the failure counts against
// its template; the world does not know of it yet.
func SuccessorRevision(w World, v pool.VM, blamed bool, now time.Time) int64 {
	if blamed && !v.Stale(w.Pool) {
		w.Pool = w.Pool.Clone()
		w.Pool.Rollout.Failures = append(w.Pool.Rollout.Failures, pool.Failure{VM: v.ID, Host: v.Host, At: now})
	}
	return newPass(w, now).revisionFor(v.Slot)
}
