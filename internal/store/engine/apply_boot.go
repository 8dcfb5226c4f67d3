package engine

import (
	"maps"
	"time"

	"poolmgr/internal/pool"
	"poolmgr/internal/store"
)

func (x *tx) place(p *poolRows, a store.Place) error {
	vm, err := x.at(p, a.VM, a.Version)
	if err != nil {
		return err
	}
	switch {
	case vm.Phase != pool.Provisioning:
		return illegal(vm, "the placement")
	case vm.Host != "":
		return conflict("VM %s is on host %s already", vm.ID, vm.Host)
	case p.pool.Closing:
		return conflict("pool %s is being deleted", p.pool.Key())
	case x.now.Before(vm.NotBefore):
		return conflict("VM %s waits until %s", vm.ID, vm.NotBefore.Format(time.RFC3339))
	case !p.mayUse(a.Host):
		return conflict("pool %s does not use host %s", p.pool.Key(), a.Host)
	}
	if err := x.m.hosts[a.Host].room(a.Host, p.memory(vm.Revision), a.MaxStarts); err != nil {
		return err
	}
	vm.Host, vm.SentAt = a.Host, x.now
	return x.putVM(vm)
}

// room refuses a VM that the host has no room for at present.
func (h *hostRows) room(name string, memory, maxStarts int) error {
	switch {
	case h == nil || h.host == nil:
		return conflict("host %s is gone", name)
	case h.host.Cordoned:
		return conflict("host %s is cordoned", name)
	case !h.host.Reachable:
		return conflict("host %s does not answer", name)
	case h.host.MaxVMs > 0 && h.rows >= h.host.MaxVMs:
		return conflict("host %s is full, %d of %d VMs", name, h.rows, h.host.MaxVMs)
	case h.host.MemoryMB > 0 && h.memory+memory > h.host.MemoryMB:
		return conflict("host %s has %d of %d MB in use; %d more do not fit", name, h.memory, h.host.MemoryMB, memory)
	case maxStarts > 0 && h.starts >= maxStarts:
		return conflict("host %s has %d of %d starts in flight", name, h.starts, maxStarts)
	}
	return nil
}

func (x *tx) unplace(p *poolRows, a store.Unplace) error {
	vm, err := x.at(p, a.VM, a.Version)
	if err != nil {
		return err
	}
	switch {
	case vm.Phase != pool.Provisioning:
		return illegal(vm, "taking back the placement")
	case vm.Host == "" || vm.UID != "":
		return conflict("VM %s is not waiting for its host's answer", vm.ID)
	}
	vm.Host, vm.SentAt = "", time.Time{}
	vm.NotBefore, vm.Message = instant(a.NotBefore), clip(a.Message)
	return x.putVM(vm)
}

// accepted stores the host's id also for a VM that was condemned meanwhile: it takes the id to delete it.
func (x *tx) accepted(p *poolRows, a store.Accepted) error {
	vm, err := x.at(p, a.VM, a.Version)
	if err != nil {
		return err
	}
	switch {
	case vm.Phase != pool.Provisioning && vm.Phase != pool.Deleting || vm.Host == "" || a.UID == "":
		return illegal(vm, "a host's acceptance")
	case vm.UID == a.UID:
		return nil
	case vm.UID != "":
		return conflict("VM %s has another id on its host already", vm.ID)
	}
	vm.UID = a.UID
	if err := x.putVM(vm); err != nil {
		return err
	}
	x.emitVM(x.m.vms[vm.ID], pool.EventVMProvisioned, nil)
	return nil
}

func (x *tx) booted(p *poolRows, a store.Booted) error {
	vm, err := x.at(p, a.VM, a.Version)
	if err != nil {
		return err
	}
	if vm.Phase != pool.Provisioning || vm.UID == "" {
		return illegal(vm, "the first answer")
	}
	vm.Interfaces = maps.Clone(a.Interfaces)
	if len(p.revision(vm.Revision).CreateCommands) > 0 {
		vm.Phase = pool.CreateHookRunning
		return x.putVM(vm)
	}
	return x.available(vm)
}

func (x *tx) hooksDone(p *poolRows, a store.HooksDone) error {
	vm, err := x.at(p, a.VM, a.Version)
	if err != nil {
		return err
	}
	if vm.Phase != pool.CreateHookRunning {
		return illegal(vm, "the end of the create commands")
	}
	return x.available(vm)
}

// available makes a warming VM AVAILABLE.
func (x *tx) available(vm pool.VM) error {
	vm.Phase, vm.AvailableAt = pool.Available, x.now
	vm.Health, vm.FailedProbes, vm.ProbedAt = pool.HealthGood, 0, x.now
	vm.Message = "" // what went wrong on the way is over
	if err := x.putVM(vm); err != nil {
		return err
	}
	x.succeeded(x.m.vms[vm.ID])
	x.emitVM(x.m.vms[vm.ID], pool.EventVMAvailable, nil)
	return nil
}

func (x *tx) fail(p *poolRows, a store.Fail) error {
	vm, err := x.at(p, a.VM, a.Version)
	if err != nil {
		return err
	}
	if !vm.Phase.Warming() {
		return illegal(vm, "the failure")
	}
	old := vm
	vm.Phase, vm.Reason, vm.Message = pool.Deleting, pool.ReasonFailed, clip(a.Message)
	if !a.Innocent && vm.UID != "" && x.mayQuarantine(vm.Pool) { // without an id on the host there is nothing to keep
		vm.Phase = pool.Quarantined
	}
	if err := x.putVM(vm); err != nil {
		return err
	}
	if !p.pool.Closing {
		s := a.Successor
		s.ForRollout = s.ForRollout || old.ForRollout
		if err := x.succeed(p, old, s); err != nil {
			return err
		}
	}
	if !a.Innocent {
		x.failed(x.m.vms[vm.ID], a.Message)
	}
	if a.Payload != nil {
		with := payload(maps.Clone(a.Payload))
		with.text("slot", old.Slot)
		x.emitVM(x.m.vms[vm.ID], pool.EventVMHookFailed, with)
	}
	return nil
}

func (x *tx) probed(p *poolRows, a store.Probed) error {
	vm, err := x.at(p, a.VM, a.Version)
	if err != nil {
		return err
	}
	if vm.Phase != pool.Available {
		return illegal(vm, "a probe")
	}
	health := vm.Health
	vm.Health, vm.FailedProbes = a.Health, a.FailedProbes
	if !a.At.IsZero() {
		vm.ProbedAt = instant(a.At)
	}
	switch old := x.m.vms[vm.ID]; {
	case health != vm.Health:
		return x.putVM(vm)
	case old.FailedProbes != vm.FailedProbes || !old.ProbedAt.Equal(vm.ProbedAt):
		x.writeVM(vm) // no pass decides by these: nobody is woken
	}
	return nil
}

func (x *tx) gone(p *poolRows, a store.Gone) error {
	vm, err := x.at(p, a.VM, a.Version)
	if err != nil {
		return err
	}
	if err := x.dropVM(x.m.vms[vm.ID]); err != nil {
		return err
	}
	x.emitVM(&vm, vm.Reason.DeletedEvent(), nil)
	return nil
}
