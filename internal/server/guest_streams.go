package server

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	pb "poolmgr/api/poolmgr/v1alpha1"
	"poolmgr/internal/pool"
)

// execChunk is the largest piece of output in one message, in bytes.
const execChunk = 32 << 10

// execOutput sends output as it comes; a stream takes one message at a time.
type execOutput struct {
	stream pb.Guest_ExecServer

	mu     sync.Mutex
	failed error // why the caller gets nothing more
}

func (o *execOutput) send(m *pb.GuestExecResponse) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.failed == nil {
		o.failed = o.stream.Send(m)
	}
	return o.failed
}

func stdout(p []byte) *pb.GuestExecResponse {
	return &pb.GuestExecResponse{Payload: &pb.GuestExecResponse_Stdout{Stdout: p}}
}

func stderr(p []byte) *pb.GuestExecResponse {
	return &pb.GuestExecResponse{Payload: &pb.GuestExecResponse_Stderr{Stderr: p}}
}

func (o *execOutput) writer(wrap func([]byte) *pb.GuestExecResponse) io.Writer {
	return writerFunc(func(p []byte) (int, error) {
		for sent := 0; sent < len(p); sent += execChunk {
			if err := o.send(wrap(p[sent:min(sent+execChunk, len(p))])); err != nil {
				return sent, err
			}
		}
		return len(p), nil
	})
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// execInput is what the caller sends: a goroutine reads it for as long as the stream lives, so that a caller who breaks
// the rules or goes away ends the command whether or not the command reads its input.
type execInput struct {
	stream pb.Guest_ExecServer
	end    context.CancelCauseFunc // ends the command
	start  chan *pb.GuestExecStart // has room for one
	pipe   *io.PipeReader          // the command's input
	feed   *io.PipeWriter
}

func newExecInput(stream pb.Guest_ExecServer, end context.CancelCauseFunc) *execInput {
	in := &execInput{stream: stream, end: end, start: make(chan *pb.GuestExecStart, 1)}
	in.pipe, in.feed = io.Pipe()
	return in
}

// close has read stop feeding a command that is over. What is still to come of the stream ends with its handler.
func (i *execInput) close() { _ = i.pipe.Close() } // never fails

// await is the first message, within a time limit.
func (i *execInput) await(ctx context.Context) (*pb.GuestExecStart, error) {
	limit := time.NewTimer(startLimit)
	defer limit.Stop()
	select {
	case start := <-i.start:
		return start, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	case <-limit.C:
		return nil, pool.Errorf(pool.CodeDeadline, "no start came within %s; send it as the first message", startLimit)
	}
}

// read takes messages until the caller has no more, goes away, or breaks the rules.
func (i *execInput) read() {
	err := i.readAll()
	if err != nil {
		i.end(err)
	}
	_ = i.feed.CloseWithError(err) // without one it is the end of the input; never fails
}

func (i *execInput) readAll() error {
	first, err := i.stream.Recv()
	switch {
	case errors.Is(err, io.EOF), err == nil && first.GetStart() == nil:
		return pool.Errorf(pool.CodeInvalid, "the first message must be a start, with lease_id and cmd")
	case err != nil:
		return err
	}
	i.start <- first.GetStart()
	open := first.GetStart().GetHasStdin()
	for {
		m, err := i.stream.Recv()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
		if open, err = i.take(m, open); err != nil {
			return err
		}
	}
}

// take feeds one message to the command; open says whether it has input, and whether there may be more.
func (i *execInput) take(m *pb.GuestExecRequest, open bool) (bool, error) {
	switch p := m.GetPayload().(type) {
	case *pb.GuestExecRequest_StdinEof:
		_ = i.feed.Close() // never fails
		return false, nil
	case *pb.GuestExecRequest_Stdin:
		if !open {
			return false, pool.Errorf(pool.CodeInvalid, "stdin came, but the start had no has_stdin, or stdin_eof came before")
		}
		// A command that is over takes nothing more; that is no fault of the caller's.
		if _, err := i.feed.Write(p.Stdin); err != nil && !errors.Is(err, io.ErrClosedPipe) {
			return false, err
		}
		return true, nil
	case *pb.GuestExecRequest_Start:
		return false, pool.Errorf(pool.CodeInvalid, "a stream runs one command: a second start is not allowed")
	default:
		return false, pool.Errorf(pool.CodeInvalid, "a message without start, stdin or stdin_eof")
	}
}
