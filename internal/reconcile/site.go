package reconcile

import (
	"context"
	"fmt"
	"slices"
	"time"

	"poolmgr/api/flintlock/vmtypes"
	"poolmgr/internal/host"
	"poolmgr/internal/pool"
)

// site is where the work on a VM takes place: its pool, the revision it is made from, and the driver of its host.
type site struct {
	pool     pool.Pool
	revision pool.Revision
	driver   host.Driver
	deadline time.Time // of the boot
	resumed  bool      // an earlier run placed the VM, and may have sent its create
}

func (r *Reconciler) open(ctx context.Context, v pool.VM) (*site, error) {
	view, err := r.cfg.Store.GetPool(ctx, v.Pool)
	if err != nil {
		return nil, err
	}
	revisions, err := r.cfg.Store.Revisions(ctx, v.Pool)
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(revisions, func(x pool.Revision) bool { return x.Number == v.Revision })
	if i < 0 {
		return nil, fmt.Errorf("vm %s is of revision %d, which is not stored (this is a bug)", v.ID, v.Revision)
	}
	driver, err := r.driver(ctx, v.Host)
	if err != nil {
		return nil, err
	}
	return &site{
		pool: view.Pool, revision: revisions[i], driver: driver,
		deadline: v.SentAt.Add(view.Pool.Spec.BootTimeout), resumed: v.SentAt.Before(r.serving.start()),
	}, nil
}

func (r *Reconciler) driver(ctx context.Context, name string) (host.Driver, error) {
	load, err := r.cfg.Store.GetHost(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("find host %s: %w", name, err)
	}
	return r.cfg.Fleet.Driver(load.Host)
}

// spec is the template made into one VM, with the mark by which we know it again.
func (w *site) spec(installation string, v pool.VM) *vmtypes.MicroVMSpec {
	owner := fmt.Sprintf("%s/%s/%d", installation, v.ID, w.pool.Generation)
	return host.SpecFor(w.revision.Template, v.ID, v.Namespace, owner)
}
