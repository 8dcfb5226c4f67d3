package plan

import "poolmgr/internal/pool"

// announce finds out what must be told about the pool as a whole.
func (p *pass) announce() {
	if short := p.plan.Ready < p.plan.Desired; short != p.pool.Short {
		p.plan.Short = &short
	}
	p.plan.Complete = !p.pool.Rollout.Completed && p.complete()
}

// complete reports whether the rollout is over: no warm stale VM is left, and no VM that was made for the rollout is
// still on its way. A rollout that nobody was told of (the first fill, or a return to a template whose VMs are all
// there) is over when its revision has proved that it boots, or when there is nothing to make.
func (p *pass) complete() bool {
	for _, s := range p.slots {
		for _, r := range s.rows {
			if r.planned || p.stale(r) || (r.vm.ForRollout && p.comesUp(r)) {
				return false
			}
		}
	}
	if len(p.plan.Condemn) > 0 || len(p.plan.Surge) > 0 {
		return false
	}
	return p.pool.Rollout.Started || p.pool.Rollout.Proven || p.plan.Desired == 0
}

// comesUp reports whether a VM is still on its way: warming, or not available for min_ready yet.
func (p *pass) comesUp(r *row) bool {
	return r.vm.Phase.Warming() || r.vm.Ready() && !r.vm.CountsReady(p.pool, p.now)
}

// minReadyWakes notes when VMs begin to count, and when they come of age.
func (p *pass) minReadyWakes() {
	for _, s := range p.slots {
		for _, r := range s.rows {
			if r.planned || r.vm.Phase != pool.Available {
				continue
			}
			if d := p.pool.Spec.Rollout.MinReady; d > 0 {
				p.wake(r.vm.AvailableAt.Add(d))
			}
			if d := p.pool.Spec.MaxWarmAge; d > 0 {
				p.wake(ageLimit(r.vm, d))
			}
		}
	}
}
