// Package wire is the language that host and guest speak over one virtio
// serial port: frames with their messages, and below them the byte stuffing
// and the reset that let a host connect anew at any moment, whatever its
// predecessor left half-written.
//
// It does no I/O of its own beyond the readers and writers it is given, and it
// imports little, for the guest's binary is small.
package wire

import "errors"

// Errors of the wire format.
var (
	// ErrFrameTooLarge: a frame's header announces more than the limit.
	ErrFrameTooLarge = errors.New("frame is larger than the limit")
	// ErrUnexpectedFrame: a frame of a type that has no place here.
	ErrUnexpectedFrame = errors.New("unexpected frame")
	// ErrBadRequest: a request that is not JSON of a known version and op.
	ErrBadRequest = errors.New("bad request")
)
