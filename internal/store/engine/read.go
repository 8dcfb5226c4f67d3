package engine

import (
	"context"
	"slices"
	"strings"

	"poolmgr/internal/pool"
	"poolmgr/internal/store"
)

// Snapshot implements store.Store.
func (e *Engine) Snapshot(ctx context.Context, key pool.Key) (store.Snapshot, error) {
	var s store.Snapshot
	err := e.read(ctx, func(m *mirror) error {
		p := m.pools[key]
		if p == nil {
			return noPool(key)
		}
		s = store.Snapshot{
			Pool:      p.pool.Clone(),
			Revisions: p.inUse(),
			VMs:       make([]pool.VM, 0, p.vms.n),
			Leases:    make([]pool.Lease, 0, p.leases.n),
			Hosts:     m.loads(),
		}
		for vm := range p.vms.all() {
			s.VMs = append(s.VMs, *vm)
		}
		for l := range p.leases.all() {
			s.Leases = append(s.Leases, *l)
		}
		return nil
	})
	return s, err
}

// inUse lists the revisions that a pass needs, oldest first: the current one, the last completed one, and every warm
// VM's.
func (p *poolRows) inUse() []pool.Revision {
	numbers := map[int64]bool{p.pool.Revision: true, p.pool.Rollout.LastCompleted: true}
	for vm := range p.vms.all() {
		if vm.Phase.Warm() {
			numbers[vm.Revision] = true
		}
	}
	var used []pool.Revision
	for _, r := range p.revisions {
		if numbers[r.Number] {
			used = append(used, *r)
		}
	}
	return used
}

// GetPool implements store.Pools.
func (e *Engine) GetPool(ctx context.Context, key pool.Key) (store.PoolView, error) {
	var view store.PoolView
	err := e.read(ctx, func(m *mirror) error {
		p := m.pools[key]
		if p == nil {
			return noPool(key)
		}
		view = store.PoolView{Pool: p.pool.Clone(), Counts: p.counts(m)}
		return nil
	})
	return view, err
}

// ListPools implements store.Pools.
func (e *Engine) ListPools(ctx context.Context, namespace string) ([]store.PoolView, error) {
	var views []store.PoolView
	err := e.read(ctx, func(m *mirror) error {
		for _, key := range m.keys() {
			if namespace == "" || key.Namespace == namespace {
				p := m.pools[key]
				views = append(views, store.PoolView{Pool: p.pool.Clone(), Counts: p.counts(m)})
			}
		}
		return nil
	})
	return views, err
}

// GetVM implements store.Pools.
func (e *Engine) GetVM(ctx context.Context, id string) (pool.VM, error) {
	var vm pool.VM
	err := e.read(ctx, func(m *mirror) error {
		found := m.vms[id]
		if found == nil {
			return pool.Errorf(pool.CodeNotFound, "there is no VM %q", id)
		}
		vm = found.Clone()
		return nil
	})
	return vm, err
}

// Revisions implements store.Pools.
func (e *Engine) Revisions(ctx context.Context, key pool.Key) ([]pool.Revision, error) {
	var all []pool.Revision
	err := e.read(ctx, func(m *mirror) error {
		p := m.pools[key]
		if p == nil {
			return noPool(key)
		}
		for _, r := range p.revisions {
			all = append(all, *r)
		}
		return nil
	})
	return all, err
}

// defaultVMs is how many VMs a page holds when the query does not say.
const defaultVMs = 1000

// ListVMs implements store.Pools. A pool that is not there has no VMs.
func (e *Engine) ListVMs(ctx context.Context, q store.VMQuery) ([]pool.VM, error) {
	if q.Limit <= 0 {
		q.Limit = defaultVMs
	}
	var page []pool.VM
	err := e.read(ctx, func(m *mirror) error {
		var found []*pool.VM
		for key, p := range m.pools {
			if q.Pool == nil || *q.Pool == key {
				found = firstByID(append(found, p.find(q)...), q.Limit)
			}
		}
		for _, vm := range found {
			page = append(page, vm.Clone())
		}
		return nil
	})
	return page, err
}

// find lists a pool's VMs that a query selects, in order of id.
func (p *poolRows) find(q store.VMQuery) []*pool.VM {
	var found []*pool.VM
	for vm := range p.vms.from(&pool.VM{ID: q.After}) {
		if len(found) == q.Limit {
			break
		}
		if (q.Host == "" || vm.Host == q.Host) && (len(q.Phases) == 0 || slices.Contains(q.Phases, vm.Phase)) {
			found = append(found, vm)
		}
	}
	return found
}

// firstByID keeps the first of the VMs by id, in order.
func firstByID(vms []*pool.VM, keep int) []*pool.VM {
	slices.SortFunc(vms, func(a, b *pool.VM) int { return strings.Compare(a.ID, b.ID) })
	return vms[:min(len(vms), keep)]
}
