// Package host is the contract between poolmgr and the machines that run VMs: create, get, list, delete, exec and
// info, as flintlock's API offers them. host/flintlock speaks to real hosts, host/fake is scripted for tests, and both
// pass host/hosttest. Nothing here decides; every call takes a context whose deadline the caller sets, and
// implementations bound it further.
package host

import (
	"context"
	"errors"
	"io"
	"time"

	"poolmgr/api/flintlock/vmtypes"
	"poolmgr/internal/pool"
)

// Driver talks to one host. It is safe for concurrent use. Errors wrap one of the sentinels below where the cause is
// known; anything else is a failure of that call that may be tried again.
type Driver interface {
	// Create asks the host for a VM and returns at once, usually with the VM PENDING. It is not idempotent: every call
	// makes a VM with a new UID, whatever its id, so look by name before a retry.
	Create(ctx context.Context, spec *vmtypes.MicroVMSpec) (VM, error)
	// Get is the VM's present state; ErrNotFound when the host does not know the uid (any more).
	Get(ctx context.Context, uid string) (VM, error)
	// List finds VMs by namespace and name; an empty namespace lists everything, an empty name any name. Sorted by UID.
	// DELETING VMs are listed until they are gone.
	List(ctx context.Context, namespace, name string) ([]VM, error)
	// Delete begins a deletion: the VM is DELETING, then gone. Repeating it is harmless; ErrNotFound when it is gone.
	Delete(ctx context.Context, uid string) error
	// Exec runs a command inside the guest and streams its output. The exit code is the command's: 126 when it could
	// not be set up, 127 when it was not found, 128+n when signal n ended it. An error means that the code is not known.
	// A host answers only for VMs whose spec has allow_guest_agent set. A call that got no answer in time is
	// ErrExecTimeout and never ErrUnreachable: it may be the guest that is silent, so ask the host (Get) which it is.
	Exec(ctx context.Context, req ExecRequest, streams ExecStreams) (int, error)
	// Info asks the host whether it is there, and what it can do.
	Info(ctx context.Context) (Info, error)
	// Close ends the connection. Calls in flight fail.
	Close() error
}

// The sentinels, each with when it occurs.
var (
	ErrNotFound     = errors.New("no such VM on the host")                  // whatever code the host wraps it in
	ErrUnreachable  = errors.New("the host does not answer")                // no connection, or no answer in time
	ErrNoCapacity   = errors.New("the host has no room for the VM")         // RESOURCE_EXHAUSTED: try another host
	ErrRefused      = errors.New("the host refuses the VM's specification") // INVALID_ARGUMENT: a retry cannot help
	ErrExecDisabled = errors.New("exec is not enabled on the host")         // UNIMPLEMENTED
	ErrExecTimeout  = errors.New("the command did not end in time")         // its own limit, or the call's deadline
)

// The limits of a call whose context has no deadline, or a later one. A create waits for a lock of the host's one
// reconcile worker, so it gets more. An exec is limited only where nothing else limits it: a caller's own deadline may
// be later, since a command may run for as long as a lease lives.
const (
	CallTimeout   = 10 * time.Second
	CreateTimeout = 20 * time.Second
	ExecTimeout   = 10 * time.Minute
)

// State is the host's view of a VM. Created means that the machine's process exists, not that the guest is up.
type State string

// The states, with flintlock's words.
const (
	Pending  State = "PENDING"
	Created  State = "CREATED"
	Failed   State = "FAILED"
	Deleting State = "DELETING"
)

// VM is what a host tells about one VM.
type VM struct {
	UID        string
	Namespace  string
	Name       string
	State      State
	Owner      string // metadata["poolmgr.owner"], decoded; empty for VMs of others
	Interfaces map[string]pool.Interface
}

// OwnerKey is the metadata key that marks a VM as ours; its value is Owner's text, base64 on the wire.
const OwnerKey = pool.OwnerKey

// ExecRequest is a command for the guest. With Shell, Cmd is a line for /bin/sh.
type ExecRequest struct {
	UID     string
	Cmd     string
	Args    []string
	Cwd     string
	Env     map[string]string
	Shell   bool
	User    string
	Timeout time.Duration // enforced by the guest, whole seconds on the wire (rounded up); 0 = only the context's deadline
}

// ExecStreams carries a command's input and output. A nil Stdin means none; nil writers discard. Both writers are used
// from one goroutine, and a writer that blocks holds up the command. Stdin is read until it ends or the command does;
// where it is an io.Closer it is closed then, which must end a Read that waits (as it does for pipes). Another
// reader that blocks keeps one goroutine until its Read returns.
type ExecStreams struct {
	Stdin  io.Reader
	Stdout io.Writer
	Stderr io.Writer
}

// Info is what a host tells about itself.
type Info struct {
	Version     string // empty where the host does not tell
	ExecEnabled bool
	VMs         int
	Limits      Limits
}

// Limits is what a host takes, as far as it tells: microvmd does, a flintlockd does not.
type Limits struct {
	MaxVMs        int // microVMs at one time; 0 = no limit, or not told
	MemoryMB      int // MiB of all its microVMs; 0 = no limit, or not told
	MinVMMemoryMB int // MiB of the smallest microVM; 0 = not told
}

// Fleet finds the driver of a registered host.
type Fleet interface {
	// Driver returns the driver of the host; it is cheap and never blocks on the network.
	Driver(h pool.Host) (Driver, error)
	// Forget closes the driver of a host that is registered no more. Unknown names are ignored.
	Forget(name string)
	// Close closes every driver.
	Close() error
}
