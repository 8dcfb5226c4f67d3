package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"poolmgr/api/flintlock/vmtypes"
	"poolmgr/internal/pool"
	"poolmgr/internal/store"
)

// recorder keeps the commits of a log that keeps nothing else.
type recorder struct {
	discard
	commits []Changes
}

func (r *recorder) Commit(_ context.Context, c Changes) error {
	r.commits = append(r.commits, c)
	return nil
}

func openRecorder(t *testing.T) (*Engine, *recorder) {
	t.Helper()
	r := &recorder{discard: discard{epoch: 1}}
	e, err := Open(t.Context(), r, Options{})
	if err != nil {
		t.Fatal(err)
	}
	return e, r
}

// rollTo makes the pool's next revisions in the verb that runs.
func rollTo(x *tx, upTo int64) {
	for n := x.m.pools[testKey].pool.Revision + 1; n <= upTo; n++ {
		x.startRollout(pool.Revision{Pool: testKey, Number: n, TemplateHash: fmt.Sprint("v1:", n), Template: &vmtypes.MicroVMSpec{MemoryInMb: int32(n)}})
	}
}

func revisionNumbers(p *poolRows) (all []int64) {
	for _, r := range p.revisions {
		all = append(all, r.Number)
	}
	return all
}

// TestRevisionThatComesAndGoesInOneCommit: the log hears only of the difference.
func TestRevisionThatComesAndGoesInOneCommit(t *testing.T) {
	e, log := openRecorder(t)
	fill(t, e, 1)
	err := e.do(t.Context(), now, func(x *tx) error {
		rollTo(x, 5)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	err = e.do(t.Context(), now, func(x *tx) error {
		rollTo(x, 30)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	last := log.commits[len(log.commits)-1]
	var added, gone []int64
	for _, r := range last.Revisions {
		added = append(added, r.Number)
	}
	for _, k := range last.Forgotten {
		gone = append(gone, k.Number)
	}
	if want := []int64{21, 22, 23, 24, 25, 26, 27, 28, 29, 30}; !slices.Equal(added, want) {
		t.Errorf("added %v, want %v", added, want)
	}
	if want := []int64{2, 3, 4, 5}; !slices.Equal(gone, want) { // 1 is the VM's
		t.Errorf("removed %v, want %v", gone, want)
	}
	for _, m := range []*mirror{e.working, e.published} {
		if got, want := revisionNumbers(m.pools[testKey]), append([]int64{1}, added...); !slices.Equal(got, want) {
			t.Errorf("revisions %v, want %v", got, want)
		}
	}
}

// TestRevisionGoesWithItsLastVMInOneCommit: the load of the host is taken away by the template that was put on it.
func TestRevisionGoesWithItsLastVMInOneCommit(t *testing.T) {
	e, _ := openRecorder(t)
	fill(t, e, 1)
	err := e.do(t.Context(), now, func(x *tx) error {
		p := x.m.pools[testKey]
		if err := x.condemn(p, store.Condemn{VM: "web-00000000", Version: 2, Reason: pool.ReasonAdmin, KeepReady: -1, KeepSlots: -1}); err != nil {
			return err
		}
		if err := x.gone(p, store.Gone{VM: "web-00000000", Version: 3}); err != nil {
			return err
		}
		rollTo(x, 11)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range []*mirror{e.working, e.published} {
		if got := revisionNumbers(m.pools[testKey]); got[0] != 2 || len(got) != store.KeptRevisions {
			t.Errorf("revisions %v", got)
		}
		if h := m.hosts["h"]; h.memory != 0 || h.rows != 0 {
			t.Errorf("the host is left with %d MB in %d rows", h.memory, h.rows)
		}
	}
	if got, want := describe(e.working), describe(e.published); got != want {
		t.Fatalf("the working mirror:\n%s\nthe published one:\n%s", got, want)
	}
}

// TestRevisionsOfAPoolThatGoesInTheSameCommit: they go with it, and the log hears of none of them.
func TestRevisionsOfAPoolThatGoesInTheSameCommit(t *testing.T) {
	e, log := openRecorder(t)
	fill(t, e, 0)
	err := e.do(t.Context(), now, func(x *tx) error {
		rollTo(x, 15)
		x.editPool(testKey, func(p *pool.Pool) { p.Closing = true })
		return x.removePool(x.m.pools[testKey])
	})
	if err != nil {
		t.Fatal(err)
	}
	last := log.commits[len(log.commits)-1]
	if len(last.Revisions)+len(last.Forgotten) != 0 || len(last.Pools) != 1 || last.Pools[0].After != nil {
		t.Fatalf("changes %+v", last)
	}
	if len(e.published.pools) != 0 {
		t.Fatal("the pool is still there")
	}
}

// TestRollbackBringsRevisionsBack: those that were pruned, in their order.
func TestRollbackBringsRevisionsBack(t *testing.T) {
	e, log := openRecorder(t)
	fill(t, e, 2)
	roll := func(upTo int64, result error) {
		t.Helper()
		err := e.do(t.Context(), now, func(x *tx) error {
			rollTo(x, upTo)
			return result
		})
		if !errors.Is(err, result) {
			t.Fatal(err)
		}
	}
	roll(10, nil)
	commits := len(log.commits)
	roll(14, errors.New("no"))
	for _, m := range []*mirror{e.working, e.published} {
		if got := revisionNumbers(m.pools[testKey]); !slices.Equal(got, []int64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}) {
			t.Fatalf("revisions %v", got)
		}
	}
	if len(log.commits) != commits {
		t.Fatalf("a refused verb was committed: %+v", log.commits[commits:])
	}
	roll(11, nil) // what was taken back can be made again
	last := log.commits[len(log.commits)-1]
	if len(last.Revisions) != 1 || len(last.Forgotten) != 0 { // 1 is the VMs'
		t.Fatalf("changes %+v", last)
	}
}
