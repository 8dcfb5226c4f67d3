package engine

import (
	"fmt"
	"slices"
	"time"

	"poolmgr/internal/pool"
	"poolmgr/internal/store"
)

// tx is the work of one commit: the verbs of a batch run on it one after another. Rows are written only through its
// put and drop methods, which count versions, keep the journal and mark what must be looked at again.
type tx struct {
	m     *mirror // the working mirror
	base  *mirror // the published one: what is durable
	epoch int64
	now   time.Time // of the verb that runs

	journal   []func() // undoes the writes of the verb that runs, last first
	pools     touched[pool.Key]
	vms       touched[string]
	leases    touched[string]
	hosts     touched[string]
	revisions touched[RevisionKey]
	events    []pool.Event
	dirty     []pool.Key // pools to look at again; a key may come more than once
	freed     []string   // hosts that have more room than before; likewise
	spoiled   bool       // a rollback did not come to its end: nobody knows what the working mirror holds
}

// touched is the keys that were written, in order.
type touched[K comparable] struct {
	set   map[K]struct{}
	order []K
}

func (t *touched[K]) add(key K) {
	if _, ok := t.set[key]; ok {
		return
	}
	if t.set == nil {
		t.set = map[K]struct{}{}
	}
	t.set[key] = struct{}{}
	t.order = append(t.order, key)
}

// mark is a point to which a tx can go back.
type mark struct {
	journal, events, dirty, freed int
}

func (x *tx) mark() mark {
	return mark{len(x.journal), len(x.events), len(x.dirty), len(x.freed)}
}

// rollback takes back everything written since the mark.
func (x *tx) rollback(to mark) {
	x.spoiled = true
	for _, undo := range slices.Backward(x.journal[to.journal:]) {
		undo()
	}
	x.journal = x.journal[:to.journal]
	x.events = x.events[:to.events]
	x.dirty = x.dirty[:to.dirty]
	x.freed = x.freed[:to.freed]
	x.spoiled = false
}

// touch makes a pool's key dirty.
func (x *tx) touch(key pool.Key) {
	if n := len(x.dirty); n == 0 || x.dirty[n-1] != key {
		x.dirty = append(x.dirty, key)
	}
}

// touchHost makes the pools dirty that have VMs on a host or may place VMs there.
func (x *tx) touchHost(name string) {
	h := x.m.hosts[name]
	for key, p := range x.m.pools {
		if p.mayUse(name) || h != nil && h.pools[key] > 0 {
			x.touch(key)
		}
	}
}

// putPool writes the row of a new pool.
func (x *tx) putPool(p pool.Pool) {
	p.Version++
	p.UpdatedAt = x.now
	x.writePool(p.Key(), &p)
}

// editPool writes a changed copy of a pool's present row, which earlier writes of the same verb may have changed.
func (x *tx) editPool(key pool.Key, edit func(*pool.Pool)) {
	p := x.m.pools[key].pool.Clone()
	edit(&p)
	x.putPool(p)
}

func (x *tx) dropPool(key pool.Key) { x.writePool(key, nil) }

func (x *tx) writePool(key pool.Key, next *pool.Pool) {
	before := x.m.pools[key] // the whole, since a removed pool takes its revisions along
	if next != nil && before != nil {
		old := before.pool
		x.journal = append(x.journal, func() { before.pool = old })
	} else {
		x.journal = append(x.journal, func() {
			if before == nil {
				delete(x.m.pools, key)
			} else {
				x.m.pools[key] = before
			}
		})
	}
	x.m.setPool(key, next)
	x.pools.add(key)
	x.touch(key)
}

// putVM writes the row of a VM. It is the one place that every change of a phase goes through: a row begins as
// PROVISIONING, changes along the table in package pool, and ends as DELETING.
func (x *tx) putVM(vm pool.VM) error {
	old := x.m.vms[vm.ID]
	switch {
	case old == nil && vm.Phase != pool.Provisioning:
		return fmt.Errorf("%w: VM %s begins as %s", store.ErrIllegalTransition, vm.ID, vm.Phase)
	case old != nil && old.Phase != vm.Phase && !old.Phase.CanBecome(vm.Phase):
		return fmt.Errorf("%w: VM %s from %s to %s", store.ErrIllegalTransition, vm.ID, old.Phase, vm.Phase)
	}
	if !vm.Phase.Warm() {
		vm.Slot = ""
	}
	if !vm.Phase.Held() {
		vm.LeaseID = ""
	}
	x.writeVM(vm)
	x.touch(vm.Pool)
	if old != nil && old.Phase.Warm() && !vm.Phase.Warm() {
		x.leftWarmSet(old)
	}
	return nil
}

// writeVM writes a row without a change of phase, and without waking anybody.
func (x *tx) writeVM(vm pool.VM) {
	vm.Version++
	vm.UpdatedAt = x.now
	x.setVM(vm.ID, &vm)
}

// dropVM removes the row of a VM that is DELETING.
func (x *tx) dropVM(vm *pool.VM) error {
	if vm.Phase != pool.Deleting {
		return fmt.Errorf("%w: the row of VM %s ends as %s", store.ErrIllegalTransition, vm.ID, vm.Phase)
	}
	x.setVM(vm.ID, nil)
	x.touch(vm.Pool)
	return nil
}

func (x *tx) setVM(id string, next *pool.VM) {
	old := x.m.vms[id]
	x.journal = append(x.journal, func() { x.m.setVM(id, old) })
	x.m.setVM(id, next)
	x.vms.add(id)
	if old != nil && old.Host != "" && (next == nil || next.Host != old.Host || starting(old) && !starting(next)) {
		if n := len(x.freed); n == 0 || x.freed[n-1] != old.Host {
			x.freed = append(x.freed, old.Host)
		}
	}
}

// putLease writes a lease and wakes its pool.
func (x *tx) putLease(l pool.Lease) {
	x.writeLease(l)
	x.touch(l.Pool)
}

// writeLease writes a lease without waking anybody.
func (x *tx) writeLease(l pool.Lease) {
	l.Version++
	x.setLease(l.ID, &l)
}

func (x *tx) dropLease(l *pool.Lease) {
	x.setLease(l.ID, nil)
	x.touch(l.Pool)
}

func (x *tx) setLease(id string, next *pool.Lease) {
	old := x.m.leases[id]
	x.journal = append(x.journal, func() { x.m.setLease(id, old) })
	x.m.setLease(id, next)
	x.leases.add(id)
}

// putHost writes the row of a host and wakes the pools that it concerns.
func (x *tx) putHost(h pool.Host) {
	h.Version++
	h.UpdatedAt = x.now
	x.setHost(h.Name, &h)
}

func (x *tx) dropHost(name string) { x.setHost(name, nil) }

func (x *tx) setHost(name string, next *pool.Host) {
	old := x.m.host(name)
	x.journal = append(x.journal, func() { x.m.setHost(name, old) })
	x.m.setHost(name, next)
	x.hosts.add(name)
	x.touchHost(name)
}

// leftWarmSet notes on the pool that a stale VM went, which is what a rollout waits for.
func (x *tx) leftWarmSet(vm *pool.VM) {
	if vm.Stale(*x.m.pools[vm.Pool].pool) {
		x.editPool(vm.Pool, func(p *pool.Pool) { p.Rollout.LastStaleDrop = x.now })
	}
}

// wakeWaiting makes the pools dirty that could use the room which this commit left on hosts.
func (x *tx) wakeWaiting() {
	if len(x.freed) == 0 {
		return
	}
	for key, p := range x.m.pools {
		if !p.wants() {
			continue
		}
		if slices.ContainsFunc(x.freed, p.mayUse) {
			x.touch(key)
		}
	}
}
