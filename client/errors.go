package client

import (
	"errors"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Why a lease ended, as told by Lease.Err.
var (
	// ErrReleased: Release was called.
	ErrReleased = errors.New("the lease was released")
	// ErrLost: the daemon no longer knows the lease. It expired, or its pool or VM was deleted.
	ErrLost = errors.New("the lease has ended: it expired, or its pool or VM was deleted")
	// ErrClosed: the Client was closed; the lease itself lives on until it expires.
	ErrClosed = errors.New("the client was closed")
)

// transient tells whether the same request may succeed later: the daemon was not reached, is stopping, or asks for
// patience. Whether the request was carried out is not known.
func transient(err error) bool { return status.Code(err) == codes.Unavailable }

// uncertain tells whether a request that failed may have been carried out all the same.
func uncertain(err error) bool {
	switch status.Code(err) {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled, codes.Unknown:
		return true
	default:
		return false
	}
}
