package engine

import (
	"cmp"
	"slices"
	"strings"

	"poolmgr/internal/pool"
	"poolmgr/internal/store"
)

// poolRows is a pool with its rows and the counts that verbs need without a scan.
type poolRows struct {
	pool      *pool.Pool
	revisions []*pool.Revision           // ascending by number
	vms       sorted[pool.VM]            // by id
	leases    sorted[pool.Lease]         // by id
	kinds     map[kind]int               // number of VMs of each kind
	slots     map[string]slot            // slots with a warm row
	ready     map[shelf]*sorted[pool.VM] // ready VMs, oldest first
	readySlot int                        // slots with a ready row
	unplaced  int                        // PROVISIONING rows without a host
}

// kind is what VMs are counted by. There are few in a pool: templates in use times phases.
type kind struct {
	hash    string
	restart int64
	phase   pool.Phase
}

// shelf is a group of ready VMs between which only age decides: a claim compares the first of each.
type shelf struct {
	hash    string
	restart int64
	host    string
}

// slot counts the warm and the ready rows of one slot.
type slot struct {
	warm, ready int
}

func newPoolRows(p *pool.Pool) *poolRows {
	return &poolRows{
		pool:   p,
		vms:    sorted[pool.VM]{cmp: func(a, b *pool.VM) int { return strings.Compare(a.ID, b.ID) }},
		leases: sorted[pool.Lease]{cmp: func(a, b *pool.Lease) int { return strings.Compare(a.ID, b.ID) }},
		kinds:  map[kind]int{},
		slots:  map[string]slot{},
		ready:  map[shelf]*sorted[pool.VM]{},
	}
}

// olderFirst orders ready VMs by the instant at which they became available, then by id.
func olderFirst(a, b *pool.VM) int {
	return cmp.Or(a.AvailableAt.Compare(b.AvailableAt), strings.Compare(a.ID, b.ID))
}

// count adds a VM to the counts of its pool.
func (p *poolRows) count(vm *pool.VM) {
	p.kinds[kindOf(vm)]++
	if vm.Phase == pool.Provisioning && vm.Host == "" {
		p.unplaced++
	}
	if vm.Phase.Warm() {
		s := p.slots[vm.Slot]
		s.warm++
		if vm.Ready() {
			s.ready++
			if s.ready == 1 {
				p.readySlot++
			}
		}
		p.slots[vm.Slot] = s
	}
	if vm.Ready() {
		at := shelfOf(vm)
		if p.ready[at] == nil {
			p.ready[at] = &sorted[pool.VM]{cmp: olderFirst}
		}
		p.ready[at].insert(vm)
	}
}

// uncount takes a VM out of the counts of its pool.
func (p *poolRows) uncount(vm *pool.VM) {
	of := kindOf(vm)
	if p.kinds[of]--; p.kinds[of] == 0 {
		delete(p.kinds, of)
	}
	if vm.Phase == pool.Provisioning && vm.Host == "" {
		p.unplaced--
	}
	if vm.Phase.Warm() {
		s := p.slots[vm.Slot]
		s.warm--
		if vm.Ready() {
			s.ready--
			if s.ready == 0 {
				p.readySlot--
			}
		}
		p.slots[vm.Slot] = s
		if s.warm == 0 {
			delete(p.slots, vm.Slot)
		}
	}
	if vm.Ready() {
		at := shelfOf(vm)
		p.ready[at].remove(vm)
		if p.ready[at].n == 0 {
			delete(p.ready, at)
		}
	}
}

func kindOf(vm *pool.VM) kind { return kind{vm.TemplateHash, vm.Restart, vm.Phase} }

func shelfOf(vm *pool.VM) shelf { return shelf{vm.TemplateHash, vm.Restart, vm.Host} }

// stale is pool.VM.Stale for a kind.
func (k kind) stale(p pool.Pool) bool {
	return pool.VM{TemplateHash: k.hash, Restart: k.restart}.Stale(p)
}

// number counts the VMs of the kinds that match.
func (p *poolRows) number(match func(kind) bool) int {
	n := 0
	for k, count := range p.kinds {
		if match(k) {
			n += count
		}
	}
	return n
}

// held is the number of held VMs.
func (p *poolRows) held() int {
	return p.number(func(k kind) bool { return k.phase.Held() })
}

// staleWarm is the number of stale VMs in the warm set.
func (p *poolRows) staleWarm() int {
	return p.number(func(k kind) bool { return k.phase.Warm() && k.stale(*p.pool) })
}

// desired is the number of slots that the strategy asks for.
func (p *poolRows) desired() int { return p.pool.Spec.Desired(len(p.slots), p.held()) }

// revision finds a stored template by its number; nil when there is none.
func (p *poolRows) revision(number int64) *pool.Revision {
	i, found := slices.BinarySearchFunc(p.revisions, number, func(r *pool.Revision, n int64) int {
		return cmp.Compare(r.Number, n)
	})
	if !found {
		return nil
	}
	return p.revisions[i]
}

// memory is what a VM of the revision takes on a host, in MB.
func (p *poolRows) memory(revision int64) int {
	if r := p.revision(revision); r != nil {
		return int(r.Template.GetMemoryInMb())
	}
	return 0
}

// mayUse reports whether the pool's VMs may be placed on the host.
func (p *poolRows) mayUse(host string) bool {
	return len(p.pool.Spec.Hosts) == 0 || slices.Contains(p.pool.Spec.Hosts, host)
}

// wants reports whether the pool could use room on a host: rows wait for a place, slots are missing, or VMs are to be
// replaced.
func (p *poolRows) wants() bool {
	return !p.pool.Closing &&
		(p.unplaced > 0 || len(p.slots) < p.desired() || !p.pool.Rollout.Completed || p.pool.Spec.MaxWarmAge > 0)
}

// counts are the numbers that the pool's status shows.
func (p *poolRows) counts(m *mirror) store.Counts {
	phase := func(want pool.Phase) int { return p.number(func(k kind) bool { return k.phase == want }) }
	c := store.Counts{
		Held:        p.held(),
		Warming:     p.number(func(k kind) bool { return k.phase.Warming() }),
		Quarantined: phase(pool.Quarantined),
		Deleting:    phase(pool.Deleting),
		Failed:      phase(pool.Failed),
		Stale:       p.number(func(k kind) bool { return k.phase != pool.Deleting && k.stale(*p.pool) }),
		StaleLeased: p.number(func(k kind) bool { return k.phase.Held() && k.stale(*p.pool) }),
		Desired:     p.desired(),
	}
	for at, vms := range p.ready {
		if h := m.host(at.host); h != nil && pool.Claimable(*vms.first(), *h) {
			c.Claimable += vms.n
		}
	}
	return c
}

// hostRows is a host with what stands on it.
type hostRows struct {
	host   *pool.Host // nil: VMs name a host that is not registered
	rows   int
	live   int
	memory int
	starts int
	pools  map[pool.Key]int // rows of each pool
}

func newHostRows() *hostRows { return &hostRows{pools: map[pool.Key]int{}} }

// starting reports whether the VM is a start in flight: placed, and not yet answered from inside.
func starting(vm *pool.VM) bool { return vm.Phase == pool.Provisioning && vm.Host != "" }

func (h *hostRows) add(vm *pool.VM, memory, sign int) {
	h.rows += sign
	h.memory += sign * memory
	if vm.Phase != pool.Deleting {
		h.live += sign
	}
	if starting(vm) {
		h.starts += sign
	}
	if h.pools[vm.Pool] += sign; h.pools[vm.Pool] == 0 {
		delete(h.pools, vm.Pool)
	}
}

// load is the host as placement sees it.
func (h *hostRows) load() pool.HostLoad {
	return pool.HostLoad{Host: *h.host, Rows: h.rows, Live: h.live, MemoryMB: h.memory, Starts: h.starts}
}
