package memory

import (
	"encoding/json"
	"fmt"
	"slices"

	"poolmgr/internal/pool"
	"poolmgr/internal/store"
	"poolmgr/internal/store/engine"
)

// rows is the content of a storage.
type rows struct {
	pools     map[pool.Key]pool.Pool
	vms       map[string]pool.VM
	leases    map[string]pool.Lease
	hosts     map[string]pool.Host
	revisions map[engine.RevisionKey]pool.Revision
	events    []pool.Event
}

func newRows() rows {
	return rows{
		pools:     map[pool.Key]pool.Pool{},
		vms:       map[string]pool.VM{},
		leases:    map[string]pool.Lease{},
		hosts:     map[string]pool.Host{},
		revisions: map[engine.RevisionKey]pool.Revision{},
	}
}

// state copies everything.
func (r *rows) state(epoch int64) engine.State {
	s := engine.State{
		Installation: "memory",
		Epoch:        epoch,
		LastEvent:    int64(len(r.events)),
		FirstEvent:   min(1, int64(len(r.events))),
		Pools:        values(r.pools),
		Revisions:    values(r.revisions),
		VMs:          values(r.vms),
		Leases:       values(r.leases),
		Hosts:        values(r.hosts),
	}
	for i := range s.Pools {
		s.Pools[i] = s.Pools[i].Clone()
	}
	for i := range s.VMs {
		s.VMs[i] = s.VMs[i].Clone()
	}
	return s
}

func values[K comparable, R any](m map[K]R) []R {
	all := make([]R, 0, len(m))
	for _, row := range m {
		all = append(all, row)
	}
	return all
}

// check refuses what a database with guarded writes and unique columns would refuse.
func (r *rows) check(c engine.Changes) error {
	for _, err := range []error{
		guard(c.Pools, r.pools, func(p pool.Pool) (pool.Key, int64) { return p.Key(), p.Version }),
		guard(c.VMs, r.vms, func(v pool.VM) (string, int64) { return v.ID, v.Version }),
		guard(c.Leases, r.leases, func(l pool.Lease) (string, int64) { return l.ID, l.Version }),
		guard(c.Hosts, r.hosts, func(h pool.Host) (string, int64) { return h.Name, h.Version }),
	} {
		if err != nil {
			return err
		}
	}
	for _, revision := range c.Revisions {
		if _, taken := r.revisions[engine.RevisionKey{Pool: revision.Pool, Number: revision.Number}]; taken {
			return fmt.Errorf("%w: revision %d of pool %s is there already", engine.ErrCorrupt, revision.Number, revision.Pool)
		}
	}
	for _, key := range c.Forgotten {
		if _, found := r.revisions[key]; !found {
			return fmt.Errorf("%w: revision %d of pool %s is not there", engine.ErrCorrupt, key.Number, key.Pool)
		}
	}
	for i, e := range c.Events {
		if want := int64(len(r.events) + i + 1); e.ID != want {
			return fmt.Errorf("%w: event %d comes where %d should", engine.ErrCorrupt, e.ID, want)
		}
	}
	return nil
}

// guard refuses a change whose row has another version than the one it names, a row that does not grow, and a second
// change of a row.
func guard[R any, K comparable](changes []engine.Change[R, K], have map[K]R, of func(R) (K, int64)) error {
	seen := map[K]bool{}
	for _, c := range changes {
		var version int64
		if row, ok := have[c.Key]; ok {
			_, version = of(row)
		}
		if version != c.Before || seen[c.Key] {
			return fmt.Errorf("%w: %v is at version %d, not %d", engine.ErrCorrupt, c.Key, version, c.Before)
		}
		seen[c.Key] = true
		if c.After == nil {
			continue
		}
		if key, next := of(*c.After); key != c.Key || next <= version {
			return fmt.Errorf("%w: %v goes from version %d to %v at %d", engine.ErrCorrupt, c.Key, version, key, next)
		}
	}
	return nil
}

// apply stores a checked commit. Payloads become JSON, as in a database; what cannot be JSON fails before anything is
// stored.
func (r *rows) apply(c engine.Changes) error {
	events := slices.Clone(c.Events)
	for i := range events {
		text, err := json.Marshal(events[i].Payload)
		if err != nil {
			return fmt.Errorf("the payload of event %d: %w", events[i].ID, err)
		}
		events[i].Payload = nil
		if err := json.Unmarshal(text, &events[i].Payload); err != nil {
			return fmt.Errorf("the payload of event %d: %w", events[i].ID, err)
		}
	}
	r.events = append(r.events, events...)
	write(c.Pools, r.pools)
	for _, revision := range c.Revisions {
		r.revisions[engine.RevisionKey{Pool: revision.Pool, Number: revision.Number}] = revision
	}
	write(c.VMs, r.vms)
	for _, key := range c.Forgotten {
		delete(r.revisions, key)
	}
	write(c.Leases, r.leases)
	write(c.Hosts, r.hosts)
	for _, p := range c.Pools {
		if p.After == nil {
			r.forget(p.Key)
		}
	}
	return nil
}

func write[R any, K comparable](changes []engine.Change[R, K], rows map[K]R) {
	for _, c := range changes {
		if c.After == nil {
			delete(rows, c.Key)
		} else {
			rows[c.Key] = *c.After
		}
	}
}

// forget removes the revisions of a removed pool.
func (r *rows) forget(key pool.Key) {
	for k := range r.revisions {
		if k.Pool == key {
			delete(r.revisions, k)
		}
	}
}

// since reads events: their ids are dense, so that a cursor is an index.
func (r *rows) since(q store.EventQuery, upTo int64) []pool.Event {
	var found []pool.Event
	for _, e := range r.events[max(0, q.After):min(upTo, int64(len(r.events)))] {
		if len(found) == q.Limit {
			break
		}
		if (q.Pool == nil || e.Pool == *q.Pool) && (len(q.Types) == 0 || slices.Contains(q.Types, e.Type)) {
			found = append(found, e)
		}
	}
	return found
}
