package simulated

import (
	"context"
	"fmt"
	"strings"
	"time"

	"poolmgr/internal/microvm"
)

// Exec runs a command in a machine's pretended guest. It returns when the
// command has ended, ctx or the timeout is over, or the guest is no more.
func (b *Backend) Exec(ctx context.Context, req microvm.ExecRequest, streams microvm.ExecStreams) (int, error) {
	r, alive, nth, err := b.enter(req)
	if err != nil {
		return 0, fmt.Errorf("exec in simulated microvm: %w", err)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(alive, func() { cancel(context.Cause(alive)) })()

	if b.dice.happens(b.cfg.HangExec, "hang-exec "+commandLine(req), r.life(), nth) {
		// A host that hangs does not keep the guest's timeout either.
		<-ctx.Done()
		return 0, fmt.Errorf("exec in simulated microvm %s: %w", req.UID, context.Cause(ctx))
	}
	if req.Timeout > 0 {
		var stop context.CancelFunc
		ctx, stop = context.WithTimeoutCause(ctx, req.Timeout,
			fmt.Errorf("%w after %v", microvm.ErrExecTimeout, req.Timeout))
		defer stop()
	}
	p := newProcess(ctx, r, req, streams)
	code, err := p.run(req)
	if err != nil {
		return 0, fmt.Errorf("exec in simulated microvm %s: %w", req.UID, err)
	}
	return code, nil
}

// enter finds the guest, and counts the runs of this command line before this one.
func (b *Backend) enter(req microvm.ExecRequest) (r record, alive context.Context, nth int, err error) {
	now := time.Now()
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ctx.Err() != nil {
		return record{}, nil, 0, microvm.ErrClosed
	}
	b.dropEndedLocked(now)
	m, ok := b.mu.machines[req.UID]
	if !ok {
		return record{}, nil, 0, fmt.Errorf("%w: %q", microvm.ErrNotFound, req.UID)
	}
	if !m.answers(now) {
		return record{}, nil, 0, fmt.Errorf("%w: %s is %v and its guest does not answer",
			microvm.ErrNotRunning, req.UID, m.state(now))
	}
	return m.record, m.alive, m.countExecLocked(commandLine(req)), nil
}

// commandLine tells one command from another.
func commandLine(req microvm.ExecRequest) string {
	return fmt.Sprintf("%t %q %q", req.Shell, req.Cmd, strings.Join(req.Args, "\x00"))
}
