package reconcile_test

import (
	"fmt"
	"testing"
	"time"

	"poolmgr/internal/host"
	"poolmgr/internal/host/fake"
	"poolmgr/internal/plan"
	"poolmgr/internal/pool"
	"poolmgr/internal/store"
)

// matrixSize is the size of the pools of the matrix, whose budget is one VM.
const matrixSize = 5

// claimedSize is that of those which are claimed from.
const claimedSize = 20

// fullHost is how many VMs a host carries where that matters.
const fullHost = 4

// situations are what may happen in the middle of a rollout. Each begins with a full pool of version 1 and ends with
// the revision that it returns completed.
var situations = []struct {
	name  string
	hosts int
	shape func(*fake.Options)
	run   func(*rig, pool.Strategy) (revision int64)
}{
	{"steady claims", 2, nil, steadyClaims},
	{"steady claims with a large budget", 2, nil, steadyClaimsWithinBudget},
	{"hosts full", 2, func(o *fake.Options) { o.MaxVMs = fullHost }, hostsFull},
	{"hosts refuse", 2, nil, hostsRefuse},
	{"hosts cordoned", 2, nil, hostsCordoned},
	{"one host gone", 2, nil, oneHostGone},
	{"all hosts gone", 2, nil, allHostsGone},
	{"amnesia at every step", 2, nil, amnesiaAtEveryStep},
	{"a second edit", 1, nil, secondEdit},
	{"the old template restored", 1, nil, oldTemplateRestored},
	{"quarantine", 1, nil, quarantined},
}

// TestRolloutMatrix: for every strategy and situation, the budget holds, the rollout is announced once, no VM that is
// held or that a host does not answer for is deleted, and the pool ends at its size with current VMs.
func TestRolloutMatrix(t *testing.T) {
	for _, s := range strategies {
		for _, what := range situations {
			t.Run(string(s)+"/"+what.name, func(t *testing.T) {
				inBubble(t, what.hosts, what.shape, func(r *rig) {
					r.create(strategySpec(s, matrixSize, "1"))
					r.eventually("the pool is full", time.Minute, r.full(matrixSize))
					r.eventually("the first rollout is completed", time.Minute, r.rolloutCompleted(1))
					revision := what.run(r, s)
					if got := r.rollout(); got.Revision != revision || got.Rollout.LastCompleted != revision {
						t.Errorf("revision %d, last completed %d; want %d", got.Revision, got.Rollout.LastCompleted, revision)
					}
					r.refill(s)
					r.eventually("the pool is full of current VMs", time.Minute, r.full(r.rollout().Spec.Size))
					r.want(pool.EventRolloutStarted, int(revision)-1)
					r.want(pool.EventRolloutCompleted, 1)
					r.want(pool.EventRolloutStalled, 0)
				})
			})
		}
	}
}

// refill claims from a threshold pool until it is under its threshold, which is when it is filled up again.
func (r *rig) refill(s pool.Strategy) {
	r.t.Helper()
	if s != pool.MinSizeThreshold || r.counts().Claimable == r.rollout().Spec.Size {
		return
	}
	r.eventually("the pool is at rest", time.Minute, func() bool { c := r.counts(); return c.Warming == 0 && c.Held == 0 && c.Deleting == 0 })
	for range max(0, r.counts().Claimable-r.rollout().Spec.MinSize+1) {
		got, err := r.claim()
		r.must(err)
		r.must(r.store.Release(r.t.Context(), got.Lease.ID, "", time.Now()))
	}
}

// begin updates the pool, and waits until the first VM of the new version is up: the middle of the rollout.
func (r *rig) begin(s pool.Spec) {
	r.t.Helper()
	r.update(s)
	revision := r.rollout().Revision
	r.eventually("a new VM is up", time.Minute, func() bool {
		r.floor()
		for _, v := range r.rows() {
			if v.Phase == pool.Available && v.Revision == revision {
				return true
			}
		}
		return false
	})
}

// share is how the slots of a pool stand.
type share struct {
	ready   int // slots with an available VM
	taken   int // slots without one, for the rollout's sake
	desired int // what the strategy asks for, which counts held VMs as it does
	budget  int // how many of those may be unavailable
}

func (r *rig) share() share {
	r.t.Helper()
	spec, held := r.rollout().Spec, 0
	ready, rollout := map[string]bool{}, map[string]bool{}
	slots := map[string]bool{}
	for _, v := range r.rows() {
		slots[v.Slot] = slots[v.Slot] || v.Phase.Warm()
		ready[v.Slot] = ready[v.Slot] || v.Phase == pool.Available
		rollout[v.Slot] = rollout[v.Slot] || v.Phase.Warming() && v.ForRollout
		if v.Phase.Held() {
			held++
		}
	}
	s, warm := share{}, 0
	for slot := range slots {
		switch {
		case ready[slot]:
			s.ready++
		case rollout[slot]:
			s.taken++
		}
		if slots[slot] {
			warm++
		}
	}
	s.desired = spec.Desired(warm, held)
	s.budget = spec.Rollout.MaxUnavailable.Of(s.desired, 1)
	return s
}

// floor fails the test when less is available than the budget demands while nobody claims.
func (r *rig) floor() {
	r.t.Helper()
	r.spares()
	if got := r.counts().Claimable; got < matrixSize-1 {
		r.t.Fatalf("%d available, the budget demands %d", got, matrixSize-1)
	}
}

// spares fails the test when the rollout has taken more than its budget, whatever else is amiss.
func (r *rig) spares() {
	r.t.Helper()
	if s := r.share(); s.taken > 1 {
		r.t.Fatalf("the rollout has taken %d slots, its budget is 1", s.taken)
	}
}

// during checks at every half second of a time.
func (r *rig) during(d time.Duration, check func()) {
	r.t.Helper()
	for range d / (500 * time.Millisecond) {
		r.pass(500 * time.Millisecond)
		check()
	}
}

func steadyClaims(r *rig, s pool.Strategy) int64 {
	next := r.larger(s)
	next.Rollout.ProgressDeadline = 20 * time.Second // then demand takes the stale ones first
	r.update(next)
	r.claimSteadily(2)
	return 2
}

func steadyClaimsWithinBudget(r *rig, s pool.Strategy) int64 {
	next := r.larger(s)
	next.Rollout.MaxUnavailable = pool.Limit{Kind: pool.LimitPercent, Value: 20}
	r.update(next)
	r.claimSteadily(2)
	return 2
}

// larger is a new version of the pool, of which claims take a part only: it is grown for that first.
func (r *rig) larger(s pool.Strategy) pool.Spec {
	r.t.Helper()
	first, next := strategySpec(s, claimedSize, "1"), strategySpec(s, claimedSize, "2")
	if s == pool.MinSizeThreshold {
		first.MinSize, next.MinSize = claimedSize-5, claimedSize-5
	}
	r.update(first)
	r.eventually("the pool is larger", time.Minute, r.full(claimedSize))
	return next
}

// claimSteadily claims every 300 ms and releases after a second, until the rollout is completed and all is released.
func (r *rig) claimSteadily(revision int64) {
	r.t.Helper()
	type lease struct {
		id  string
		end time.Time
	}
	var leases []lease
	release := func() {
		for len(leases) > 0 && !time.Now().Before(leases[0].end) {
			r.must(r.store.Release(r.t.Context(), leases[0].id, "", time.Now()))
			leases = leases[1:]
		}
	}
	served, step, before := 0, 0, 0
	r.eventually("the rollout is completed beside claims", 5*time.Minute, func() bool {
		// What was claimed is not the rollout's doing; it only must take nothing while less is left than its budget demands.
		now := r.share()
		if now.taken > before && now.ready < now.desired-now.budget {
			r.t.Fatalf("the rollout took a slot and left %d of %d, its budget is %d", now.ready, now.desired, now.budget)
		}
		before = now.taken
		release()
		if step++; step%6 == 1 { // a step is 50 ms
			got, err := r.claim()
			switch {
			case err == nil:
				served++
				leases = append(leases, lease{got.Lease.ID, time.Now().Add(time.Second)})
			case pool.CodeOf(err) != pool.CodeExhausted:
				r.t.Fatal(err)
			}
		}
		return r.rolloutCompleted(revision)()
	})
	r.t.Logf("completed after %d claims in %s", served, time.Duration(step)*50*time.Millisecond)
	if served < 10 {
		r.t.Errorf("%d claims were served: that was no demand", served)
	}
	r.pass(time.Second)
	release()
}

// hostsFull: another pool takes all room, and waits for what a VM leaves that goes.
func hostsFull(r *rig, s pool.Strategy) int64 {
	r.begin(strategySpec(s, matrixSize, "2"))
	other := spec(fullHost*len(r.hosts), "1")
	other.Name = "other"
	r.create(other)
	r.during(2*time.Minute, r.floor)
	if n := r.onHosts(); n != fullHost*len(r.hosts) {
		r.t.Errorf("%d VMs are on the hosts, which are full with %d", n, fullHost*len(r.hosts))
	}
	r.must(r.store.ClosePool(r.t.Context(), store.ClosePool{Pool: other.Key, Now: time.Now()}))
	r.watchFloor(matrixSize-1, 3*time.Minute, 2)
	return 2
}

// hostsCordoned: what is under way ends, and no other VM goes.
func hostsCordoned(r *rig, s pool.Strategy) int64 {
	r.begin(strategySpec(s, matrixSize, "2"))
	cordon := func(yes bool) {
		for i := range r.hosts {
			_, err := r.store.CordonHost(r.t.Context(), fmt.Sprintf("host-%d", i), yes, "", time.Now())
			r.must(err)
		}
	}
	cordon(true)
	good := r.available()
	r.during(2*time.Minute, r.floor)
	r.keeps(good)
	if got := r.counts().Claimable; got != matrixSize {
		r.t.Errorf("%d available, want %d: nothing can take the place of a VM that goes", got, matrixSize)
	}
	r.standsBlocked()
	cordon(false)
	r.watchFloor(matrixSize-1, 3*time.Minute, 2)
	return 2
}

// hostsRefuse: the hosts are full, and the daemon learns it only when it asks them.
func hostsRefuse(r *rig, s pool.Strategy) int64 {
	r.begin(strategySpec(s, matrixSize, "2"))
	var heal []func()
	for _, h := range r.hosts {
		heal = append(heal, h.Inject(fake.Fault{Op: fake.Create, Err: host.ErrNoCapacity}))
	}
	r.during(2*time.Minute, r.floor)
	r.standsBlocked()
	for _, end := range heal {
		end()
	}
	r.watchFloor(matrixSize-1, 3*time.Minute, 2)
	return 2
}

func (r *rig) standsBlocked() {
	r.t.Helper()
	if got := r.rollout().State(); got != plan.Blocked {
		r.t.Errorf("%s, want BLOCKED", got)
	}
}

func oneHostGone(r *rig, s pool.Strategy) int64 { return r.gone(s, r.hosts[:1]) }

func allHostsGone(r *rig, s pool.Strategy) int64 { return r.gone(s, r.hosts) }

// gone lets hosts go silent in the middle of a rollout. No VM that is available then is lost, on the others neither.
func (r *rig) gone(s pool.Strategy, hosts []*fake.Host) int64 {
	r.t.Helper()
	r.begin(strategySpec(s, matrixSize, "2"))
	for _, h := range hosts {
		h.Down()
	}
	r.eventually("their VMs are not given out", time.Minute, func() bool { return r.counts().Claimable < matrixSize-1 })
	good := r.available()
	r.during(2*time.Minute, r.spares)
	r.keeps(good)
	r.want(pool.EventRolloutCompleted, 0)
	for _, h := range hosts {
		h.Up()
	}
	r.eventually("the VMs are given out again", time.Minute, func() bool { return r.counts().Claimable >= matrixSize-1 })
	r.watchFloor(matrixSize-1, 3*time.Minute, 2)
	return 2
}

// available is the ids of the VMs that are AVAILABLE, whether their hosts answer or not.
func (r *rig) available() map[string]bool {
	r.t.Helper()
	ids := map[string]bool{}
	for _, v := range r.rows() {
		if v.Phase == pool.Available {
			ids[v.ID] = true
		}
	}
	return ids
}

// keeps demands that each of the VMs is still AVAILABLE.
func (r *rig) keeps(good map[string]bool) {
	r.t.Helper()
	now := r.available()
	for id := range good {
		if !now[id] {
			r.t.Errorf("vm %s was available when the trouble began, and is not any more", id)
		}
	}
}

// amnesiaAtEveryStep throws the daemon away after each of its commits.
func amnesiaAtEveryStep(r *rig, s pool.Strategy) int64 {
	r.update(strategySpec(s, matrixSize, "2"))
	steps, seen := 0, r.storage.Commits()
	r.eventually("the rollout is completed", 10*time.Minute, func() bool {
		if n := r.storage.Commits(); n != seen {
			r.amnesia()
			seen = n
			steps++
		}
		r.floor()
		return r.rolloutCompleted(2)()
	})
	if steps < 2*matrixSize {
		r.t.Errorf("thrown away %d times only", steps)
	}
	return 2
}

func secondEdit(r *rig, s pool.Strategy) int64 {
	r.begin(strategySpec(s, matrixSize, "2"))
	r.update(strategySpec(s, matrixSize, "3"))
	r.watchFloor(matrixSize-1, 3*time.Minute, 3)
	return 3
}

func oldTemplateRestored(r *rig, s pool.Strategy) int64 {
	old := r.available()
	r.begin(strategySpec(s, matrixSize, "2"))
	kept := 0
	r.update(strategySpec(s, matrixSize, "1"))
	r.watchFloor(matrixSize-1, 3*time.Minute, 3)
	for id := range r.available() {
		if old[id] {
			kept++
		}
	}
	if kept < matrixSize-2 {
		r.t.Errorf("%d of the first VMs are left, want %d: going back finds them current again", kept, matrixSize-2)
	}
	return 3
}

// quarantined: the first two replacements fail and are kept for a look, which takes nothing from the pool.
func quarantined(r *rig, s pool.Strategy) int64 {
	r.hosts[0].Script("prepare", fake.Reply{Code: 1}, fake.Reply{Code: 1}, fake.Reply{})
	next := strategySpec(s, matrixSize, "2")
	next.CreateCommands, next.HookFailurePolicy = []string{"prepare"}, pool.Quarantine
	r.update(next)
	r.eventually("two are quarantined", time.Minute, func() bool {
		r.floor()
		return r.counts().Quarantined == 2
	})
	r.watchFloor(matrixSize-1, 3*time.Minute, 2)
	if got := r.counts().Quarantined; got != 2 {
		r.t.Errorf("%d are quarantined, want 2", got)
	}
	return 2
}
