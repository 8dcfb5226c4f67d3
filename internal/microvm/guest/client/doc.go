// Package client is the host's end of the guest agent: one session per machine
// over the socket of its virtio serial port, made anew when it breaks.
//
// A machine's port serves one host connection at a time, so there must be one
// Client per machine, in one process.
package client

import "errors"

// Errors of a Client.
var (
	// ErrUnreachable: no session with the guest could be had, or it broke.
	ErrUnreachable = errors.New("guest agent cannot be reached")
	// ErrTimeout: the command ran longer than its limit and was killed.
	ErrTimeout = errors.New("command timed out")
	// ErrClosed: the client was closed.
	ErrClosed = errors.New("guest client is closed")
)
