package plan

import (
	"cmp"
	"slices"

	"poolmgr/internal/pool"
)

// waiting is a row that has no host yet.
type waiting struct {
	row   *row
	rests bool // in its backoff
	surge bool // its slot has an available VM
}

// place names hosts for the rows that wait for one: those whose slot has nothing available first, since a surge must
// never take the room that a slot in need could use, then the oldest. Rows in their backoff come last, with nothing
// but their room reserved: they hold up no row that could start now. So do the successors that this plan makes.
func (p *pass) place() {
	rows, planned := p.unplaced()
	busy := p.careful()
	for _, w := range rows {
		memory := p.rooms.needs(w.row.vm)
		if w.rests {
			p.wake(w.row.vm.NotBefore)
			p.rooms.reserve(memory, false)
			continue
		}
		tries := p.fallback.active() && p.fallback.target == nil && !p.stale(w.row)
		if tries && busy {
			p.rooms.reserve(memory, false)
			continue
		}
		host, ok := p.rooms.take(memory, vacancy{})
		busy = busy || ok && tries
		if !ok {
			w.row.stuck = true
			p.blocked(memory)
			p.rooms.reserve(memory, true)
			continue
		}
		p.plan.Place = append(p.plan.Place, Place{VM: w.row.vm.ID, Version: w.row.vm.Version, Host: host})
	}
	for range planned {
		p.rooms.reserve(p.rooms.memory, true)
	}
}

// careful reports whether a VM of the current revision is being started: a rollout that fails, with no earlier revision to
// fall back on, goes on with one at a time.
func (p *pass) careful() bool {
	for _, s := range p.slots {
		for _, r := range s.rows {
			if !r.planned && r.vm.Phase.Warming() && r.vm.Host != "" && p.hosts[r.vm.Host] && !p.stale(r) {
				return true
			}
		}
	}
	return false
}

// unplaced lists the rows without a host in the order in which they get one, and counts those that this plan makes.
func (p *pass) unplaced() (rows []waiting, planned int) {
	for _, s := range p.slots {
		for _, r := range s.rows {
			switch {
			case r.planned:
				planned++
			case r.vm.Phase == pool.Provisioning && r.vm.Host == "":
				rows = append(rows, waiting{r, p.now.Before(r.vm.NotBefore), p.best(s) != nil})
			}
		}
	}
	slices.SortFunc(rows, func(a, b waiting) int {
		return cmp.Or(falseFirst(a.rests, b.rests), falseFirst(a.surge, b.surge), older(a.row, b.row))
	})
	return rows, planned
}
