package reconcile

import (
	"cmp"
	"time"

	"poolmgr/internal/plan"
	"poolmgr/internal/pool"
	"poolmgr/internal/store"
)

// actions turns a plan into store actions, in the plan's order: what goes, then what comes, then what is told. Ids and
// jitter, which the planner must not make, are added here.
func (r *Reconciler) actions(s store.Snapshot, p plan.Plan, now time.Time) []store.Action {
	var out []store.Action
	name := s.Pool.Spec.Name
	for _, c := range p.Condemn {
		out = append(out, r.condemn(name, c, now))
	}
	for _, x := range p.Place {
		out = append(out, store.Place{VM: x.VM, Version: x.Version, Host: x.Host, MaxStarts: r.cfg.Limits.StartsPerHost})
	}
	for _, x := range p.Surge {
		out = append(out, store.Surge{ID: r.cfg.NewID(name), Beside: x.VM, Version: x.Version, Revision: x.Revision})
	}
	grow := p.Grow
	if p.Trial {
		out = append(out, store.Grow{IDs: []string{r.cfg.NewID(name)}, Revision: s.Pool.Revision, MaxSlots: p.Desired})
		grow--
	}
	for left := grow; left > 0; left -= store.MaxActions {
		ids := make([]string, min(left, store.MaxActions))
		for i := range ids {
			ids[i] = r.cfg.NewID(name)
		}
		out = append(out, store.Grow{IDs: ids, Revision: p.Revision, MaxSlots: p.Desired})
	}
	for _, l := range p.Expire {
		out = append(out, store.ExpireLease{Lease: l.Lease, Version: l.Version})
	}
	for _, l := range p.Warn {
		out = append(out, store.WarnLease{Lease: l.Lease, Version: l.Version})
	}
	return append(out, announcements(s.Pool, p)...)
}

func (r *Reconciler) condemn(name string, c plan.Condemn, now time.Time) store.Condemn {
	a := store.Condemn{
		VM: c.VM, Version: c.Version, Reason: c.Reason,
		KeepReady: c.KeepReady, KeepSlots: c.KeepSlots, KeepPeer: c.KeepPeer,
	}
	if c.Successor {
		a.Successor = &store.Successor{
			ID: r.cfg.NewID(name), Revision: c.Revision, Attempt: c.Attempt, ForRollout: c.Reason == pool.ReasonRollout,
		}
		if c.Attempt > 0 {
			a.Successor.NotBefore = now.Add(pool.Backoff(c.Attempt, r.cfg.Random()))
		}
	}
	return a
}

func announcements(p pool.Pool, x plan.Plan) []store.Action {
	var out []store.Action
	if x.Short != nil {
		why := ""
		if len(x.Explain) > 0 {
			why = x.Explain[0]
		}
		out = append(out, store.Announce{Short: x.Short, Ready: x.Ready, Desired: x.Desired, Why: why})
	}
	if x.Complete {
		out = append(out, store.Announce{CompletedRevision: p.Revision, Ready: x.Ready, Desired: x.Desired})
	}
	if x.Announce {
		out = append(out, store.AnnounceState{
			Revision: p.Revision, LastSuccess: p.Rollout.LastSuccess,
			From: cmp.Or(p.Rollout.Announced, pool.RolloutProgressing), To: x.State, Reason: x.StateReason, Demand: x.Demand,
			Ready: x.Ready, Desired: x.Desired,
		})
	}
	if x.Remove {
		out = append(out, store.RemovePool{})
	}
	return out
}

// batch is how many of the actions, at least one, go into one step: as many as write no more rows than a transaction
// may.
func batch(actions []store.Action) int {
	rows := 0
	for i, a := range actions {
		if rows += writes(a); rows > store.MaxActions && i > 0 {
			return i
		}
	}
	return len(actions)
}

// writes is the number of VM rows that an action writes.
func writes(a store.Action) int {
	switch a := a.(type) {
	case store.Grow:
		return len(a.IDs)
	case store.Condemn:
		if a.Successor != nil {
			return 2
		}
	}
	return 1
}
