package storetest

import (
	"time"

	"github.com/google/go-cmp/cmp"

	"poolmgr/internal/pool"
	"poolmgr/internal/store"
)

var steerTests = []test{
	{"PauseIsToldOnce", testPause},
	{"ResumeBeginsTheClockAnew", testResume},
	{"ResumeGivesAStuckRolloutAnotherTry", testResumeStuck},
	{"ResumeOfARolloutThatIsOverChangesNothing", testResumeOver},
	{"UpdateOfPausedDoesTheSame", testUpdatePaused},
	{"RestartMakesEveryVMStale", testRestart},
	{"RestartOfAnEmptyPoolIsSilent", testRestartEmpty},
	{"RestartKeepsThatTheTemplateBoots", testRestartProven},
	{"RestartForgetsWhatCameBefore", testRestartFacts},
	{"Refusals", testSteerRefusals},
	{"EverythingSurvivesReopening", testSteerReopen},
}

func (f *fixture) trySteer(verb store.RolloutVerb, to int64) (pool.Pool, error) {
	return f.store.SteerRollout(f.Context(), store.SteerRollout{Pool: key, Verb: verb, To: to, Actor: "anna", Now: f.now})
}

func (f *fixture) steer(verb store.RolloutVerb) pool.Pool {
	f.Helper()
	p, err := f.trySteer(verb, 0)
	f.must(err)
	if view := f.view(); !cmp.Equal(view.Pool, p, sameTemplate) {
		f.Fatalf("%s answered %+v, read back %+v", verb, p, view.Pool)
	}
	return p
}

func testPause(f *fixture) {
	f.pool()
	f.warm(2)
	f.update(image("base:2"))
	mark := f.store.LastEvent()
	f.dirty()
	p := f.steer(store.RolloutPause)
	if !p.Spec.Rollout.Paused || p.Generation != 3 || p.Revision != 2 || !f.dirty() {
		f.Fatalf("paused: %+v", p)
	}
	f.reopen()
	again := f.steer(store.RolloutPause)
	if again.Generation != 3 || again.Version != p.Version {
		f.Fatalf("paused again: %+v", again)
	}
	e := f.told(mark, pool.EventRolloutPaused)[0]
	if number(e, "revision") != 2 || number(e, "stale") != 2 || number(e, "total") != 2 || e.Payload["actor"] != "anna" {
		f.Fatalf("payload %v", e.Payload)
	}
}

func testResume(f *fixture) {
	f.pool()
	f.warm(1)
	f.update(image("base:2"))
	f.do(f.fail(f.grow(1)[0]))
	f.steer(store.RolloutPause)
	before := f.view().Pool.Rollout
	if len(before.Failures) != 1 {
		f.Fatalf("a pause forgets failures: %+v", before)
	}
	f.pass(time.Hour)
	mark := f.store.LastEvent()
	p := f.steer(store.RolloutResume)
	want := before
	want.LastSuccess, want.Failures, want.Announced = f.now, nil, ""
	if diff := cmp.Diff(want, p.Rollout); diff != "" || p.Spec.Rollout.Paused || p.Generation != 4 {
		f.Fatalf("resumed %+v\nrollout (-want +got):\n%s", p, diff)
	}
	f.pass(time.Minute)
	if again := f.steer(store.RolloutResume); again.Generation != 4 || again.Version != p.Version {
		f.Fatalf("resumed again: %+v", again)
	}
	if e := f.told(mark, pool.EventRolloutResumed)[0]; number(e, "revision") != 2 || number(e, "stale") != 1 {
		f.Fatalf("payload %v", e.Payload)
	}
}

func testResumeStuck(f *fixture) {
	f.pool()
	f.warm(1)
	f.update(image("base:2"))
	f.do(f.fail(f.grow(1)[0]))
	mark := f.store.LastEvent()
	f.pass(time.Minute)
	p := f.steer(store.RolloutResume)
	if len(p.Rollout.Failures) != 0 || !p.Rollout.LastSuccess.Equal(f.now) || p.Generation != 3 {
		f.Fatalf("after failures: %+v", p)
	}
	f.pass(pool.DefaultProgressDeadline)
	if p = f.steer(store.RolloutResume); !p.Rollout.LastSuccess.Equal(f.now) || p.Generation != 4 {
		f.Fatalf("after the deadline: %+v", p)
	}
	f.told(mark) // it was not paused
}

func testResumeOver(f *fixture) {
	f.pool()
	f.warm(1)
	f.must(f.complete(1))
	before := f.view().Pool
	mark := f.store.LastEvent()
	f.pass(time.Hour)
	if p := f.steer(store.RolloutResume); !cmp.Equal(p, before, sameTemplate) {
		f.Fatalf("resumed: %+v", p)
	}
	f.told(mark)
}

func testUpdatePaused(f *fixture) {
	paused := func(s *pool.Spec) { s.Rollout.Paused = true }
	f.pool()
	f.warm(1)
	mark := f.store.LastEvent()
	f.update(paused)
	f.update(paused)
	f.told(mark, pool.EventRolloutPaused)
	f.update(paused, image("base:2"))
	f.do(f.fail(f.grow(1)[0]))
	f.pass(time.Hour)
	mark = f.store.LastEvent()
	p := f.update(image("base:2"))
	f.told(mark, pool.EventRolloutResumed)
	if len(p.Rollout.Failures) != 0 || !p.Rollout.LastSuccess.Equal(f.now) {
		f.Fatalf("an update that resumes: %+v", p.Rollout)
	}
	mark = f.store.LastEvent()
	f.update(paused, image("base:3"))
	f.told(mark, pool.EventRolloutStarted, pool.EventRolloutPaused)
}

func testRestart(f *fixture) {
	f.pool()
	ids := f.warm(3)
	f.must(f.complete(1))
	f.claim()
	f.pass(time.Minute)
	mark := f.store.LastEvent()
	p := f.steer(store.RolloutRestart)
	if p.Restart != 1 || p.Revision != 1 || p.Generation != 2 {
		f.Fatalf("restarted: %+v", p)
	}
	want := pool.Rollout{LastCompleted: 1, Started: true, Proven: true, Total: 2, StartedAt: f.now, LastSuccess: f.now}
	if diff := cmp.Diff(want, p.Rollout); diff != "" {
		f.Fatalf("rollout (-want +got):\n%s", diff)
	}
	e := f.told(mark, pool.EventRolloutStarted)[0]
	if number(e, "total") != 2 || number(e, "stale_leased") != 1 || number(e, "restart") != 1 || number(e, "revision") != 1 {
		f.Fatalf("payload %v", e.Payload)
	}
	if c := f.view().Counts; c.Stale != 3 || c.StaleLeased != 1 {
		f.Fatalf("counts %+v", c)
	}
	f.failed(f.complete(1), store.ErrConflict) // stale VMs are warm
	for i, id := range ids[1:] {
		c := f.condemn(id, pool.ReasonRollout)
		c.Successor = &store.Successor{ID: []string{"web-a", "web-b"}[i], Revision: 1}
		f.do(c)
	}
	f.boot("web-a", "web-b")
	mark = f.store.LastEvent()
	f.must(f.complete(1))
	f.told(mark, pool.EventRolloutCompleted)
	if c := f.view().Counts; c.Stale != 1 || f.vm("web-a").Restart != 1 {
		f.Fatalf("counts %+v, VM %+v", c, f.vm("web-a"))
	}
}

func testRestartEmpty(f *fixture) {
	f.pool()
	p := f.steer(store.RolloutRestart)
	if p.Restart != 1 || p.Generation != 2 || p.Rollout.Started || p.Rollout.Proven {
		f.Fatalf("restarted: %+v", p)
	}
	f.told(0)
	if p = f.steer(store.RolloutRestart); p.Restart != 2 {
		f.Fatalf("every restart counts: %+v", p)
	}
}

func testRestartProven(f *fixture) {
	f.pool()
	f.warm(1)
	f.claim() // its VM is gone from the warm set, and the template boots all the same
	if p := f.steer(store.RolloutRestart); !p.Rollout.Proven || p.Rollout.Total != 0 || !p.Rollout.Started {
		f.Fatalf("restarted: %+v", p.Rollout)
	}
	f.must(f.complete(1))
	if r := f.view().Pool.Rollout; r.LastCompleted != 1 {
		f.Fatalf("completed: %+v", r)
	}
}

func testRestartFacts(f *fixture) {
	f.pool()
	f.warm(1)
	f.update(image("base:2"))
	old := f.grow(2)
	failing := f.fail(old[0])
	f.do(failing)
	f.pass(time.Minute)
	if p := f.steer(store.RolloutRestart); len(p.Rollout.Failures) != 0 || !p.Rollout.LastSuccess.Equal(f.now) || p.Rollout.Completed {
		f.Fatalf("restarted: %+v", p.Rollout)
	}
	began := f.now
	f.do(f.fail(failing.Successor.ID))
	if r := f.view().Pool.Rollout; len(r.Failures) != 0 {
		f.Fatalf("a VM from before the restart counts against it: %+v", r)
	}
	f.pass(time.Minute)
	f.boot(old[1])
	if r := f.view().Pool.Rollout; !r.LastSuccess.Equal(began) || !r.Proven {
		f.Fatalf("a VM from before the restart is a success of it: %+v", r)
	}
}

func testSteerRefusals(f *fixture) {
	verbs := []store.RolloutVerb{store.RolloutPause, store.RolloutResume, store.RolloutRestart, store.RolloutUndo}
	for _, verb := range verbs {
		_, err := f.trySteer(verb, 0)
		f.refused(err, pool.CodeNotFound)
	}
	f.pool()
	f.warm(1)
	_, err := f.trySteer("DANCE", 0)
	f.refused(err, pool.CodeInvalid)
	f.must(f.store.ClosePool(f.Context(), store.ClosePool{Pool: key, Now: f.now}))
	before := f.view()
	mark := f.store.LastEvent()
	for _, verb := range verbs {
		_, err := f.trySteer(verb, 0)
		f.refused(err, pool.CodeFailedPrecondition)
	}
	f.told(mark)
	if diff := cmp.Diff(before, f.view(), sameTemplate); diff != "" {
		f.Fatalf("a refusal changed something (-before +after):\n%s", diff)
	}
}

func testSteerReopen(f *fixture) {
	f.pool()
	f.warm(2)
	f.must(f.complete(1))
	for _, step := range []func(){
		func() { f.steer(store.RolloutRestart) },
		func() { f.steer(store.RolloutPause) },
		func() { f.update(image("base:2"), func(s *pool.Spec) { s.Rollout.Paused = true }) },
		func() { f.do(f.fail(f.grow(1)[0])) },
		func() { f.steer(store.RolloutUndo) },
		func() { f.steer(store.RolloutResume) },
	} {
		f.pass(time.Minute)
		step()
		before := f.view()
		f.reopen()
		if diff := cmp.Diff(before, f.view(), sameTemplate, emptyIsNil); diff != "" {
			f.Fatalf("changed over the reopening (-before +after):\n%s", diff)
		}
	}
	if p := f.view().Pool; p.Restart != 1 || p.Spec.Rollout.Paused || p.Rollout.RolledBackFrom != 2 || p.Generation != 6 {
		f.Fatalf("in the end: %+v", p)
	}
}
