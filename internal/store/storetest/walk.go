package storetest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"poolmgr/internal/pool"
	"poolmgr/internal/store"
)

var walkTests = []test{
	{"Seed1", func(f *fixture) { walk(f, 1) }},
	{"Seed2", func(f *fixture) { walk(f, 2) }},
	{"Seed3", func(f *fixture) { walk(f, 3) }},
}

// walk asks for random things, sensible or not, with versions that are right or not, and checks the store on the
// way. Whatever is asked, the rows stay consistent, and every refusal is one that the contract knows.
func walk(f *fixture, seed uint64) {
	f.host("host-b")
	f.pool(func(s *pool.Spec) { s.HookFailurePolicy = pool.Quarantine })
	w := &walker{fixture: f, rng: rand.New(rand.NewPCG(seed, 0))}
	for n := range 600 {
		f.pass(time.Duration(w.rng.IntN(20)) * time.Second)
		if what, err := w.step(); err != nil && !known(err) {
			f.Fatalf("step %d, %s: %v", n, what, err)
		}
		if n%50 == 0 {
			for _, fault := range Faults(f.store) {
				f.Fatalf("after step %d: %s", n, fault)
			}
		}
	}
}

func known(err error) bool {
	refusal := (*pool.Error)(nil)
	return errors.As(err, &refusal) || errors.Is(err, store.ErrConflict) || errors.Is(err, store.ErrIllegalTransition)
}

type walker struct {
	*fixture
	rng *rand.Rand
}

// step does one random thing and tells what it was.
func (w *walker) step() (string, error) {
	switch n := w.rng.IntN(100); {
	case n < 70:
		a := w.action()
		return fmt.Sprintf("%T%+v", a, a), w.tryOne(a)
	case n < 92:
		return w.lease()
	default:
		return w.world()
	}
}

// vmRow is any VM of the pool; a zero one when there is none.
func (w *walker) vmRow(s store.Snapshot) pool.VM {
	if len(s.VMs) == 0 {
		return pool.VM{}
	}
	vm := s.VMs[w.rng.IntN(len(s.VMs))]
	if w.rng.IntN(20) == 0 {
		vm.Version-- // what somebody saw a while ago
	}
	return vm
}

func (w *walker) action() store.Action {
	s := w.snapshot()
	vm := w.vmRow(s)
	revision := 1 + w.rng.Int64N(s.Pool.Revision)
	successor := store.Successor{ID: w.id("web"), Revision: revision, Attempt: vm.Attempt + 1}
	host := []string{"host-a", "host-b", "nowhere"}[w.rng.IntN(3)]
	forward := map[pool.Phase]store.Action{
		pool.CreateHookRunning: store.HooksDone{VM: vm.ID, Version: vm.Version},
		pool.Deleting:          store.Gone{VM: vm.ID, Version: vm.Version},
		pool.Available:         store.Surge{ID: w.id("web"), Beside: vm.ID, Version: vm.Version, Revision: revision},
	}
	switch {
	case vm.Phase == pool.Provisioning && vm.Host == "":
		forward[vm.Phase] = store.Place{VM: vm.ID, Version: vm.Version, Host: host, MaxStarts: 3}
	case vm.Phase == pool.Provisioning && vm.UID == "":
		forward[vm.Phase] = store.Accepted{VM: vm.ID, Version: vm.Version, UID: "uid-" + vm.ID}
	case vm.Phase == pool.Provisioning:
		forward[vm.Phase] = store.Booted{VM: vm.ID, Version: vm.Version}
	}
	if next := forward[vm.Phase]; next != nil && w.rng.IntN(3) > 0 {
		return next
	}
	condemn := store.Condemn{
		VM: vm.ID, Version: vm.Version, Reason: pool.ReasonRollout, KeepReady: w.rng.IntN(4) - 1, KeepSlots: w.rng.IntN(6) - 1,
		KeepPeer: w.rng.IntN(4) == 0, Lost: w.rng.IntN(8) == 0,
	}
	if vm.Slot != "" && w.rng.IntN(2) == 0 {
		condemn.Successor = &successor
	}
	short := w.rng.IntN(2) == 0
	lease := pool.Lease{}
	if len(s.Leases) > 0 {
		lease = s.Leases[w.rng.IntN(len(s.Leases))]
	}
	any := []store.Action{
		store.Grow{IDs: []string{w.id("web"), w.id("web")}, Revision: revision, MaxSlots: 8},
		condemn, condemn,
		store.Fail{VM: vm.ID, Version: vm.Version, Message: "no", Payload: map[string]any{"hook": "boot"}, Innocent: short, Successor: successor},
		store.Probed{VM: vm.ID, Version: vm.Version, Health: []pool.Health{pool.HealthGood, pool.HealthUnknown, pool.HealthBroken}[w.rng.IntN(3)]},
		store.Unplace{VM: vm.ID, Version: vm.Version, NotBefore: w.now.Add(time.Second)},
		store.Place{VM: vm.ID, Version: vm.Version, Host: host},
		store.Gone{VM: vm.ID, Version: vm.Version},
		store.ExpireLease{Lease: lease.ID, Version: lease.Version},
		store.WarnLease{Lease: lease.ID, Version: lease.Version},
		store.Announce{Short: &short, CompletedRevision: w.rng.Int64N(2) * s.Pool.Revision},
		store.AnnounceState{
			Revision: s.Pool.Revision, LastSuccess: s.Pool.Rollout.LastSuccess, Reason: "no",
			From: s.Pool.State(), To: pool.RolloutStates[w.rng.IntN(4)],
		},
	}
	return any[w.rng.IntN(len(any))]
}

// lease does something with a lease.
func (w *walker) lease() (string, error) {
	ctx, id := w.Context(), "none"
	if leases := w.snapshot().Leases; len(leases) > 0 {
		id = leases[w.rng.IntN(len(leases))].ID
	}
	switch w.rng.IntN(6) {
	case 0:
		_, err := w.store.Renew(ctx, id, w.now)
		return "renew", err
	case 1:
		return "release", w.store.Release(ctx, id, "", w.now)
	case 2:
		_, err := w.store.CompleteClaim(ctx, id, w.now)
		return "complete", err
	case 3:
		return "fail", w.store.FailClaim(ctx, store.FailClaim{Lease: id, Payload: map[string]any{"hook": "pre_lease_commands"}, Now: w.now})
	case 4:
		_, err := w.tryClaim(withHooks, requestID(fmt.Sprint("r", w.rng.IntN(5))))
		return "claim with hooks", err
	default:
		_, err := w.tryClaim(requestID(fmt.Sprint("r", w.rng.IntN(5))))
		return "claim", err
	}
}

// world changes what is around the VMs.
func (w *walker) world() (string, error) {
	ctx := w.Context()
	switch w.rng.IntN(8) {
	case 0:
		w.reopen()
		return "reopen", nil
	case 6, 7:
		verbs := []store.RolloutVerb{store.RolloutPause, store.RolloutResume, store.RolloutRestart, store.RolloutUndo}
		s := store.SteerRollout{Pool: key, Verb: verbs[w.rng.IntN(len(verbs))], To: w.rng.Int64N(4), Now: w.now}
		_, err := w.store.SteerRollout(ctx, s)
		return fmt.Sprintf("%+v", s), err
	case 1:
		_, err := w.store.CordonHost(ctx, "host-b", w.rng.IntN(2) == 0, "", w.now)
		return "cordon", err
	case 2:
		return "reachable", w.store.SetReachable(ctx, "host-b", w.rng.IntN(3) > 0, "", w.now)
	case 3:
		return "remove host", w.store.RemoveHost(ctx, "host-a")
	default:
		edits := []func(*pool.Spec){image(fmt.Sprint("base:", w.rng.IntN(3))), func(s *pool.Spec) {
			s.HookFailurePolicy, s.Size = pool.Quarantine, w.rng.IntN(5)
		}}
		if w.rng.IntN(2) == 0 {
			edits = append(edits, createCommands("true"))
		}
		_, err := w.store.UpdatePool(ctx, store.UpdatePool{Spec: spec(edits...), Now: w.now})
		return "update", err
	}
}
