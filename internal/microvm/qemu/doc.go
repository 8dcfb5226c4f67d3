// Package qemu is the backend of real microVMs: QEMU processes that outlive
// the daemon, each in a folder of its own.
//
//	<state dir>/vms/<uid>/state.json   what was asked for and how far it is
//	                     /pid          QEMU's, locked by it for as long as it lives
//	                     /qmp.sock, agent.sock, qemu.log
//
// A machine's folder is the whole truth about it: a backend that is opened on
// the same state directory finds every machine again, and goes on with boots
// and deletions. One goroutine per machine does all its work. Sockets have
// relative names in QEMU's working directory and are dialled through
// /proc/self/fd, so the length of the state directory's path does not matter.
//
// One backend per state directory at a time; the caller holds the lock.
package qemu

import "errors"

// Errors of opening a backend, besides those of microvm and image.
var (
	// ErrNoQEMU: QEMU is not installed.
	ErrNoQEMU = errors.New("QEMU is missing")
	// ErrAccel: the acceleration that was asked for cannot be had.
	ErrAccel = errors.New("acceleration cannot be used")
)

// Reasons for which a boot attempt ends.
var (
	errBootTimeout = errors.New("the guest did not answer in time")
	errDied        = errors.New("QEMU has exited")
	errDeleted     = errors.New("the microvm is being deleted")
)
