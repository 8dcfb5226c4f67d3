package lease

import (
	"context"
	"errors"
	"fmt"

	"poolmgr/internal/host"
	"poolmgr/internal/pool"
)

// errStopping is why Close interrupts a claim.
var errStopping = errors.New("the daemon is stopping")

func stopping() error {
	return pool.Errorf(pool.CodeUnavailable, "poolmgrd is stopping and gives out no VMs; try again in a moment")
}

// gone is the answer to a claim whose context ended.
func gone(ctx context.Context, key pool.Key) error {
	cause := context.Cause(ctx)
	switch {
	case errors.Is(cause, errStopping):
		return stopping()
	case errors.Is(cause, context.DeadlineExceeded):
		return &pool.Error{
			Code: pool.CodeDeadline, Err: cause,
			Message: fmt.Sprintf("the call's deadline passed before a VM of pool %s could be handed out; nothing was taken", key),
		}
	default:
		return fmt.Errorf("claim from pool %s: the caller gave up: %w", key, cause)
	}
}

// isExhausted reports whether there is no VM to give out at present.
func isExhausted(err error) bool { return err != nil && pool.CodeOf(err) == pool.CodeExhausted }

// execError says what became of a command whose exit code is not known.
func execError(err error, vm pool.VM) error {
	if err == nil {
		return nil
	}
	refuse := func(code pool.Code, format string, args ...any) error {
		return &pool.Error{Code: code, Message: fmt.Sprintf(format, args...), Err: err}
	}
	switch {
	case errors.Is(err, context.Canceled):
		return err
	case errors.Is(err, host.ErrNotFound):
		return refuse(pool.CodeAborted, "vm %s is gone from host %s; release the lease and claim another", vm.ID, vm.Host)
	case errors.Is(err, host.ErrExecDisabled):
		return refuse(pool.CodeFailedPrecondition, "host %s does not run commands in VMs; enable exec there", vm.Host)
	case errors.Is(err, host.ErrExecTimeout), errors.Is(err, context.DeadlineExceeded):
		return refuse(pool.CodeDeadline, "the command in vm %s did not end in time", vm.ID)
	case errors.Is(err, host.ErrUnreachable):
		return refuse(pool.CodeUnavailable, "host %s of vm %s does not answer; whether the command ran is not known", vm.Host, vm.ID)
	default:
		return fmt.Errorf("run a command in vm %s on host %s: %w", vm.ID, vm.Host, err)
	}
}
