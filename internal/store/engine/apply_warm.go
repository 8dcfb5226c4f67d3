package engine

import (
	"fmt"

	"poolmgr/internal/pool"
	"poolmgr/internal/store"
)

// newRow is a PROVISIONING row of a revision.
func (x *tx) newRow(p *poolRows, id, slot string, revision int64) (pool.VM, error) {
	r := p.revision(revision)
	switch {
	case p.pool.Closing:
		return pool.VM{}, conflict("pool %s is being deleted", p.pool.Key())
	case r == nil && revision >= 1 && revision <= p.pool.Revision:
		return pool.VM{}, conflict("revision %d of pool %s is not kept any more", revision, p.pool.Key())
	case r == nil:
		return pool.VM{}, fmt.Errorf("pool %s has no revision %d to make VM %s from (this is a bug)", p.pool.Key(), revision, id)
	case id == "" || slot == "":
		return pool.VM{}, fmt.Errorf("a new row of pool %s needs an id and a slot (this is a bug)", p.pool.Key())
	case x.m.vms[id] != nil || x.base.vms[id] != nil:
		return pool.VM{}, conflict("there is a VM %s already", id)
	}
	return pool.VM{
		ID: id, Pool: p.pool.Key(), Slot: slot, Phase: pool.Provisioning, Namespace: p.pool.Spec.Namespace,
		Revision: revision, TemplateHash: r.TemplateHash, Restart: p.pool.Restart,
		Health: pool.HealthGood, CreatedAt: x.now,
	}, nil
}

func (x *tx) grow(p *poolRows, a store.Grow) error {
	if len(p.slots)+len(a.IDs) > a.MaxSlots {
		return conflict("pool %s has %d slots; %d more are over %d", p.pool.Key(), len(p.slots), len(a.IDs), a.MaxSlots)
	}
	if len(a.IDs) == 0 {
		return nil
	}
	first := p.pool.NextSlot
	for i, id := range a.IDs {
		vm, err := x.newRow(p, id, fmt.Sprintf("s%d", first+int64(i)), a.Revision)
		if err != nil {
			return err
		}
		vm.ForRollout = first == 0 // the first fill is rollout 1
		if err := x.putVM(vm); err != nil {
			return err
		}
	}
	x.editPool(p.pool.Key(), func(p *pool.Pool) { p.NextSlot += int64(len(a.IDs)) })
	x.emitPool(p.pool.Key(), pool.EventPoolReplenishing, payload{
		"count": len(a.IDs), "revision": a.Revision, "available": p.readySlot, "desired": a.MaxSlots,
	})
	return nil
}

func (x *tx) surge(p *poolRows, a store.Surge) error {
	beside, err := x.at(p, a.Beside, a.Version)
	if err != nil {
		return err
	}
	if beside.Phase != pool.Available {
		return illegal(beside, "a surge beside")
	}
	if p.slots[beside.Slot].warm != 1 {
		return conflict("slot %s has a second row already", beside.Slot)
	}
	vm, err := x.newRow(p, a.ID, beside.Slot, a.Revision)
	if err != nil {
		return err
	}
	vm.ForRollout = true
	return x.putVM(vm)
}

func (x *tx) condemn(p *poolRows, a store.Condemn) error {
	vm, err := x.at(p, a.VM, a.Version)
	if err != nil {
		return err
	}
	switch {
	case vm.Phase == pool.Deleting:
		return illegal(vm, "the condemnation ("+string(a.Reason)+")")
	case vm.Phase.Held():
		if err := x.endHeld(p, vm, a); err != nil {
			return err
		}
	}
	old := vm
	vm.Phase, vm.Reason = pool.Deleting, a.Reason
	if err := x.putVM(vm); err != nil {
		return err
	}
	if a.Successor != nil {
		s := *a.Successor
		s.ForRollout = s.ForRollout || a.Reason == pool.ReasonRollout || old.Phase.Warming() && old.ForRollout
		if err := x.succeed(p, old, s); err != nil {
			return err
		}
	}
	return x.keep(p, old.Slot, a)
}

// endHeld removes the lease of a held VM that may be condemned: its pool is being deleted, it is lost, or its claim
// is pending and stale.
func (x *tx) endHeld(p *poolRows, vm pool.VM, a store.Condemn) error {
	l := x.m.leases[vm.LeaseID]
	abandoned := l.Pending && (l.Epoch < x.epoch || !x.now.Before(l.ExpiresAt))
	if !p.pool.Closing && !a.Lost && !abandoned {
		return illegal(vm, "the condemnation ("+string(a.Reason)+")")
	}
	x.dropLease(l)
	return nil
}

// keep recounts what a condemnation must leave.
func (x *tx) keep(p *poolRows, slot string, a store.Condemn) error {
	switch {
	case a.KeepReady >= 0 && x.readySlots(p) < a.KeepReady:
		return conflict("pool %s would have %d slots with a ready VM, fewer than %d", p.pool.Key(), x.readySlots(p), a.KeepReady)
	case a.KeepSlots >= 0 && len(p.slots) < a.KeepSlots:
		return conflict("pool %s would have %d warm slots, fewer than %d", p.pool.Key(), len(p.slots), a.KeepSlots)
	case a.KeepPeer && p.slots[slot].ready == 0:
		return conflict("slot %s would have no ready VM", slot)
	}
	return nil
}

// readySlots counts slots as the planner does: with a VM that counts as ready under the rollout policy, on a host that
// answers. It looks at each ready VM only where some may not count.
func (x *tx) readySlots(p *poolRows) int {
	all := p.pool.Spec.Rollout.MinReady <= 0
	for shelf := range p.ready {
		all = all && x.answers(shelf.host)
	}
	if all {
		return p.readySlot
	}
	slots := map[string]bool{}
	for shelf, ready := range p.ready {
		if !x.answers(shelf.host) {
			continue
		}
		for vm := range ready.all() {
			if vm.CountsReady(*p.pool, x.now) {
				slots[vm.Slot] = true
			}
		}
	}
	return len(slots)
}

func (x *tx) answers(host string) bool {
	h := x.m.host(host)
	return h != nil && h.Reachable
}

// succeed inserts the row that takes over a VM's slot.
func (x *tx) succeed(p *poolRows, old pool.VM, s store.Successor) error {
	vm, err := x.newRow(p, s.ID, old.Slot, s.Revision)
	if err != nil {
		return err
	}
	vm.Attempt, vm.NotBefore, vm.ForRollout, vm.Message = s.Attempt, instant(s.NotBefore), s.ForRollout, clip(s.Message)
	return x.putVM(vm)
}
