// Package microvm holds the contract between the API that a microVM host
// serves and the backends that run its machines. The rooms below it are
// flintlockapi (the served API), qemu (real machines), simulated, image
// (kernel and initramfs) and guest (init and agent inside a machine).
//
// It defines types and errors only: nothing here starts a process, opens a
// file or knows what a pool is.
package microvm

import (
	"context"
	"io"
	"time"

	"poolmgr/api/flintlock/vmtypes"
)

// Backend runs microVMs on one host. All methods may be called concurrently.
// Messages given to and returned by a Backend are copies: neither side may see
// later changes made by the other.
type Backend interface {
	// Create makes the intent durable and answers at once with state PENDING;
	// the boot goes on in the background. Every call makes a new machine with a
	// new uid, also when the id was used before. It answers ErrRefused for a
	// spec that this backend cannot run and ErrNoCapacity when the host is full.
	Create(ctx context.Context, spec *vmtypes.MicroVMSpec) (*vmtypes.MicroVM, error)

	// Get answers ErrNotFound for an unknown uid, and for one that was deleted
	// and is gone.
	Get(ctx context.Context, uid string) (*vmtypes.MicroVM, error)

	// List answers the machines of a namespace (empty: of all), of the given
	// id (empty: any), ordered by namespace, id and uid. Machines that are
	// being deleted are listed, with state DELETING, until they are gone.
	List(ctx context.Context, namespace, name string) ([]*vmtypes.MicroVM, error)

	// Delete makes the intent durable and answers at once: the machine is
	// DELETING and then gone. Repeating it is harmless; an unknown uid is
	// ErrNotFound.
	Delete(ctx context.Context, uid string) error

	// Exec runs one command inside a machine and returns its exit code: 126
	// when the set-up failed, 127 when it could not be started, 128 plus the
	// signal when it was killed. An error means that the command may or may not
	// have run: ErrNotFound, ErrNotRunning (the machine has no guest that
	// answers), ErrExecTimeout, or ctx's. The command dies with the call.
	Exec(ctx context.Context, req ExecRequest, streams ExecStreams) (exitCode int, err error)

	// Close stops the goroutines of the backend and waits for them. The
	// machines go on living; a backend opened later on the same state finds
	// them again, and resumes boots and deletions that were under way.
	Close() error
}

// ExecRequest is one command to run inside a machine.
type ExecRequest struct {
	UID string
	// Cmd is the program, or with Shell the text that `sh -c` gets.
	Cmd  string
	Args []string
	// Cwd is the working directory; empty means /.
	Cwd string
	Env map[string]string
	// Shell runs Cmd through `sh -c`; Args become $1, $2, ...
	Shell bool
	// User is a name or a number; empty means root.
	User string
	// Timeout ends the command's process group and the call with
	// ErrExecTimeout; 0 means that only the context limits it.
	Timeout time.Duration
	// HasStdin says that ExecStreams.Stdin is read; without it the command's
	// standard input is empty.
	HasStdin bool
}

// ExecStreams are the command's standard streams. A nil writer discards. A
// writer that blocks holds up the command, never the machine.
type ExecStreams struct {
	Stdin          io.Reader
	Stdout, Stderr io.Writer
}
