package engine

import "poolmgr/internal/pool"

// startRollout makes a revision the pool's current one. Going back to an earlier template is a new revision too, but
// finds VMs of that template current again, since staleness is by hash.
func (x *tx) startRollout(r pool.Revision) {
	x.makeCurrent(r)
	x.beginRollout(r.Pool)
}

// makeCurrent makes a revision the pool's current one, with none of the facts of the rollout before.
func (x *tx) makeCurrent(r pool.Revision) {
	x.addRevision(r)
	x.editPool(r.Pool, func(p *pool.Pool) {
		p.Revision, p.TemplateHash = r.Number, r.TemplateHash
		p.Rollout = pool.Rollout{LastCompleted: p.Rollout.LastCompleted, StartedAt: x.now, LastSuccess: x.now}
	})
	x.pruneRevisions(r.Pool)
}

// beginRollout counts what a rollout has to replace, and announces it where there is anything.
func (x *tx) beginRollout(key pool.Key) {
	rows := x.m.pools[key]
	counts := rows.counts(x.m)
	total := rows.staleWarm()
	hash := rows.pool.TemplateHash
	boots := rows.number(func(k kind) bool { return k.phase == pool.Available && k.hash == hash }) > 0
	x.editPool(key, func(p *pool.Pool) {
		p.Rollout.Total, p.Rollout.Started = total, counts.Stale > 0
		p.Rollout.Proven = p.Rollout.Proven || boots
	})
	if counts.Stale == 0 {
		return // nothing to replace: it completes without a word
	}
	with := payload{"revision": rows.pool.Revision, "template_hash": hash, "total": total, "stale_leased": counts.StaleLeased}
	if rows.pool.Restart > 0 {
		with["restart"] = rows.pool.Restart
	}
	x.emitPool(key, pool.EventRolloutStarted, with)
}

// succeeded notes that a VM became available: if it is of the current template, the template boots. One from before a
// restart tells no more than that.
func (x *tx) succeeded(vm *pool.VM) {
	p := x.m.pools[vm.Pool].pool
	if vm.TemplateHash != p.TemplateHash {
		return
	}
	x.editPool(vm.Pool, func(p *pool.Pool) {
		p.Rollout.Proven = true
		if !vm.Stale(*p) {
			p.Rollout.LastSuccess, p.Rollout.Failures = x.now, nil
		}
		if p.Rollout.Completed { // with nothing to do, which proved nothing: this VM does
			p.Rollout.LastCompleted = p.Revision
		}
	})
}

// failed notes that a VM which is not stale did not become available. The latest failures are kept.
func (x *tx) failed(vm *pool.VM, message string) {
	if vm.Stale(*x.m.pools[vm.Pool].pool) {
		return
	}
	x.editPool(vm.Pool, func(p *pool.Pool) {
		f := append(p.Rollout.Failures, pool.Failure{VM: vm.ID, Host: vm.Host, Message: clip(message), At: x.now})
		p.Rollout.Failures = f[max(0, len(f)-pool.MaxFailures):]
	})
}
