package plan

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"poolmgr/internal/pool"
)

// leases finds the leases that are over, and those whose consumer should be warned.
func (p *pass) leases() {
	for _, l := range p.world.Leases {
		if l.Pending {
			continue
		}
		end := p.leaseEnd(l)
		warn := end.Add(-warnLead(p.pool.Spec))
		switch {
		case !p.now.Before(end):
			p.plan.Expire = append(p.plan.Expire, LeaseEnd{Lease: l.ID, Version: l.Version})
			continue
		case !l.Warned && !p.now.Before(warn):
			p.plan.Warn = append(p.plan.Warn, LeaseEnd{Lease: l.ID, Version: l.Version})
		case !l.Warned:
			p.wake(warn)
		}
		p.wake(end)
	}
	byID := func(a, b LeaseEnd) int { return cmp.Or(strings.Compare(a.Lease, b.Lease)) }
	slices.SortFunc(p.plan.Expire, byID)
	slices.SortFunc(p.plan.Warn, byID)
}

// leaseEnd is when a lease is over. While the daemon was away nobody could renew, so a lease has a full threshold from
// the moment it serves again; max_lease_duration is never extended.
func (p *pass) leaseEnd(l pool.Lease) time.Time {
	grace := p.world.ServingSince.Add(p.pool.Spec.HeartbeatExpiry)
	if limit := p.pool.Spec.MaxLeaseDuration; limit > 0 {
		if hard := l.ClaimedAt.Add(limit); hard.Before(grace) {
			grace = hard
		}
	}
	if grace.After(l.ExpiresAt) {
		return grace
	}
	return l.ExpiresAt
}

// warnLead is how long before its end a lease's consumer is warned: one heartbeat interval, so that there is time for
// another try, but never more than half of the lease period, or a lease would be warned about as soon as it is renewed.
func warnLead(s pool.Spec) time.Duration {
	return min(s.HeartbeatInterval, s.HeartbeatExpiry/2)
}
