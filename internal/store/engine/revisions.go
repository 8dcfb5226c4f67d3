package engine

import (
	"slices"

	"poolmgr/internal/pool"
	"poolmgr/internal/store"
)

// newRevision is the stored template of a spec.
func newRevision(s pool.Spec, number int64) pool.Revision {
	return pool.Revision{
		Pool:           s.Key,
		Number:         number,
		TemplateHash:   pool.TemplateHash(s.Template, s.CreateCommands),
		Template:       s.Template,
		CreateCommands: slices.Clone(s.CreateCommands),
	}
}

// addRevision stores a new template of a pool.
func (x *tx) addRevision(r pool.Revision) {
	x.keepRevisions(r.Pool)
	x.m.addRevision(&r)
	x.revisions.add(RevisionKey{r.Pool, r.Number})
}

// pruneRevisions forgets the revisions of a pool that are neither among the last nor in use: the current one, the last
// completed one, and every VM's, whose memory on its host is counted by its template until the row goes.
func (x *tx) pruneRevisions(key pool.Key) {
	p := x.m.pools[key]
	old := len(p.revisions) - store.KeptRevisions
	if old <= 0 {
		return
	}
	used := map[int64]bool{p.pool.Revision: true, p.pool.Rollout.LastCompleted: true}
	for vm := range p.vms.all() {
		used[vm.Revision] = true
	}
	x.keepRevisions(key)
	for _, r := range slices.Clone(p.revisions[:old]) {
		if !used[r.Number] {
			gone := RevisionKey{key, r.Number}
			x.m.dropRevision(gone)
			x.revisions.add(gone)
		}
	}
}

// keepRevisions notes in the journal which revisions a pool has.
func (x *tx) keepRevisions(key pool.Key) {
	p := x.m.pools[key]
	before := slices.Clone(p.revisions)
	x.journal = append(x.journal, func() { p.revisions = before })
}

// revisionChanges is the difference between the working mirror's revisions and those that are durable. A revision never
// changes, so it is new or gone; those of a removed pool go with it.
func (x *tx) revisionChanges() (added []pool.Revision, gone []RevisionKey) {
	for _, key := range x.revisions.order {
		old, now := x.base.revision(key), x.m.revision(key)
		switch {
		case old == nil && now != nil:
			added = append(added, *now)
		case old != nil && now == nil && x.m.pools[key.Pool] != nil:
			gone = append(gone, key)
		}
	}
	return added, gone
}

func (m *mirror) revision(key RevisionKey) *pool.Revision {
	if p := m.pools[key.Pool]; p != nil {
		return p.revision(key.Number)
	}
	return nil
}

// addRevision adds the newest revision of a pool.
func (m *mirror) addRevision(r *pool.Revision) {
	p := m.pools[r.Pool]
	p.revisions = append(p.revisions, r)
}

func (m *mirror) dropRevision(key RevisionKey) {
	p := m.pools[key.Pool]
	p.revisions = slices.DeleteFunc(p.revisions, func(r *pool.Revision) bool { return r.Number == key.Number })
}
