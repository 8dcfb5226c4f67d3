package flintlock

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"poolmgr/internal/host"
)

// op is the kind of a call: the same answer means different things to different calls.
type op int

const (
	opCreate op = iota
	opGet
	opList
	opDelete
	opInfo
	opExec
)

// reasonableWait is how long a host must have had before a missing answer counts against it.
const reasonableWait = time.Second

// maxText bounds how much of a host's words goes into an error, in bytes.
const maxText = 2 << 10

// translate puts an error of a call into our terms. flintlockd answers nearly everything with UNKNOWN and a text, so
// both code and text are read; texts are matched only where the call makes their meaning certain. ended is why the call's
// context is over (see ended).
func translate(op op, err, ended error) error {
	st := status.Convert(err)
	told := fmt.Sprintf("%s: %s", st.Code(), clip(st.Message()))
	late := errors.Is(ended, context.DeadlineExceeded)
	switch {
	case errors.Is(ended, context.Canceled):
		return fmt.Errorf("%w (%s)", ended, told)
	case st.Code() == codes.DeadlineExceeded, late && st.Code() == codes.Canceled:
		return tooLate(op, told)
	}
	if sentinel := sentinelOf(op, st); sentinel != nil {
		return fmt.Errorf("%w: %s", sentinel, told)
	}
	switch {
	case late && st.Code() == codes.Unknown: // the host knows the deadline too, and says so in its own words
		return tooLate(op, told)
	case st.Code() == codes.Unimplemented:
		return fmt.Errorf("%s: check that the host's address is that of a flintlock API", told)
	case st.Code() == codes.Unauthenticated, st.Code() == codes.PermissionDenied:
		return fmt.Errorf("%s: check the host's basic-auth token and certificates", told)
	default:
		return errors.New(told)
	}
}

// tooLate is the error of a call that reached its deadline.
func tooLate(op op, told string) error {
	sentinel := host.ErrUnreachable
	if op == opExec {
		sentinel = host.ErrExecTimeout
	}
	return fmt.Errorf("%w: %w (%s)", sentinel, context.DeadlineExceeded, told)
}

// ended is why a call's context is over; nil while it is not. The deadline counts from its instant on, although the
// context's own timer may fire a little later than the host's answer to the same deadline arrives.
func ended(ctx context.Context) error {
	if deadline, ok := ctx.Deadline(); ctx.Err() == nil && ok && !time.Now().Before(deadline) {
		return context.DeadlineExceeded
	}
	return ctx.Err()
}

// sentinelOf is the rule table: which of host's sentinels an answer means, if any.
func sentinelOf(op op, st *status.Status) error {
	text := strings.ToLower(st.Message())
	aboutVM := op == opGet || op == opDelete || op == opExec
	switch st.Code() {
	case codes.Unavailable, codes.Canceled: // cancelled, but not by our caller: the connection was closed
		return host.ErrUnreachable
	case codes.NotFound:
		if aboutVM {
			return host.ErrNotFound
		}
	case codes.ResourceExhausted: // of another call it is an answer larger than we take
		if op == opCreate {
			return host.ErrNoCapacity
		}
	case codes.InvalidArgument:
		if op == opCreate {
			return host.ErrRefused
		}
	case codes.Unimplemented:
		if op == opExec {
			return host.ErrExecDisabled
		}
	default:
		return textSentinel(op, text)
	}
	return nil
}

// textSentinel reads the text of an answer whose code says nothing.
func textSentinel(op op, text string) error {
	switch op {
	case opGet, opDelete:
		if strings.Contains(text, "not found") {
			return host.ErrNotFound
		}
	case opExec:
		return execText(text)
	case opCreate:
		// An image that is "not found" is no missing VM, and may be there the next time.
		for _, refusal := range []string{"validate microvm spec", "creating vmid from spec"} {
			if strings.Contains(text, refusal) {
				return host.ErrRefused
			}
		}
	case opList, opInfo:
	}
	return nil
}

// execText reads what a host or a guest says about a command. A program that was not found is no missing VM: the words
// must be about the microvm.
func execText(text string) error {
	switch text = strings.ToLower(text); {
	case strings.Contains(text, "timed out"):
		return host.ErrExecTimeout
	case strings.Contains(text, "microvm") && strings.Contains(text, "not found") && !strings.Contains(text, "executable"):
		return host.ErrNotFound
	default:
		return nil
	}
}

// verdictOf is what the outcome of a call other than exec tells about its host.
func verdictOf(err error, took time.Duration) verdict {
	switch status.Code(err) {
	case codes.Unavailable:
		return missed
	case codes.DeadlineExceeded:
		if took < reasonableWait {
			return neutral
		}
		return missed
	case codes.Canceled:
		return neutral
	default:
		return reached
	}
}

// execEnabled reads how a host answers a command for a VM that does not exist.
func execEnabled(err error) (bool, error) {
	if err == nil || errors.Is(err, io.EOF) {
		return true, nil
	}
	switch status.Code(err) {
	case codes.Unimplemented:
		return false, nil
	case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled, codes.Unauthenticated, codes.PermissionDenied:
		return false, err
	default:
		return true, nil
	}
}

func clip(text string) string {
	if len(text) <= maxText {
		return text
	}
	return strings.ToValidUTF8(text[:maxText], "") + "…"
}
