package flintlockapi

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	microvmexecv1alpha1 "poolmgr/api/flintlock/microvmexec/v1alpha1"
	"poolmgr/internal/microvm"
)

const (
	// maxChunkBytes of output go into one message.
	maxChunkBytes = 32 << 10
	// maxWaitingChunks of output wait for a client that reads slowly; then the
	// command waits. One command holds at most a megabyte here.
	maxWaitingChunks = 32
	// timeoutGrace is how long after a command's own timeout the host ends the
	// call itself: the guest that should have ended it does not answer.
	timeoutGrace = 10 * time.Second
)

type (
	execStream   = grpc.BidiStreamingServer[microvmexecv1alpha1.ExecCommandRequest, microvmexecv1alpha1.ExecCommandResponse]
	execResponse = microvmexecv1alpha1.ExecCommandResponse
)

// execService is flintlock's service for commands.
type execService struct {
	microvmexecv1alpha1.UnimplementedMicroVMExecServer
	backend microvm.Backend
	log     *slog.Logger
}

// ExecCommand runs one command and carries its streams. What is wrong before the
// command starts is the call's status; a command that ran out of time is told in
// the stream, as its end. The command dies with the call.
func (s *execService) ExecCommand(stream execStream) error {
	first, err := stream.Recv()
	if errors.Is(err, io.EOF) {
		return status.Error(codes.InvalidArgument, "exec: the stream has no start")
	}
	if err != nil {
		return err
	}
	req, err := toExecRequest(first.GetStart())
	if err != nil {
		return err
	}
	if err := s.checkAgent(stream.Context(), req.UID); err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(stream.Context())
	defer cancel(nil)
	if req.Timeout > 0 {
		var stop context.CancelFunc
		ctx, stop = context.WithTimeoutCause(ctx, req.Timeout+timeoutGrace,
			fmt.Errorf("%w after %v, and its guest did not end it", microvm.ErrExecTimeout, req.Timeout))
		defer stop()
	}
	run := &execRun{stream: stream, ctx: ctx, cancel: cancel, chunks: make(chan *execResponse, maxWaitingChunks)}
	code, err := run.do(s.backend, req)
	return s.finish(stream, req, code, err)
}

// checkAgent refuses a machine that was made without a channel to its guest's
// agent, as a flintlockd must; our guests would answer.
func (s *execService) checkAgent(ctx context.Context, uid string) error {
	vm, err := s.backend.Get(ctx, uid)
	if err != nil {
		return toStatus(err)
	}
	if !vm.GetSpec().GetAllowGuestAgent() {
		return status.Errorf(codes.Unknown, "exec: microvm %s was created without allow_guest_agent", uid)
	}
	return nil
}

// finish sends the last message of the stream, or makes the error its status.
func (s *execService) finish(stream execStream, req microvm.ExecRequest, code int, err error) error {
	if err == nil {
		return stream.Send(&execResponse{Payload: &microvmexecv1alpha1.ExecCommandResponse_ExitCode{ExitCode: int32(code)}})
	}
	// The command's text may hold secrets: only the machine is logged.
	s.log.Debug("command in microvm did not end by itself", "uid", req.UID, "err", err)
	if errors.Is(err, microvm.ErrExecTimeout) {
		return stream.Send(&execResponse{Payload: &microvmexecv1alpha1.ExecCommandResponse_Error{Error: err.Error()}})
	}
	return toStatus(err)
}

func toExecRequest(start *microvmexecv1alpha1.ExecStart) (microvm.ExecRequest, error) {
	var fault string
	switch {
	case start == nil:
		fault = "the first message is not a start"
	case start.GetUid() == "":
		fault = "the start has no uid"
	case start.GetCmd() == "":
		fault = "the start has no cmd"
	case start.GetTimeoutSeconds() < 0:
		fault = fmt.Sprintf("timeout_seconds %d is negative", start.GetTimeoutSeconds())
	}
	if fault != "" {
		return microvm.ExecRequest{}, status.Error(codes.InvalidArgument, "exec: "+fault)
	}
	return microvm.ExecRequest{
		UID:      start.GetUid(),
		Cmd:      start.GetCmd(),
		Args:     start.GetArgs(),
		Cwd:      start.GetCwd(),
		Env:      start.GetEnv(),
		Shell:    start.GetShell(),
		User:     start.GetUser(),
		Timeout:  time.Duration(start.GetTimeoutSeconds()) * time.Second,
		HasStdin: start.GetHasStdin(),
	}, nil
}

// execRun is one command with its call. Three goroutines work for it: the
// handler's own sends, one runs the backend, and one, where there is input,
// receives. The first two end before do returns; the third ends with the stream,
// right after the handler, since nothing else ends a receive.
type execRun struct {
	stream execStream
	ctx    context.Context
	cancel context.CancelCauseFunc
	chunks chan *execResponse
}

// do runs the command to its end and sends its output.
func (r *execRun) do(backend microvm.Backend, req microvm.ExecRequest) (int, error) {
	input, feed := io.Pipe()
	defer input.Close() // ends a write of the receiver that nobody reads
	streams := microvm.ExecStreams{
		Stdout: chunkWriter{run: r, wrap: func(p []byte) *execResponse {
			return &execResponse{Payload: &microvmexecv1alpha1.ExecCommandResponse_Stdout{Stdout: p}}
		}},
		Stderr: chunkWriter{run: r, wrap: func(p []byte) *execResponse {
			return &execResponse{Payload: &microvmexecv1alpha1.ExecCommandResponse_Stderr{Stderr: p}}
		}},
	}
	if req.HasStdin {
		streams.Stdin = input
		// A command that reads must not wait for input that will never come.
		defer context.AfterFunc(r.ctx, func() { _ = input.CloseWithError(context.Cause(r.ctx)) })()
		go r.receive(feed)
	}

	type outcome struct {
		code int
		err  error
	}
	ended := make(chan outcome, 1)
	go func() {
		defer close(r.chunks)
		code, err := runGuarded(r.ctx, backend, req, streams)
		ended <- outcome{code, err}
	}()
	var sendErr error
	for chunk := range r.chunks {
		if sendErr != nil {
			continue // the client is gone: let the backend come to its end
		}
		if sendErr = r.stream.Send(chunk); sendErr != nil {
			r.cancel(sendErr)
		}
	}
	result := <-ended
	if sendErr != nil {
		return 0, sendErr
	}
	return result.code, result.err
}

// runGuarded turns a panic of a backend into an error of this one command: the
// server's own guard covers only the handler's goroutine.
func runGuarded(ctx context.Context, backend microvm.Backend, req microvm.ExecRequest, streams microvm.ExecStreams) (code int, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("exec in microvm %s: panic: %v: this is a bug", req.UID, p)
		}
	}()
	return backend.Exec(ctx, req, streams)
}

// receive feeds the command's standard input until the client ends it. A client
// that hangs up ends the stream's context, and so the command.
func (r *execRun) receive(feed *io.PipeWriter) {
	for {
		msg, err := r.stream.Recv()
		if errors.Is(err, io.EOF) {
			_ = feed.Close() // half-closed without a word: the same as stdin_eof
			return
		}
		if err != nil {
			_ = feed.CloseWithError(err)
			return
		}
		if data := msg.GetStdin(); len(data) > 0 {
			if _, err := feed.Write(data); err != nil {
				return // the command has ended, or does not read any more
			}
		}
		if msg.GetStdinEof() {
			_ = feed.Close()
			return
		}
		if msg.GetStart() != nil {
			r.cancel(status.Error(codes.InvalidArgument, "exec: a second start in one stream"))
			return
		}
	}
}

// chunkWriter passes output on in pieces. It blocks while the client is slow,
// and fails when the call is over.
type chunkWriter struct {
	run  *execRun
	wrap func([]byte) *execResponse
}

// Write implements io.Writer.
func (w chunkWriter) Write(p []byte) (int, error) {
	written := 0
	for written < len(p) {
		end := min(len(p), written+maxChunkBytes)
		chunk := w.wrap(append([]byte(nil), p[written:end]...)) // the writer may use p again
		select {
		case w.run.chunks <- chunk:
			written = end
		case <-w.run.ctx.Done():
			return written, context.Cause(w.run.ctx)
		}
	}
	return written, nil
}
