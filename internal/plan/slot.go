package plan

import (
	"cmp"
	"slices"
	"strings"

	"poolmgr/internal/pool"
)

// slot is one place in the warm set, with the rows that fill it: one, or two during a surge.
type slot struct {
	id   string
	rows []*row // sorted by id, planned ones last
}

// row is a warm VM, or one that this plan makes (planned: it has no id yet).
type row struct {
	vm      pool.VM
	planned bool
	stuck   bool // it waits for a place, and there is none
}

// stuck reports whether the slot's second row finds no host.
func (s *slot) stuck() bool {
	return slices.ContainsFunc(s.rows, func(r *row) bool { return r.stuck })
}

// group sorts the warm rows into their slots.
func group(vms []pool.VM) []*slot {
	byID := map[string]*slot{}
	var slots []*slot
	for _, v := range vms {
		if !v.Phase.Warm() {
			continue
		}
		s := byID[v.Slot]
		if s == nil {
			s = &slot{id: v.Slot}
			byID[v.Slot] = s
			slots = append(slots, s)
		}
		s.rows = append(s.rows, &row{vm: v})
	}
	for _, s := range slots {
		slices.SortFunc(s.rows, func(a, b *row) int { return strings.Compare(a.vm.ID, b.vm.ID) })
	}
	slices.SortFunc(slots, func(a, b *slot) int { return cmp.Compare(a.id, b.id) })
	return slots
}

// best is the slot's VM that counts as available: a current one before a stale one, one that may stay before one
// that is due, then the youngest. Nil when there is none.
func (p *pass) best(s *slot) *row {
	var best *row
	for _, r := range s.rows {
		if p.counts(r) && (best == nil || p.better(r, best) < 0) {
			best = r
		}
	}
	return best
}

// better orders the available VMs of one slot, the one to keep first.
func (p *pass) better(a, b *row) int {
	return cmp.Or(
		falseFirst(p.stale(a), p.stale(b)),
		falseFirst(p.due(a) != "", p.due(b) != ""),
		b.vm.AvailableAt.Compare(a.vm.AvailableAt),
		strings.Compare(a.vm.ID, b.vm.ID),
	)
}

// older orders VMs by age, oldest first: since they became available, and since they were made for warming ones.
func older(a, b *row) int {
	return cmp.Or(since(a.vm).Compare(since(b.vm)), strings.Compare(a.vm.ID, b.vm.ID))
}

func falseFirst(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	default:
		return 1
	}
}
