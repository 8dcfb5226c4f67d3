package flintlockapi

import (
	"context"
	"errors"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"poolmgr/internal/microvm"
)

// toStatus gives a backend's error the code that a flintlockd would give it.
// That is UNKNOWN with a text for nearly everything, "not found" among it. Four
// answers are better than flintlock's, where saying it clearly costs nobody who
// expects UNKNOWN:
//
//   - RESOURCE_EXHAUSTED: the host is full. A caller may try another host at
//     once, instead of taking it for a failure of this machine.
//   - INVALID_ARGUMENT: the spec can never be run, so trying again is useless.
//   - UNAVAILABLE: the host is stopping; nothing is said about the machine.
//   - whatever the error itself brings, such as a simulated broken connection.
func toStatus(err error) error {
	var own interface{ GRPCStatus() *status.Status }
	switch {
	case err == nil:
		return nil
	case errors.As(err, &own):
		return status.Error(own.GRPCStatus().Code(), err.Error())
	case errors.Is(err, microvm.ErrNoCapacity):
		return status.Error(codes.ResourceExhausted, err.Error())
	case errors.Is(err, microvm.ErrRefused):
		return status.Error(codes.InvalidArgument, err.Error())
	case errors.Is(err, microvm.ErrClosed):
		return status.Error(codes.Unavailable, err.Error())
	case errors.Is(err, context.Canceled):
		return status.Error(codes.Canceled, err.Error())
	case errors.Is(err, context.DeadlineExceeded):
		return status.Error(codes.DeadlineExceeded, err.Error())
	default:
		return status.Error(codes.Unknown, err.Error())
	}
}
