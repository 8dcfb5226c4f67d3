package client

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/hashicorp/yamux"

	"poolmgr/internal/microvm/guest/wire"
)

// timeoutGrace is how much longer than a command's own limit the host waits
// for the guest to say that it is over: a loaded guest is late, a dead one
// never says it.
const timeoutGrace = 15 * time.Second

// Streams are a command's standard streams; a nil writer discards.
type Streams struct {
	Stdin          io.Reader
	Stdout, Stderr io.Writer
}

// Exec runs a command and returns its exit code. The command is killed when
// ctx ends. A Read of Stdin that is under way when the command ends is not
// waited for: whoever gave the reader should make it return.
func (c *Client) Exec(ctx context.Context, req wire.Exec, streams Streams) (int, error) {
	if limit := req.Timeout(); limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, limit+timeoutGrace, ErrTimeout)
		defer cancel()
	}
	req.ID = rand.Text()
	req.HasStdin = streams.Stdin != nil
	stream, err := c.open(ctx)
	if err != nil {
		return 0, err
	}
	defer stream.Close()
	defer expireWith(ctx, stream)()
	out := wire.NewFrameWriter(stream)
	if err := out.WriteRequest(wire.Request{Op: wire.OpExec, Exec: &req}); err != nil {
		return 0, broken(ctx, "exec", err)
	}
	if streams.Stdin != nil {
		go sendStdin(out, streams.Stdin) // ends with the reader, or at the first write after the stream's end
	}
	code, ended, err := receive(ctx, stream, streams)
	if !ended {
		c.abandon(req.ID)
	}
	return code, err
}

// sendStdin sends everything that the reader gives, then its end. A failure of
// the reader counts as its end; one of the stream shows where it is read.
func sendStdin(out *wire.FrameWriter, stdin io.Reader) {
	to := struct{ io.Writer }{out.Stream(wire.FrameStdin)} // without the short cuts of io.Copy
	_, _ = io.CopyBuffer(to, struct{ io.Reader }{stdin}, make([]byte, wire.ChunkSize/2))
	_ = out.WriteFrame(wire.FrameStdinEOF, nil)
}

// receive carries the command's output until it ends. Not ended means that the
// command may be running still.
func receive(ctx context.Context, stream *yamux.Stream, streams Streams) (code int, ended bool, err error) {
	for {
		frame, payload, err := wire.ReadFrame(stream, wire.MaxPayload)
		if err != nil {
			return 0, false, broken(ctx, "exec", err)
		}
		switch frame {
		case wire.FrameStdout:
			err = write(streams.Stdout, payload)
		case wire.FrameStderr:
			err = write(streams.Stderr, payload)
		case wire.FrameExit:
			code, err := wire.ExitCode(payload)
			return code, true, err
		case wire.FrameError:
			return 0, true, failure(ctx, payload)
		default:
			err = fmt.Errorf("frame of type %d: %w", frame, wire.ErrUnexpectedFrame)
		}
		if err != nil {
			return 0, false, fmt.Errorf("carry the command's output: %w", err)
		}
	}
}

func write(w io.Writer, p []byte) error {
	if w == nil {
		return nil
	}
	_, err := w.Write(p)
	return err
}

func failure(ctx context.Context, payload []byte) error {
	f := wire.DecodeFailure(payload)
	switch {
	case f.Code == wire.FailureTimeout:
		return fmt.Errorf("exec: %w: %w", ErrTimeout, f)
	case f.Code == wire.FailureKilled && ctx.Err() != nil:
		return fmt.Errorf("exec: %w", context.Cause(ctx))
	}
	return fmt.Errorf("exec: %w", f)
}

// abandon kills a command that nobody waits for any more, in the background.
func (c *Client) abandon(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || c.session == nil || c.session.IsClosed() {
		return // the session's end kills it
	}
	session := c.session
	c.kills.Go(func() {
		if err := kill(session, id); err != nil && !errors.Is(err, yamux.ErrSessionShutdown) {
			c.log.Warn("an abandoned command may still run in the guest", "error", err)
		}
	})
}

func kill(session *yamux.Session, id string) error {
	stream, err := session.OpenStream()
	if err != nil {
		return err
	}
	defer stream.Close()
	stream.SetDeadline(time.Now().Add(killTimeout))
	if err := wire.NewFrameWriter(stream).WriteRequest(wire.Request{Op: wire.OpKill, Kill: &wire.Kill{ID: id}}); err != nil {
		return err
	}
	_, _, err = wire.ReadFrame(stream, answerLimit)
	return err
}
