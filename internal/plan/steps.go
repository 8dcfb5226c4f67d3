package plan

import (
	"cmp"
	"slices"
	"strings"

	"poolmgr/internal/pool"
)

// abandoned condemns VMs whose claim can no longer be answered: their pre-lease commands were run by an earlier life
// of the daemon, or have had their time. A VM that was touched never goes back.
func (p *pass) abandoned() {
	pending := map[string]pool.Lease{}
	for _, l := range p.world.Leases {
		if l.Pending {
			pending[l.ID] = l
		}
	}
	for _, v := range p.world.VMs {
		if v.Phase != pool.PreLeaseHookRunning {
			continue
		}
		l, known := pending[v.LeaseID]
		if !known {
			continue // a held VM without its lease is not ours to judge
		}
		if l.Epoch == p.world.Epoch && p.now.Before(l.ExpiresAt) {
			p.wake(l.ExpiresAt)
			continue
		}
		c := unguarded(pool.ReasonFailed, false)
		c.VM, c.Version = v.ID, v.Version
		p.plan.Condemn = append(p.plan.Condemn, c)
	}
}

// shrink ends slots beyond the desired number, furthest from being useful first: those without an available VM, then
// those with a stale one, then the oldest. Nothing succeeds them.
func (p *pass) shrink() {
	surplus := len(p.slots) - p.plan.Desired
	if surplus <= 0 {
		return
	}
	order := slices.SortedFunc(slices.Values(p.slots), p.furthest)
	for _, s := range order[:surplus] {
		for _, r := range slices.Clone(s.rows) {
			p.condemn(s, r, Condemn{Reason: pool.ReasonScaleDown, KeepReady: -1, KeepSlots: p.plan.Desired})
		}
	}
	p.slots = slices.DeleteFunc(p.slots, func(s *slot) bool { return len(s.rows) == 0 })
}

// furthest orders slots for shrink. A slot is judged by its best available VM, or by its oldest row without one.
func (p *pass) furthest(a, b *slot) int {
	ra, rb := p.best(a), p.best(b)
	if c := falseFirst(ra != nil, rb != nil); c != 0 {
		return c
	}
	if ra == nil {
		ra, rb = slices.MinFunc(a.rows, older), slices.MinFunc(b.rows, older)
	}
	return cmp.Or(falseFirst(!p.stale(ra), !p.stale(rb)), older(ra, rb), strings.Compare(a.id, b.id))
}

// broken replaces VMs that failed their probes, outside the budget: they are no availability.
func (p *pass) broken() {
	p.replaceAtOnce(pool.ReasonUnhealthy, func(r *row) bool {
		return r.vm.Phase == pool.Available && r.vm.Health == pool.HealthBroken
	})
}

// staleWarming replaces VMs that are still coming up from another revision, unless the rollout is held up. That costs no
// availability either.
func (p *pass) staleWarming() {
	p.replaceAtOnce(pool.ReasonRollout, func(r *row) bool { return r.vm.Phase.Warming() && p.stale(r) && !p.stays(r) })
}

// replaceAtOnce condemns the rows that match, with a successor where the slot would be empty otherwise.
func (p *pass) replaceAtOnce(reason pool.Reason, match func(*row) bool) {
	for _, s := range p.slots {
		for _, r := range slices.Clone(s.rows) {
			if r.planned || !match(r) {
				continue
			}
			c := unguarded(reason, len(s.rows) == 1)
			if c.Successor && reason == pool.ReasonUnhealthy {
				c.Attempt = p.nextAttempt(r.vm, p.revisionFor(s.id))
			}
			p.condemn(s, r, c)
		}
	}
}

// nextAttempt is the number of a successor whose predecessor broke: counted per slot and revision.
func (p *pass) nextAttempt(v pool.VM, next int64) int {
	if v.Revision != next {
		return 1
	}
	return v.Attempt + 1
}

// grow makes new slots up to the desired number, within max_vms, the hosts' room and the limit on new rows.
// MIN_SIZE_THRESHOLD is not held to that limit: it decides anew by the slots there are, and would rest at part of the
// growth for ever.
func (p *pass) grow() {
	missing := p.plan.Desired - len(p.slots)
	if limit := p.world.Limits.NewRows; limit > 0 && p.pool.Spec.Strategy != pool.MinSizeThreshold {
		missing = min(missing, limit)
	}
	for range max(0, missing) {
		if !p.rooms.reserve(p.rooms.memory, true) {
			p.blocked(p.rooms.memory)
			return
		}
		p.plan.Grow++
	}
	if f := &p.fallback; f.active() && f.trial == "" && p.plan.Grow > 0 {
		p.plan.Trial, f.trial = f.target != nil, newSlot
	}
}

// newSlot stands for the first slot that a plan makes: ids are the store's to give.
const newSlot = "(new)"

// pairs ends surges: of two available VMs in a slot the better one stays, at no cost of availability.
func (p *pass) pairs() {
	for _, s := range p.slots {
		keep := p.best(s)
		for _, r := range slices.Clone(s.rows) {
			if keep == nil || r == keep || !p.counts(r) {
				continue
			}
			reason := p.due(r)
			if reason == "" {
				reason = pool.ReasonExcess
			}
			if p.stale(r) {
				reason = pool.ReasonRollout
			}
			p.condemn(s, r, Condemn{Reason: reason, KeepReady: -1, KeepSlots: -1, KeepPeer: true})
		}
	}
}

// candidate is an available VM that is due, with its slot.
type candidate struct {
	slot *slot
	row  *row
}

// refresh replaces due VMs within the budget, oldest first, a slot at a time. A VM is taken, or a surge made, only if
// the successor could start now: nothing good is destroyed for a replacement that cannot come.
func (p *pass) refresh() {
	var due []candidate
	for _, s := range p.slots {
		if r := p.best(s); r != nil && p.due(r) != "" {
			due = append(due, candidate{s, r})
		}
	}
	slices.SortFunc(due, func(a, b candidate) int { return older(a.row, b.row) })
	unavailable := max(0, p.plan.Desired-p.ready())
	extra := p.extra()
	for _, c := range due {
		reason := p.due(c.row)
		if reason == "" {
			continue // it made way for a try, which is under way now
		}
		mayBreak := unavailable < p.plan.MaxUnavailable
		maySurge := extra < p.plan.MaxSurge
		switch {
		case len(c.slot.rows) > 1:
			// Its successor is on the way; one that finds no place for itself gets the VM's, if the budget allows.
			if mayBreak && c.slot.stuck() && p.takesOver(c) {
				unavailable++
				p.retire(c, false)
			}
		case maySurge && p.fits(vacancy{}):
			extra++
			c.slot.rows = append(c.slot.rows, &row{planned: true})
			p.plan.Surge = append(p.plan.Surge, Surge{
				Slot: c.slot.id, VM: c.row.vm.ID, Version: c.row.vm.Version, Revision: p.revisionFor(c.slot.id),
			})
		case mayBreak && p.takesOver(c):
			unavailable++
			p.retire(c, true)
		default:
			p.waiting++
			if reason == pool.ReasonRollout {
				p.refused++
			}
			if mayBreak || maySurge {
				p.blocked(p.rooms.memory)
			}
		}
	}
}

// retire condemns a due VM within the budget, which the store counts again.
func (p *pass) retire(c candidate, successor bool) {
	p.condemn(c.slot, c.row, Condemn{
		Reason: p.due(c.row), Successor: successor, KeepSlots: -1,
		KeepReady: p.plan.Desired - p.plan.MaxUnavailable,
	})
}

// takesOver takes the room of a VM, or another, for its successor.
func (p *pass) takesOver(c candidate) bool {
	return p.fits(vacancy{host: c.row.vm.Host, memory: p.rooms.needs(c.row.vm)})
}

// fits takes room and a free start for a row that this plan makes.
func (p *pass) fits(left vacancy) bool {
	_, ok := p.rooms.take(p.rooms.memory, left)
	return ok
}

// blocked notes that something waits for room, which other pools may free without this pool hearing of it.
func (p *pass) blocked(memory int) {
	if p.noRoom == "" { // the first reason stands for all: there may be thousands of rows
		p.noRoom = p.rooms.why(memory)
	}
	p.wake(p.now.Add(roomRecheck))
}
