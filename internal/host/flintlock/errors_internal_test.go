package flintlock

import (
	"context"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"poolmgr/internal/host"
)

var sentinels = []error{
	host.ErrNotFound, host.ErrUnreachable, host.ErrNoCapacity, host.ErrRefused, host.ErrExecDisabled, host.ErrExecTimeout,
}

func TestTranslate(t *testing.T) {
	const notFound = "checking to see if spec exists: microvm spec //01H not found"
	for _, c := range []struct {
		name string
		op   op
		code codes.Code
		text string
		want error // nil = none of the sentinels
	}{
		{"get, UNKNOWN with text", opGet, codes.Unknown, notFound, host.ErrNotFound},
		{"get, NOT_FOUND", opGet, codes.NotFound, "gone", host.ErrNotFound},
		{"get, other text", opGet, codes.Unknown, "containerd is down", nil},
		{"delete, UNKNOWN with text", opDelete, codes.Unknown, notFound, host.ErrNotFound},
		{"exec, UNKNOWN with text", opExec, codes.Unknown, "getting microvm: microvm spec //01H not found", host.ErrNotFound},
		{"exec, microvmd's text", opExec, codes.Unknown, "exec in microvm 01H: microvm not found", host.ErrNotFound},
		{"exec, a program is missing", opExec, codes.Unknown, `exec: "foo": executable file not found in $PATH`, nil},
		{"exec, a program is missing in a microvm", opExec, codes.Unknown, "microvm 01H: executable file not found", nil},
		{"exec, a file is missing", opExec, codes.Unknown, "foo: not found", nil},
		{"exec, not ready", opExec, codes.FailedPrecondition, "microvm is not ready (state: pending)", nil},
		{"exec, timed out", opExec, codes.Unknown, "command timed out", host.ErrExecTimeout},
		{"exec, switched off", opExec, codes.Unimplemented, "unknown service", host.ErrExecDisabled},
		{"exec, deadline", opExec, codes.DeadlineExceeded, "context deadline exceeded", host.ErrExecTimeout},
		{"exec, no connection", opExec, codes.Unavailable, "connection refused", host.ErrUnreachable},
		{"exec, refused", opExec, codes.InvalidArgument, "no cmd", nil},
		{"create, an image is missing", opCreate, codes.Unknown, "getting image docker.io/x/y:1: not found", nil},
		{"create, NOT_FOUND", opCreate, codes.NotFound, "image", nil},
		{"create, INVALID_ARGUMENT", opCreate, codes.InvalidArgument, "vcpu", host.ErrRefused},
		{
			"create, flintlock's validation", opCreate, codes.Unknown,
			"creating microvm: an error occurred when attempting to validate microvm spec: Key: 'MicroVM.Spec.VCPU'", host.ErrRefused,
		},
		{"create, flintlock without a name", opCreate, codes.Unknown, "creating vmid from spec: name is required", host.ErrRefused},
		{"create, full", opCreate, codes.ResourceExhausted, "8 VMs", host.ErrNoCapacity},
		{"create, no connection", opCreate, codes.Unavailable, "connection refused", host.ErrUnreachable},
		{"create, deadline", opCreate, codes.DeadlineExceeded, "", host.ErrUnreachable},
		{"list, too large", opList, codes.ResourceExhausted, "received message larger than max", nil},
		{"list, not flintlock", opList, codes.Unimplemented, "unknown service", nil},
		{"list, UNKNOWN not found", opList, codes.Unknown, "namespace not found", nil},
		{"info, refused", opInfo, codes.Unauthenticated, "bad token", nil},
		{"get, connection closed", opGet, codes.Canceled, "the client connection is closing", host.ErrUnreachable},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := translate(c.op, status.Error(c.code, c.text), nil)
			for _, sentinel := range sentinels {
				if got, want := errors.Is(err, sentinel), sentinel == c.want; got != want { //nolint:errorlint // identity is meant
					t.Errorf("%v: is %q = %v, want %v", err, sentinel, got, want)
				}
			}
			if !strings.Contains(err.Error(), c.text) {
				t.Errorf("%v: the host's words are lost", err)
			}
		})
	}
}

// TestTranslateCancelled: what the caller itself ended says nothing about the host.
func TestTranslateCancelled(t *testing.T) {
	for _, op := range []op{opCreate, opGet, opList, opDelete, opInfo, opExec} {
		err := translate(op, status.Error(codes.Canceled, "context canceled"), context.Canceled)
		if !errors.Is(err, context.Canceled) || errors.Is(err, host.ErrUnreachable) {
			t.Errorf("op %d: %v, want context.Canceled alone", op, err)
		}
	}
}

// TestTranslateLate: at the deadline a host may be a little faster than our own timer, and has words of its own for it.
func TestTranslateLate(t *testing.T) {
	for _, c := range []struct {
		op   op
		code codes.Code
		text string
		want error
	}{
		{opExec, codes.Unknown, "reading guest-agent exec session: use of closed network connection", host.ErrExecTimeout},
		{opExec, codes.Canceled, "context canceled", host.ErrExecTimeout},
		{opList, codes.Unknown, "context deadline exceeded", host.ErrUnreachable},
		{opGet, codes.Unknown, "microvm spec not found", host.ErrNotFound}, // an answer is an answer
	} {
		if err := translate(c.op, status.Error(c.code, c.text), context.DeadlineExceeded); !errors.Is(err, c.want) {
			t.Errorf("%v, want %q", err, c.want)
		}
	}
}

func TestTranslateClipsTheHostsWords(t *testing.T) {
	err := translate(opGet, status.Error(codes.Unknown, strings.Repeat("é", maxText)), nil)
	if n := len(err.Error()); n > maxText+100 {
		t.Errorf("an error of %d bytes", n)
	}
}

func TestWholeSeconds(t *testing.T) {
	for d, want := range map[time.Duration]int32{
		-time.Second: 0, 0: 0, time.Nanosecond: 1, time.Second: 1, 1001 * time.Millisecond: 2, math.MaxInt64: 2147483647,
	} {
		if got := wholeSeconds(d); got != want {
			t.Errorf("%v: %d, want %d", d, got, want)
		}
	}
}
