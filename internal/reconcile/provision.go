package reconcile

import (
	"context"
	"errors"
	"fmt"
	"time"

	"poolmgr/internal/host"
	"poolmgr/internal/pool"
	"poolmgr/internal/store"
)

// The limits of calls to hosts. A try to reach the guest lasts longer than the pause between two, or a guest that takes
// a moment would never be seen.
const (
	createLimit = 30 * time.Second
	callLimit   = 10 * time.Second
	tryLimit    = 15 * time.Second
	pollFirst   = 100 * time.Millisecond
	pollLast    = time.Second
	retryLast   = 15 * time.Second
)

// boot is what the work on a VM that its host accepted has learnt.
type boot struct {
	r *Reconciler
	w *site
	v pool.VM

	deadline time.Time
	absent   time.Time // since when the host has not known the VM; zero = it does
	last     string    // why it is not up
}

// awaitBoot waits until the VM answers from inside. CREATED means no more than that its process exists, so that only
// an answer to a command counts.
func (r *Reconciler) awaitBoot(ctx context.Context, v pool.VM) error {
	w, err := r.open(ctx, v)
	if err != nil {
		return err
	}
	b := &boot{r: r, w: w, v: v, deadline: w.deadline, last: "the guest has not answered"}
	if soonest := r.cfg.Now().Add(callLimit + tryLimit); w.resumed && b.deadline.Before(soonest) {
		b.deadline = soonest // it passed while the daemon was away: the VM may be up, and gets a full try
	}
	// The pauses grow by a quarter, so that an answer is seen at most about a quarter of the boot's length late.
	for pause := pollFirst; ; pause = min(pause*5/4, pollLast) {
		vm, err := r.probe(ctx, w, v)
		if err == nil {
			return r.booted(ctx, w, v, vm)
		}
		if ctx.Err() != nil {
			return nil
		}
		if f, over := b.judge(err); over {
			return r.fail(ctx, v, f)
		}
		if !sleep(ctx, pause) {
			return nil
		}
	}
}

// judge decides whether a try that failed was the last one.
func (b *boot) judge(err error) (f failure, over bool) {
	now := b.r.cfg.Now()
	switch {
	case !errors.Is(err, host.ErrNotFound):
		b.absent, b.last = time.Time{}, err.Error()
	case b.absent.IsZero():
		b.absent = now
	}
	f = failure{hook: "boot", message: err.Error()}
	switch {
	case errors.Is(err, errBootFailed):
	case errors.Is(err, host.ErrExecDisabled):
		f.innocent = true // no VM of any template comes up there
	case !b.absent.IsZero() && now.Sub(b.absent) >= absenceGrace:
		f.message = "the VM vanished from its host while it booted"
	case !now.Before(b.deadline):
		f.innocent = errors.Is(err, host.ErrUnreachable)
		f.message = fmt.Sprintf("not up within boot_timeout (%s): %s", b.w.pool.Spec.BootTimeout, b.last)
	default:
		return failure{}, false
	}
	return f, true
}

// errBootFailed: the host gave the VM up.
var errBootFailed = errors.New("the host reports the VM as FAILED")

// probe asks the host for the VM's state and, once its machine exists, the guest for an answer.
func (r *Reconciler) probe(ctx context.Context, w *site, v pool.VM) (host.VM, error) {
	call, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	vm, err := w.driver.Get(call, v.UID)
	if err != nil {
		return vm, err
	}
	switch vm.State {
	case host.Created:
	case host.Failed:
		return vm, errBootFailed
	case host.Deleting:
		return vm, host.ErrNotFound
	default:
		return vm, fmt.Errorf("the host reports the VM as %s", vm.State)
	}
	try, cancel := context.WithTimeout(ctx, tryLimit)
	defer cancel()
	_, err = w.driver.Exec(try, host.ExecRequest{UID: v.UID, Cmd: "true", Timeout: tryLimit}, host.ExecStreams{})
	return vm, err
}

func (r *Reconciler) booted(ctx context.Context, w *site, v pool.VM, vm host.VM) error {
	r.cfg.Observer.HookRan(v.Pool, "boot", r.cfg.Now().Sub(v.SentAt), false)
	r.trouble.worked(v.Host)
	r.removeDoubles(ctx, w, v)
	if err := r.record(ctx, v, store.Booted{VM: v.ID, Version: v.Version, Interfaces: vm.Interfaces}); err != nil {
		return quiet(err)
	}
	if len(w.revision.CreateCommands) == 0 {
		r.available(v)
	}
	return nil
}

// removeDoubles deletes other VMs of the row: a create whose answer was lost may have been carried out after the host
// was asked again. What this misses goes with the row itself, which is looked for by name once more.
func (r *Reconciler) removeDoubles(ctx context.Context, w *site, v pool.VM) {
	ours, err := r.named(ctx, w, v)
	for _, x := range ours {
		if x.UID == v.UID {
			continue
		}
		err = errors.Join(err, r.deleteVM(ctx, w, x.UID))
		r.log.Warn("removed a second VM of one row", "pool", v.Pool.String(), "vm", v.ID, "host", v.Host, "uid", x.UID)
	}
	if err != nil && ctx.Err() == nil {
		r.log.Warn("cannot look for second VMs of a row; its deletion will", "pool", v.Pool.String(), "vm", v.ID, "host", v.Host, "error", err)
	}
}

func (r *Reconciler) available(v pool.VM) {
	took := r.cfg.Now().Sub(v.SentAt)
	r.cfg.Observer.Provisioned(v.Pool, took)
	r.log.Info("available", "pool", v.Pool.String(), "vm", v.ID, "host", v.Host, "took", took.Round(time.Millisecond))
}

// runCreateCommands prepares a new VM. After a restart the commands run again from the first: they are at least once,
// like every effect that a guest cannot take back.
func (r *Reconciler) runCreateCommands(ctx context.Context, v pool.VM) error {
	w, err := r.open(ctx, v)
	if err != nil {
		return err
	}
	began := r.cfg.Now()
	err = host.RunCommands(ctx, w.driver, v.UID, w.revision.CreateCommands, w.pool.Spec.CommandTimeout)
	if ctx.Err() != nil {
		return nil
	}
	const hook = "create_commands"
	r.cfg.Observer.HookRan(v.Pool, hook, r.cfg.Now().Sub(began), err != nil)
	if err == nil {
		if err := r.record(ctx, v, store.HooksDone{VM: v.ID, Version: v.Version}); err != nil {
			return quiet(err)
		}
		r.available(v)
		return nil
	}
	f := failure{
		hook: hook, message: err.Error(),
		innocent: errors.Is(err, host.ErrUnreachable) || errors.Is(err, host.ErrExecDisabled),
	}
	errors.As(err, &f.command)
	return r.fail(ctx, v, f)
}

// quiet drops a conflict: the row was condemned meanwhile, and is looked at again.
func quiet(err error) error {
	if errors.Is(err, store.ErrConflict) {
		return nil
	}
	return err
}
