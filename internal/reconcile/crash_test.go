package reconcile_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"poolmgr/internal/host/fake"
	"poolmgr/internal/pool"
	"poolmgr/internal/store"
	"poolmgr/internal/store/engine"
)

// deaths kills the daemon at the n-th of the points at which it matters: as a call reaches a host, before a commit, and
// after a commit whose answer nobody hears.
type deaths struct {
	rig     *rig
	at      int64
	reached atomic.Int64
	dead    atomic.Bool
}

var errDied = errors.New("the daemon died")

// point reports whether the daemon dies here. From then on nothing it does reaches the storage.
func (d *deaths) point() bool {
	if d.reached.Add(1) != d.at {
		return false
	}
	d.rig.storage.Crash()
	d.dead.Store(true)
	return true
}

// dyingLog has the daemon die around its commits.
type dyingLog struct {
	engine.Log
	deaths *deaths
}

func (l dyingLog) Commit(ctx context.Context, c engine.Changes) error {
	if l.deaths.point() {
		return errDied
	}
	if err := l.Log.Commit(ctx, c); err != nil {
		return fmt.Errorf("commit: %w", err)
	}
	if l.deaths.point() {
		return errDied
	}
	return nil
}

// revive starts the daemon again if it died.
func (d *deaths) revive() {
	if d.dead.CompareAndSwap(true, false) {
		d.rig.kill()
	}
}

// insist repeats a call of a user until the daemon that answers it lives. What was done, but not answered, is refused
// the second time with done.
func (d *deaths) insist(done pool.Code, call func() error) {
	d.rig.t.Helper()
	for range 3 {
		err := call()
		if err == nil || done != "" && pool.CodeOf(err) == done {
			return
		}
		if !d.dead.Load() {
			d.rig.t.Fatal(err)
		}
		d.revive()
	}
	d.rig.t.Fatal("the daemon died three times")
}

// TestKillAtEveryPoint (pitfalls 4, 15, 16, 42, 46; fault F1) runs the main job once for each point at which the daemon
// can die, until a run meets none. However it dies, the pool is whole in the end, no VM is left that no row knows, no
// lease is lost or doubled, and each rollout is announced once.
func TestKillAtEveryPoint(t *testing.T) {
	points := 0
	for reached := true; reached; points++ {
		if points > 500 {
			t.Fatal("more than 500 points: the job does not end")
		}
		reached = !t.Failed() && mainJob(t, int64(points+1))
	}
	t.Logf("%d points", points)
	if points < 50 {
		t.Errorf("only %d points were met", points)
	}
}

// mainJob fills a pool, claims, changes the template, releases and rolls over, with a death at one point.
func mainJob(t *testing.T, at int64) (reached bool) {
	inBubble(t, 2, nil, func(r *rig) {
		d := &deaths{rig: r, at: at}
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
		alive := func(cond func() bool) func() bool {
			return func() bool { d.revive(); return cond() }
		}
		s := spec(2, "1")
		s.CreateCommands = []string{"true"}
		d.insist(pool.CodeAlreadyExists, func() error {
			_, err := r.store.CreatePool(t.Context(), store.CreatePool{Spec: s, Now: time.Now()})
			return err
		})
		r.eventually("the pool is full", 3*time.Minute, alive(r.full(2)))
		var held store.ClaimResult
		d.insist("", func() (err error) {
			r.ids++
			held, err = r.store.Claim(t.Context(), store.Claim{
				Pool: webKey, LeaseID: fmt.Sprintf("lease-%d", r.ids), RequestID: "one", Now: time.Now(),
			})
			return err
		})
		s = spec(2, "2")
		s.CreateCommands = []string{"true"}
		d.insist(pool.CodeAborted, func() error {
			_, err := r.store.UpdatePool(t.Context(), store.UpdatePool{Spec: s, Generation: 1, Now: time.Now()})
			return err
		})
		r.eventually("the rollout is completed", 3*time.Minute, alive(r.rolloutCompleted(2)))
		d.insist("", func() error {
			_, err := r.store.Renew(t.Context(), held.Lease.ID, time.Now())
			return err
		})
		d.insist(pool.CodeNotFound, func() error { return r.store.Release(t.Context(), held.Lease.ID, "", time.Now()) })
		r.eventually("the pool is full again", 3*time.Minute, alive(r.full(2)))
		d.revive()
		r.eventually("the pool stays full", 3*time.Minute, r.full(2))
		for typ, want := range map[pool.EventType]int{
			pool.EventRolloutStarted: 1, pool.EventRolloutCompleted: 1, pool.EventVMClaimed: 1, pool.EventVMReleased: 1,
			pool.EventVMDeletedRelease: 1, pool.EventVMHookFailed: 0,
		} {
			if got := r.count(typ); got != want {
				t.Errorf("death at point %d: %d %s, want %d", at, got, typ, want)
			}
		}
		reached = d.reached.Load() >= at
	})
	return reached
}
