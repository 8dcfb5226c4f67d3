package reconcile_test

import (
	"testing"
	"time"

	"poolmgr/internal/host/fake"
	"poolmgr/internal/pool"
	"poolmgr/internal/store"
	"poolmgr/internal/store/engine"
)

// TestKillAtEveryPointOfAStall is TestKillAtEveryPoint for a bad template that is rolled back by policy: however the
// daemon dies, the stall and the rollback are told once, and the budget holds.
func TestKillAtEveryPointOfAStall(t *testing.T) {
	points := 0
	for reached := true; reached; points++ {
		if points > 500 {
			t.Fatal("more than 500 points: the job does not end")
		}
		reached = !t.Failed() && stallJob(t, int64(points+1))
	}
	t.Logf("%d points", points)
	if points < 50 {
		t.Errorf("only %d points were met", points)
	}
}

// stallJob fills a pool and gives it a bad template, with a death at one point after that.
func stallJob(t *testing.T, at int64) (reached bool) {
	inBubble(t, 1, bad["boots fail"], func(r *rig) {
		d := &deaths{rig: r, at: -1}
		r.watch(func(c fake.Call) {
			if c.Op != fake.Info {
				d.point()
			}
		})
		r.wrap = func(l engine.Log) engine.Log { return dyingLog{l, d} }
		r.stop()
		r.storage.Crash()
		r.openStore()
		r.start()
		r.create(spec(3, "1"))
		r.eventually("the first rollout is completed", time.Minute, r.rolloutCompleted(1))
		r.pass(time.Second)
		d.reached.Store(0)
		d.at = at
		s := spec(3, "2")
		s.Rollout.AutoRollback = true
		d.insist(pool.CodeAborted, func() error {
			_, err := r.store.UpdatePool(t.Context(), store.UpdatePool{Spec: s, Generation: 1, Now: time.Now()})
			return err
		})
		r.eventually("it is rolled back", 5*time.Minute, func() bool {
			d.revive()
			if got := r.counts().Claimable; got < 2 {
				t.Fatalf("death at point %d: %d available, want 2", at, got)
			}
			return r.rolloutCompleted(3)() && r.full(3)()
		})
		d.revive()
		r.eventually("the pool stays full", time.Minute, r.full(3))
		for typ, want := range map[pool.EventType]int{
			pool.EventRolloutStalled: 1, pool.EventRolloutRolledBack: 1, pool.EventRolloutStarted: 2, pool.EventRolloutCompleted: 1,
		} {
			if got := r.count(typ); got != want {
				t.Errorf("death at point %d: %d %s, want %d", at, got, typ, want)
			}
		}
		reached = d.reached.Load() >= at
	})
	return reached
}
