package reconcile

import (
	"context"
	"errors"

	"poolmgr/internal/host"
	"poolmgr/internal/plan"
	"poolmgr/internal/pool"
	"poolmgr/internal/store"
)

// failure is why a VM did not become available.
type failure struct {
	hook     string // "boot" or "create_commands"
	message  string
	innocent bool // it says nothing about the template: the host was lost, or has no room
	silent   bool // innocent, and not even a boot that failed: no event, and not another attempt
	command  *host.CommandFailure
}

func (f failure) payload() map[string]any {
	if f.silent {
		return nil
	}
	p := map[string]any{"hook": f.hook, "message": f.message}
	if f.command != nil {
		p["command"] = f.command.Command
		p["exit_code"] = f.command.ExitCode
		p["stderr_tail"] = f.command.StderrTail
	}
	return p
}

// fail ends a warming VM; its slot passes to a successor that waits a while, in the same transaction.
func (r *Reconciler) fail(ctx context.Context, v pool.VM, f failure) error {
	if ctx.Err() != nil {
		return nil // being stopped or interrupted is not a failure
	}
	now := r.cfg.Now()
	if f.hook == "boot" {
		r.trouble.failed(v.Host, now)
	}
	if f.hook == "boot" && !f.silent {
		r.cfg.Observer.HookRan(v.Pool, f.hook, now.Sub(v.SentAt), true)
	}
	r.log.Warn("vm failed", "pool", v.Pool.String(), "vm", v.ID, "host", v.Host, "hook", f.hook,
		"attempt", v.Attempt+1, "error", f.message)
	for range failTries {
		moved, err := r.recordFailure(ctx, v, f)
		if !errors.Is(err, store.ErrConflict) {
			return err
		}
		if moved {
			return nil // it was condemned meanwhile
		}
	}
	return nil // the row is as it was, and is looked at again
}

// failTries bounds how often a failure is written down again because the pool was edited at that very moment.
const failTries = 3

// recordFailure writes a failure, conditional on the pool whose template the successor gets. After a conflict, moved
// tells whether it was about the row itself.
func (r *Reconciler) recordFailure(ctx context.Context, v pool.VM, f failure) (moved bool, err error) {
	// The pool may have been edited since the work on the VM began: a successor is made from what is current now.
	snap, err := r.cfg.Store.Snapshot(ctx, v.Pool)
	if err != nil {
		return false, err
	}
	now := r.cfg.Now()
	revision := plan.SuccessorRevision(r.world(snap, now), v, !f.innocent && !f.silent, now)
	err = r.recordAt(ctx, v, snap.Pool.Generation, store.Fail{
		VM: v.ID, Version: v.Version, Message: f.message, Payload: f.payload(), Innocent: f.innocent || f.silent,
		Successor: r.successor(revision, v, f),
	})
	if !errors.Is(err, store.ErrConflict) {
		return false, err
	}
	present, getErr := r.cfg.Store.GetVM(ctx, v.ID)
	return getErr != nil || present.Version != v.Version, err
}

// successor is the row that follows a VM that failed. Failures are counted per slot and revision: a successor of
// another revision starts anew.
func (r *Reconciler) successor(revision int64, v pool.VM, f failure) store.Successor {
	s := store.Successor{
		ID: r.cfg.NewID(v.Pool.Name), Revision: revision, ForRollout: v.ForRollout, Message: f.message,
	}
	if v.Revision == revision {
		s.Attempt = v.Attempt
	}
	if !f.silent {
		s.Attempt++
	}
	s.NotBefore = r.cfg.Now().Add(pool.Backoff(max(1, s.Attempt), r.cfg.Random()))
	return s
}
