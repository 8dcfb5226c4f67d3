package fake

import (
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"

	"poolmgr/api/flintlock/vmtypes"
	"poolmgr/internal/host"
)

// machine is one VM: instants, from which its state follows.
type machine struct {
	uid       string
	n         int // the nth VM of this host
	spec      *vmtypes.MicroVMSpec
	boot      Boot
	sentAt    time.Time
	deletedAt time.Time // zero = not deleted
	goneAt    time.Time // zero = not deleted
	failed    bool      // FAILED whatever the boot says
	deadGuest bool
	bootCount int
}

func (m *machine) createdAt() time.Time { return m.sentAt.Add(m.boot.CreatedAfter) }

// reached reports whether now is at or past an instant.
func reached(now, at time.Time) bool { return !now.Before(at) }

func (m *machine) gone(now time.Time) bool {
	if m.boot.VanishAfter > 0 && reached(now, m.sentAt.Add(m.boot.VanishAfter)) {
		return true
	}
	return !m.deletedAt.IsZero() && reached(now, m.goneAt)
}

func (m *machine) state(now time.Time) host.State {
	switch {
	case !m.deletedAt.IsZero():
		return host.Deleting
	case m.failed:
		return host.Failed
	case !reached(now, m.createdAt()):
		return host.Pending
	case m.boot.Fail:
		return host.Failed
	default:
		return host.Created
	}
}

func (m *machine) guestUp(now time.Time) bool {
	return m.state(now) == host.Created && !m.deadGuest && reached(now, m.createdAt().Add(m.boot.GuestAfter))
}

// starting reports whether the VM is a start in flight: asked for, and not yet answering from inside.
func (m *machine) starting(now time.Time) bool {
	switch m.state(now) {
	case host.Pending:
		return true
	case host.Created:
		return !m.guestUp(now) && !m.deadGuest
	default:
		return false
	}
}

func (m *machine) report(now time.Time) VM {
	return VM{
		VM:        host.VMOf(m.message(now)),
		Spec:      m.spec,
		CreatedAt: m.sentAt,
		GuestUp:   m.guestUp(now),
		BootID:    m.bootID(),
	}
}

func (m *machine) bootID() string { return fmt.Sprintf("%s-boot-%d", m.uid, m.bootCount) }

// message is the VM as flintlock's API shows it. Its spec is the machine's own and not to be written to.
func (m *machine) message(now time.Time) *vmtypes.MicroVM {
	state := vmtypes.MicroVMStatus_MicroVMState_value[string(m.state(now))]
	status := &vmtypes.MicroVMStatus{State: vmtypes.MicroVMStatus_MicroVMState(state)}
	if m.state(now) != host.Pending {
		status.NetworkInterfaces = make(map[string]*vmtypes.NetworkInterfaceStatus, len(m.spec.GetInterfaces()))
		for i, nic := range m.spec.GetInterfaces() {
			status.NetworkInterfaces[nic.GetDeviceId()] = m.interfaceStatus(i, nic)
		}
	}
	return &vmtypes.MicroVM{Version: 1, Spec: m.spec, Status: status}
}

func (m *machine) interfaceStatus(i int, nic *vmtypes.NetworkInterface) *vmtypes.NetworkInterfaceStatus {
	mac := nic.GetGuestMac()
	if mac == "" {
		mac = fmt.Sprintf("02:00:00:%02x:%02x:%02x", byte(m.n>>8), byte(m.n), byte(i))
	}
	return &vmtypes.NetworkInterfaceStatus{
		HostDeviceName: fmt.Sprintf("fltap%d-%d", m.n, i),
		Index:          int32(10*m.n + i), // a test host has few VMs
		MacAddress:     mac,
	}
}

func (h *Host) create(spec *vmtypes.MicroVMSpec) (host.VM, error) {
	if err := h.refuse(spec); err != nil {
		return host.VM{}, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	now := time.Now()
	if err := h.roomLocked(spec, now); err != nil {
		return host.VM{}, err
	}
	m := h.addLocked(spec, now)
	h.starts-- // from now on the machine itself is the start in flight
	vm := m.report(now).VM
	// flintlockd stores the VM, answers, and only then begins: the first answer is PENDING however fast it boots.
	vm.State, vm.Interfaces = host.Pending, nil
	return vm, nil
}

// addLocked makes the machine whatever the limits say.
func (h *Host) addLocked(spec *vmtypes.MicroVMSpec, now time.Time) *machine {
	h.created++
	uid := fmt.Sprintf("%s-uid-%06d", h.opts.Name, h.created)
	stored := proto.CloneOf(spec)
	stored.Uid = &uid
	if stored.GetNamespace() == "" {
		stored.Namespace = "ns1" // flintlock's default
	}
	stored.Labels = nil // flintlock's conversion drops them
	boot := Boot{CreatedAfter: h.opts.BootDelay, GuestAfter: h.opts.GuestDelay}
	if h.opts.Boot != nil {
		boot = h.opts.Boot(stored, h.created)
	}
	m := &machine{uid: uid, n: h.created, spec: stored, boot: boot, sentAt: now, deadGuest: boot.DeadGuest, bootCount: 1}
	h.vms[uid] = m
	return m
}

func (h *Host) roomLocked(spec *vmtypes.MicroVMSpec, now time.Time) error {
	count, memory := 1, int(spec.GetMemoryInMb())
	for uid, m := range h.vms {
		if m.gone(now) {
			delete(h.vms, uid)
			continue
		}
		count++
		memory += int(m.spec.GetMemoryInMb())
	}
	switch {
	case h.opts.MaxVMs > 0 && count > h.opts.MaxVMs:
		return fmt.Errorf("%w: it may carry %d VMs", host.ErrNoCapacity, h.opts.MaxVMs)
	case h.opts.MaxMemoryMB > 0 && memory > h.opts.MaxMemoryMB:
		return fmt.Errorf("%w: %d of %d MB of memory would be used", host.ErrNoCapacity, memory, h.opts.MaxMemoryMB)
	default:
		return nil
	}
}

// findLocked finds a machine that exists, with flintlock's words when there is none.
func (h *Host) findLocked(uid string) (*machine, error) {
	m, ok := h.vms[uid]
	if ok && m.gone(time.Now()) {
		delete(h.vms, uid)
		ok = false
	}
	if !ok {
		return nil, fmt.Errorf("%w: microvm spec //%s not found", host.ErrNotFound, uid)
	}
	return m, nil
}

func (h *Host) delete(uid string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	m, err := h.findLocked(uid)
	if err != nil {
		return err
	}
	if m.deletedAt.IsZero() {
		m.deletedAt = time.Now()
		m.goneAt = m.deletedAt.Add(h.opts.DeleteDelay)
		h.cutLocked(m, errors.New("the VM is being deleted"))
	}
	return nil
}

// refuse applies the rules of a flintlock host, with its words where they are known.
func (h *Host) refuse(spec *vmtypes.MicroVMSpec) error {
	if spec == nil {
		return fmt.Errorf("%w: invalid request: microvm spec is required", host.ErrRefused)
	}
	if spec.GetId() == "" {
		return fmt.Errorf("%w: creating vmid from spec: name is required", host.ErrRefused)
	}
	for _, rule := range []struct {
		broken bool
		words  string
	}{
		{spec.GetVcpu() < 0 || spec.GetVcpu() > 64, "vcpu must be 1 to 64"},
		{
			spec.GetMemoryInMb() < int32(h.opts.MinMemoryMB) || spec.GetMemoryInMb() > 32768, // set by tests
			fmt.Sprintf("memory_in_mb must be %d to 32768", h.opts.MinMemoryMB),
		},
		{spec.GetKernel().GetImage() == "", "kernel image is required"},
		{spec.GetRootVolume().GetSource().GetContainerSource() == "", "a root volume with a container source is required"},
	} {
		if rule.broken {
			return invalid(rule.words)
		}
	}
	for _, nic := range spec.GetInterfaces() {
		if err := refuseInterface(nic); err != nil {
			return err
		}
	}
	return nil
}

func refuseInterface(nic *vmtypes.NetworkInterface) error {
	switch {
	case nic.GetDeviceId() == "":
		return invalid("a guest device name is required")
	case nic.GetDeviceId() == "eth0":
		return invalid("device id eth0 is the metadata interface's")
	case nic.Overrides != nil && nic.GetOverrides().GetBridgeName() == "":
		return invalid("overrides need a bridge name")
	default:
		return nil
	}
}

func invalid(words string) error {
	return fmt.Errorf("%w: an error occurred when attempting to validate microvm spec: %s", host.ErrRefused, words)
}
