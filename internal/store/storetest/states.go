package storetest

import (
	"cmp"
	"time"

	"poolmgr/internal/pool"
	"poolmgr/internal/store"
)

var stateTests = []test{
	{"StalledIsToldOnce", testStalled},
	{"BlockedStopsTheClockWithoutAWord", testBlocked},
	{"PausedByAZeroBudget", testPausedByBudget},
	{"PausedByRequestIsToldByTheVerb", testPausedByVerb},
	{"StaleAnnouncementsAreRefused", testStaleAnnouncements},
	{"TheNextRolloutBeginsUnannounced", testUnannounced},
	{"CurrentOnlyWhileStalled", testCurrentOnlyStalled},
	{"CurrentFirstTurnsWhenBlockedByDemand", testBlockedByDemand},
	{"UndoOfThatGenerationOnly", testUndoGeneration},
}

// state is the announcement of a state, decided from the pool as it is.
func (f *fixture) state(to pool.RolloutState) store.AnnounceState {
	p := f.view().Pool
	return store.AnnounceState{
		Revision: p.Revision, LastSuccess: p.Rollout.LastSuccess,
		From: cmp.Or(p.Rollout.Announced, pool.RolloutProgressing), To: to, Reason: "because", Ready: 1, Desired: 3,
	}
}

// announced demands the state that is written down, also after reopening.
func (f *fixture) announced(want pool.RolloutState) {
	f.Helper()
	for range 2 {
		if got := f.view().Pool.Rollout.Announced; got != want {
			f.Fatalf("announced %q, want %q", got, want)
		}
		f.reopen()
	}
}

func testStalled(f *fixture) {
	f.pool()
	f.warm(2)
	f.must(f.complete(1))
	p := f.update(image("bad"))
	f.do(f.fail(f.grow(1)[0]))
	mark := f.store.LastEvent()
	a := f.state(pool.RolloutStalled)
	f.do(a)
	f.failed(f.tryOne(a), store.ErrConflict)
	f.announced(pool.RolloutStalled)
	f.failed(f.tryOne(a), store.ErrConflict)
	e := f.told(mark, pool.EventRolloutStalled)[0]
	for name, want := range map[string]int64{"revision": 2, "failures": 1, "available": 1, "desired": 3, "replaced": 0, "total": 2} {
		if number(e, name) != want {
			f.Errorf("%s is %v, want %d", name, e.Payload[name], want)
		}
	}
	if e.Payload["template_hash"] != p.TemplateHash || e.Payload["message"] != "because" || e.Payload["last_error"] == "" {
		f.Errorf("payload %v", e.Payload)
	}
	f.do(f.state(pool.RolloutProgressing)) // it resumed by itself: no event
	f.announced("")
	f.do(f.state(pool.RolloutStalled)) // and stalled again
	f.told(e.ID, pool.EventRolloutStalled)
}

func testBlocked(f *fixture) {
	f.pool()
	f.warm(1)
	f.update(image("base:2"))
	mark := f.store.LastEvent()
	f.pass(time.Minute)
	f.do(f.state(pool.RolloutBlocked))
	f.announced(pool.RolloutBlocked)
	f.pass(time.Hour)
	f.do(f.state(pool.RolloutProgressing))
	if r := f.view().Pool.Rollout; !r.BlockedSince.IsZero() || !r.LastSuccess.Equal(f.now) {
		f.Fatalf("the clock of a rollout that was blocked: %+v", r)
	}
	f.told(mark)
}

func testPausedByBudget(f *fixture) {
	f.pool()
	f.warm(1)
	f.update(image("base:2"))
	mark := f.store.LastEvent()
	f.do(f.state(pool.RolloutPaused))
	f.announced(pool.RolloutPaused)
	f.pass(time.Hour)
	f.do(f.state(pool.RolloutProgressing))
	f.told(mark, pool.EventRolloutPaused, pool.EventRolloutResumed)
	if r := f.view().Pool.Rollout; !r.LastSuccess.Equal(f.now) {
		f.Fatalf("the clock of a rollout that was paused: %+v", r)
	}
}

func testPausedByVerb(f *fixture) {
	f.pool()
	f.warm(1)
	f.update(image("base:2"))
	mark := f.store.LastEvent()
	f.steer(store.RolloutPause)
	f.announced(pool.RolloutPaused)
	f.steer(store.RolloutResume)
	f.announced("")
	f.told(mark, pool.EventRolloutPaused, pool.EventRolloutResumed)

	paused := func(s *pool.Spec) { s.Rollout.Paused = true }
	f.update(image("base:2"), paused)
	f.update(image("base:3"), paused) // begins anew, and is paused still
	mark = f.store.LastEvent()
	f.do(f.state(pool.RolloutPaused))
	f.told(mark)
}

func testStaleAnnouncements(f *fixture) {
	f.pool()
	f.grow(1)
	f.update(image("base:2"))
	was := f.state(pool.RolloutStalled)
	f.pass(time.Second)
	f.boot(f.grow(1)...)
	mark := f.store.LastEvent()
	f.failed(f.tryOne(was), store.ErrConflict) // a success came first
	other := f.state(pool.RolloutStalled)
	other.Revision = 1
	f.failed(f.tryOne(other), store.ErrConflict)
	other = f.state(pool.RolloutStalled)
	other.From = pool.RolloutBlocked
	f.failed(f.tryOne(other), store.ErrConflict)
	f.failed(f.tryOne(f.state(pool.RolloutProgressing)), store.ErrConflict)
	f.told(mark)
}

func testUnannounced(f *fixture) {
	f.pool()
	f.warm(1)
	f.must(f.complete(1))
	f.failed(f.tryOne(f.state(pool.RolloutStalled)), store.ErrConflict) // it is over
	f.update(image("base:2"))
	f.do(f.state(pool.RolloutStalled))
	f.update(image("base:3"))
	f.announced("")
	f.do(f.state(pool.RolloutStalled))
	f.steer(store.RolloutRestart)
	f.announced("")
}

func testCurrentOnlyStalled(f *fixture) {
	currentOnly := func(s *pool.Spec) { s.ClaimPreference = pool.CurrentOnly }
	f.pool(currentOnly)
	f.warm(2)
	f.must(f.complete(1))
	f.update(image("bad"), currentOnly)
	_, err := f.tryClaim()
	f.refused(err, pool.CodeExhausted)
	f.do(f.state(pool.RolloutStalled))
	if got := f.claim(); !got.Stale {
		f.Fatalf("claimed %+v, want one of the last completed revision", got.VM)
	}
	f.do(f.state(pool.RolloutProgressing))
	_, err = f.tryClaim()
	f.refused(err, pool.CodeExhausted)
}

func testUndoGeneration(f *fixture) {
	f.pool()
	f.warm(1)
	f.must(f.complete(1))
	p := f.update(image("bad"))
	undo := store.SteerRollout{Pool: key, Verb: store.RolloutUndo, To: 1, Generation: p.Generation - 1, Now: f.now}
	_, err := f.store.SteerRollout(f.Context(), undo)
	f.refused(err, pool.CodeAborted)
	undo.Generation = p.Generation
	_, err = f.store.SteerRollout(f.Context(), undo)
	f.must(err)
	_, err = f.store.SteerRollout(f.Context(), undo)
	f.refused(err, pool.CodeAborted)
}

// testBlockedByDemand: the clock of demand goes on while a claim is made up for, and ends with its cause.
func testBlockedByDemand(f *fixture) {
	f.pool()
	old := f.warm(2)
	f.must(f.complete(1))
	f.update(image("base:2"))
	f.warm(4)
	demand := func(to pool.RolloutState, yes bool) store.AnnounceState {
		a := f.state(to)
		a.Demand = yes
		return a
	}
	since := func(want time.Time) {
		f.Helper()
		if got := f.view().Pool.Rollout.BlockedSince; !got.Equal(want) {
			f.Fatalf("blocked by demand since %s, want %s", got, want)
		}
	}
	f.do(f.state(pool.RolloutBlocked)) // by something else
	since(time.Time{})
	mark, began := f.store.LastEvent(), f.now
	f.do(demand(pool.RolloutBlocked, true))
	f.failed(f.tryOne(demand(pool.RolloutBlocked, true)), store.ErrConflict)
	f.pass(pool.DefaultProgressDeadline - time.Second)
	f.do(demand(pool.RolloutProgressing, true))
	f.do(demand(pool.RolloutBlocked, true))
	f.reopen()
	since(began)
	f.told(mark)
	if got := f.claim(); got.Stale {
		f.Fatalf("claimed %s, which is stale, before the deadline", got.VM.ID)
	}
	f.pass(time.Second)
	if got := f.claim(); got.VM.ID != old[0] || !got.Stale {
		f.Fatalf("claimed %s, want the stale %s: the deadline is over", got.VM.ID, old[0])
	}
	f.do(demand(pool.RolloutBlocked, false))
	since(time.Time{})
	if got := f.claim(); got.Stale {
		f.Fatalf("claimed %s, which is stale, after demand ceased", got.VM.ID)
	}
}
