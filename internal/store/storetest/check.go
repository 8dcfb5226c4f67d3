package storetest

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"poolmgr/internal/pool"
	"poolmgr/internal/store"
)

// Check reports every inconsistency between the rows of a store that nobody writes to at the moment: leases and VMs
// point to each other one to one, slots belong to warm rows, counts equal a recount, and every change that is
// reported by an event has exactly one.
func Check(t testing.TB, s store.Store) {
	t.Helper()
	for _, fault := range Faults(s) {
		t.Errorf("inconsistent store: %s", fault)
	}
}

// Faults lists what Check reports.
func Faults(s store.Store) []string {
	c := &checker{store: s, vms: map[string]pool.VM{}, leases: map[string]pool.Lease{}, memory: map[string]int{}}
	c.run(context.Background()) // runs in cleanups, where a test's own context is over
	return c.faults
}

type checker struct {
	store  store.Store
	faults []string
	vms    map[string]pool.VM
	leases map[string]pool.Lease
	memory map[string]int // of each VM, from its revision's template
}

func (c *checker) want(ok bool, format string, args ...any) {
	if !ok {
		c.faults = append(c.faults, fmt.Sprintf(format, args...))
	}
}

func (c *checker) run(ctx context.Context) {
	views, err := c.store.ListPools(ctx, "")
	c.want(err == nil, "ListPools: %v", err)
	for _, view := range views {
		c.pool(ctx, view)
	}
	for id, l := range c.leases {
		c.lease(id, l)
	}
	c.lists(ctx)
	c.hosts(ctx)
	c.events(ctx)
}

func (c *checker) pool(ctx context.Context, view store.PoolView) {
	key := view.Pool.Key()
	s, err := c.store.Snapshot(ctx, key)
	c.want(err == nil, "Snapshot of %s: %v", key, err)
	c.want(cmp.Equal(s.Pool, view.Pool, sameTemplate), "pool %s differs between ListPools and Snapshot", key)
	revisions := c.revisions(ctx, s)
	c.want(slices.IsSortedFunc(s.VMs, func(a, b pool.VM) int { return strings.Compare(a.ID, b.ID) }), "%s: VMs are not sorted", key)
	c.want(slices.IsSortedFunc(s.Leases, func(a, b pool.Lease) int { return strings.Compare(a.ID, b.ID) }), "%s: leases are not sorted", key)
	requests := map[string]bool{}
	for _, l := range s.Leases {
		c.want(l.Pool == key, "%s: a lease of pool %s", key, l.Pool)
		c.want(l.RequestID == "" || !requests[l.RequestID], "%s: request id %s has two leases", key, l.RequestID)
		requests[l.RequestID] = true
		c.leases[l.ID] = l
	}
	rows := map[string]int{}
	for _, vm := range s.VMs {
		_, twice := c.vms[vm.ID]
		c.want(!twice, "VM %s is in two pools", vm.ID)
		c.vms[vm.ID] = vm
		rows[vm.Slot]++
		c.vm(s.Pool, vm, revisions)
	}
	delete(rows, "")
	for slot, n := range rows {
		c.want(n <= 2, "%s: slot %s has %d rows", key, slot, n)
		number, err := strconv.ParseInt(strings.TrimPrefix(slot, "s"), 10, 64)
		c.want(err == nil && number < s.Pool.NextSlot, "%s: slot %s was never made, the next is s%d", key, slot, s.Pool.NextSlot)
	}
	want := recount(s)
	c.want(view.Counts == want, "%s: counts %+v, recounted %+v", key, view.Counts, want)
}

func (c *checker) revisions(ctx context.Context, s store.Snapshot) map[int64]pool.Revision {
	p := s.Pool
	all, err := c.store.Revisions(ctx, p.Key())
	c.want(err == nil, "Revisions of %s: %v", p.Key(), err)
	by := map[int64]pool.Revision{}
	var newest int64
	for _, r := range all {
		c.want(r.Pool == p.Key() && r.Number > newest, "%s: revision %d of %s after %d", p.Key(), r.Number, r.Pool, newest)
		newest = r.Number
		by[r.Number] = r
	}
	c.want(newest == p.Revision && by[newest].TemplateHash == p.TemplateHash, "%s: is at revision %d, the newest is %d", p.Key(), p.Revision, newest)
	for n := max(1, p.Revision-store.KeptRevisions+1); n <= p.Revision; n++ {
		c.want(by[n].Number == n, "%s: revision %d, one of the last, is not stored", p.Key(), n)
	}
	last := p.Rollout.LastCompleted
	c.want(last == 0 || by[last].Number == last, "%s: the last completed revision %d is not stored", p.Key(), last)
	c.want(p.Generation >= 1 && p.Version >= 1, "%s: generation %d, version %d", p.Key(), p.Generation, p.Version)
	c.want(len(p.Rollout.Failures) <= pool.MaxFailures, "%s: %d failures are kept", p.Key(), len(p.Rollout.Failures))
	c.want(p.Rollout.Completed != p.Rollout.CompletedAt.IsZero(), "%s: completed %v at %v", p.Key(), p.Rollout.Completed, p.Rollout.CompletedAt)
	inUse := map[int64]bool{}
	for _, r := range s.Revisions {
		inUse[r.Number] = true
	}
	c.want(inUse[p.Revision], "%s: the snapshot lacks the current revision", p.Key())
	for _, vm := range s.VMs {
		c.want(!vm.Phase.Warm() || inUse[vm.Revision], "%s: the snapshot lacks revision %d of VM %s", p.Key(), vm.Revision, vm.ID)
	}
	return by
}

func (c *checker) vm(p pool.Pool, vm pool.VM, revisions map[int64]pool.Revision) {
	phase := vm.Phase
	c.want(slices.Contains(pool.Phases, phase) && phase != pool.Failed, "VM %s is %q", vm.ID, phase)
	c.want((vm.Slot != "") == phase.Warm(), "VM %s is %s in slot %q", vm.ID, phase, vm.Slot)
	c.want((vm.LeaseID != "") == phase.Held(), "VM %s is %s, with a lease: %v", vm.ID, phase, vm.LeaseID != "")
	if phase.Held() {
		l, ok := c.leases[vm.LeaseID]
		c.want(ok && l.VM == vm.ID, "VM %s is held by a lease that is not its own", vm.ID)
	}
	ended := phase == pool.Deleting || phase == pool.Quarantined
	c.want(ended == (vm.Reason != ""), "VM %s is %s for reason %q", vm.ID, phase, vm.Reason)
	c.want(vm.Version >= 1 && !vm.CreatedAt.IsZero() && !vm.UpdatedAt.IsZero(), "VM %s: version %d", vm.ID, vm.Version)
	c.want(vm.UID == "" || vm.Host != "", "VM %s has an id on no host", vm.ID)
	c.want((vm.Host != "") == !vm.SentAt.IsZero(), "VM %s: on host %q, sent at %v", vm.ID, vm.Host, vm.SentAt)
	booted := phase == pool.Available || phase.Held()
	c.want(!booted || vm.UID != "" && !vm.AvailableAt.IsZero(), "VM %s is %s and was never booted", vm.ID, phase)
	r, ok := revisions[vm.Revision]
	c.want(ok && r.TemplateHash == vm.TemplateHash, "VM %s is of revision %d, hash %s, which is not stored", vm.ID, vm.Revision, vm.TemplateHash)
	c.want(vm.Restart <= p.Restart, "VM %s has restart number %d, its pool %d", vm.ID, vm.Restart, p.Restart)
	c.memory[vm.ID] = int(r.Template.GetMemoryInMb())
}

func (c *checker) lease(id string, l pool.Lease) {
	vm, ok := c.vms[l.VM]
	c.want(ok && vm.LeaseID == id && vm.Pool == l.Pool, "a lease of pool %s and VM %s, which is not held by it", l.Pool, l.VM)
	phase := pool.Leased
	if l.Pending {
		phase = pool.PreLeaseHookRunning
	}
	c.want(vm.Phase == phase, "VM %s is %s, its lease pending: %v", l.VM, vm.Phase, l.Pending)
	c.want(l.Version >= 1 && !l.ExpiresAt.IsZero() && !l.ClaimedAt.IsZero(), "the lease of VM %s: version %d", l.VM, l.Version)
	c.want(l.Epoch <= c.store.Epoch(), "the lease of VM %s is of run %d, this is %d", l.VM, l.Epoch, c.store.Epoch())
}

// recount is a pool's counts, the slow way.
func recount(s store.Snapshot) store.Counts {
	hosts := map[string]pool.Host{}
	for _, h := range s.Hosts {
		hosts[h.Name] = h.Host
	}
	var n store.Counts
	slots := map[string]bool{}
	for _, vm := range s.VMs {
		if vm.Phase.Warm() {
			slots[vm.Slot] = true
		}
		stale := vm.Stale(s.Pool)
		n.Claimable += one(pool.Claimable(vm, hosts[vm.Host]))
		n.Held += one(vm.Phase.Held())
		n.Warming += one(vm.Phase.Warming())
		n.Quarantined += one(vm.Phase == pool.Quarantined)
		n.Deleting += one(vm.Phase == pool.Deleting)
		n.Failed += one(vm.Phase == pool.Failed)
		n.Stale += one(stale && vm.Phase != pool.Deleting)
		n.StaleLeased += one(stale && vm.Phase.Held())
	}
	n.Desired = s.Pool.Spec.Desired(len(slots), n.Held)
	return n
}

func one(b bool) int {
	if b {
		return 1
	}
	return 0
}

// lists compares the lists over all pools with the snapshots.
func (c *checker) lists(ctx context.Context) {
	seen := map[string]bool{}
	for after := ""; ; {
		page, err := c.store.ListVMs(ctx, store.VMQuery{After: after, Limit: 7})
		c.want(err == nil, "ListVMs: %v", err)
		for _, vm := range page {
			c.want(vm.ID > after, "ListVMs: %s after %s", vm.ID, after)
			c.want(cmp.Equal(vm, c.vms[vm.ID]), "VM %s differs between ListVMs and Snapshot", vm.ID)
			after, seen[vm.ID] = vm.ID, true
		}
		if len(page) < 7 {
			break
		}
	}
	c.want(len(seen) == len(c.vms), "ListVMs has %d VMs, the snapshots %d", len(seen), len(c.vms))
	views, err := c.store.ListLeases(ctx, nil)
	c.want(err == nil, "ListLeases: %v", err)
	for _, view := range views {
		l, ok := c.leases[view.Lease.ID]
		c.want(ok && l == view.Lease && !l.Pending, "ListLeases shows a lease of VM %s that it should not", view.Lease.VM)
		c.want(view.UID == c.vms[l.VM].UID, "ListLeases shows VM %s with another id on its host", l.VM)
	}
}

// hosts compares the load of each host with a recount over all pools.
func (c *checker) hosts(ctx context.Context) {
	hosts, err := c.store.ListHosts(ctx)
	c.want(err == nil, "ListHosts: %v", err)
	addresses := map[string]bool{}
	for _, h := range hosts {
		want := pool.HostLoad{Host: h.Host}
		for _, vm := range c.vms {
			if vm.Host != h.Name {
				continue
			}
			want.Rows++
			want.Live += one(vm.Phase != pool.Deleting)
			want.Starts += one(vm.Phase == pool.Provisioning)
			want.MemoryMB += c.memory[vm.ID]
		}
		c.want(h == want, "host %s: load %+v, recounted %+v", h.Name, h, want)
		c.want(!addresses[h.Address] && h.Version >= 1, "host %s: version %d, shared address %v", h.Name, h.Version, addresses[h.Address])
		addresses[h.Address] = true
	}
}

// events checks that ids are dense and that every VM has the events of its changes, once each.
func (c *checker) events(ctx context.Context) {
	var next int64 = 1
	count := map[string]map[pool.EventType]int{}
	for cursor := int64(0); cursor < c.store.LastEvent(); {
		page, err := c.store.Since(ctx, store.EventQuery{After: cursor, Limit: 100})
		c.want(err == nil && page.Cursor > cursor, "Since %d: cursor %d, %v", cursor, page.Cursor, err)
		if err != nil || page.Cursor <= cursor {
			return
		}
		for _, e := range page.Events {
			c.want(e.ID == next, "event %d comes where %d should", e.ID, next)
			next++
			c.event(e)
			if count[e.VM] == nil {
				count[e.VM] = map[pool.EventType]int{}
			}
			count[e.VM][e.Type]++
		}
		cursor = page.Cursor
	}
	c.want(next == c.store.LastEvent()+1, "the last event is %d, the next would be %d", c.store.LastEvent(), next)
	delete(count, "")
	for vm, of := range count {
		c.vmEvents(vm, of)
	}
	for id, vm := range c.vms {
		c.want(!vm.Phase.Held() && vm.Phase != pool.Available || count[id][pool.EventVMAvailable] == 1, "VM %s is %s without VM_AVAILABLE", id, vm.Phase)
		c.want(vm.Phase != pool.Leased || count[id][pool.EventVMClaimed] == 1, "VM %s is LEASED without VM_CLAIMED", id)
		c.want(vm.UID == "" || count[id][pool.EventVMProvisioned] == 1, "VM %s has an id on its host without VM_PROVISIONED", id)
	}
}

func (c *checker) event(e pool.Event) {
	c.want(e.Type != "" && !e.At.IsZero() && e.Pool.Name != "", "event %d: %q of %s at %v", e.ID, e.Type, e.Pool, e.At)
	c.want(strings.HasPrefix(string(e.Type), "VM_") == (e.VM != ""), "event %d: %s of VM %q", e.ID, e.Type, e.VM)
	text, err := json.Marshal(e.Payload)
	c.want(err == nil && len(e.Payload) > 0, "event %d: payload %s, %v", e.ID, text, err)
	for id := range c.leases {
		c.want(!strings.Contains(string(text), id), "event %d tells the id of a lease", e.ID)
	}
}

// vmEvents checks the number of each event of one VM. VM_EXPIRING_SOON may come once per lease period.
func (c *checker) vmEvents(vm string, of map[pool.EventType]int) {
	ends := 0
	for what, n := range of {
		c.want(n == 1 || what == pool.EventVMExpiringSoon, "VM %s has %d times %s", vm, n, what)
		if strings.HasPrefix(string(what), "VM_DELETED_") {
			ends += n
		}
	}
	_, exists := c.vms[vm]
	c.want(ends <= 1 && (ends == 1) == !exists, "VM %s: %d events of its end, row there: %v", vm, ends, exists)
}
