package storetest

import (
	"fmt"
	"slices"

	"poolmgr/internal/pool"
	"poolmgr/internal/store"
)

var revisionTests = []test{
	{"TheLastTenAreKept", testLastRevisions},
	{"ThoseInUseAreKept", testUsedRevisions},
	{"RemovedOnesMakeNoVMs", testRemovedRevisions},
	{"UndoCountsAsANewOne", testUndoneRevisions},
}

// numbers lists the stored revisions, which must be the same after reopening.
func (f *fixture) numbers() []int64 {
	f.Helper()
	read := func() (got []int64) {
		revisions, err := f.store.Revisions(f.Context(), key)
		f.must(err)
		for _, r := range revisions {
			got = append(got, r.Number)
		}
		return got
	}
	before := read()
	f.reopen()
	if after := read(); !slices.Equal(before, after) {
		f.Fatalf("revisions %v, after reopening %v", before, after)
	}
	return before
}

// edit updates the template until the pool is at the revision.
func (f *fixture) edit(upTo int64) {
	f.Helper()
	for n := f.view().Pool.Revision + 1; n <= upTo; n++ {
		if p := f.update(image(fmt.Sprint("edit:", n))); p.Revision != n {
			f.Fatalf("at revision %d, want %d", p.Revision, n)
		}
	}
}

func (f *fixture) stored(want ...int64) {
	f.Helper()
	if got := f.numbers(); !slices.Equal(got, want) {
		f.Fatalf("stored revisions %v, want %v", got, want)
	}
}

func testLastRevisions(f *fixture) {
	f.pool()
	f.edit(10)
	f.stored(1, 2, 3, 4, 5, 6, 7, 8, 9, 10)
	f.edit(11)
	f.stored(2, 3, 4, 5, 6, 7, 8, 9, 10, 11)
	f.update(image("edit:11"), func(s *pool.Spec) { s.Size = 4 }) // no new revision: nothing goes
	f.steer(store.RolloutRestart)
	f.stored(2, 3, 4, 5, 6, 7, 8, 9, 10, 11)
	f.edit(25)
	f.stored(16, 17, 18, 19, 20, 21, 22, 23, 24, 25)
	_, err := f.trySteer(store.RolloutUndo, 1)
	f.refused(err, pool.CodeNotFound)
}

func testUsedRevisions(f *fixture) {
	f.pool()
	f.boot(f.grow(1)...)
	f.must(f.complete(1))
	f.edit(2)
	old := f.warm(3)
	held := f.claim().VM.ID
	f.edit(3)
	deleting := f.warm(1)[0]
	f.do(f.condemn(deleting, pool.ReasonAdmin))
	f.edit(20)
	f.stored(1, 2, 3, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20)
	f.remove(deleting)
	for _, id := range old {
		if id != held {
			f.do(f.condemn(id, pool.ReasonRollout))
			f.remove(id)
		}
	}
	f.edit(21)
	f.stored(1, 2, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21)
	_, err := f.trySteer(store.RolloutUndo, 0) // the last completed one is there, however old
	f.must(err)
	for _, vm := range f.snapshot().VMs {
		if vm.Revision == 2 {
			f.must(f.store.Release(f.Context(), vm.LeaseID, "", f.now))
			f.remove(vm.ID)
		}
	}
	f.must(f.complete(22)) // its own first VM is current again
	f.edit(23)
	f.stored(1, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23)
}

func testRemovedRevisions(f *fixture) {
	f.pool()
	f.edit(12)
	f.failed(f.tryOne(store.Grow{IDs: []string{"web-late"}, Revision: 2, MaxSlots: 10}), store.ErrConflict)
	f.do(store.Grow{IDs: []string{"web-kept"}, Revision: 3, MaxSlots: 10})
	f.edit(30)
	if got := f.numbers()[0]; got != 3 {
		f.Fatalf("the oldest stored revision is %d, and a VM is made from 3", got)
	}
	f.boot("web-kept")
	f.do(f.condemn("web-kept", pool.ReasonRollout))
	f.edit(40)
	f.remove("web-kept")
	f.edit(41)
	f.stored(32, 33, 34, 35, 36, 37, 38, 39, 40, 41)
}

func testUndoneRevisions(f *fixture) {
	f.pool()
	f.edit(11)
	p, err := f.trySteer(store.RolloutUndo, 2) // which is just what goes
	f.must(err)
	if p.Revision != 12 {
		f.Fatalf("at revision %d", p.Revision)
	}
	f.stored(3, 4, 5, 6, 7, 8, 9, 10, 11, 12)
}
