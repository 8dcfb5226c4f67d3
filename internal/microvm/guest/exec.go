package guest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"github.com/hashicorp/yamux"

	"poolmgr/internal/microvm/guest/wire"
)

// Reasons for which a running command is killed.
var (
	errTimeout = errors.New("the command's time is up")
	errKilled  = errors.New("the host asked to kill the command")
)

// exec runs one command on its stream and answers how it ended.
func (s *session) exec(ctx context.Context, stream *yamux.Stream, out *wire.FrameWriter, req wire.Exec) error {
	select {
	case s.slots <- struct{}{}:
		defer func() { <-s.slots }()
	default:
		return out.WriteFailure(wire.FailureBusy, fmt.Sprintf("%d commands are running already", maxCommands))
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer s.register(req.ID, cancel)()

	stderr := out.Stream(wire.FrameStderr)
	cmd, err := command(req)
	if err != nil {
		fmt.Fprintf(stderr, "poolmgr-guest: %v\n", err)
		return out.WriteExit(wire.ExitSetupFailed)
	}
	c, err := newConduits(cmd, out)
	if err != nil {
		fmt.Fprintf(stderr, "poolmgr-guest: %v\n", err)
		return out.WriteExit(wire.ExitSetupFailed)
	}
	defer c.close()
	if err := s.agent.Processes.Start(cmd); err != nil {
		fmt.Fprintf(stderr, "poolmgr-guest: %v\n", err)
		return out.WriteExit(wire.ExitNotStarted)
	}
	c.closeChildEnds()
	if limit := req.Timeout(); limit > 0 {
		timer := time.AfterFunc(limit, func() { cancel(errTimeout) })
		defer timer.Stop()
	}
	if !req.HasStdin {
		c.stdin.Close()
	}
	return s.supervise(ctx, stream, out, c, cmd, cancel)
}

// supervise carries the streams of a started command, kills it when its time
// is up or nobody wants it any more, and answers its end.
func (s *session) supervise(ctx context.Context, stream *yamux.Stream, out *wire.FrameWriter, c *conduits,
	cmd *exec.Cmd, cancel context.CancelCauseFunc,
) error {
	var pumps, stdin sync.WaitGroup
	pumps.Go(c.stdout.run)
	pumps.Go(c.stderr.run)
	stdin.Go(func() { pumpStdin(stream, c.stdin, cancel) })

	exited := make(chan error, 1)
	go func() { exited <- s.agent.Processes.Wait(cmd) }() // ends with the process, which is killed below
	var waitErr, cause error
	select {
	case waitErr = <-exited:
	case <-ctx.Done():
		cause = context.Cause(ctx)
		syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		waitErr = <-exited
		// Output that nobody reads must hold up neither the answer nor the end.
		deadline := time.Now()
		if errors.Is(cause, errTimeout) {
			deadline = deadline.Add(answerTimeout)
		}
		stream.SetWriteDeadline(deadline)
	}
	c.stdout.finish()
	c.stderr.finish()
	pumps.Wait()
	err := writeEnd(out, waitErr, cause)
	stream.SetReadDeadline(time.Now()) // the reader of stdin is no longer needed
	c.stdin.Close()
	stdin.Wait()
	return err
}

func writeEnd(out *wire.FrameWriter, waitErr, cause error) error {
	switch {
	case errors.Is(cause, errTimeout):
		return out.WriteFailure(wire.FailureTimeout, "the command ran longer than its limit and was killed")
	case cause != nil:
		return out.WriteFailure(wire.FailureKilled, "the command was killed")
	}
	return out.WriteExit(exitCode(waitErr))
}

// exitCode translates the end of a process as a shell does.
func exitCode(waitErr error) int {
	if waitErr == nil {
		return 0
	}
	var exit *exec.ExitError
	if !errors.As(waitErr, &exit) {
		return wire.ExitSetupFailed // it ran, and how it ended could not be learned
	}
	if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return wire.ExitSignalBase + int(status.Signal())
	}
	return exit.ExitCode()
}

// pumpStdin gives the host's stdin frames to the process. When the host closes
// its stream, or breaks the rules, nobody waits for the command any more.
func pumpStdin(stream *yamux.Stream, stdin *os.File, cancel context.CancelCauseFunc) {
	broken := false
	for {
		frame, payload, err := wire.ReadFrame(stream, wire.MaxPayload)
		if errors.Is(err, yamux.ErrTimeout) || errors.Is(err, os.ErrDeadlineExceeded) {
			return // the command has ended
		}
		if err != nil {
			cancel(fmt.Errorf("read standard input: %w", err))
			return
		}
		switch frame {
		case wire.FrameStdin:
			if !broken {
				_, err := stdin.Write(payload)
				broken = err != nil // the process reads no more; go on to notice the host's end
			}
		case wire.FrameStdinEOF:
			stdin.Close()
			broken = true
		default:
			cancel(fmt.Errorf("frame of type %d while a command runs: %w", frame, wire.ErrUnexpectedFrame))
			return
		}
	}
}
