package server

import (
	"context"
	"errors"
	"time"

	pb "poolmgr/api/poolmgr/v1alpha1"
	"poolmgr/internal/host"
	"poolmgr/internal/pool"
)

// Bounds of a command in a guest.
const (
	// maxExec bounds a command without a timeout of its own; a lease that ends earlier ends its VM, and so the command.
	maxExec = 24 * time.Hour

	// execGrace lets the guest and its host report the command's own time limit before the call's ends; a driver of a
	// host waits for that a little less long.
	execGrace = 20 * time.Second

	// startLimit is how long a stream may be open without saying what to run.
	startLimit = 10 * time.Second
)

type guest struct {
	pb.UnimplementedGuestServer
	*Server
}

// Exec runs a command inside a leased VM, so that a consumer needs no way to the hosts. The command ends with the
// stream.
func (s *guest) Exec(stream pb.Guest_ExecServer) error {
	ctx, cancel := context.WithCancelCause(stream.Context())
	defer cancel(nil)
	in := newExecInput(stream, cancel)
	defer in.close()
	s.streams.Go(in.read)
	start, err := in.await(ctx)
	if err != nil {
		return err
	}
	if err := checkStart(start); err != nil {
		return err
	}
	s.streams.Go(func() {
		select {
		case <-s.cfg.Cutoff:
			cancel(pool.Errorf(pool.CodeUnavailable, "the daemon is stopping and the command was ended; the VM and its lease live on: run it again in a moment"))
		case <-ctx.Done():
		}
	})
	return s.run(ctx, start, in, &execOutput{stream: stream})
}

// run has the command run and answers with its end.
func (s *guest) run(ctx context.Context, start *pb.GuestExecStart, in *execInput, out *execOutput) error {
	timeout := start.GetTimeout().AsDuration()
	if timeout == 0 {
		timeout = maxExec
	}
	call, cancel := context.WithTimeout(ctx, timeout+execGrace)
	defer cancel()
	streams := host.ExecStreams{Stdout: out.writer(stdout), Stderr: out.writer(stderr)}
	if start.GetHasStdin() {
		streams.Stdin = in.pipe
	}
	code, err := s.cfg.Leases.Exec(call, start.GetLeaseId(), host.ExecRequest{
		Cmd: start.GetCmd(), Args: start.GetArgs(), Cwd: start.GetCwd(), Env: start.GetEnv(),
		Shell: start.GetShell(), User: start.GetUser(), Timeout: timeout,
	}, streams)
	if err == nil {
		return out.send(&pb.GuestExecResponse{Payload: &pb.GuestExecResponse_ExitCode{ExitCode: int32(code)}})
	}
	var refusal *pool.Error
	switch cause := context.Cause(ctx); {
	case cause != nil:
		return cause // why we ended it says more than how that looked from the host
	case out.failed != nil:
		return out.failed
	case errors.As(err, &refusal):
		return err
	}
	s.log.Warn("a command in a guest has no outcome", "error", err)
	text := clip(err.Error(), maxMessageText)
	return out.send(&pb.GuestExecResponse{Payload: &pb.GuestExecResponse_Error{Error: text}})
}

func checkStart(start *pb.GuestExecStart) error {
	var f faults
	f.name("start.lease_id", start.GetLeaseId())
	if start.GetCmd() == "" {
		f.add("start.cmd", "is required")
	}
	f.duration("start.timeout", start.GetTimeout())
	if d := start.GetTimeout().AsDuration(); d > maxExec {
		f.add("start.timeout", "is %s, at most %s is allowed", d, maxExec)
	}
	return invalid(f.Faults)
}

// Connect is completed by a later release.
func (s *guest) Connect(pb.Guest_ConnectServer) error {
	return later("Guest.Connect", "run commands with Guest.Exec")
}
