package engine

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"poolmgr/internal/pool"
	"poolmgr/internal/store"
)

// Claim implements store.Leases.
func (e *Engine) Claim(ctx context.Context, c store.Claim) (store.ClaimResult, error) {
	var result store.ClaimResult
	err := e.do(ctx, c.Now, func(x *tx) (err error) {
		result, err = x.claim(c)
		return err
	})
	if err != nil {
		return store.ClaimResult{}, err
	}
	return result, nil
}

func (x *tx) claim(c store.Claim) (store.ClaimResult, error) {
	p := x.m.pools[c.Pool]
	if p == nil {
		return store.ClaimResult{}, noPool(c.Pool)
	}
	if p.pool.Closing {
		return store.ClaimResult{}, pool.Errorf(pool.CodeNotFound, "pool %s is being deleted and gives out no VMs any more", c.Pool)
	}
	if c.RequestID != "" {
		if l := x.m.leases[x.m.requests[request{c.Pool, c.RequestID}]]; l != nil {
			return x.claimed(l, true), nil
		}
	}
	if c.ReplayOnly {
		return store.ClaimResult{}, pool.Errorf(pool.CodeExhausted, "no lease of pool %s was made for this request id", c.Pool)
	}
	if c.LeaseID == "" || x.m.leases[c.LeaseID] != nil || x.base.leases[c.LeaseID] != nil {
		return store.ClaimResult{}, fmt.Errorf("claim from pool %s: the new lease has no id of its own (this is a bug)", c.Pool)
	}
	vm := p.choose(x.m, c.Exclude, x.now)
	if vm == nil {
		n := p.counts(x.m)
		return store.ClaimResult{}, pool.Errorf(pool.CodeExhausted,
			"pool %s has no VM to give out at present (claimable %d, warming %d, leased %d, wanted %d); wait for one, or make the pool larger",
			c.Pool, n.Claimable, n.Warming, n.Held, n.Desired)
	}
	l, err := x.take(c, *vm)
	if err != nil {
		return store.ClaimResult{}, err
	}
	return x.claimed(l, false), nil
}

// take binds a VM to a new lease.
func (x *tx) take(c store.Claim, vm pool.VM) (*pool.Lease, error) {
	slot := vm.Slot
	l := pool.Lease{
		ID: c.LeaseID, Pool: c.Pool, VM: vm.ID, RequestID: c.RequestID, Consumer: c.Consumer, Owner: c.Actor,
		Epoch: x.epoch, ClaimedAt: x.now, LastHeartbeatAt: x.now,
	}
	vm.LeaseID = l.ID
	if c.Hooks > 0 {
		vm.Phase, l.Pending, l.ExpiresAt = pool.PreLeaseHookRunning, true, x.now.Add(c.Hooks)
	} else {
		vm.Phase, l.ExpiresAt = pool.Leased, expiry(x.m.pools[c.Pool].pool.Spec, l, x.now)
	}
	if err := x.putVM(vm); err != nil {
		return nil, err
	}
	x.putLease(l)
	if !l.Pending {
		x.emitClaimed(&l, slot)
	}
	return x.m.leases[l.ID], nil
}

// emitClaimed reports that a consumer has the VM.
func (x *tx) emitClaimed(l *pool.Lease, slot string) {
	with := payload{}
	with.text("consumer", l.Consumer)
	with.text("slot", slot)
	with.at("expires_at", l.ExpiresAt)
	x.emitVM(x.m.vms[l.VM], pool.EventVMClaimed, with)
}

// claimed is what a claim tells about a lease.
func (x *tx) claimed(l *pool.Lease, replayed bool) store.ClaimResult {
	vm, p := x.m.vms[l.VM], x.m.pools[l.Pool].pool
	r := store.ClaimResult{Lease: *l, VM: vm.Clone(), Spec: p.Spec, Stale: vm.Stale(*p), Replayed: replayed}
	if h := x.m.host(vm.Host); h != nil {
		r.Host = *h
	}
	return r
}

// choose finds the claimable VM that goes first: by the pool's preference, then those on hosts that are not cordoned,
// then the one available for longest, then by id. It compares one VM of each shelf.
func (p *poolRows) choose(m *mirror, exclude []string, now time.Time) *pool.VM {
	var best *pool.VM
	var bestRank [2]int
	for _, shelf := range p.ready {
		vm := firstOf(shelf, exclude)
		if vm == nil {
			continue
		}
		h := m.host(vm.Host)
		if h == nil || !pool.Claimable(*vm, *h) {
			continue
		}
		stale := vm.Stale(*p.pool)
		if stale && p.pool.Spec.ClaimPreference == pool.CurrentOnly && !p.standsIn(vm) {
			continue
		}
		rank := [2]int{0, oneIf(h.Cordoned)}
		if p.pool.Spec.ClaimPreference != pool.OldestFirst {
			rank[0] = oneIf(stale != p.turned(now))
		}
		if best == nil || cmp.Or(slices.Compare(rank[:], bestRank[:]), olderFirst(vm, best)) < 0 {
			best, bestRank = vm, rank
		}
	}
	return best
}

// standsIn reports whether a stale VM counts as current for CURRENT_ONLY: while the rollout is STALLED, one of the last
// completed revision does, or there might be none to hand out for a long time.
func (p *poolRows) standsIn(vm *pool.VM) bool {
	if p.pool.State() != pool.RolloutStalled {
		return false
	}
	last := p.revision(p.pool.Rollout.LastCompleted)
	return last != nil && last.TemplateHash == vm.TemplateHash
}

// turned reports whether CURRENT_FIRST means stale ones first: when demand has held the pool at its floor for so long
// that the rollout cannot take them, demand itself does.
func (p *poolRows) turned(now time.Time) bool {
	since := p.pool.Rollout.BlockedSince
	return p.pool.Spec.ClaimPreference == pool.CurrentFirst && !since.IsZero() &&
		now.Sub(since) >= p.pool.Spec.Rollout.Deadline()
}

// firstOf is the first VM that is not excluded; nil when all are.
func firstOf(vms *sorted[pool.VM], exclude []string) *pool.VM {
	for vm := range vms.all() {
		if !slices.Contains(exclude, vm.ID) {
			return vm
		}
	}
	return nil
}

func oneIf(b bool) int {
	if b {
		return 1
	}
	return 0
}

// expiry is when a lease ends that is renewed now: after the pool's threshold, within its longest life.
func expiry(s pool.Spec, l pool.Lease, now time.Time) time.Time {
	at := now.Add(s.HeartbeatExpiry)
	if s.MaxLeaseDuration > 0 {
		if end := l.ClaimedAt.Add(s.MaxLeaseDuration); end.Before(at) {
			return end
		}
	}
	return at
}

// CompleteClaim implements store.Leases.
func (e *Engine) CompleteClaim(ctx context.Context, lease string, now time.Time) (pool.Lease, error) {
	var done pool.Lease
	err := e.do(ctx, now, func(x *tx) error {
		l, vm, err := x.pending(lease)
		if err != nil {
			return err
		}
		vm.Phase = pool.Leased
		if err := x.putVM(vm); err != nil {
			return err
		}
		l.Pending, l.ClaimedAt, l.LastHeartbeatAt = false, x.now, x.now
		l.ExpiresAt = expiry(x.m.pools[l.Pool].pool.Spec, l, x.now)
		x.putLease(l)
		done = *x.m.leases[lease]
		x.emitClaimed(&done, "")
		return nil
	})
	return done, err
}

// pending returns copies of a pending lease of this run and its VM. What ended meanwhile is ABORTED.
func (x *tx) pending(lease string) (pool.Lease, pool.VM, error) {
	l := x.m.leases[lease]
	if l == nil || l.Epoch != x.epoch || x.m.pools[l.Pool].pool.Closing {
		return pool.Lease{}, pool.VM{}, pool.Errorf(pool.CodeAborted, "the claim ended while its pre-lease commands ran: its pool is being deleted, its VM was lost, or they took too long")
	}
	if !l.Pending {
		return pool.Lease{}, pool.VM{}, pool.Errorf(pool.CodeFailedPrecondition, "the claim is complete already")
	}
	return *l, *x.m.vms[l.VM], nil
}

// FailClaim implements store.Leases.
func (e *Engine) FailClaim(ctx context.Context, f store.FailClaim) error {
	return e.do(ctx, f.Now, func(x *tx) error {
		l, vm, err := x.pending(f.Lease)
		if err != nil {
			return err
		}
		vm.Phase = pool.Deleting
		if f.Payload != nil && x.mayQuarantine(l.Pool) {
			vm.Phase = pool.Quarantined
		}
		vm.Reason, vm.Message = pool.ReasonFailed, clip(f.Message)
		if err := x.putVM(vm); err != nil {
			return err
		}
		x.dropLease(x.m.leases[f.Lease])
		if f.Payload != nil {
			x.emitVM(x.m.vms[vm.ID], pool.EventVMHookFailed, maps.Clone(f.Payload))
		}
		return nil
	})
}

// mayQuarantine reports whether the pool keeps one more VM whose hook failed.
func (x *tx) mayQuarantine(key pool.Key) bool {
	p := x.m.pools[key]
	if p.pool.Spec.HookFailurePolicy != pool.Quarantine || p.pool.Closing {
		return false
	}
	most := p.pool.Spec.Size
	if p.pool.Spec.MaxQuarantined != nil {
		most = *p.pool.Spec.MaxQuarantined
	}
	return p.number(func(k kind) bool { return k.phase == pool.Quarantined }) < most
}

// maxMessage bounds the text kept on a row, in bytes. The end is kept: that is where commands tell what went wrong.
const maxMessage = 4096

func clip(message string) string {
	return strings.ToValidUTF8(message[max(0, len(message)-maxMessage):], "\uFFFD")
}
