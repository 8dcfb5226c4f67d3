package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"poolmgr/client"
)

// Exit codes. Scripts rely on them.
const (
	exitOK       = 0
	exitFailed   = 1
	exitUsage    = 2
	exitTimedOut = 3
	exitSignal   = 128 // plus the signal's number
)

// usageError is a command line that cannot be carried out.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

func usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// waitError says that what was waited for has not come in time.
type waitError struct{ sentence string }

func (e waitError) Error() string { return e.sentence }

// codeError is an error found on this side, with the code that the daemon would have used.
type codeError struct {
	code codes.Code
	error
}

func (e codeError) Unwrap() error { return e.error }

func failf(c codes.Code, format string, args ...any) error {
	return codeError{c, fmt.Errorf(format, args...)}
}

// exitError passes on the exit code of a command inside a VM, and says nothing.
type exitError struct{ code int }

func (e exitError) Error() string { return fmt.Sprintf("the command ended with exit code %d", e.code) }

// verdict turns the error of a command into the exit code and "<code>: <sentence>"; without a text there is nothing to
// say. First match wins: what the user did comes before what it led to.
func (a *app) verdict(ctx context.Context, err error) (exit int, text string) {
	var (
		usage  usageError
		wait   waitError
		own    codeError
		ended  exitError
		signal interrupted
	)
	switch {
	case err == nil:
		return exitOK, ""
	case errors.As(err, &ended):
		return ended.code, ""
	case errors.As(context.Cause(ctx), &signal):
		return exitSignal + int(signal.signal), word(codes.Canceled) + ": " + signal.Error()
	case errors.As(err, &usage):
		return exitUsage, word(codes.InvalidArgument) + ": " + usage.Error()
	case errors.As(err, &wait):
		return exitTimedOut, word(codes.DeadlineExceeded) + ": " + wait.Error()
	case errors.As(err, &own):
		return exitFailed, word(own.code) + ": " + own.Error()
	case errors.Is(err, fs.ErrNotExist):
		return exitFailed, word(codes.NotFound) + ": " + err.Error()
	case errors.Is(err, fs.ErrPermission):
		return exitFailed, word(codes.PermissionDenied) + ": " + err.Error()
	default:
		return exitFailed, a.explain(err)
	}
}

// explain says what the daemon, or the way to it, answered.
func (a *app) explain(err error) string {
	var answer interface{ GRPCStatus() *status.Status }
	if !errors.As(err, &answer) {
		return word(codes.Unknown) + ": " + err.Error()
	}
	st := answer.GRPCStatus()
	if st.Code() == codes.Unavailable {
		return word(st.Code()) + ": " + a.unavailable(err, st)
	}
	if st.Code() == codes.DeadlineExceeded && strings.HasPrefix(st.Message(), "context deadline exceeded") {
		return fmt.Sprintf("%s: poolmgrd at %s did not answer within %v; is it the right --addr? A slower call needs a longer --timeout",
			word(st.Code()), a.addr, a.timeout)
	}
	if faults := violations(st); len(faults) > 0 {
		return word(st.Code()) + ": " + strings.Join(faults, "\n  ")
	}
	return word(st.Code()) + ": " + st.Message()
}

// unavailable says why no answer came: nobody listens, somebody else does, the connection broke, or the daemon says so.
func (a *app) unavailable(err error, st *status.Status) string {
	switch {
	case client.Unreached(err) && strings.Contains(err.Error(), "dialing"):
		return fmt.Sprintf("cannot reach poolmgrd at %s (%s); is it running? Start it, or say where it is with --addr or POOLMGR_ADDR", a.addr, reason(err))
	case client.Unreached(err):
		return fmt.Sprintf("no common language with what listens at %s (%s); if only one side uses TLS, say so by http:// or https:// in --addr, or trust its certificate by --tls-ca",
			a.addr, reason(err))
	case strings.HasPrefix(st.Message(), "error reading from server"), strings.HasPrefix(st.Message(), "transport is closing"):
		return fmt.Sprintf("lost the connection to poolmgrd at %s (%s); what became of the request is not known", a.addr, reason(err))
	default:
		return st.Message()
	}
}

// violations lists the faulty fields that an answer names, one a line, below a heading.
func violations(st *status.Status) []string {
	var lines []string
	for _, detail := range st.Details() {
		bad, is := detail.(*errdetails.BadRequest)
		if !is {
			continue
		}
		for _, v := range bad.GetFieldViolations() {
			lines = append(lines, v.GetField()+": "+v.GetDescription())
		}
	}
	if len(lines) == 0 {
		return nil
	}
	heading := "the request has a faulty field"
	if len(lines) > 1 {
		heading = fmt.Sprintf("the request has %d faulty fields", len(lines))
	}
	return append([]string{heading}, lines...)
}

// reason is the last part of a dialling error, such as "connection refused".
func reason(err error) string {
	text := strings.TrimRight(err.Error(), `"`)
	if i := strings.LastIndex(text, ": "); i >= 0 {
		text = text[i+2:]
	}
	return text
}

// word is a code as it is written on the wire's other faces: NOT_FOUND.
func word(c codes.Code) string { return code.Code(c).String() }
