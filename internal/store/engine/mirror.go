package engine

import (
	"cmp"
	"fmt"
	"slices"

	"poolmgr/internal/pool"
)

// mirror is all rows with the indexes that verbs and reads need. Rows are immutable: a change puts another value in
// the place of the old one.
type mirror struct {
	pools     map[pool.Key]*poolRows
	vms       map[string]*pool.VM
	leases    map[string]*pool.Lease
	requests  map[request]string // lease ids
	hosts     map[string]*hostRows
	addresses map[string]string // host names
	lastEvent int64
}

// request is a claim's request id, scoped to its pool.
type request struct {
	pool pool.Key
	id   string
}

func newMirror() *mirror {
	return &mirror{
		pools:     map[pool.Key]*poolRows{},
		vms:       map[string]*pool.VM{},
		leases:    map[string]*pool.Lease{},
		requests:  map[request]string{},
		hosts:     map[string]*hostRows{},
		addresses: map[string]string{},
	}
}

// load fills an empty mirror. It refuses rows that point to others that do not exist.
func (m *mirror) load(s State) error {
	m.lastEvent = s.LastEvent
	for i := range s.Hosts {
		m.setHost(s.Hosts[i].Name, &s.Hosts[i])
	}
	for i := range s.Pools {
		m.setPool(s.Pools[i].Key(), &s.Pools[i])
	}
	revisions := slices.Clone(s.Revisions)
	slices.SortFunc(revisions, func(a, b pool.Revision) int { return cmp.Compare(a.Number, b.Number) })
	for i := range revisions {
		p := m.pools[revisions[i].Pool]
		if p == nil {
			return fmt.Errorf("%w: revision %d of pool %s, which does not exist", ErrCorrupt, revisions[i].Number, revisions[i].Pool)
		}
		p.revisions = append(p.revisions, &revisions[i])
	}
	for i := range s.VMs {
		vm := &s.VMs[i]
		p := m.pools[vm.Pool]
		if p == nil || p.revision(vm.Revision) == nil {
			return fmt.Errorf("%w: VM %s is of revision %d of pool %s, which does not exist", ErrCorrupt, vm.ID, vm.Revision, vm.Pool)
		}
		m.setVM(vm.ID, vm)
	}
	for i := range s.Leases {
		l := &s.Leases[i]
		if vm := m.vms[l.VM]; vm == nil || vm.Pool != l.Pool || vm.LeaseID != l.ID {
			return fmt.Errorf("%w: a lease of VM %s, which is not held by it", ErrCorrupt, l.VM)
		}
		m.setLease(l.ID, l)
	}
	return nil
}

// setPool puts, or with nil removes, the row of a pool. A removed pool has no other rows left; its revisions go with it.
func (m *mirror) setPool(key pool.Key, next *pool.Pool) {
	p := m.pools[key]
	switch {
	case next == nil:
		delete(m.pools, key)
	case p == nil:
		m.pools[key] = newPoolRows(next)
	default:
		p.pool = next
	}
}

// setVM puts, or with nil removes, the row of a VM.
func (m *mirror) setVM(id string, next *pool.VM) {
	old := m.vms[id]
	if old != nil {
		p := m.pools[old.Pool]
		p.uncount(old)
		m.weigh(p, old, -1)
	}
	if next == nil {
		delete(m.vms, id)
		m.pools[old.Pool].vms.remove(old)
		return
	}
	m.vms[id] = next
	p := m.pools[next.Pool]
	if old == nil {
		p.vms.insert(next)
	} else {
		p.vms.replace(next)
	}
	p.count(next)
	m.weigh(p, next, 1)
}

// weigh adds a VM to the load of its host, or with sign -1 takes it away.
func (m *mirror) weigh(p *poolRows, vm *pool.VM, sign int) {
	if vm.Host == "" {
		return
	}
	h := m.hosts[vm.Host]
	if h == nil {
		h = newHostRows()
		m.hosts[vm.Host] = h
	}
	h.add(vm, p.memory(vm.Revision), sign)
}

// setLease puts, or with nil removes, a lease.
func (m *mirror) setLease(id string, next *pool.Lease) {
	old := m.leases[id]
	if next == nil {
		delete(m.leases, id)
		m.pools[old.Pool].leases.remove(old)
		if old.RequestID != "" {
			delete(m.requests, request{old.Pool, old.RequestID})
		}
		return
	}
	m.leases[id] = next
	if old != nil {
		m.pools[next.Pool].leases.replace(next)
		return
	}
	m.pools[next.Pool].leases.insert(next)
	if next.RequestID != "" {
		m.requests[request{next.Pool, next.RequestID}] = id
	}
}

// setHost puts, or with nil removes, the row of a host.
func (m *mirror) setHost(name string, next *pool.Host) {
	h := m.hosts[name]
	if h != nil && h.host != nil && m.addresses[h.host.Address] == name {
		delete(m.addresses, h.host.Address)
	}
	if next == nil {
		delete(m.hosts, name)
		return
	}
	if h == nil {
		h = newHostRows()
		m.hosts[name] = h
	}
	h.host = next
	m.addresses[next.Address] = name
}

// host returns the row of a registered host, or nil.
func (m *mirror) host(name string) *pool.Host {
	if h := m.hosts[name]; h != nil {
		return h.host
	}
	return nil
}

// keys are the keys of all pools in order.
func (m *mirror) keys() []pool.Key {
	keys := make([]pool.Key, 0, len(m.pools))
	for key := range m.pools {
		keys = append(keys, key)
	}
	slices.SortFunc(keys, pool.Key.Compare)
	return keys
}
