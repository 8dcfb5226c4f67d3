package flintlock

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	microvmexecv1alpha1 "poolmgr/api/flintlock/microvmexec/v1alpha1"
	"poolmgr/internal/host"
)

const (
	stdinChunk = 32 << 10 // bytes of input in one message

	// answerGrace is how much longer than the command's own limit its call may take, so that the guest's answer about
	// it arrives; microvmd gives its guests 10 s.
	answerGrace = 15 * time.Second

	// complaintGrace is how long the exit code may take after the host reported an error; where there is none, the
	// report is all that will come.
	complaintGrace = 5 * time.Second
)

// Exec implements host.Driver.
func (d *Driver) Exec(ctx context.Context, req host.ExecRequest, streams host.ExecStreams) (int, error) {
	defer closeInput(streams.Stdin)
	ctx, cancel := execDeadline(ctx, req)
	defer cancel()
	ctx, leave := d.join(ctx)
	defer leave()
	doing := "run a command in vm " + req.UID // the command itself may hold secrets

	release, err := d.lanes.forExec(ctx).enter(ctx)
	if err != nil {
		return 0, fmt.Errorf("%s on host %s: %w", doing, d.name, d.cause(err))
	}
	defer release()
	pass, err := d.breaker.admit(time.Now(), false)
	if err != nil {
		return 0, fmt.Errorf("%s on host %s: %w", doing, d.name, err)
	}
	s := newSession(ctx, streams)
	code, err := s.run(d.execs, req)
	d.settle(pass, s.verdict)
	if err != nil {
		return 0, fmt.Errorf("%s on host %s: %w", doing, d.name, d.cause(err))
	}
	return code, nil
}

// execDeadline gives a call its end: some time after the command's own limit, or the default where nothing limits it.
func execDeadline(ctx context.Context, req host.ExecRequest) (context.Context, context.CancelFunc) {
	if req.Timeout > 0 {
		return context.WithTimeout(ctx, min(req.Timeout, math.MaxInt64-answerGrace)+answerGrace)
	}
	if _, ok := ctx.Deadline(); ok {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, host.ExecTimeout)
}

// session is one command with its streams. It keeps no output: what arrives is written on at once, and a slow writer
// holds the host's sending up through the stream's flow control.
type session struct {
	outer   context.Context // the call's, without our own reasons to end it
	ctx     context.Context // the stream's
	cancel  context.CancelCauseFunc
	streams host.ExecStreams
	stream  grpc.BidiStreamingClient[microvmexecv1alpha1.ExecCommandRequest, microvmexecv1alpha1.ExecCommandResponse]

	complaint string // what the host reported instead of, or before, an exit code
	verdict   verdict
}

func newSession(outer context.Context, streams host.ExecStreams) *session {
	ctx, cancel := context.WithCancelCause(outer)
	if streams.Stdout == nil {
		streams.Stdout = io.Discard
	}
	if streams.Stderr == nil {
		streams.Stderr = io.Discard
	}
	return &session{outer: outer, ctx: ctx, cancel: cancel, streams: streams}
}

// errOver ends the stream of a command that is over. Ending it always is what frees the stream's resources.
var errOver = errors.New("the command is over")

func (s *session) run(client microvmexecv1alpha1.MicroVMExecClient, req host.ExecRequest) (int, error) {
	defer s.cancel(errOver)
	stream, err := client.ExecCommand(s.ctx)
	if err != nil {
		return 0, s.failed(err)
	}
	s.stream = stream
	// A failed send says only that the stream has ended (io.EOF); the receiver below learns why.
	if err := stream.Send(startMessage(req, s.streams.Stdin != nil)); err != nil && !errors.Is(err, io.EOF) {
		return 0, s.failed(err)
	}
	if s.streams.Stdin == nil {
		if err := stream.CloseSend(); err != nil {
			return 0, s.failed(err)
		}
		return s.receive()
	}
	stop := s.feed()
	defer stop()
	return s.receive()
}

// feed starts the goroutine that sends the input. stop ends it, and waits for it where its Read can be ended.
func (s *session) feed() (stop func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.pump()
	}()
	return func() {
		s.cancel(errOver)
		if closeInput(s.streams.Stdin) {
			<-done
		}
	}
}

// closeInput ends a Read of the input that waits, where that is possible.
func closeInput(stdin io.Reader) bool {
	closer, ok := stdin.(io.Closer)
	if ok {
		_ = closer.Close() // only its Read is to end
	}
	return ok
}

// pump sends the input until it ends or the stream does.
func (s *session) pump() {
	buf := make([]byte, stdinChunk)
	for {
		n, err := s.streams.Stdin.Read(buf)
		if n > 0 {
			chunk := &microvmexecv1alpha1.ExecCommandRequest_Stdin{Stdin: bytes.Clone(buf[:n])}
			if s.stream.Send(&microvmexecv1alpha1.ExecCommandRequest{Payload: chunk}) != nil {
				return // the receiver learns why
			}
		}
		switch {
		case err == nil:
		case errors.Is(err, io.EOF):
			end := &microvmexecv1alpha1.ExecCommandRequest_StdinEof{StdinEof: true}
			if s.stream.Send(&microvmexecv1alpha1.ExecCommandRequest{Payload: end}) == nil {
				_ = s.stream.CloseSend() // as above
			}
			return
		default:
			s.cancel(fmt.Errorf("read the command's input: %w", err))
			return
		}
	}
}

// receive passes the output on until the exit code arrives.
func (s *session) receive() (int, error) {
	for {
		msg, err := s.stream.Recv()
		if err != nil {
			return 0, s.failed(err)
		}
		s.verdict = reached
		switch p := msg.GetPayload().(type) {
		case *microvmexecv1alpha1.ExecCommandResponse_Stdout:
			if _, err := s.streams.Stdout.Write(p.Stdout); err != nil {
				return 0, fmt.Errorf("pass the command's output on: %w", err)
			}
		case *microvmexecv1alpha1.ExecCommandResponse_Stderr:
			if _, err := s.streams.Stderr.Write(p.Stderr); err != nil {
				return 0, fmt.Errorf("pass the command's error output on: %w", err)
			}
		case *microvmexecv1alpha1.ExecCommandResponse_Error:
			s.complain(p.Error)
		case *microvmexecv1alpha1.ExecCommandResponse_ExitCode:
			return s.exited(int(p.ExitCode))
		}
	}
}

// complain keeps the host's first report of an error and gives the exit code a little time to follow.
func (s *session) complain(text string) {
	if s.complaint != "" || text == "" {
		return
	}
	s.complaint = clip(text)
	timer := time.AfterFunc(complaintGrace, func() { s.cancel(errOver) })
	context.AfterFunc(s.ctx, func() { timer.Stop() })
}

// exited is the command's end as it should be. What the host reported on the way explains a code like 126.
func (s *session) exited(code int) (int, error) {
	if s.complaint != "" {
		if errors.Is(execText(s.complaint), host.ErrExecTimeout) {
			return 0, fmt.Errorf("%w: %s", host.ErrExecTimeout, s.complaint)
		}
		if _, err := fmt.Fprintln(s.streams.Stderr, s.complaint); err != nil {
			return 0, fmt.Errorf("pass the command's error output on: %w", err)
		}
	}
	return code, nil
}

// failed is the end of a stream that brought no exit code. Its verdict counts against the host only where the
// connection failed: a missing answer may be the guest's silence.
func (s *session) failed(err error) error {
	switch code := status.Code(err); {
	case s.verdict == reached:
	case code == codes.Unavailable:
		s.verdict = missed
	case errors.Is(err, io.EOF), code != codes.DeadlineExceeded && code != codes.Canceled:
		s.verdict = reached
	}
	cause := context.Cause(s.ctx)
	switch {
	case s.complaint != "":
		if sentinel := execText(s.complaint); sentinel != nil {
			return fmt.Errorf("%w: %s", sentinel, s.complaint)
		}
		return fmt.Errorf("the host reported: %s", s.complaint)
	case cause != nil && s.outer.Err() == nil && !errors.Is(cause, errOver):
		return cause // our own reason, such as an input that cannot be read
	case errors.Is(err, io.EOF) && errors.Is(ended(s.outer), context.DeadlineExceeded):
		return tooLate(opExec, "the host ended the stream at the deadline")
	case errors.Is(err, io.EOF):
		return errors.New("the host ended the stream without an exit code; whether the command ran is not known")
	default:
		return translate(opExec, err, ended(s.outer))
	}
}

func startMessage(req host.ExecRequest, hasStdin bool) *microvmexecv1alpha1.ExecCommandRequest {
	return &microvmexecv1alpha1.ExecCommandRequest{Payload: &microvmexecv1alpha1.ExecCommandRequest_Start{
		Start: &microvmexecv1alpha1.ExecStart{
			Uid:            req.UID,
			Cmd:            req.Cmd,
			Args:           req.Args,
			Cwd:            req.Cwd,
			Env:            req.Env,
			Shell:          req.Shell,
			User:           req.User,
			TimeoutSeconds: wholeSeconds(req.Timeout),
			HasStdin:       hasStdin,
		},
	}}
}

// wholeSeconds rounds up: 0.2 s must not become 0, which means no limit.
func wholeSeconds(d time.Duration) int32 {
	if d <= 0 {
		return 0
	}
	seconds := d / time.Second
	if d%time.Second > 0 {
		seconds++
	}
	return int32(min(seconds, math.MaxInt32)) // bounded by the line itself
}
