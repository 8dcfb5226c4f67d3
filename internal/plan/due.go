package plan

import (
	"hash/fnv"
	"slices"
	"time"

	"poolmgr/internal/pool"
)

// ageJitter is the largest part of max_warm_age by which a VM may be refreshed early. Without it, VMs that were made
// together would all reach their age in the same minute.
const ageJitter = 0.1

// due says why an available VM should be replaced although it works, and "" when it may stay. A rollout that is paused
// or STALLED holds back stale VMs only as far as they are stale: age and drains go on.
func (p *pass) due(r *row) pool.Reason {
	switch {
	case r.planned || r.vm.Phase != pool.Available:
		return ""
	case r.vm.Stale(p.pool) && (!p.stays(r) || p.lacksTrial() && !p.pool.Spec.Rollout.Paused):
		return pool.ReasonRollout
	case p.overAge(r.vm):
		return pool.ReasonMaxAge
	case len(p.pool.Spec.Hosts) > 0 && !slices.Contains(p.pool.Spec.Hosts, r.vm.Host):
		return pool.ReasonDrain
	default:
		return ""
	}
}

func (p *pass) overAge(v pool.VM) bool {
	limit := p.pool.Spec.MaxWarmAge
	return limit > 0 && !p.now.Before(ageLimit(v, limit))
}

// ageLimit is the instant at which v is over age: up to a tenth earlier than asked, by a hash of its id, so that the
// answer is the same at every pass.
func ageLimit(v pool.VM, limit time.Duration) time.Time {
	h := fnv.New32a()
	h.Write([]byte(v.ID))
	part := float64(h.Sum32()) / (1 << 32)
	return v.AvailableAt.Add(limit - time.Duration(float64(limit)*ageJitter*part))
}

// since is the instant from which a warm VM's age counts when it is compared with others.
func since(v pool.VM) time.Time {
	if v.Phase == pool.Available && !v.AvailableAt.IsZero() {
		return v.AvailableAt
	}
	return v.CreatedAt
}
