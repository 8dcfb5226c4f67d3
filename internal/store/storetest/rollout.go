package storetest

import (
	"fmt"
	"time"

	"github.com/google/go-cmp/cmp"

	"poolmgr/internal/pool"
	"poolmgr/internal/store"
)

var rolloutTests = []test{
	{"FirstFillIsRolloutOneAndSilent", testFirstFill},
	{"StartedTellsWhatIsStale", testRolloutStarted},
	{"StartedForLeasedVMsOnly", testRolloutLeasedOnly},
	{"GoingBackFindsVMsCurrentAgain", testRolloutBack},
	{"CompletedExactlyOnce", testRolloutCompleted},
	{"UnprovenCompletionKeepsTheLastCompletedRevision", testRolloutUnproven},
	{"SuccessAndFailuresAreNoted", testRolloutFailures},
	{"StaleDropsAreNoted", testRolloutStaleDrop},
	{"RowsForTheRolloutAreMarked", testForRollout},
	{"FactsSurviveReopening", testRolloutReopen},
}

func (f *fixture) complete(revision int64) error {
	f.Helper()
	return f.tryOne(store.Announce{CompletedRevision: revision, Ready: 3, Desired: 3})
}

func testFirstFill(f *fixture) {
	f.pool()
	ids := f.warm(2)
	if !f.vm(ids[0]).ForRollout || !f.vm(ids[1]).ForRollout {
		f.Fatal("the first fill is not rollout 1")
	}
	later := f.grow(1)[0]
	if f.vm(later).ForRollout {
		f.Fatal("later growth belongs to no rollout")
	}
	mark := f.store.LastEvent()
	f.must(f.complete(1))
	f.told(mark)
	if r := f.view().Pool.Rollout; !r.Completed || r.LastCompleted != 1 || !r.Proven || r.Started || !r.CompletedAt.Equal(f.now) {
		f.Fatalf("rollout 1: %+v", r)
	}
}

func testRolloutStarted(f *fixture) {
	f.pool()
	ids := f.warm(3)
	f.grow(1)
	f.claim()
	f.do(f.condemn(ids[2], pool.ReasonScaleDown)) // DELETING rows are not counted
	f.pass(time.Minute)
	mark := f.store.LastEvent()
	p := f.update(image("base:2"))
	e := f.told(mark, pool.EventRolloutStarted)[0]
	if number(e, "revision") != 2 || number(e, "total") != 2 || number(e, "stale_leased") != 1 || e.Payload["template_hash"] != p.TemplateHash {
		f.Fatalf("payload %v", e.Payload)
	}
	want := pool.Rollout{Started: true, Total: 2, StartedAt: f.now, LastSuccess: f.now}
	if diff := cmp.Diff(want, p.Rollout); diff != "" {
		f.Fatalf("rollout (-want +got):\n%s", diff)
	}
	if c := f.view().Counts; c.Stale != 3 || c.StaleLeased != 1 {
		f.Fatalf("counts %+v", c)
	}
}

func testRolloutLeasedOnly(f *fixture) {
	f.pool()
	f.warm(1)
	f.claim()
	mark := f.store.LastEvent()
	f.update(image("base:2"))
	e := f.told(mark, pool.EventRolloutStarted)[0]
	if number(e, "total") != 0 || number(e, "stale_leased") != 1 {
		f.Fatalf("payload %v", e.Payload)
	}
	f.must(f.complete(2))
	f.told(e.ID, pool.EventRolloutCompleted)
	if r := f.view().Pool.Rollout; r.LastCompleted != 0 {
		f.Fatalf("a revision that never booted became the last completed one: %+v", r)
	}
}

func testRolloutBack(f *fixture) {
	f.pool()
	f.warm(2)
	f.must(f.complete(1))
	f.update(image("base:2"))
	mark := f.store.LastEvent()
	p := f.update(image("base:1"))
	f.told(mark) // nothing is stale any more
	if p.Revision != 3 || !p.Rollout.Proven || p.Rollout.Started || p.Rollout.Completed || p.Rollout.LastCompleted != 1 {
		f.Fatalf("going back: %+v", p)
	}
	if c := f.view().Counts; c.Stale != 0 || c.Claimable != 2 {
		f.Fatalf("counts %+v", c)
	}
	f.must(f.complete(3))
	f.told(mark)
	if r := f.view().Pool.Rollout; r.LastCompleted != 3 {
		f.Fatalf("completed %+v", r)
	}
}

func testRolloutCompleted(f *fixture) {
	f.pool()
	old := f.warm(1)[0]
	f.update(image("base:2"))
	f.failed(f.complete(2), store.ErrConflict) // a stale VM is warm
	c := f.condemn(old, pool.ReasonRollout)
	c.Successor = &store.Successor{ID: "web-new", Revision: 2}
	f.do(c)
	f.boot("web-new")
	f.failed(f.complete(1), store.ErrConflict)
	mark := f.store.LastEvent()
	f.must(f.complete(2))
	f.failed(f.complete(2), store.ErrConflict)
	f.reopen()
	f.failed(f.complete(2), store.ErrConflict)
	e := f.told(mark, pool.EventRolloutCompleted)[0]
	if number(e, "revision") != 2 || number(e, "total") != 1 {
		f.Fatalf("payload %v", e.Payload)
	}
	f.remove(old) // finished late, and still for the rollout
	f.told(e.ID, pool.EventVMDeletedRollout)
}

func testRolloutUnproven(f *fixture) {
	f.pool()
	f.warm(1)
	f.must(f.complete(1))
	f.claim()
	f.update(image("bad"))
	f.must(f.complete(2))
	if r := f.view().Pool.Rollout; r.LastCompleted != 1 || r.Proven || !r.Completed {
		f.Fatalf("completed with nothing to do: %+v", r)
	}
	f.update(image("base:3")) // completes with nothing to do as well
	f.must(f.complete(3))
	f.boot(f.grow(1)...) // and is proven later
	if r := f.view().Pool.Rollout; r.LastCompleted != 3 || !r.Completed {
		f.Fatalf("proven after its completion: %+v", r)
	}
}

func (f *fixture) fail(id string, edits ...func(*store.Fail)) store.Fail {
	f.Helper()
	vm := f.vm(id)
	a := store.Fail{
		VM: id, Version: vm.Version, Message: "exit code 1", Payload: map[string]any{"hook": "boot"},
		Successor: store.Successor{ID: f.id("web"), Revision: f.view().Pool.Revision, Attempt: vm.Attempt + 1, NotBefore: f.now.Add(time.Second)},
	}
	for _, edit := range edits {
		edit(&a)
	}
	return a
}

func testRolloutFailures(f *fixture) {
	f.pool()
	id := f.grow(1)[0]
	f.place("host-a", id)
	for n := range pool.MaxFailures + 3 {
		a := f.fail(id, func(a *store.Fail) { a.Message = fmt.Sprintf("failure %d", n) })
		f.do(a)
		id = a.Successor.ID
		f.pass(time.Minute)
		f.place("host-a", id)
	}
	r := f.view().Pool.Rollout
	last := r.Failures[len(r.Failures)-1]
	if len(r.Failures) != pool.MaxFailures || last.Message != fmt.Sprintf("failure %d", pool.MaxFailures+2) || last.Host != "host-a" || r.Proven {
		f.Fatalf("failures %+v", r)
	}
	f.do(f.fail(id, func(a *store.Fail) { a.Innocent, a.Successor.ID = true, "web-last" }))
	if got := f.view().Pool.Rollout.Failures; !cmp.Equal(got, r.Failures) {
		f.Fatalf("an innocent VM counts against the rollout: %+v", got)
	}
	f.pass(time.Minute)
	f.boot("web-last")
	if r := f.view().Pool.Rollout; len(r.Failures) != 0 || !r.Proven || !r.LastSuccess.Equal(f.now) {
		f.Fatalf("after a success: %+v", r)
	}
	f.update(image("base:2"))
	stale := f.grow(1)[0]
	f.update(image("base:3"))
	f.do(f.fail(stale))
	if r := f.view().Pool.Rollout; len(r.Failures) != 0 {
		f.Fatalf("a stale VM's failure counts against the new template: %+v", r)
	}
}

func testRolloutStaleDrop(f *fixture) {
	f.pool()
	ids := f.warm(3)
	f.do(f.condemn(ids[0], pool.ReasonScaleDown))
	if !f.view().Pool.Rollout.LastStaleDrop.IsZero() {
		f.Fatal("a current VM's end is no stale drop")
	}
	f.update(image("base:2"))
	f.pass(time.Minute)
	f.claim()
	if at := f.view().Pool.Rollout.LastStaleDrop; !at.Equal(f.now) {
		f.Fatalf("a claim of a stale VM: %v", at)
	}
	f.pass(time.Minute)
	f.do(f.condemn(ids[2], pool.ReasonRollout))
	if at := f.view().Pool.Rollout.LastStaleDrop; !at.Equal(f.now) {
		f.Fatalf("a stale VM was condemned: %v", at)
	}
}

func testForRollout(f *fixture) {
	f.pool()
	f.grow(1)
	ids := f.warm(3)
	if f.vm(ids[0]).ForRollout {
		f.Fatal("growth that is not the first")
	}
	f.update(image("base:2"))
	c := f.condemn(ids[0], pool.ReasonRollout)
	c.Successor = &store.Successor{ID: "web-a", Revision: 2}
	d := f.condemn(ids[1], pool.ReasonUnhealthy)
	d.Successor = &store.Successor{ID: "web-b", Revision: 2}
	f.do(c, d, store.Surge{ID: "web-c", Beside: ids[2], Version: f.vm(ids[2]).Version, Revision: 2})
	a := f.fail("web-a", func(a *store.Fail) { a.Successor.ID = "web-d" })
	f.do(a)
	f.boot("web-c")
	d = f.condemn("web-c", pool.ReasonUnhealthy) // it was available: what the rollout made of it is done
	d.Successor = &store.Successor{ID: "web-e", Revision: 2}
	c = f.condemn("web-d", pool.ReasonUnhealthy)
	c.Successor = &store.Successor{ID: "web-f", Revision: 2}
	f.do(c, d)
	for id, want := range map[string]bool{"web-b": false, "web-c": true, "web-d": true, "web-e": false, "web-f": true} {
		if got := f.vm(id).ForRollout; got != want {
			f.Errorf("%s: for the rollout: %v, want %v", id, got, want)
		}
	}
}

func testRolloutReopen(f *fixture) {
	f.pool()
	f.warm(2)
	f.must(f.complete(1))
	f.update(image("base:2"))
	f.do(f.fail(f.grow(1)[0]))
	f.claim()
	before := f.view()
	f.reopen()
	if diff := cmp.Diff(before, f.view(), sameTemplate, emptyIsNil); diff != "" {
		f.Fatalf("changed over the reopening (-before +after):\n%s", diff)
	}
}
