package engine

import "poolmgr/internal/pool"

// startRollout makes a revision the pool's current one. Going back to an earlier template is a new revision too, but
// finds VMs of that template current again, since staleness is by hash.
func (x *tx) startRollout(r pool.Revision) {
	x.addRevision(r)
	x.editPool(r.Pool, func(p *pool.Pool) {
		p.Revision, p.TemplateHash = r.Number, r.TemplateHash
		p.Rollout = pool.Rollout{LastCompleted: p.Rollout.LastCompleted, StartedAt: x.now, LastSuccess: x.now}
	})
	rows := x.m.pools[r.Pool]
	counts := rows.counts(x.m)
	total := rows.staleWarm()
	proven := rows.number(func(k kind) bool { return k.phase == pool.Available && k.hash == r.TemplateHash }) > 0
	x.editPool(r.Pool, func(p *pool.Pool) {
		p.Rollout.Total, p.Rollout.Proven, p.Rollout.Started = total, proven, counts.Stale > 0
	})
	if counts.Stale == 0 {
		return // nothing to replace: it completes without a word
	}
	x.emitPool(r.Pool, pool.EventRolloutStarted, payload{
		"revision": r.Number, "template_hash": r.TemplateHash, "total": total, "stale_leased": counts.StaleLeased,
	})
}

// succeeded notes that a VM became available: if it is of the current template, the template boots.
func (x *tx) succeeded(vm *pool.VM) {
	p := x.m.pools[vm.Pool].pool
	if vm.TemplateHash != p.TemplateHash {
		return
	}
	x.editPool(vm.Pool, func(p *pool.Pool) {
		p.Rollout.Proven, p.Rollout.LastSuccess, p.Rollout.Failures = true, x.now, nil
		if p.Rollout.Completed { // with nothing to do, which proved nothing: this VM does
			p.Rollout.LastCompleted = p.Revision
		}
	})
}

// failed notes that a VM of the current template did not become available. The latest failures are kept.
func (x *tx) failed(vm *pool.VM, message string) {
	if vm.TemplateHash != x.m.pools[vm.Pool].pool.TemplateHash {
		return
	}
	x.editPool(vm.Pool, func(p *pool.Pool) {
		f := append(p.Rollout.Failures, pool.Failure{VM: vm.ID, Host: vm.Host, Message: clip(message), At: x.now})
		p.Rollout.Failures = f[max(0, len(f)-pool.MaxFailures):]
	})
}
