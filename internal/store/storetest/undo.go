package storetest

import (
	"slices"
	"strings"
	"time"

	"github.com/google/go-cmp/cmp"

	"poolmgr/api/flintlock/vmtypes"
	"poolmgr/internal/pool"
	"poolmgr/internal/store"
)

var undoTests = []test{
	{"UndoRestoresTemplateAndCreateCommands", testUndo},
	{"UndoFindsVMsOfTheTargetCurrentAgain", testUndoBack},
	{"UndoChoosesItsTarget", testUndoChoice},
	{"UndoToANamedRevision", testUndoTo},
	{"UndoWithoutATargetIsRefused", testUndoNothing},
	{"UndoOfTheOnlyTemplateIsRefused", testUndoOnly},
	{"UndoToATemplateThatDoesNotFitIsRefused", testUndoMisfit},
}

func testUndo(f *fixture) {
	first := f.pool(createCommands("one"))
	f.warm(2)
	f.must(f.complete(1))
	f.do(f.condemn(f.snapshot().VMs[0].ID, pool.ReasonScaleDown))
	f.update(image("bad"), createCommands("two"), func(s *pool.Spec) { s.Size, s.PreLeaseCommands = 5, []string{"hello"} })
	f.do(f.fail(f.grow(1)[0]))
	f.pass(time.Minute)
	mark := f.store.LastEvent()
	p := f.steer(store.RolloutUndo)
	if p.Revision != 3 || p.Generation != 3 || p.TemplateHash != first.TemplateHash {
		f.Fatalf("undone: %+v", p)
	}
	want := spec(createCommands("one"), func(s *pool.Spec) { s.Size, s.PreLeaseCommands = 5, []string{"hello"} })
	if diff := cmp.Diff(want, p.Spec, sameTemplate, emptyIsNil); diff != "" {
		f.Fatalf("spec (-want +got):\n%s", diff)
	}
	rollout := pool.Rollout{LastCompleted: 1, Started: true, Proven: true, Total: 1, StartedAt: f.now, LastSuccess: f.now, RolledBackFrom: 2}
	if diff := cmp.Diff(rollout, p.Rollout); diff != "" {
		f.Fatalf("rollout (-want +got):\n%s", diff)
	}
	e := f.told(mark, pool.EventRolloutRolledBack, pool.EventRolloutStarted)[0]
	if number(e, "from") != 2 || number(e, "to") != 1 || number(e, "revision") != 3 || e.Payload["actor"] != "anna" {
		f.Fatalf("payload %v", e.Payload)
	}
	f.reopen()
	revisions, err := f.store.Revisions(f.Context(), key)
	f.must(err)
	if r := revisions[2]; r.Number != 3 || r.TemplateHash != first.TemplateHash || !slices.Equal(r.CreateCommands, []string{"one"}) || !r.CreatedAt.Equal(f.now) {
		f.Fatalf("the new revision: %+v", r)
	}
	if p := f.update(image("base:4")); p.Rollout.RolledBackFrom != 0 {
		f.Fatalf("the next edit is no rollback: %+v", p.Rollout)
	}
}

func testUndoBack(f *fixture) {
	f.pool()
	f.warm(2)
	f.must(f.complete(1))
	f.update(image("bad"))
	mark := f.store.LastEvent()
	p := f.steer(store.RolloutUndo)
	f.told(mark, pool.EventRolloutRolledBack) // nothing is stale: nothing starts
	if p.Rollout.Started || !p.Rollout.Proven || p.Rollout.RolledBackFrom != 2 || f.view().Counts.Stale != 0 {
		f.Fatalf("undone: %+v", p.Rollout)
	}
	f.must(f.complete(3))
	if r := f.view().Pool.Rollout; r.LastCompleted != 3 || r.RolledBackFrom != 2 {
		f.Fatalf("completed: %+v", r)
	}
}

func testUndoChoice(f *fixture) {
	f.pool()
	f.warm(1)
	f.must(f.complete(1))
	f.update(image("base:2"))
	f.update(image("base:3"))
	undone := func(to int64) {
		f.Helper()
		mark := f.store.LastEvent()
		f.steer(store.RolloutUndo)
		if e := f.told(mark, pool.EventRolloutRolledBack)[0]; number(e, "to") != to {
			f.Fatalf("back to %d, want %d", number(e, "to"), to)
		}
	}
	undone(1) // the last completed, not the one before
	if got := f.view().Pool.Revision; got != 4 {
		f.Fatalf("at revision %d", got)
	}
	mark := f.store.LastEvent()
	f.steer(store.RolloutUndo) // the last completed one, 1, has the template of the current one, 4
	if e := f.told(mark, pool.EventRolloutRolledBack, pool.EventRolloutStarted)[0]; number(e, "to") != 3 || number(e, "from") != 4 {
		f.Fatalf("payload %v", e.Payload)
	}
	undone(1)
	f.must(f.complete(6))
	mark = f.store.LastEvent()
	f.steer(store.RolloutUndo) // the last completed one is the current one
	if e := f.told(mark, pool.EventRolloutRolledBack, pool.EventRolloutStarted)[0]; number(e, "to") != 5 {
		f.Fatalf("payload %v", e.Payload)
	}
}

func testUndoTo(f *fixture) {
	f.pool()
	f.update(image("base:2"))
	want := f.view().Pool.TemplateHash
	f.update(image("base:3"))
	_, err := f.trySteer(store.RolloutUndo, 9)
	f.refused(err, pool.CodeNotFound)
	if !strings.Contains(err.Error(), "1, 2, 3") {
		f.Fatalf("the refusal does not name the stored revisions: %v", err)
	}
	_, err = f.trySteer(store.RolloutUndo, -1)
	f.refused(err, pool.CodeNotFound)
	_, err = f.trySteer(store.RolloutUndo, 3)
	f.refused(err, pool.CodeFailedPrecondition)
	p, err := f.trySteer(store.RolloutUndo, 2) // completed or not: somebody wants it so
	f.must(err)
	if p.Revision != 4 || p.TemplateHash != want || p.Rollout.RolledBackFrom != 3 {
		f.Fatalf("undone: %+v", p)
	}
	_, err = f.trySteer(store.RolloutUndo, 2) // the same template under another number
	f.refused(err, pool.CodeFailedPrecondition)
	f.told(0, pool.EventRolloutRolledBack)
}

func testUndoNothing(f *fixture) {
	f.pool()
	f.warm(1)
	_, err := f.trySteer(store.RolloutUndo, 0)
	f.refused(err, pool.CodeFailedPrecondition)
	f.update(image("base:2")) // nothing has completed: no revision is known to be good
	_, err = f.trySteer(store.RolloutUndo, 0)
	f.refused(err, pool.CodeFailedPrecondition)
	p := f.update()
	f.must(f.complete(3))
	f.update(func(s *pool.Spec) { s.Size = 4 })
	if got := f.view().Pool; got.Generation != p.Generation+1 || got.Revision != 3 || len(f.events(0, pool.EventRolloutRolledBack)) != 0 {
		f.Fatalf("a refusal changed something: %+v", got)
	}
}

func testUndoOnly(f *fixture) {
	f.pool()
	f.warm(1)
	f.must(f.complete(1))
	before := f.view()
	_, err := f.trySteer(store.RolloutUndo, 0) // there is no other template
	f.refused(err, pool.CodeFailedPrecondition)
	if diff := cmp.Diff(before, f.view(), sameTemplate); diff != "" {
		f.Fatalf("a refusal changed something (-before +after):\n%s", diff)
	}
}

func testUndoMisfit(f *fixture) {
	mac := "02:00:00:00:00:01"
	f.pool(func(s *pool.Spec) {
		s.Size, s.Strategy = 1, pool.ReplaceOnDelete
		s.Template.Interfaces = []*vmtypes.NetworkInterface{{DeviceId: "eth1", GuestMac: &mac}}
	})
	before := f.update(image("base:2"))
	_, err := f.trySteer(store.RolloutUndo, 1)
	f.refused(err, pool.CodeFailedPrecondition)
	if got := f.view().Pool; !cmp.Equal(got, before, sameTemplate) {
		f.Fatalf("a refusal changed something: %+v", got)
	}
	f.update(image("base:2"), func(s *pool.Spec) { s.Size, s.Strategy = 1, pool.ReplaceOnDelete })
	_, err = f.trySteer(store.RolloutUndo, 1)
	f.must(err)
}
