package flintlockapi

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	microvmexecv1alpha1 "poolmgr/api/flintlock/microvmexec/v1alpha1"
	"poolmgr/api/flintlock/vmtypes"
	"poolmgr/internal/microvm"
	"poolmgr/internal/microvm/simulated"
)

type clientStream = grpc.BidiStreamingClient[microvmexecv1alpha1.ExecCommandRequest, microvmexecv1alpha1.ExecCommandResponse]

// begin starts a command.
func begin(ctx context.Context, t *testing.T, conn *grpc.ClientConn, start *microvmexecv1alpha1.ExecStart) clientStream {
	t.Helper()
	stream, err := microvmexecv1alpha1.NewMicroVMExecClient(conn).ExecCommand(ctx)
	if err != nil {
		t.Fatal(err)
	}
	send(t, stream, &microvmexecv1alpha1.ExecCommandRequest{Payload: &microvmexecv1alpha1.ExecCommandRequest_Start{Start: start}})
	return stream
}

// send passes over the end of the stream: what ended it is read by receiving.
func send(t *testing.T, stream clientStream, req *microvmexecv1alpha1.ExecCommandRequest) {
	t.Helper()
	if err := stream.Send(req); err != nil && !errors.Is(err, io.EOF) {
		t.Errorf("send: %v", err)
	}
}

func stdin(p string) *microvmexecv1alpha1.ExecCommandRequest {
	return &microvmexecv1alpha1.ExecCommandRequest{Payload: &microvmexecv1alpha1.ExecCommandRequest_Stdin{Stdin: []byte(p)}}
}

func stdinEOF() *microvmexecv1alpha1.ExecCommandRequest {
	return &microvmexecv1alpha1.ExecCommandRequest{Payload: &microvmexecv1alpha1.ExecCommandRequest_StdinEof{StdinEof: true}}
}

// result is all that a stream tells.
type result struct {
	stdout, stderr string
	code           int32 // -1: none came
	failure        string
	err            error // the call's status; nil at a clean end
}

func finish(stream clientStream) result {
	var stdout, stderr bytes.Buffer
	r := result{code: -1}
	for {
		msg, err := stream.Recv()
		if err != nil {
			if !errors.Is(err, io.EOF) {
				r.err = err
			}
			r.stdout, r.stderr = stdout.String(), stderr.String()
			return r
		}
		switch p := msg.GetPayload().(type) {
		case *microvmexecv1alpha1.ExecCommandResponse_Stdout:
			stdout.Write(p.Stdout)
		case *microvmexecv1alpha1.ExecCommandResponse_Stderr:
			stderr.Write(p.Stderr)
		case *microvmexecv1alpha1.ExecCommandResponse_ExitCode:
			r.code = p.ExitCode
		case *microvmexecv1alpha1.ExecCommandResponse_Error:
			r.failure = p.Error
		}
	}
}

func TestExec(t *testing.T) {
	conn := serve(t, newSimulated(t, simulated.Config{}), Options{})
	uid := createVM(t, conn)

	got := finish(begin(within(t), t, conn, &microvmexecv1alpha1.ExecStart{Uid: uid, Cmd: "echo out; echo err >&2; exit 3", Shell: true}))
	if got != (result{stdout: "out\n", stderr: "err\n", code: 3}) {
		t.Errorf("both streams and a code: %+v", got)
	}

	for name, end := range map[string]func(clientStream){
		"told":        func(s clientStream) { send(t, s, stdinEOF()) },
		"half-closed": func(s clientStream) { _ = s.CloseSend() },
	} {
		stream := begin(within(t), t, conn, &microvmexecv1alpha1.ExecStart{Uid: uid, Cmd: "cat", HasStdin: true})
		large := strings.Repeat("0123456789abcdef", 4096)
		send(t, stream, stdin("first,"))
		send(t, stream, stdin(large))
		end(stream)
		if got := finish(stream); got.stdout != "first,"+large || got.code != 0 || got.err != nil {
			t.Errorf("input whose end is %s: %d bytes, code %d, %v", name, len(got.stdout), got.code, got.err)
		}
	}

	got = finish(begin(within(t), t, conn, &microvmexecv1alpha1.ExecStart{Uid: uid, Cmd: "cat"}))
	if got != (result{}) {
		t.Errorf("a command without input: %+v; want an empty input, and so its end", got)
	}

	// A command that ends without reading its input ends the call.
	stream := begin(within(t), t, conn, &microvmexecv1alpha1.ExecStart{Uid: uid, Cmd: "exit", Args: []string{"4"}, HasStdin: true})
	for range 100 {
		send(t, stream, stdin(strings.Repeat("x", 1024)))
	}
	if got := finish(stream); got.code != 4 || got.err != nil {
		t.Errorf("input that nobody reads: %+v", got)
	}
}

func TestExecThatCannotBegin(t *testing.T) {
	conn := serve(t, newSimulated(t, simulated.Config{Behaviour: simulated.Behaviour{BootDelay: time.Hour}}), Options{})
	pending := createVM(t, conn)
	for name, c := range map[string]struct {
		start *microvmexecv1alpha1.ExecStart
		code  codes.Code
		text  string
	}{
		"unknown uid":      {&microvmexecv1alpha1.ExecStart{Uid: "none", Cmd: "true"}, codes.Unknown, "microvm not found"},
		"still booting":    {&microvmexecv1alpha1.ExecStart{Uid: pending, Cmd: "true"}, codes.Unknown, "not running"},
		"no uid":           {&microvmexecv1alpha1.ExecStart{Cmd: "true"}, codes.InvalidArgument, "no uid"},
		"no command":       {&microvmexecv1alpha1.ExecStart{Uid: pending}, codes.InvalidArgument, "no cmd"},
		"negative timeout": {&microvmexecv1alpha1.ExecStart{Uid: pending, Cmd: "true", TimeoutSeconds: -1}, codes.InvalidArgument, "negative"},
	} {
		got := finish(begin(within(t), t, conn, c.start))
		if status.Code(got.err) != c.code || !strings.Contains(status.Convert(got.err).Message(), c.text) {
			t.Errorf("%s: %v; want %v with %q", name, got.err, c.code, c.text)
		}
	}
	stream, err := microvmexecv1alpha1.NewMicroVMExecClient(conn).ExecCommand(within(t))
	if err != nil {
		t.Fatal(err)
	}
	send(t, stream, stdin("too early"))
	if got := finish(stream); status.Code(got.err) != codes.InvalidArgument {
		t.Errorf("input before the start: %v, want INVALID_ARGUMENT", got.err)
	}
	stream, err = microvmexecv1alpha1.NewMicroVMExecClient(conn).ExecCommand(within(t))
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	if got := finish(stream); status.Code(got.err) != codes.InvalidArgument {
		t.Errorf("no start at all: %v, want INVALID_ARGUMENT", got.err)
	}
}

func TestExecNeedsTheAgentsChannel(t *testing.T) {
	backend := newSimulated(t, simulated.Config{})
	conn := serve(t, backend, Options{})
	spec := goodSpec()
	spec.AllowGuestAgent = false
	vm, err := backend.Create(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	got := finish(begin(within(t), t, conn, &microvmexecv1alpha1.ExecStart{Uid: vm.GetSpec().GetUid(), Cmd: "true"}))
	if status.Code(got.err) != codes.Unknown || !strings.Contains(got.err.Error(), "allow_guest_agent") {
		t.Errorf("exec: %v", got.err)
	}
}

func TestExecSwitchedOff(t *testing.T) {
	conn := serve(t, newSimulated(t, simulated.Config{}), Options{DisableExec: true})
	got := finish(begin(within(t), t, conn, &microvmexecv1alpha1.ExecStart{Uid: "none", Cmd: "true"}))
	if status.Code(got.err) != codes.Unimplemented {
		t.Errorf("exec: %v, want UNIMPLEMENTED", got.err)
	}
}

func TestExecTimeoutIsTheStreamsEnd(t *testing.T) {
	conn := serve(t, newSimulated(t, simulated.Config{}), Options{})
	uid := createVM(t, conn)
	got := finish(begin(within(t), t, conn, &microvmexecv1alpha1.ExecStart{Uid: uid, Cmd: "echo begun; hang", Shell: true, TimeoutSeconds: 1}))
	if got.err != nil || got.stdout != "begun\n" || got.code != -1 || !strings.Contains(got.failure, "timed out") {
		t.Errorf("a command over its limit: %+v", got)
	}
}

// watched tells when a command begins and ends, and can be one that panics.
type watched struct {
	microvm.Backend
	begun, ended chan struct{}
	exec         func(context.Context, microvm.ExecStreams) (int, error)
}

func watch(exec func(context.Context, microvm.ExecStreams) (int, error)) watched {
	return watched{begun: make(chan struct{}), ended: make(chan struct{}), exec: exec}
}

func (watched) Get(context.Context, string) (*vmtypes.MicroVM, error) {
	return &vmtypes.MicroVM{Spec: goodSpec()}, nil
}

func (w watched) Exec(ctx context.Context, _ microvm.ExecRequest, streams microvm.ExecStreams) (int, error) {
	close(w.begun)
	defer close(w.ended)
	return w.exec(ctx, streams)
}

func waitFor(t *testing.T, what string, c <-chan struct{}) {
	t.Helper()
	select {
	case <-c:
	case <-within(t).Done():
		t.Fatal("waited too long until ", what)
	}
}

func TestExecEndsWithItsClient(t *testing.T) {
	for name, exec := range map[string]func(context.Context, microvm.ExecStreams) (int, error){
		"silent": func(ctx context.Context, _ microvm.ExecStreams) (int, error) {
			<-ctx.Done()
			return 0, ctx.Err()
		},
		"reading": func(_ context.Context, s microvm.ExecStreams) (int, error) {
			_, err := io.Copy(io.Discard, s.Stdin)
			return 0, err
		},
		"writing": func(_ context.Context, s microvm.ExecStreams) (int, error) {
			for {
				if _, err := s.Stdout.Write(make([]byte, 100_000)); err != nil {
					return 0, err
				}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			backend := watch(exec)
			conn := serve(t, backend, Options{})
			ctx, cancel := context.WithCancel(within(t))
			stream := begin(ctx, t, conn, &microvmexecv1alpha1.ExecStart{Uid: "u", Cmd: "c", HasStdin: true})
			waitFor(t, "the command begins", backend.begun)
			cancel()
			waitFor(t, "the command ends", backend.ended)
			if got := finish(stream); status.Code(got.err) != codes.Canceled {
				t.Errorf("the call: %v", got.err)
			}
		})
	}
}

func TestOutputIsBoundedWhileNobodyReads(t *testing.T) {
	written, stuck := 0, make(chan struct{})
	backend := watch(func(ctx context.Context, s microvm.ExecStreams) (int, error) {
		for {
			wrote := make(chan error, 1)
			go func() {
				_, err := s.Stdout.Write(make([]byte, maxChunkBytes))
				wrote <- err
			}()
			select {
			case err := <-wrote:
				if err != nil {
					return 0, err
				}
				written += maxChunkBytes
			case <-time.After(500 * time.Millisecond): // blocked: nothing else takes that long
				close(stuck)
				return 0, <-wrote
			}
		}
	})
	conn := serve(t, backend, Options{})
	ctx, cancel := context.WithCancel(within(t))
	defer cancel()
	begin(ctx, t, conn, &microvmexecv1alpha1.ExecStart{Uid: "u", Cmd: "c"})
	waitFor(t, "the writer is held up", stuck)
	// What gRPC itself lets pass before the client reads is its window.
	if bound := maxChunkBytes*(maxWaitingChunks+1) + 4<<20; written > bound {
		t.Errorf("%d bytes were taken for a client that reads nothing, more than %d", written, bound)
	}
	cancel()
	waitFor(t, "the command ends", backend.ended)
}

func TestAPanicOfABackendIsOneCommandsError(t *testing.T) {
	conn := serve(t, watch(func(context.Context, microvm.ExecStreams) (int, error) { panic("boom") }), Options{})
	got := finish(begin(within(t), t, conn, &microvmexecv1alpha1.ExecStart{Uid: "u", Cmd: "c"}))
	if status.Code(got.err) != codes.Unknown || !strings.Contains(got.err.Error(), "bug") {
		t.Errorf("the call: %v", got.err)
	}
}

func TestASecondStartEndsTheCommand(t *testing.T) {
	backend := watch(func(ctx context.Context, _ microvm.ExecStreams) (int, error) {
		<-ctx.Done()
		return 0, context.Cause(ctx)
	})
	conn := serve(t, backend, Options{})
	stream := begin(within(t), t, conn, &microvmexecv1alpha1.ExecStart{Uid: "u", Cmd: "c", HasStdin: true})
	send(t, stream, &microvmexecv1alpha1.ExecCommandRequest{
		Payload: &microvmexecv1alpha1.ExecCommandRequest_Start{Start: &microvmexecv1alpha1.ExecStart{Uid: "u", Cmd: "d"}},
	})
	if got := finish(stream); status.Code(got.err) != codes.InvalidArgument {
		t.Errorf("the call: %v, want INVALID_ARGUMENT", got.err)
	}
}
