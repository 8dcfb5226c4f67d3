// Package kvmprobe measures whether KVM runs code at a useful speed. There are
// hosts whose /dev/kvm works and emulates instruction by instruction, a
// thousand times too slow to boot anything, so only timing can tell.
//
// It runs a loop of 20,000 instructions in a virtual CPU of its own, within a
// bound, and starts nothing else.
package kvmprobe

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// MaxPerInstruction is the most that an instruction may take for KVM to be of
// use. Hardware needs about a nanosecond; emulation was measured at 500 to 600.
const MaxPerInstruction = 50 * time.Nanosecond

// iterations of a loop of two instructions.
const iterations = 10_000

// Errors of the probe.
var (
	// ErrTooSlow: KVM works, and emulates.
	ErrTooSlow = errors.New("KVM is too slow")
	// ErrUnusable: KVM cannot be opened, or does not run code.
	ErrUnusable = errors.New("KVM does not work")
)

// ioctl numbers and structures of linux/kvm.h for x86-64.
const (
	kvmGetAPIVersion       = 0xae00
	kvmCreateVM            = 0xae01
	kvmGetVCPUMmapSize     = 0xae04
	kvmCreateVCPU          = 0xae41
	kvmSetTSSAddr          = 0xae47
	kvmSetUserMemoryRegion = 0x4020ae46
	kvmRun                 = 0xae80
	kvmSetRegs             = 0x4090ae82
	kvmGetSregs            = 0x8138ae83
	kvmSetSregs            = 0x4138ae84

	exitHLT  = 5
	exitIntr = 10

	offsetImmediateExit = 1
	offsetExitReason    = 8

	memorySize = 1 << 20
	codeAddr   = 0x1000
)

// Run measures the time of one instruction. ErrTooSlow comes with the figure.
func Run(ctx context.Context, device string) (time.Duration, error) {
	if runtime.GOARCH != "amd64" {
		return 0, fmt.Errorf("probe KVM: %w: the probe knows amd64 only", ErrUnusable)
	}
	vm, err := newMachine(device)
	if err != nil {
		return 0, fmt.Errorf("probe KVM: %w: %w", ErrUnusable, err)
	}
	defer vm.close()
	elapsed, err := vm.run(ctx)
	if err != nil {
		return 0, fmt.Errorf("probe KVM: %w: %w", ErrUnusable, err)
	}
	per := elapsed / (2 * iterations)
	if per > MaxPerInstruction {
		return per, fmt.Errorf("probe KVM: %w: %v per instruction, at most %v is of use", ErrTooSlow, per, MaxPerInstruction)
	}
	return per, nil
}

// machine is a virtual machine of one CPU and 1 MiB.
type machine struct {
	files  []int
	vcpu   int
	memory []byte
	shared []byte // struct kvm_run
}

func newMachine(device string) (*machine, error) {
	m := &machine{}
	if err := m.build(device); err != nil {
		m.close()
		return nil, err
	}
	return m, nil
}

func (m *machine) build(device string) error {
	kvm, err := unix.Open(device, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open %s: %w", device, err)
	}
	m.files = append(m.files, kvm)
	if version, err := ioctl(kvm, kvmGetAPIVersion, 0); err != nil {
		return fmt.Errorf("ask for the API's version: %w", err)
	} else if version != 12 {
		return fmt.Errorf("the API has version %d instead of 12", version)
	}
	vm, err := m.open(kvm, kvmCreateVM, "create a machine")
	if err != nil {
		return err
	}
	if _, err := ioctl(vm, kvmSetTSSAddr, 0xfffbd000); err != nil { // Intel needs it
		return fmt.Errorf("set the TSS address: %w", err)
	}
	if err := m.addMemory(vm); err != nil {
		return err
	}
	if m.vcpu, err = m.open(vm, kvmCreateVCPU, "create a CPU"); err != nil {
		return err
	}
	size, err := ioctl(kvm, kvmGetVCPUMmapSize, 0)
	if err != nil {
		return fmt.Errorf("ask for the size of the CPU's page: %w", err)
	}
	if m.shared, err = unix.Mmap(m.vcpu, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		return fmt.Errorf("map the CPU's page: %w", err)
	}
	return m.setRegisters()
}

func (m *machine) open(fd int, request uintptr, what string) (int, error) {
	file, err := ioctl(fd, request, 0)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", what, err)
	}
	m.files = append(m.files, file)
	return file, nil
}

func (m *machine) addMemory(vm int) (err error) {
	m.memory, err = unix.Mmap(-1, 0, memorySize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANONYMOUS|unix.MAP_SHARED)
	if err != nil {
		return fmt.Errorf("map memory: %w", err)
	}
	code := []byte{0xb9, 0, 0, 0, 0, 0x49, 0x75, 0xfd, 0xf4} // mov ecx,N; loop: dec ecx; jnz loop; hlt
	binary.LittleEndian.PutUint32(code[1:], iterations)
	copy(m.memory[codeAddr:], code)
	region := struct {
		slot, flags                    uint32
		guestAddr, size, userspaceAddr uint64
	}{size: memorySize, userspaceAddr: uint64(uintptr(unsafe.Pointer(&m.memory[0])))}
	if _, err := ioctl(vm, kvmSetUserMemoryRegion, uintptr(unsafe.Pointer(&region))); err != nil {
		return fmt.Errorf("give memory: %w", err)
	}
	return nil
}

// segment is struct kvm_segment.
type segment struct {
	_                    uint64 // base
	limit                uint32
	selector             uint16
	kind, present, _, db uint8 // _ is the privilege level
	s, _, g, _, _, _     uint8 // 64-bit, available, unusable, padding
}

// setRegisters makes the CPU ready for flat 32-bit code without paging.
func (m *machine) setRegisters() error {
	var sregs [312]byte // struct kvm_sregs: six segments first, cr0 at 224
	if _, err := ioctl(m.vcpu, kvmGetSregs, uintptr(unsafe.Pointer(&sregs))); err != nil {
		return fmt.Errorf("read the CPU's segments: %w", err)
	}
	segments := (*[6]segment)(unsafe.Pointer(&sregs)) // cs ds es fs gs ss
	for i := range segments {
		segments[i] = segment{limit: 0xffffffff, selector: 16, kind: 3, present: 1, db: 1, s: 1, g: 1}
	}
	segments[0].selector, segments[0].kind = 8, 11
	const cr0, protectionEnable = 224, 1
	binary.LittleEndian.PutUint64(sregs[cr0:], binary.LittleEndian.Uint64(sregs[cr0:])|protectionEnable)
	if _, err := ioctl(m.vcpu, kvmSetSregs, uintptr(unsafe.Pointer(&sregs))); err != nil {
		return fmt.Errorf("set the CPU's segments: %w", err)
	}
	var regs [18]uint64 // struct kvm_regs: rip and rflags are the last two
	regs[16], regs[17] = codeAddr, 2
	if _, err := ioctl(m.vcpu, kvmSetRegs, uintptr(unsafe.Pointer(&regs))); err != nil {
		return fmt.Errorf("set the CPU's registers: %w", err)
	}
	return nil
}

// run runs the code to its end. When ctx is over, immediate_exit and a signal
// bring the thread out of the kernel.
func (m *machine) run(ctx context.Context) (time.Duration, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	thread := unix.Gettid()
	left := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		m.shared[offsetImmediateExit] = 1
		for {
			_ = unix.Tgkill(os.Getpid(), thread, unix.SIGURG) // a signal that Go's runtime expects at any time
			select {
			case <-left:
				return
			case <-time.After(time.Millisecond):
			}
		}
	})
	defer stop()
	defer close(left)
	start := time.Now()
	for {
		_, err := ioctl(m.vcpu, kvmRun, 0)
		if ctx.Err() != nil {
			return 0, fmt.Errorf("run %d instructions: %w", 2*iterations, context.Cause(ctx))
		}
		if errors.Is(err, syscall.EINTR) {
			continue
		}
		if err != nil {
			return 0, fmt.Errorf("run code: %w", err)
		}
		switch reason := atomic.LoadUint32((*uint32)(unsafe.Pointer(&m.shared[offsetExitReason]))); reason {
		case exitHLT:
			return time.Since(start), nil
		case exitIntr:
		default:
			return 0, fmt.Errorf("run code: it left by exit %d instead of the halt", reason)
		}
	}
}

func (m *machine) close() {
	if m.shared != nil {
		_ = unix.Munmap(m.shared)
	}
	for i := len(m.files) - 1; i >= 0; i-- {
		unix.Close(m.files[i])
	}
	if m.memory != nil {
		_ = unix.Munmap(m.memory)
	}
}

func ioctl(fd int, request, argument uintptr) (int, error) {
	result, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), request, argument)
	if errno != 0 {
		return 0, errno
	}
	return int(result), nil
}
