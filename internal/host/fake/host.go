package fake

import (
	"context"
	"fmt"
	"io"
	"sync"
	"time"

	"poolmgr/api/flintlock/vmtypes"
	"poolmgr/internal/host"
)

// Options shape a host. The zero value is a host without limits whose VMs are up as soon as they were asked for.
type Options struct {
	Name    string // starts the uids, so give hosts of one test different ones; default "fake"
	Version string // told by Info
	NoExec  bool   // exec is switched off, as it is on a flintlockd by default

	CallDelay   time.Duration // every call takes this long
	BootDelay   time.Duration // from the create to CREATED
	GuestDelay  time.Duration // from CREATED to the first answer from inside
	DeleteDelay time.Duration // from the delete to gone

	MaxVMs      int // DELETING ones count; 0 = not limited
	MaxMemoryMB int // of all VMs; 0 = not limited
	MinMemoryMB int // smallest VM that is not refused; 0 = flintlock's 1024

	// Boot decides how the nth VM (from 1) of this host comes up; nil means by the delays above.
	Boot func(spec *vmtypes.MicroVMSpec, n int) Boot
	// Guest answers a command before scripts and the built-in ones do; handled false leaves it to them.
	Guest func(ctx context.Context, vm VM, req host.ExecRequest, streams host.ExecStreams) (code int, handled bool, err error)
	// OnCall sees every call when it arrives, before anything is done: the place to assert that a delete never names
	// a VM with a live claim. It is called without a lock held, from the caller's goroutine.
	OnCall func(Call)
}

// Boot is how one VM comes up.
type Boot struct {
	CreatedAfter time.Duration // from the create to CREATED (or FAILED)
	GuestAfter   time.Duration // from CREATED to the first answer from inside
	Fail         bool          // FAILED instead of CREATED
	DeadGuest    bool          // CREATED, and every exec hangs
	VanishAfter  time.Duration // from the create until the host does not know it any more; 0 = never
}

// VM is what the host knows of one VM, for assertions.
type VM struct {
	host.VM
	Spec      *vmtypes.MicroVMSpec // as created; not to be written to
	CreatedAt time.Time            // when the create arrived
	GuestUp   bool                 // the guest answers
	BootID    string               // changes when the guest is started again
}

// Op names a kind of call.
type Op string

// The kinds of calls.
const (
	Create Op = "create"
	Get    Op = "get"
	List   Op = "list"
	Delete Op = "delete"
	Exec   Op = "exec"
	Info   Op = "info"
)

// Call is one call as it arrives; what does not apply to its kind is empty.
type Call struct {
	Op        Op
	UID       string
	Namespace string
	Name      string
	Line      string // the command of an exec, with its arguments
	Owner     string // of the VM that is created
}

// Host is one scripted host. It implements host.Driver itself; NewFleet and Dial give drivers that can be closed
// while the host lives on.
type Host struct {
	opts Options

	mu      sync.Mutex
	mode    mode
	vms     map[string]*machine
	created int
	frozen  []host.VM // what every List answers while lists are frozen; nil = the truth
	faults  []*fault
	scripts map[string][]Reply
	counts  map[Op]int
	starts  int                                // creates on their way that have no machine yet
	peak    int                                // most starts in flight ever
	running map[*machine]map[*func(error)]bool // execs under way, each with what cuts it off
}

var _ host.Driver = (*Host)(nil)

// New makes a host.
func New(opts Options) *Host {
	if opts.Name == "" {
		opts.Name = "fake"
	}
	if opts.MinMemoryMB == 0 {
		opts.MinMemoryMB = 1024
	}
	return &Host{
		opts:    opts,
		vms:     make(map[string]*machine),
		scripts: make(map[string][]Reply),
		counts:  make(map[Op]int),
		running: make(map[*machine]map[*func(error)]bool),
	}
}

// Template is a spec that the host accepts; the id and the namespace are the caller's to set.
func Template() *vmtypes.MicroVMSpec {
	root := "local:base"
	return &vmtypes.MicroVMSpec{
		Vcpu:            1,
		MemoryInMb:      1024,
		Kernel:          &vmtypes.Kernel{Image: "local:base"},
		RootVolume:      &vmtypes.Volume{Id: "root", Source: &vmtypes.VolumeSource{ContainerSource: &root}},
		Interfaces:      []*vmtypes.NetworkInterface{{DeviceId: "eth1", Type: vmtypes.NetworkInterface_TAP}},
		AllowGuestAgent: true,
	}
}

// Create implements host.Driver.
func (h *Host) Create(ctx context.Context, spec *vmtypes.MicroVMSpec) (host.VM, error) {
	call := Call{Op: Create, Namespace: spec.GetNamespace(), Name: spec.GetId()}
	call.Owner = host.VMOf(&vmtypes.MicroVM{Spec: spec}).Owner
	var vm host.VM
	h.beginCreate()
	made := false
	err := h.serve(ctx, call, host.CreateTimeout, func(context.Context, *fault) (err error) {
		vm, err = h.create(spec)
		made = err == nil
		return err
	})
	if !made {
		h.failCreate()
	}
	if err != nil {
		return host.VM{}, h.wrap(err, "create %s/%s", call.Namespace, call.Name)
	}
	return vm, nil
}

// Get implements host.Driver.
func (h *Host) Get(ctx context.Context, uid string) (host.VM, error) {
	var vm host.VM
	err := h.serve(ctx, Call{Op: Get, UID: uid}, host.CallTimeout, func(context.Context, *fault) error {
		h.mu.Lock()
		defer h.mu.Unlock()
		m, err := h.findLocked(uid)
		if err != nil {
			return err
		}
		vm = m.report(time.Now()).VM
		return nil
	})
	if err != nil {
		return host.VM{}, h.wrap(err, "get vm %s", uid)
	}
	return vm, nil
}

// List implements host.Driver.
func (h *Host) List(ctx context.Context, namespace, name string) ([]host.VM, error) {
	var vms []host.VM
	call := Call{Op: List, Namespace: namespace, Name: name}
	err := h.serve(ctx, call, host.CallTimeout, func(_ context.Context, f *fault) error {
		vms = h.list(namespace, name)
		if f.List != nil {
			vms = f.List(vms)
		}
		return nil
	})
	if err != nil {
		return nil, h.wrap(err, "list vms of %s/%s", namespace, name)
	}
	return vms, nil
}

// Delete implements host.Driver.
func (h *Host) Delete(ctx context.Context, uid string) error {
	call := Call{Op: Delete, UID: uid}
	err := h.serve(ctx, call, host.CallTimeout, func(context.Context, *fault) error { return h.delete(uid) })
	return h.wrap(err, "delete vm %s", uid)
}

// Exec implements host.Driver.
func (h *Host) Exec(ctx context.Context, req host.ExecRequest, streams host.ExecStreams) (int, error) {
	defer closeInput(streams.Stdin)
	var code int
	call := Call{Op: Exec, UID: req.UID, Line: line(req)}
	limit := host.ExecTimeout
	if _, ok := ctx.Deadline(); ok {
		limit = 0
	}
	err := h.serve(ctx, call, limit, func(ctx context.Context, _ *fault) (err error) {
		code, err = h.exec(ctx, req, withDefaults(streams))
		return err
	})
	if err != nil {
		return 0, h.wrap(err, "exec %q in vm %s", call.Line, req.UID)
	}
	return code, nil
}

// Info implements host.Driver.
func (h *Host) Info(ctx context.Context) (host.Info, error) {
	var info host.Info
	err := h.serve(ctx, Call{Op: Info}, host.CallTimeout, func(context.Context, *fault) error {
		info = host.Info{
			Version: h.opts.Version, ExecEnabled: !h.opts.NoExec, VMs: len(h.list("", "")),
			Limits: host.Limits{MaxVMs: h.opts.MaxVMs, MemoryMB: h.opts.MaxMemoryMB, MinVMMemoryMB: h.opts.MinMemoryMB},
		}
		return nil
	})
	return info, h.wrap(err, "ask for info")
}

// Close implements host.Driver and does nothing: the host outlives whoever calls it.
func (h *Host) Close() error { return nil }

func (h *Host) wrap(err error, format string, args ...any) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s on host %s: %w", fmt.Sprintf(format, args...), h.opts.Name, err)
}

// closeInput keeps the promise of host.ExecStreams that the input is closed when the command is over.
func closeInput(stdin io.Reader) {
	if closer, ok := stdin.(io.Closer); ok {
		_ = closer.Close() // only a waiting Read is to end
	}
}

func withDefaults(s host.ExecStreams) host.ExecStreams {
	if s.Stdout == nil {
		s.Stdout = io.Discard
	}
	if s.Stderr == nil {
		s.Stderr = io.Discard
	}
	return s
}
