package fake

import (
	"cmp"
	"slices"
	"time"

	"poolmgr/internal/host"
)

// list is what a List finds, sorted by UID.
func (h *Host) list(namespace, name string) []host.VM {
	h.mu.Lock()
	defer h.mu.Unlock()
	wanted := func(inNamespace, called string) bool {
		return (namespace == "" || inNamespace == namespace) && (name == "" || called == name)
	}
	var found []host.VM
	if h.frozen != nil {
		for _, vm := range h.frozen {
			if wanted(vm.Namespace, vm.Name) {
				found = append(found, vm.Clone())
			}
		}
		return found
	}
	for _, vm := range h.inventoryLocked(wanted) {
		found = append(found, vm.VM)
	}
	return found
}

// inventoryLocked is what is wanted of everything on the host, sorted by UID; it drops what is gone. Whoever provisions
// asks by name before every create, so only what is wanted is worked out.
func (h *Host) inventoryLocked(wanted func(namespace, name string) bool) []VM {
	now := time.Now()
	var vms []VM
	for uid, m := range h.vms {
		switch {
		case m.gone(now):
			delete(h.vms, uid)
		case wanted(m.spec.GetNamespace(), m.spec.GetId()):
			vms = append(vms, m.report(now))
		}
	}
	slices.SortFunc(vms, func(a, b VM) int { return cmp.Compare(a.UID, b.UID) })
	return vms
}

// VMs is what is really on the host, DELETING ones included, sorted by UID.
func (h *Host) VMs() []VM {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.inventoryLocked(func(string, string) bool { return true })
}

// Find is the VMs of a name that are really on the host, sorted by UID.
func (h *Host) Find(name string) []VM {
	return slices.DeleteFunc(h.VMs(), func(vm VM) bool { return vm.Name != name })
}

// Count is how many calls of a kind arrived so far.
func (h *Host) Count(op Op) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.counts[op]
}

// TotalCreated is how many VMs were ever made here.
func (h *Host) TotalCreated() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.created
}

// PeakStarts is the most starts in flight that the host ever had: creates that were not answered yet, and VMs whose
// guest did not answer yet (dead guests and failed VMs left out).
func (h *Host) PeakStarts() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.peak
}

// beginCreate counts a create on its way: a start in flight before its machine exists.
func (h *Host) beginCreate() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.starts++
	now, starts := time.Now(), h.starts
	for _, m := range h.vms {
		if !m.gone(now) && m.starting(now) {
			starts++
		}
	}
	h.peak = max(h.peak, starts)
}

// failCreate takes back what beginCreate counted.
func (h *Host) failCreate() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.starts--
}
