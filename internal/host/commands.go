package host

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// stderrTail bounds what is kept of a command's error output, in bytes.
const stderrTail = 4 << 10

// CommandFailure is a hook command that ended with another code than 0, or did not end in time.
type CommandFailure struct {
	Command    string
	ExitCode   int // -1 when it was ended by its time limit
	StderrTail string
}

// Error says what failed, with the end of its error output.
func (f *CommandFailure) Error() string {
	what := fmt.Sprintf("command %q exited with %d", f.Command, f.ExitCode)
	if f.ExitCode < 0 {
		what = fmt.Sprintf("command %q did not end in time", f.Command)
	}
	if f.StderrTail == "" {
		return what
	}
	return what + ": " + f.StderrTail
}

// RunCommands runs shell lines inside a guest in order, with a time limit for each, and stops at the first failure.
// The error is a *CommandFailure when a command failed; anything else means that the outcome is not known (the host
// was lost, or ctx ended).
func RunCommands(ctx context.Context, d Driver, uid string, commands []string, limit time.Duration) error {
	for _, line := range commands {
		if err := runCommand(ctx, d, uid, line, limit); err != nil {
			return err
		}
	}
	return nil
}

func runCommand(ctx context.Context, d Driver, uid, line string, limit time.Duration) error {
	// The guest enforces the limit; the call gets a little longer, so that the guest's answer arrives.
	call, cancel := context.WithTimeout(ctx, limit+5*time.Second)
	defer cancel()
	var tail Tail
	code, err := d.Exec(call, ExecRequest{UID: uid, Cmd: line, Shell: true, Timeout: limit}, ExecStreams{Stderr: &tail})
	switch {
	case err == nil && code == 0:
		return nil
	case err == nil:
		return &CommandFailure{Command: line, ExitCode: code, StderrTail: tail.String()}
	case ctx.Err() != nil:
		return fmt.Errorf("run %q in vm %s: %w", line, uid, ctx.Err())
	case errors.Is(err, ErrExecTimeout), errors.Is(call.Err(), context.DeadlineExceeded):
		return &CommandFailure{Command: line, ExitCode: -1, StderrTail: tail.String()}
	default:
		return fmt.Errorf("run %q in vm %s: %w", line, uid, err)
	}
}

// Tail is a writer that keeps the last few kilobytes of what is written to it. It is not safe for concurrent use.
type Tail struct{ buf []byte }

// Write never fails.
func (t *Tail) Write(p []byte) (int, error) {
	t.buf = append(t.buf, p...)
	if over := len(t.buf) - stderrTail; over > 0 {
		t.buf = append(t.buf[:0], t.buf[over:]...)
	}
	return len(p), nil
}

// String is what was kept.
func (t *Tail) String() string { return string(t.buf) }
