package server

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"runtime/debug"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"

	"poolmgr/internal/host"
	"poolmgr/internal/pool"
	"poolmgr/internal/store"
)

// codeOf maps the codes of refusals to gRPC's. It is the only map of its kind.
var codeOf = map[pool.Code]codes.Code{
	pool.CodeInvalid:            codes.InvalidArgument,
	pool.CodeNotFound:           codes.NotFound,
	pool.CodeAlreadyExists:      codes.AlreadyExists,
	pool.CodeFailedPrecondition: codes.FailedPrecondition,
	pool.CodeExhausted:          codes.ResourceExhausted,
	pool.CodeAborted:            codes.Aborted,
	pool.CodeUnavailable:        codes.Unavailable,
	pool.CodeOutOfRange:         codes.OutOfRange,
	pool.CodeUnimplemented:      codes.Unimplemented,
	pool.CodeDeadline:           codes.DeadlineExceeded,
	pool.CodeInternal:           codes.Internal,
}

// Bounds of an error. It travels in the trailer of a call, and clients of other languages refuse trailers of more than
// about 16 KiB as a whole.
const (
	maxMessageText = 6 << 10 // bytes of the sentence; room for the tail of a command's error output
	maxFaultText   = 3 << 10 // bytes of the sentence where details repeat it
	maxFaultBytes  = 5 << 10 // of the details
)

// retryHint is how long a caller that found nothing to claim is told to wait.
const retryHint = time.Second

// errInternal is all that a caller learns of what is not a refusal.
var errInternal = status.Error(codes.Internal, "internal error; the daemon's log has the details")

// toStatus turns the error of a call into what its caller sees: refusals with their sentence, everything else as
// "internal error", with the whole of it in the log.
func toStatus(ctx context.Context, log *slog.Logger, method string, err error) error {
	var refusal *pool.Error
	switch {
	case err == nil:
		return nil
	case errors.As(err, &refusal):
		return refused(log, method, refusal)
	case errors.Is(err, context.Canceled) && ctx.Err() != nil:
		return status.Error(codes.Canceled, "the caller went away")
	case errors.Is(err, context.DeadlineExceeded):
		return status.Error(codes.DeadlineExceeded, "the call's deadline passed before it was done")
	case errors.Is(err, store.ErrConflict):
		return status.Error(codes.Aborted, "something else changed the same rows at the same time; try again")
	case errors.Is(err, store.ErrClosed), errors.Is(err, store.ErrBroken), errors.Is(err, store.ErrFenced):
		log.Error("call refused", "method", method, "error", err)
		return status.Error(codes.Unavailable, "the daemon is stopping; try again in a moment")
	case errors.Is(err, host.ErrUnreachable):
		log.Warn("call failed", "method", method, "error", err)
		return status.Error(codes.Unavailable, "a host does not answer; try again in a moment")
	}
	// The stream's own; a wrapped one would be somebody else's, such as a host's.
	if is, ok := err.(interface{ GRPCStatus() *status.Status }); ok {
		return is.GRPCStatus().Err()
	}
	log.Error("call failed", "method", method, "error", err)
	return errInternal
}

func refused(log *slog.Logger, method string, e *pool.Error) error {
	code, known := codeOf[e.Code]
	if !known {
		log.Error("call failed with a code that is not mapped (this is a bug)", "method", method, "code", e.Code, "error", e)
		return errInternal
	}
	if code == codes.Internal {
		log.Error("call failed", "method", method, "error", e)
	}
	var detail protoadapt.MessageV1
	limit := maxMessageText
	switch {
	case len(e.Faults) > 0:
		limit = maxFaultText
		detail = protoadapt.MessageV1Of(violations(e.Faults))
	case code == codes.ResourceExhausted:
		detail = protoadapt.MessageV1Of(&errdetails.RetryInfo{RetryDelay: durationpb.New(retryHint)})
	}
	st := status.New(code, clip(e.Message, limit))
	if detail == nil {
		return st.Err()
	}
	with, err := st.WithDetails(detail)
	if err != nil {
		log.Error("an error's details cannot be sent (this is a bug)", "method", method, "error", err)
		return st.Err()
	}
	return with.Err()
}

// violations lists faults as far as they fit.
func violations(faults pool.Faults) *errdetails.BadRequest {
	bad, size := &errdetails.BadRequest{}, 0
	for _, f := range faults {
		v := &errdetails.BadRequest_FieldViolation{Field: clip(f.Field, maxName), Description: clip(f.Message, maxName)}
		if size += proto.Size(v); size > maxFaultBytes {
			break
		}
		bad.FieldViolations = append(bad.FieldViolations, v)
	}
	return bad
}

// clip shortens a text for people and makes it one that may be sent.
func clip(text string, limit int) string {
	if len(text) > limit {
		text = strings.ToValidUTF8(text[:limit], "") + "…"
	}
	return strings.ToValidUTF8(text, "\uFFFD")
}

// UnaryErrors maps errors of unary calls and turns a panic into an internal error: one request must not end the daemon.
// panicked is called for each.
func UnaryErrors(log *slog.Logger, panicked func()) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (resp any, err error) {
		defer recovered(log, info.FullMethod, panicked, &err)
		resp, err = next(ctx, req)
		return resp, toStatus(ctx, log, info.FullMethod, err)
	}
}

// StreamErrors is UnaryErrors for streams.
func StreamErrors(log *slog.Logger, panicked func()) grpc.StreamServerInterceptor {
	return func(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) (err error) {
		defer recovered(log, info.FullMethod, panicked, &err)
		return toStatus(stream.Context(), log, info.FullMethod, next(srv, stream))
	}
}

// storeCode marks the frames of the store in a stack.
var storeCode = []byte("poolmgr/internal/store/")

// recovered answers for a call that panicked. The store recovers from what its verbs do wrong; a panic that escapes it
// may leave everybody waiting for a commit that never comes, and is better survived by a restart.
func recovered(log *slog.Logger, method string, panicked func(), err *error) {
	p := recover()
	if p == nil {
		return
	}
	stack := debug.Stack()
	log.Error("panic in a call (this is a bug)", "method", method, "panic", p, "stack", string(stack))
	if bytes.Contains(stack, storeCode) {
		panic(p)
	}
	panicked()
	*err = errInternal
}
