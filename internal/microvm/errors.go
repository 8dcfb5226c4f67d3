package microvm

import "errors"

// Errors of a Backend. They are wrapped with what was being done and to which
// machine; compare with errors.Is.
var (
	// ErrNotFound: no machine of that uid exists here, or it is gone.
	ErrNotFound = errors.New("microvm not found")
	// ErrRefused: the spec asks for something that this backend cannot run; it
	// will not get better by trying again.
	ErrRefused = errors.New("microvm spec refused")
	// ErrNoCapacity: the host runs as many machines, or as much memory, as it may.
	ErrNoCapacity = errors.New("host has no capacity left")
	// ErrNotRunning: the machine is not up (pending, failed, deleting or dead),
	// or its guest does not answer.
	ErrNotRunning = errors.New("microvm is not running")
	// ErrExecTimeout: the command ran longer than ExecRequest.Timeout and was killed.
	ErrExecTimeout = errors.New("command timed out")
	// ErrClosed: the backend is closed.
	ErrClosed = errors.New("backend is closed")
)
