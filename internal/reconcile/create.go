package reconcile

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"poolmgr/internal/host"
	"poolmgr/internal/pool"
	"poolmgr/internal/store"
)

// stopGrace is how long a create that is under way may go on after its work was interrupted, or the daemon told to
// stop: its answer decides whether a VM exists. Without the answer the VM is looked for by name later.
const stopGrace = 5 * time.Second

// creation is what the work on a row that its host has not accepted yet has learnt.
type creation struct {
	r *Reconciler
	w *site
	v pool.VM

	// unsure: a create of this row may have been carried out, or be carried out yet, although the host shows no VM of
	// it. Then one listing is not enough to ask again, and the row must not forget its host.
	unsure bool
	absent time.Time // since when listings agree that there is none; zero = none was made since the last create
	last   error     // why the host did not accept it
}

// create asks the host for the VM, unless it has it already: create is not idempotent, so a row without a uid is
// looked up by name before every try, however it came to be without one.
func (r *Reconciler) create(ctx context.Context, v pool.VM) error {
	w, err := r.open(ctx, v)
	if err != nil {
		return err
	}
	c := &creation{r: r, w: w, v: v, unsure: !r.tasks.takeFresh(v)}
	for pause := pollFirst; ; pause = min(pause*2, retryLast) {
		if done, err := c.turn(ctx); done {
			return err
		}
		if !sleep(ctx, r.jittered(pause)) {
			return nil
		}
	}
}

// turn looks for the VM and asks for it when it is not there. done means that the row was moved on.
func (c *creation) turn(ctx context.Context) (done bool, err error) {
	late := !c.r.cfg.Now().Before(c.w.deadline)
	ours, err := c.r.named(ctx, c.w, c.v)
	switch {
	case err != nil:
		c.last = err
	case len(ours) > 0:
		return true, c.r.accept(ctx, c.v, ours[0].UID)
	case !late && c.mayAsk():
		if done, err := c.try(ctx); done {
			return true, err
		}
	}
	if late {
		return true, c.giveUp(ctx)
	}
	return false, nil
}

// mayAsk reports whether a create may be sent now that a listing shows no VM: at once when none can have been sent
// before, else after two listings that agree, a grace apart.
func (c *creation) mayAsk() bool {
	now := c.r.cfg.Now()
	if c.absent.IsZero() {
		c.absent = now
	}
	return !c.unsure || now.Sub(c.absent) >= absenceGrace
}

// try sends one create. The call is not interrupted with the step, because its answer decides whether a VM exists.
func (c *creation) try(ctx context.Context) (done bool, err error) {
	r, v := c.r, c.v
	call, cancel := context.WithTimeout(context.WithoutCancel(ctx), createLimit)
	defer cancel()
	defer context.AfterFunc(ctx, func() {
		sleep(call, stopGrace)
		cancel()
	})()
	made, err := c.w.driver.Create(call, c.w.spec(r.cfg.Store.Installation(), v))
	switch {
	case err == nil:
		return true, r.accept(ctx, v, made.UID)
	case errors.Is(err, host.ErrNoCapacity):
		return true, c.noRoom(ctx, err)
	case errors.Is(err, host.ErrRefused):
		return true, r.fail(ctx, v, failure{hook: "boot", message: err.Error()})
	default:
		c.unsure, c.absent, c.last = true, time.Time{}, err
		return false, nil
	}
}

// noRoom gives the row back to the planner, unless an earlier create may have made a VM on this very host: then the row
// goes on as DELETING, which looks after whatever there is, and its slot passes on.
func (c *creation) noRoom(ctx context.Context, why error) error {
	message := c.v.Host + ": " + why.Error()
	if c.unsure {
		return c.r.fail(ctx, c.v, failure{hook: "boot", message: message, silent: true})
	}
	c.r.trouble.failed(c.v.Host, c.r.cfg.Now())
	return quiet(c.r.record(ctx, c.v, store.Unplace{
		VM: c.v.ID, Version: c.v.Version, NotBefore: c.r.cfg.Now().Add(c.r.patience(c.v)), Message: message,
	}))
}

// giveUp ends a row that its host did not accept before the boot deadline.
func (c *creation) giveUp(ctx context.Context) error {
	if c.last == nil {
		return c.r.fail(ctx, c.v, failure{
			hook: "boot", silent: true, message: "the daemon was away while the VM should have been created",
		})
	}
	return c.r.fail(ctx, c.v, failure{
		hook: "boot", innocent: errors.Is(c.last, host.ErrUnreachable),
		message: fmt.Sprintf("%s did not accept the VM within boot_timeout (%s): %v", c.v.Host, c.w.pool.Spec.BootTimeout, c.last),
	})
}

// accept stores the host's id of a VM, also when the row was condemned while the host was asked: its deletion needs it.
func (r *Reconciler) accept(ctx context.Context, v pool.VM, uid string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), passLimit)
	defer cancel()
	for {
		err := r.record(ctx, v, store.Accepted{VM: v.ID, Version: v.Version, UID: uid})
		if !errors.Is(err, store.ErrConflict) {
			return err
		}
		now, err := r.cfg.Store.GetVM(ctx, v.ID)
		switch {
		case pool.CodeOf(err) == pool.CodeNotFound:
			return nil
		case err != nil:
			return err
		case now.Version == v.Version || now.UID != "" || now.Phase != pool.Provisioning && now.Phase != pool.Deleting:
			return nil
		}
		v = now
	}
}

// patience is how long a row waits that is nobody's failure: longer, the longer it has waited in all, so that a host
// that is full for an hour is not asked, nor the row written, every second of it.
func (r *Reconciler) patience(v pool.VM) time.Duration {
	return r.jittered(min(max(pool.BackoffBase, r.cfg.Now().Sub(v.CreatedAt)/4), pool.BackoffCap))
}

// jittered spreads retries, so that what failed together does not come back together.
func (r *Reconciler) jittered(d time.Duration) time.Duration {
	return time.Duration(float64(d) * (0.8 + 0.4*r.cfg.Random()))
}

// named finds our VMs of this row's name on its host, the one to adopt first. For a row that still wants its VM, one
// that is being deleted is none.
func (r *Reconciler) named(ctx context.Context, w *site, v pool.VM) ([]host.VM, error) {
	call, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	found, err := w.driver.List(call, v.Namespace, v.ID)
	if err != nil {
		return nil, err
	}
	ours := slices.DeleteFunc(found, func(x host.VM) bool {
		return x.Name != v.ID || !r.owns(x, v) || v.Phase == pool.Provisioning && x.State == host.Deleting
	})
	slices.SortFunc(ours, func(a, b host.VM) int {
		return cmp.Or(cmp.Compare(gone(a), gone(b)), strings.Compare(a.UID, b.UID))
	})
	return ours, nil
}

// gone sorts VMs that are being deleted last.
func gone(x host.VM) int {
	if x.State == host.Deleting {
		return 1
	}
	return 0
}

// owns reports whether a VM on a host is this row's: by its uid, or by the mark that create left in its metadata. A VM
// of the same name without our mark is somebody else's.
func (r *Reconciler) owns(x host.VM, v pool.VM) bool {
	return (v.UID != "" && x.UID == v.UID) || strings.HasPrefix(x.Owner, r.cfg.Store.Installation()+"/"+v.ID+"/")
}
