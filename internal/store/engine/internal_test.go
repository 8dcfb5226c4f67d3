package engine

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"poolmgr/api/flintlock/vmtypes"
	"poolmgr/internal/pool"
	"poolmgr/internal/store"
)

// discard is a log that keeps nothing.
type discard struct{ epoch int64 }

func (d discard) Load(context.Context) (State, error) { return State{Epoch: d.epoch}, nil }
func (discard) Commit(context.Context, Changes) error { return nil }
func (discard) Close() error                          { return nil }
func (discard) Events(context.Context, store.EventQuery, int64) ([]pool.Event, error) {
	return nil, nil
}

var (
	testKey = pool.Key{Namespace: "team-a", Name: "web"}
	now     = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
)

func openDiscard(t testing.TB) *Engine {
	t.Helper()
	e, err := Open(context.Background(), discard{epoch: 1}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// fill makes a pool with n VMs that are ready on the host "h".
func fill(t testing.TB, e *Engine, n int) {
	t.Helper()
	ctx := context.Background()
	if _, err := e.AddHost(ctx, pool.Host{Name: "h", Address: "h:1"}, now); err != nil {
		t.Fatal(err)
	}
	spec := pool.Spec{Key: testKey, Size: n, Template: &vmtypes.MicroVMSpec{MemoryInMb: 128}, HeartbeatExpiry: time.Minute}
	if _, err := e.CreatePool(ctx, store.CreatePool{Spec: spec, Now: now}); err != nil {
		t.Fatal(err)
	}
	err := e.do(ctx, now, func(x *tx) error {
		p := x.m.pools[testKey]
		for i := range n {
			id := fmt.Sprintf("web-%08x", i)
			vm, err := x.newRow(p, id, fmt.Sprintf("s%d", i), 1)
			if err != nil {
				return err
			}
			vm.Host, vm.UID, vm.SentAt = "h", "uid-"+id, now
			if err := x.putVM(vm); err != nil {
				return err
			}
			x.now = now.Add(time.Duration(i))
			if err := x.booted(p, store.Booted{VM: id, Version: 1}); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestPanicOfAVerbIsItsOwnError(t *testing.T) {
	e := openDiscard(t)
	fill(t, e, 1)
	err := e.do(t.Context(), now, func(x *tx) error {
		x.editPool(testKey, func(p *pool.Pool) { p.Short = true })
		panic("oops")
	})
	if err == nil || !strings.Contains(err.Error(), "oops") {
		t.Fatalf("error %v", err)
	}
	view, err := e.GetPool(t.Context(), testKey)
	if err != nil || view.Pool.Short {
		t.Fatalf("the verb left something: %+v, %v", view.Pool, err)
	}
	if _, err := e.Claim(t.Context(), store.Claim{Pool: testKey, LeaseID: "l", Now: now}); err != nil {
		t.Fatalf("the next verb: %v", err)
	}
}

// TestNoWriteSkipsTheTable tries every pair of phases where all rows are written, below the checks of actions.
func TestNoWriteSkipsTheTable(t *testing.T) {
	e := openDiscard(t)
	fill(t, e, 1)
	for _, from := range pool.Phases {
		for _, to := range pool.Phases {
			_ = e.do(t.Context(), now, func(x *tx) error {
				vm := *x.m.vms["web-00000000"]
				vm.Phase = from
				x.writeVM(vm)
				vm = *x.m.vms[vm.ID]
				vm.Phase = to
				err := x.putVM(vm)
				if legal := from == to || from.CanBecome(to); legal != (err == nil) || err != nil && !errors.Is(err, store.ErrIllegalTransition) {
					t.Errorf("from %s to %s: %v", from, to, err)
				}
				vm.Phase = from
				x.writeVM(vm)
				if err := x.dropVM(x.m.vms[vm.ID]); (err == nil) != (from == pool.Deleting) {
					t.Errorf("the row ends as %s: %v", from, err)
				}
				return errors.New("take it back")
			})
		}
		err := e.do(t.Context(), now, func(x *tx) error { return x.putVM(pool.VM{ID: "new", Pool: testKey, Revision: 1, Phase: from}) })
		if (err == nil) != (from == pool.Provisioning) {
			t.Errorf("a row begins as %s: %v", from, err)
		}
		if err == nil {
			_ = e.do(t.Context(), now, func(x *tx) error { x.setVM("new", nil); return nil })
		}
	}
}

// TestVerbThatCannotBeTakenBackStopsTheStore: what the working mirror holds is not known any more.
func TestVerbThatCannotBeTakenBackStopsTheStore(t *testing.T) {
	e := openDiscard(t)
	fill(t, e, 1)
	err := e.do(t.Context(), now, func(x *tx) error {
		x.journal = append(x.journal, func() { panic("again") })
		panic("oops")
	})
	if !errors.Is(err, store.ErrBroken) {
		t.Fatalf("error %v", err)
	}
	if _, err = e.Claim(t.Context(), store.Claim{Pool: testKey, LeaseID: "l", Now: now}); !errors.Is(err, store.ErrBroken) {
		t.Fatalf("the next verb: %v", err)
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
}

// burst is a log whose commits panic.
type burst struct{ discard }

func (burst) Commit(context.Context, Changes) error { panic("oops") }

func TestPanicOfTheLogStopsTheStore(t *testing.T) {
	e, err := Open(t.Context(), burst{}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := e.AddHost(t.Context(), pool.Host{Name: "h", Address: "h:1"}, now); !errors.Is(err, store.ErrBroken) {
			t.Fatalf("error %v", err)
		}
	}
}

// TestRollbackLeavesNothing: whatever a refused verb wrote, both mirrors are as before, indexes and all.
func TestRollbackLeavesNothing(t *testing.T) {
	e := openDiscard(t)
	fill(t, e, 5)
	refused := errors.New("no")
	err := e.do(t.Context(), now, func(x *tx) error {
		if _, err := x.claim(store.Claim{Pool: testKey, LeaseID: "l", RequestID: "r"}); err != nil {
			return err
		}
		x.startRollout(pool.Revision{Pool: testKey, Number: 2, TemplateHash: "v1:other"})
		x.putHost(pool.Host{Name: "new", Address: "new:1", Reachable: true})
		p := x.m.pools[testKey]
		for _, a := range []store.Action{
			store.Condemn{VM: "web-00000001", Version: 2, Reason: pool.ReasonRollout, Successor: &store.Successor{ID: "web-next", Revision: 2}},
			store.Gone{VM: "web-00000001", Version: 3},
			store.Place{VM: "web-next", Version: 1, Host: "new"},
			store.Surge{ID: "web-surge", Beside: "web-00000002", Version: 2, Revision: 2},
		} {
			if err := x.apply(p, a); err != nil {
				return err
			}
		}
		x.dropPool(testKey)
		return refused
	})
	if !errors.Is(err, refused) {
		t.Fatal(err)
	}
	if got, want := describe(e.working), describe(e.published); got != want {
		t.Fatalf("the working mirror:\n%s\nthe published one:\n%s", got, want)
	}
	if e.Commits() != 3 {
		t.Fatalf("%d commits", e.Commits())
	}
}

// describe writes down a mirror's rows, indexes and counts.
func describe(m *mirror) string {
	var b strings.Builder
	for _, key := range m.keys() {
		p := m.pools[key]
		fmt.Fprintf(&b, "%s v%d revisions %v kinds %v slots %v ready slots %d unplaced %d\n",
			key, p.pool.Version, revisionNumbers(p), p.kinds, p.slots, p.readySlot, p.unplaced)
		for vm := range p.vms.all() {
			fmt.Fprintf(&b, "  %s v%d %s %q lease %q\n", vm.ID, vm.Version, vm.Phase, vm.Slot, vm.LeaseID)
		}
		for l := range p.leases.all() {
			fmt.Fprintf(&b, "  lease %s of %s\n", l.ID, l.VM)
		}
		for at, shelf := range p.ready {
			fmt.Fprintf(&b, "  %v: %d\n", at, shelf.n)
		}
	}
	for _, h := range m.loads() {
		fmt.Fprintf(&b, "%s rows %d live %d memory %d starts %d %v\n", h.Name, h.Rows, h.Live, h.MemoryMB, h.Starts, m.hosts[h.Name].pools)
	}
	fmt.Fprintf(&b, "%d VMs, %d leases, requests %v, addresses %v", len(m.vms), len(m.leases), m.requests, m.addresses)
	return b.String()
}

func TestSortedIsASortedSet(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	s := sorted[int]{cmp: func(a, b *int) int { return *a - *b }}
	model := map[int]bool{}
	for range 20_000 {
		n := rng.IntN(4 * maxChunk)
		if model[n] {
			s.remove(&n)
			delete(model, n)
		} else {
			s.insert(&n)
			model[n] = true
		}
		s.remove(new(-1)) // not there
		if s.n != len(model) {
			t.Fatalf("%d rows, want %d", s.n, len(model))
		}
	}
	want := slices.Sorted(maps.Keys(model))
	values := func(rows iter.Seq[*int]) (got []int) {
		for row := range rows {
			got = append(got, *row)
		}
		return got
	}
	if got := values(s.all()); !slices.Equal(got, want) {
		t.Fatalf("rows %v, want %v", got, want)
	}
	for n := -1; n <= 4*maxChunk; n++ {
		i, taken := slices.BinarySearch(want, n)
		if taken {
			i++
		}
		if got := values(s.from(&n)); !slices.Equal(got, want[i:]) {
			t.Fatalf("after %d: %v, want %v", n, got, want[i:])
		}
	}
	if len(s.chunks) < 4 {
		t.Fatalf("%d chunks: the test is too small", len(s.chunks))
	}
	for _, n := range want {
		s.remove(&n)
	}
	if s.n != 0 || len(s.chunks) != 0 {
		t.Fatalf("%d rows in %d chunks are left", s.n, len(s.chunks))
	}
}

// BenchmarkClaim shows that a claim costs much the same from a small pool and from a large one. Nothing is made
// durable, so what is left is the engine's own work.
func BenchmarkClaim(b *testing.B) {
	for _, vms := range []int{100, 100_000} {
		b.Run(fmt.Sprintf("vms=%d", vms), func(b *testing.B) {
			e := openDiscard(b)
			fill(b, e, vms)
			ctx, n := context.Background(), 0
			b.ReportAllocs()
			for b.Loop() {
				if n++; n%vms == 0 {
					b.StopTimer()
					e = openDiscard(b)
					fill(b, e, vms)
					b.StartTimer()
				}
				if _, err := e.Claim(ctx, store.Claim{Pool: testKey, LeaseID: fmt.Sprintf("l%d", n), Now: now}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkClaimTogether shows how many claims share a commit.
func BenchmarkClaimTogether(b *testing.B) {
	const vms = 200_000
	e := openDiscard(b)
	fill(b, e, vms)
	var n atomic.Int64
	before := e.Commits()
	b.ResetTimer()
	b.SetParallelism(32)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			i := n.Add(1)
			_, err := e.Claim(context.Background(), store.Claim{Pool: testKey, LeaseID: fmt.Sprintf("l%d", i), Now: now})
			if err != nil && i < vms {
				b.Error(err)
				return
			}
		}
	})
	b.ReportMetric(float64(e.Commits()-before)/float64(b.N), "commits/op")
}
