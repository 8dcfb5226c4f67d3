package plan

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"poolmgr/internal/pool"
)

// Compute decides what to do about one pool now. It is total and deterministic: the order of rows in the world does
// not matter, and every choice ends in the order of ids.
//
// The steps run in a fixed order, each on what the earlier ones left. The order is policy: what must go anyway goes
// first, so that the budget is spent on nothing that would have been removed for another reason; repair comes before
// growth, so that a broken slot is refilled rather than doubled; the refresh comes last, because it is the only step
// that takes availability away and may use only what is left of the budget.
func Compute(w World, now time.Time) Plan {
	if w.Pool.Closing {
		return closing(w)
	}
	p := newPass(w, now)
	p.abandoned()
	p.shrink()
	p.broken()
	p.staleWarming()
	p.place()
	p.grow()
	p.pairs()
	p.refresh()
	p.leases()
	p.announce()
	p.judge()
	p.explain()
	slices.SortFunc(p.plan.Condemn, func(a, b Condemn) int { return strings.Compare(a.VM, b.VM) })
	slices.SortFunc(p.plan.Surge, func(a, b Surge) int { return cmp.Compare(a.Slot, b.Slot) })
	return p.plan
}

// pass is the working state of one Compute.
type pass struct {
	world World
	now   time.Time
	pool  pool.Pool
	slots []*slot // sorted by id
	held  int
	hosts map[string]bool // whether each host answers
	rooms *rooms
	plan  Plan

	fallback fallback

	noRoom  string // why a row could not be placed, grown or refreshed, when that happened
	waiting int    // due VMs that the budget or a want of room holds back
	refused int    // stale ones among them
}

func newPass(w World, now time.Time) *pass {
	p := &pass{world: w, now: now, pool: w.Pool, rooms: newRooms(w), hosts: map[string]bool{}}
	for _, h := range w.Hosts {
		p.hosts[h.Name] = h.Reachable
	}
	p.slots = group(w.VMs)
	for _, v := range w.VMs {
		if v.Phase.Held() {
			p.held++
		}
	}
	p.plan.Slots = len(p.slots)
	p.plan.Ready = p.ready()
	p.plan.Revision = w.Pool.Revision
	p.want(w.Pool.Spec.Desired(len(p.slots), p.held))
	p.fallBack()
	return p
}

// want sets the desired number of slots, and the limits that are parts of it.
func (p *pass) want(desired int) {
	policy := p.pool.Spec.Rollout
	p.plan.Desired = desired
	p.plan.MaxUnavailable = policy.MaxUnavailable.Of(desired, 1)
	p.plan.MaxSurge = policy.MaxSurge.Of(desired, 0)
}

// ready is the number of slots with a VM that counts as available.
func (p *pass) ready() int {
	n := 0
	for _, s := range p.slots {
		if p.best(s) != nil {
			n++
		}
	}
	return n
}

// extra is the number of warm rows beyond one per slot: what max_surge bounds.
func (p *pass) extra() int {
	n := 0
	for _, s := range p.slots {
		n += len(s.rows) - 1
	}
	return n
}

// counts reports whether a row counts as available in every rule of the budget. A VM whose host does not answer is
// neither available nor condemned: nothing is known of it.
func (p *pass) counts(r *row) bool {
	return !r.planned && r.vm.CountsReady(p.pool, p.now) && p.hosts[r.vm.Host]
}

// stale reports whether a row is of another revision or restart number; a planned row never is.
func (p *pass) stale(r *row) bool { return !r.planned && r.vm.Stale(p.pool) }

// condemn takes a row out of its slot. The slot keeps its place with a planned successor when asked to.
func (p *pass) condemn(s *slot, r *row, c Condemn) {
	s.rows = slices.DeleteFunc(s.rows, func(x *row) bool { return x == r })
	c.VM, c.Version, c.Slot = r.vm.ID, r.vm.Version, s.id
	if c.Successor {
		c.Revision = p.revisionFor(s.id)
	}
	p.plan.Condemn = append(p.plan.Condemn, c)
	p.rooms.leave(r.vm)
	if c.Successor {
		s.rows = append(s.rows, &row{planned: true})
	}
}

// wake notes an instant at which something may change by itself.
func (p *pass) wake(at time.Time) {
	if at.After(p.now) && (p.plan.Wake.IsZero() || at.Before(p.plan.Wake)) {
		p.plan.Wake = at
	}
}

// unguarded is a Condemn that the store need not recount: it takes nothing that the budget counts.
func unguarded(reason pool.Reason, successor bool) Condemn {
	return Condemn{Reason: reason, Successor: successor, KeepReady: -1, KeepSlots: -1}
}

// closing empties a pool that is being deleted: everything goes, held VMs too, because their leases ended when the
// pool was closed. The row itself goes with the last one.
func closing(w World) Plan {
	p := Plan{Remove: len(w.VMs) == 0, Revision: w.Pool.Revision, State: w.Pool.State()}
	for _, v := range w.VMs {
		if v.Phase != pool.Deleting {
			c := unguarded(pool.ReasonPoolDeleted, false)
			c.VM, c.Version, c.Slot = v.ID, v.Version, v.Slot
			p.Condemn = append(p.Condemn, c)
		}
	}
	slices.SortFunc(p.Condemn, func(a, b Condemn) int { return strings.Compare(a.VM, b.VM) })
	return p
}
