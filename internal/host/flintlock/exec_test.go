package flintlock_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"

	microvmexecv1alpha1 "poolmgr/api/flintlock/microvmexec/v1alpha1"
	"poolmgr/internal/host"
)

func TestExecEnds(t *testing.T) {
	broken := &stub{exec: func(execStream) error { return status.Error(codes.Unknown, "reading guest-agent exec session: EOF") }}
	for _, c := range []struct {
		name   string
		host   *stub
		code   int
		stderr string
		err    string // part of its text; empty = none
		is     error
	}{
		{name: "exit code", host: answering(exit(3)), code: 3},
		{name: "no exit code", host: answering(stdout("half")), err: "without an exit code"},
		{name: "nothing at all", host: answering(), err: "without an exit code"},
		{name: "broken off", host: broken, err: "reading guest-agent"},
		{name: "error and no more", host: answering(complaint("no pty")), err: "no pty"},
		{name: "error with an exit code", host: answering(complaint("no such user"), exit(126)), code: 126, stderr: "no such user\n"},
		{name: "time limit", host: answering(complaint("command timed out")), err: "timed out", is: host.ErrExecTimeout},
		{name: "time limit with a code", host: answering(complaint("command timed out"), exit(137)), err: "timed out", is: host.ErrExecTimeout},
		{name: "not switched on", host: &stub{}, err: "Unimplemented", is: host.ErrExecDisabled},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := newDriver(t, serveStub(t, c.host), quiet())
			var stderr bytes.Buffer
			code, err := d.Exec(t.Context(), host.ExecRequest{UID: "u", Cmd: "x"}, host.ExecStreams{Stderr: &stderr})
			if code != c.code || stderr.String() != c.stderr {
				t.Errorf("code %d, stderr %q; want %d, %q", code, stderr.String(), c.code, c.stderr)
			}
			if (err != nil) != (c.err != "") || (err != nil && !strings.Contains(err.Error(), c.err)) {
				t.Errorf("error %v, want one with %q", err, c.err)
			}
			if c.is != nil && !errors.Is(err, c.is) {
				t.Errorf("error %v is not %q", err, c.is)
			}
		})
	}
}

// TestExecErrorWithoutEnd: a host that reports an error and then says nothing more must not hold the call.
func TestExecErrorWithoutEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDriver(t, serveStub(t, &stub{exec: func(stream execStream) error {
			if err := stream.Send(complaint("lost the guest")); err != nil {
				return err
			}
			<-stream.Context().Done()
			return stream.Context().Err()
		}}), quiet())
		began := time.Now()
		_, err := d.Exec(t.Context(), host.ExecRequest{UID: "u", Cmd: "x"}, host.ExecStreams{})
		if err == nil || !strings.Contains(err.Error(), "lost the guest") {
			t.Errorf("error %v", err)
		}
		if took := time.Since(began); took > 10*time.Second {
			t.Errorf("it took %v", took)
		}
	})
}

// TestExecHangs: a command without an end is ended by the first of its limits, and its stream with it.
func TestExecHangs(t *testing.T) {
	for _, c := range []struct {
		name     string
		limit    time.Duration // of the command
		deadline time.Duration // of the caller; 0 = none
		want     time.Duration
	}{
		{"caller's deadline", 0, 3 * time.Second, 3 * time.Second},
		{"caller's deadline, later than the default", 0, time.Hour, time.Hour},
		{"the command's limit and a grace", 5 * time.Second, 0, 20 * time.Second},
		{"the default", 0, 0, host.ExecTimeout},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ended := make(chan struct{})
				d := newDriver(t, serveStub(t, &stub{exec: func(stream execStream) error {
					<-stream.Context().Done()
					close(ended)
					return nil
				}}), quiet())
				ctx := t.Context()
				if c.deadline > 0 {
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, c.deadline)
					defer cancel()
				}
				began := time.Now()
				_, err := d.Exec(ctx, host.ExecRequest{UID: "u", Cmd: "x", Timeout: c.limit}, host.ExecStreams{})
				if took := time.Since(began); took != c.want {
					t.Errorf("it took %v, want %v", took, c.want)
				}
				if !errors.Is(err, host.ErrExecTimeout) || errors.Is(err, host.ErrUnreachable) {
					t.Errorf("error %v, want ErrExecTimeout alone", err)
				}
				<-ended
			})
		})
	}
}

// TestExecSends: the start as the API wants it, the input in pieces, and its end.
func TestExecSends(t *testing.T) {
	got := make(chan []*request, 1)
	d := newDriver(t, serveStub(t, &stub{exec: func(stream execStream) error {
		var all []*request
		for {
			msg, err := stream.Recv()
			if errors.Is(err, io.EOF) {
				got <- all
				return stream.Send(exit(0))
			}
			if err != nil {
				return err
			}
			all = append(all, msg)
		}
	}}), quiet())
	req := host.ExecRequest{
		UID: "u1", Cmd: "sort", Args: []string{"-r"}, Cwd: "/tmp", Env: map[string]string{"A": "b"}, User: "nobody",
		Timeout: 1500 * time.Millisecond,
	}
	if _, err := d.Exec(t.Context(), req, host.ExecStreams{Stdin: strings.NewReader("b\na\n")}); err != nil {
		t.Fatal(err)
	}
	want := []*request{
		{Payload: &microvmexecv1alpha1.ExecCommandRequest_Start{Start: &microvmexecv1alpha1.ExecStart{
			Uid: "u1", Cmd: "sort", Args: []string{"-r"}, Cwd: "/tmp", Env: map[string]string{"A": "b"}, User: "nobody",
			TimeoutSeconds: 2, HasStdin: true,
		}}},
		{Payload: &microvmexecv1alpha1.ExecCommandRequest_Stdin{Stdin: []byte("b\na\n")}},
		{Payload: &microvmexecv1alpha1.ExecCommandRequest_StdinEof{StdinEof: true}},
	}
	if diff := cmp.Diff(want, <-got, protocmp.Transform()); diff != "" {
		t.Errorf("requests (-want +got):\n%s", diff)
	}
}

// TestExecInputFails: input that cannot be read is the caller's error, and the command does not go on without it.
func TestExecInputFails(t *testing.T) {
	ended := make(chan struct{})
	d := newDriver(t, serveStub(t, &stub{exec: func(stream execStream) error {
		<-stream.Context().Done()
		close(ended)
		return nil
	}}), quiet())
	broken := errors.New("disk on fire")
	_, err := d.Exec(t.Context(), host.ExecRequest{UID: "u", Cmd: "x"}, host.ExecStreams{Stdin: failingReader{broken}})
	if !errors.Is(err, broken) {
		t.Errorf("error %v, want the reader's", err)
	}
	<-ended
}

type failingReader struct{ err error }

func (r failingReader) Read([]byte) (int, error) { return 0, r.err }

// TestExecFlood: a command that prints for ever is held up by the slow reader, and ended by its caller.
func TestExecFlood(t *testing.T) {
	d := newDriver(t, serveStub(t, &stub{exec: func(stream execStream) error {
		for {
			if err := stream.Send(stdout(strings.Repeat("x", 32<<10))); err != nil {
				return err
			}
		}
	}}), quiet())
	ctx, cancel := context.WithCancel(t.Context())
	var tail host.Tail
	_, err := d.Exec(ctx, host.ExecRequest{UID: "u", Cmd: "yes"}, host.ExecStreams{Stdout: writerFunc(func(p []byte) (int, error) {
		cancel()
		return tail.Write(p)
	})})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want context.Canceled", err)
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }
