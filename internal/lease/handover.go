package lease

import (
	"context"
	"errors"
	"time"

	"poolmgr/internal/host"
	"poolmgr/internal/pool"
	"poolmgr/internal/store"
)

// hook is how events and metrics call the pre-lease commands.
const hook = "pre_lease_commands"

// hookSlack is what a command and its bookkeeping may take beyond the command's own time limit.
const hookSlack = 10 * time.Second

// settleLimit bounds the store's work on a VM whose caller is gone already.
const settleLimit = 10 * time.Second

// handOver turns a VM into what its caller gets. Once it has begun there is no way back: a VM that was touched is handed
// out, or ends. The failure is that of the VM's hooks, after which another VM may be tried.
func (c *claim) handOver(ctx context.Context, t taken) (Claimed, *host.CommandFailure, error) {
	if t.Lease.Pending {
		failure, err := c.m.prepare(ctx, t)
		if failure != nil || err != nil {
			return Claimed{}, failure, err
		}
		t.Lease, err = c.m.cfg.Store.CompleteClaim(ctx, t.Lease.ID, c.m.cfg.Now())
		switch {
		case err != nil && ctx.Err() != nil:
			return Claimed{}, nil, errors.Join(gone(ctx, c.req.Pool), c.m.abandon(ctx, t, "the caller gave up"))
		case err != nil:
			return Claimed{}, nil, err
		}
		t.VM.Phase = pool.Leased
	}
	if ctx.Err() != nil && !t.Replayed { // nobody is there to use it
		c.m.giveBack(ctx, t)
		return Claimed{}, nil, gone(ctx, c.req.Pool)
	}
	return Claimed{Lease: t.Lease, VM: t.VM, Host: t.Host, Stale: t.Stale, Replayed: t.Replayed}, nil, nil
}

// prepare runs the pre-lease commands. Afterwards the lease is still pending, or it has ended.
func (m *Manager) prepare(ctx context.Context, t taken) (*host.CommandFailure, error) {
	began := m.cfg.Now()
	err := m.runHooks(ctx, t)
	var failure *host.CommandFailure
	failed := errors.As(err, &failure) && ctx.Err() == nil
	m.cfg.Observer.HookRan(t.Lease.Pool, hook, m.cfg.Now().Sub(began), failed)
	m.settle(t.pool, t.probe, err == nil || failed, failure)
	switch {
	case err == nil:
		return nil, nil
	case ctx.Err() != nil:
		return nil, errors.Join(gone(ctx, t.Lease.Pool), m.abandon(ctx, t, "the caller gave up"))
	case !failed:
		if err := m.abandon(ctx, t, err.Error()); err != nil {
			return nil, err
		}
		return nil, lost(err, t.VM)
	}
	m.log.Warn("pre-lease commands failed", "pool", t.Lease.Pool.String(), "vm", t.VM.ID, "host", t.VM.Host, "error", failure)
	err = m.failClaim(ctx, store.FailClaim{
		Lease: t.Lease.ID, Message: failure.Error(), Now: m.cfg.Now(),
		Payload: map[string]any{
			"hook": hook, "message": failure.Error(),
			"command": failure.Command, "exit_code": failure.ExitCode, "stderr_tail": failure.StderrTail,
		},
	})
	if err != nil {
		return nil, err
	}
	return failure, nil
}

// runHooks runs the commands within the life of the pending lease: after that a pass condemns the VM.
func (m *Manager) runHooks(ctx context.Context, t taken) error {
	driver, err := m.cfg.Fleet.Driver(t.Host)
	if err != nil {
		return err
	}
	return host.RunCommands(ctx, driver, t.VM.UID, t.Spec.PreLeaseCommands, t.Spec.CommandTimeout)
}

// lost is the answer when the host or the VM went while the hooks ran: no failure of the hooks.
func lost(err error, vm pool.VM) error {
	if errors.Is(err, host.ErrExecDisabled) {
		return execError(err, vm)
	}
	return &pool.Error{
		Code: pool.CodeAborted, Err: err,
		Message: "vm " + vm.ID + " or its host " + vm.Host + " was lost while the pre-lease commands ran; claim again",
	}
}

// abandon ends a pending lease that no failed command explains: its VM is condemned, without VM_HOOK_FAILED.
func (m *Manager) abandon(ctx context.Context, t taken, why string) error {
	m.log.Info("claim abandoned", "pool", t.Lease.Pool.String(), "vm", t.VM.ID, "host", t.VM.Host, "reason", why)
	err := m.failClaim(ctx, store.FailClaim{Lease: t.Lease.ID, Message: why, Now: m.cfg.Now()})
	if ctx.Err() != nil && pool.CodeOf(err) == pool.CodeAborted {
		return nil // it ended meanwhile, which is all that a caller who is gone could want
	}
	return err
}

// failClaim ends a pending lease whatever became of the caller. Should the store refuse, the lease's deadline ends it.
func (m *Manager) failClaim(ctx context.Context, f store.FailClaim) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleLimit)
	defer cancel()
	return m.cfg.Store.FailClaim(ctx, f)
}

// giveBack releases a VM whose caller went between the store's answer and ours. No other call can know the lease: of
// one request id only one claim is under way.
func (m *Manager) giveBack(ctx context.Context, t taken) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleLimit)
	defer cancel()
	if err := m.cfg.Store.Release(ctx, t.Lease.ID, "", m.cfg.Now()); err != nil {
		m.log.Warn("a VM that nobody waits for any more could not be released; its lease expires by itself",
			"pool", t.Lease.Pool.String(), "vm", t.VM.ID, "error", err)
	}
}
