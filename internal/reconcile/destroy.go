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

// absenceGrace is how far apart two answers must be that agree on an absence which we did not cause ourselves: one
// answer may be short, stale, or that of a host that has only just started.
const absenceGrace = 2 * time.Second

// destroyTurn bounds one turn of waiting for a host to finish a deletion. A host may take hours; a VM that waits for
// it must not keep one of the host's few places all the while.
const destroyTurn = 10 * time.Second

// errStillThere ends a turn in which nothing went wrong and the VM is not known to be gone yet.
var errStillThere = errors.New("the host has not finished the deletion, or a create may be under way there")

// destroy removes a VM from its host, and its row when the host confirms that it is gone. The row stays DELETING, and
// takes room on its host, until then.
func (r *Reconciler) destroy(ctx context.Context, v pool.VM) error {
	if r.tasks.takeFresh(v) || v.Host == "" {
		return r.gone(ctx, v) // no host ever heard of it
	}
	driver, err := r.driver(ctx, v.Host)
	if err != nil {
		return err
	}
	d := &destruction{r: r, w: &site{driver: driver}, v: v}
	end := r.cfg.Now().Add(destroyTurn)
	for pause := pollFirst; ; pause = min(pause*3/2, pollLast) {
		switch confirmed, err := d.turn(ctx); {
		case errors.Is(err, errStillThere):
			return err
		case err != nil:
			return fmt.Errorf("delete vm %s on %s: %w", v.ID, v.Host, err)
		case confirmed:
			return r.gone(ctx, v)
		case !r.cfg.Now().Before(end):
			return errStillThere
		}
		if !sleep(ctx, pause) {
			return nil
		}
	}
}

// destruction is what one turn of destroy has learnt.
type destruction struct {
	r *Reconciler
	w *site
	v pool.VM

	deleted bool      // the host took our own delete of this VM
	absent  time.Time // since when every answer agrees that there is nothing; zero = there was something
}

// turn asks for the end of everything on the host that is this row's, and reports whether its absence is confirmed: by
// one answer after our own delete, and otherwise by two that agree, a grace apart.
func (d *destruction) turn(ctx context.Context) (confirmed bool, err error) {
	left, err := d.remove(ctx)
	if err != nil {
		return false, err
	}
	now := d.r.cfg.Now()
	switch {
	case left > 0:
		d.absent = time.Time{}
	case d.deleted:
		return true, nil
	case !d.createIsOver(now):
		return false, errStillThere // it may appear yet, and others need the place meanwhile
	case d.absent.IsZero():
		d.absent = now
	default:
		return now.Sub(d.absent) >= absenceGrace, nil
	}
	return false, nil
}

// createIsOver reports whether no create of the row can be under way any more. One whose answer never came may have
// been sent as late as the row was condemned.
func (d *destruction) createIsOver(now time.Time) bool {
	last := d.v.SentAt
	if d.v.UpdatedAt.After(last) {
		last = d.v.UpdatedAt
	}
	return d.v.UID != "" || now.Sub(last) >= createLimit
}

// remove deletes everything on the host that is this row's and returns how much of it is still there.
func (d *destruction) remove(ctx context.Context) (left int, err error) {
	ours, err := d.r.named(ctx, d.w, d.v)
	if err != nil {
		return 0, err
	}
	uids := make([]string, 0, len(ours)+1)
	for _, x := range ours {
		uids = append(uids, x.UID)
	}
	if d.v.UID != "" && len(ours) == 0 {
		uids = append(uids, d.v.UID) // a listing may be short: ask for the VM itself
	}
	for _, uid := range uids {
		switch err := d.r.deleteVM(ctx, d.w, uid); {
		case errors.Is(err, host.ErrNotFound):
		case err != nil:
			return 0, err
		default:
			left++
			d.deleted = d.deleted || uid == d.v.UID
		}
	}
	return left, nil
}

func (r *Reconciler) deleteVM(ctx context.Context, w *site, uid string) error {
	call, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	return w.driver.Delete(call, uid)
}

func (r *Reconciler) gone(ctx context.Context, v pool.VM) error {
	if err := r.record(ctx, v, store.Gone{VM: v.ID, Version: v.Version}); err != nil {
		return quiet(err)
	}
	r.log.Info("gone", "pool", v.Pool.String(), "vm", v.ID, "host", v.Host, "reason", v.Reason)
	return nil
}
