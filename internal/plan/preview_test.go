package plan

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"poolmgr/api/flintlock/vmtypes"
	"poolmgr/internal/pool"
)

// edited is the pool of a world after an update to another template.
func edited(w World, hash string) pool.Pool {
	p := w.Pool
	p.TemplateHash, p.Revision, p.Generation = hash, p.Revision+1, p.Generation+1
	return p
}

// filledWorld is a pool whose slots all have an available VM of the current template, the oldest first, each of which
// took four seconds to boot.
func filledWorld(size, hosts int) World {
	w := testWorld(size, hosts)
	for i := range size {
		v := w.add(fmt.Sprintf("vm-%d", i), pool.Available, "new", fmt.Sprintf("h%d", i%hosts))
		v.AvailableAt = epochStart.Add(time.Duration(i-60) * time.Minute)
		v.SentAt = v.AvailableAt.Add(-4 * time.Second)
	}
	w.Pool.NextSlot = int64(size)
	return w
}

func count(n int) pool.Limit   { return pool.Limit{Kind: pool.LimitCount, Value: n} }
func percent(n int) pool.Limit { return pool.Limit{Kind: pool.LimitPercent, Value: n} }

// previewCase is a pool of filledWorld over two hosts, an update, and what it would do.
type previewCase struct {
	name   string
	size   int
	change func(*World, *pool.Pool)
	want   Forecast
	says   string // part of what is explained; "" = nothing is
}

func previewIDs(n int) []string {
	var ids []string
	for i := range n {
		ids = append(ids, fmt.Sprintf("vm-%d", i))
	}
	return ids
}

func (tt previewCase) run(t *testing.T) {
	w := filledWorld(tt.size, 2)
	next := edited(w, "newer")
	tt.change(&w, &next)
	got := Preview(w, next, epochStart)
	said := strings.Join(got.Explain, "\n")
	if !strings.Contains(said, tt.says) || tt.says == "" && said != "" {
		t.Errorf("explained %q, want %q", said, tt.says)
	}
	tt.want.FromHash, tt.want.ToHash, tt.want.Explain = "new", next.TemplateHash, got.Explain
	if diff := cmp.Diff(tt.want, got); diff != "" {
		t.Error(diff)
	}
}

func TestPreviewUnderEachPolicy(t *testing.T) {
	for _, tt := range []previewCase{
		{
			"one by one, oldest first", 3, func(*World, *pool.Pool) {},
			Forecast{HashChanges: true, Order: previewIDs(3), Batches: 3, LowestReady: 2, Estimate: 12 * time.Second},
			"",
		},
		{
			"a larger budget", 5, func(_ *World, p *pool.Pool) { p.Spec.Rollout.MaxUnavailable = percent(40) },
			Forecast{HashChanges: true, Order: previewIDs(5), Batches: 3, LowestReady: 3, Estimate: 12 * time.Second},
			"",
		},
		{"a surge costs no availability, and its end is no batch of its own", 3, func(_ *World, p *pool.Pool) {
			p.Spec.Rollout.MaxUnavailable, p.Spec.Rollout.MaxSurge = count(0), count(1)
		}, Forecast{HashChanges: true, Order: previewIDs(3), Batches: 3, LowestReady: 3, Estimate: 12 * time.Second}, ""},
		{
			"min_ready is waited for", 2, func(_ *World, p *pool.Pool) { p.Spec.Rollout.MinReady = time.Hour },
			Forecast{HashChanges: true, Order: previewIDs(2), Batches: 2, LowestReady: 1, Estimate: 2*time.Hour + 8*time.Second},
			"",
		},
		{
			"paused", 2, func(_ *World, p *pool.Pool) { p.Spec.Rollout.Paused = true },
			Forecast{HashChanges: true, LowestReady: 2},
			"paused by request",
		},
		{
			"no budget at all", 2, func(_ *World, p *pool.Pool) { p.Spec.Rollout.MaxUnavailable = count(0) },
			Forecast{HashChanges: true, LowestReady: 2},
			"max_unavailable and max_surge are both 0",
		},
		{
			"the same template", 2, func(w *World, p *pool.Pool) { p.TemplateHash, p.Revision = w.Pool.TemplateHash, w.Pool.Revision },
			Forecast{LowestReady: 2},
			"",
		},
		{"smaller, of the same template", 3, func(w *World, p *pool.Pool) {
			p.TemplateHash, p.Revision, p.Spec.Size = w.Pool.TemplateHash, w.Pool.Revision, 1
		}, Forecast{Order: previewIDs(2), Batches: 1, LowestReady: 1}, ""},
		{"larger, of the same template", 2, func(w *World, p *pool.Pool) {
			p.TemplateHash, p.Revision, p.Spec.Size = w.Pool.TemplateHash, w.Pool.Revision, 5
		}, Forecast{LowestReady: 2}, ""},
	} {
		t.Run(tt.name, tt.run)
	}
}

func TestPreviewOnHosts(t *testing.T) {
	for _, tt := range []previewCase{
		{"a host that is no longer the pool's", 2, func(w *World, p *pool.Pool) {
			p.TemplateHash, p.Revision, p.Spec.Hosts = w.Pool.TemplateHash, w.Pool.Revision, []string{"h0"}
		}, Forecast{Order: []string{"vm-1"}, Batches: 1, LowestReady: 1, Estimate: 4 * time.Second}, ""},
		{"nowhere to start", 2, func(w *World, _ *pool.Pool) {
			for i := range w.Hosts {
				w.Hosts[i].Cordoned = true
			}
		}, Forecast{HashChanges: true, LowestReady: 2}, "no host fits: h0 cordoned, h1 cordoned"},
		{"full hosts: each VM's room is its successor's", 2, func(w *World, _ *pool.Pool) {
			for i := range w.Hosts {
				w.Hosts[i].MaxVMs = 1
			}
		}, Forecast{HashChanges: true, Order: previewIDs(2), Batches: 2, LowestReady: 1, Estimate: 8 * time.Second}, ""},
		{"hosts that other pools fill to the brim", 2, func(w *World, _ *pool.Pool) {
			for i := range w.Hosts {
				w.Hosts[i].MaxVMs, w.Hosts[i].Rows, w.Hosts[i].Live = 5, 5, 5
			}
		}, Forecast{HashChanges: true, Order: previewIDs(2), Batches: 2, LowestReady: 1, Estimate: 8 * time.Second}, ""},
		{"other pools' starts are over some time", 2, func(w *World, p *pool.Pool) {
			w.Limits.StartsPerHost, p.Spec.Rollout.MaxUnavailable = 1, count(2)
			for i := range w.Hosts {
				w.Hosts[i].Starts = 1
			}
		}, Forecast{HashChanges: true, Order: previewIDs(2), Batches: 1, LowestReady: 0, Estimate: 4 * time.Second}, ""},
		{"memory is free when the old VM is gone", 2, func(w *World, p *pool.Pool) {
			p.Spec.Template = &vmtypes.MicroVMSpec{MemoryInMb: 200}
			for i := range w.Hosts {
				w.Hosts[i].Host.MemoryMB, w.Hosts[i].MemoryMB = 256, 200
			}
		}, Forecast{HashChanges: true, Order: previewIDs(2), Batches: 2, LowestReady: 1, Estimate: 8 * time.Second}, ""},
		{"a host that does not answer lets nothing go", 2, func(w *World, p *pool.Pool) {
			w.Hosts = append(w.Hosts, pool.HostLoad{Host: pool.Host{Name: "lost"}})
			w.add("goes", pool.Deleting, "new", "lost")
			p.TemplateHash, p.Revision, p.Spec.Size, p.Spec.MaxVMs = w.Pool.TemplateHash, w.Pool.Revision, 3, 3
		}, Forecast{LowestReady: 2}, "1 of 3 slots are not filled: max_vms of the pool is reached"},
		{"a larger template that fits nowhere", 2, func(w *World, p *pool.Pool) {
			small := &vmtypes.MicroVMSpec{MemoryInMb: 100}
			p.Spec.Template = &vmtypes.MicroVMSpec{MemoryInMb: 300}
			w.Revisions = []pool.Revision{{Number: 2, Template: small}}
			for i := range w.VMs {
				w.VMs[i].Revision = 2
			}
			for i := range w.Hosts {
				w.Hosts[i].Host.MemoryMB, w.Hosts[i].MemoryMB = 256, 100
			}
		}, Forecast{HashChanges: true, LowestReady: 2}, "memory 100/256 MiB"},
		{
			"leased VMs are left alone", 1, func(w *World, _ *pool.Pool) { w.add("held", pool.Leased, "new", "h0") },
			Forecast{HashChanges: true, Order: previewIDs(1), Batches: 1, LowestReady: 0, Estimate: 4 * time.Second},
			"leased VMs of an earlier template that stay until they are released: 1",
		},
	} {
		t.Run(tt.name, tt.run)
	}
}

func TestPreviewOfAPoolThatDoesNotExist(t *testing.T) {
	w := testWorld(3, 1)
	next := w.Pool
	w.Pool = pool.Pool{}
	want := Forecast{ToHash: "new", HashChanges: true}
	if diff := cmp.Diff(want, Preview(w, next, epochStart)); diff != "" {
		t.Error(diff)
	}
	w.Hosts = nil
	got := Preview(w, next, epochStart)
	if len(got.Explain) != 1 || !strings.Contains(got.Explain[0], "3 of 3 slots are not filled: no host is registered") {
		t.Errorf("explained %q", got.Explain)
	}
}

// Replacements that come of age before the rollout is through are replaced again, for ever: the dry run must end.
func TestPreviewEnds(t *testing.T) {
	w := filledWorld(4, 1)
	next := edited(w, "newer")
	next.Spec.MaxWarmAge = time.Second
	got := Preview(w, next, epochStart)
	if len(got.Order) != 4 || got.Batches != 4 || got.Estimate != 0 || !strings.Contains(strings.Join(got.Explain, "\n"), "the dry run was ended") {
		t.Errorf("got %+v", got)
	}
}

// realRun is what a fleet of perfect hosts does with a pool: the store's and the hosts' part played anew in every round
// from the rows alone, by carryOut.
type realRun struct {
	world   World
	now     time.Time
	next    int
	own     map[string]bool
	order   []string
	batches int
	lowest  int
	floor   int // what the promises of every plan on the way add up to
}

func (r *realRun) up(v pool.VM) bool {
	return slices.ContainsFunc(r.world.Hosts, func(h pool.HostLoad) bool { return h.Name == v.Host && h.Reachable })
}

func (r *realRun) passes() {
	took := false
	for range 100 {
		p := Compute(r.world, r.now)
		r.lowest = min(r.lowest, readySlots(r.world, r.now))
		if len(p.Condemn)+len(p.Place)+len(p.Surge)+p.Grow == 0 {
			break
		}
		r.floor = min(r.floor, max(0, p.Desired-p.MaxUnavailable))
		for _, c := range p.Condemn {
			if r.own[c.VM] && c.Slot != "" {
				r.order = append(r.order, c.VM)
				took = took || c.Reason != pool.ReasonUnhealthy && !c.KeepPeer
			}
		}
		for _, s := range p.Surge {
			took = took || r.own[s.VM]
		}
		old := len(r.world.VMs)
		r.world = carryOut(r.world, p, r.now, &r.next)
		for i := range r.world.VMs[old:] { // those that wait for a backoff are not placed before it
			v := &r.world.VMs[old+i]
			for _, c := range p.Condemn {
				if c.Successor && c.Slot == v.Slot && c.Attempt > 0 {
					v.Attempt, v.NotBefore = c.Attempt, r.now.Add(pool.Backoff(c.Attempt, 0.5))
				}
			}
		}
	}
	if took {
		r.batches++
	}
}

// turn lets time pass: what is under way is over after one boot; with nothing under way, the next thing that happens is
// that a backoff or a min_ready ends. False when nothing is to come.
func (r *realRun) turn() bool {
	var moving []string
	var ends []time.Time
	for _, v := range r.world.VMs {
		goes := v.Phase == pool.Deleting && (v.Host == "" || r.up(v))
		comes := v.Phase.Warming() && v.Host != "" && r.up(v)
		young := v.Ready() && r.up(v) && !v.CountsReady(r.world.Pool, r.now)
		switch {
		case goes || comes:
			moving = append(moving, v.ID)
		case v.Phase == pool.Provisioning && v.NotBefore.After(r.now):
			ends = append(ends, v.NotBefore)
		case young:
			ends = append(ends, v.AvailableAt.Add(r.world.Pool.Spec.Rollout.MinReady))
		}
	}
	if len(moving) == 0 && len(ends) > 0 {
		r.now = slices.MinFunc(ends, time.Time.Compare)
		return true
	}
	r.now = r.now.Add(nominalBoot)
	r.world.VMs = slices.DeleteFunc(r.world.VMs, func(v pool.VM) bool {
		return v.Phase == pool.Deleting && slices.Contains(moving, v.ID)
	})
	for i := range r.world.VMs {
		if v := &r.world.VMs[i]; slices.Contains(moving, v.ID) {
			v.Phase, v.AvailableAt, v.Health = pool.Available, r.now, pool.HealthGood
		}
	}
	load(&r.world)
	return len(moving) > 0
}

func TestPreviewEqualsTheRealRun(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := worlds(t)
		w.Pool.NextSlot = 100
		w.Pool.Rollout = pool.Rollout{LastCompleted: w.Pool.Rollout.LastCompleted} // nothing has failed in a dry run
		next := edited(w, rapid.SampledFrom([]string{"new", "newer", "old"}).Draw(t, "next hash"))
		next.Spec.Size = rapid.IntRange(next.Spec.MinSize, 9).Draw(t, "next size")
		before, nextBefore := clone(w), next.Clone()

		got := Preview(w, next, epochStart)
		if diff := cmp.Diff(before, w) + cmp.Diff(nextBefore, next); diff != "" {
			t.Fatalf("the input was written to:\n%s", diff)
		}
		r := &realRun{world: clone(w), now: epochStart, own: map[string]bool{}, floor: 1 << 30}
		r.world.Pool = next
		r.lowest = readySlots(r.world, epochStart)
		initial := r.lowest
		for _, v := range w.VMs {
			r.own[v.ID] = true
		}
		for r.passes(); r.turn(); r.passes() {
			if r.now.Sub(epochStart) > time.Hour {
				t.Fatal("the real run does not come to rest")
			}
		}
		want := Forecast{
			FromHash: "new", ToHash: next.TemplateHash, HashChanges: next.TemplateHash != "new",
			Order: r.order, Batches: r.batches, LowestReady: r.lowest, Estimate: got.Estimate, Explain: got.Explain,
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("the real run went otherwise (-run +preview):\n%s", diff)
		}
		if got.LowestReady < min(initial, r.floor) {
			t.Fatalf("%d ready slots at the lowest; %d at the beginning, and the budget demands %d", got.LowestReady, initial, r.floor)
		}
		slices.Reverse(w.VMs)
		slices.Reverse(w.Hosts)
		if diff := cmp.Diff(got, Preview(w, next, epochStart)); diff != "" {
			t.Fatalf("the order of rows matters:\n%s", diff)
		}
	})
}

// The worst pool there is for a dry run: large, with a budget of one.
func BenchmarkPreview(b *testing.B) {
	w := filledWorld(1000, 20)
	for b.Loop() {
		if got := Preview(w, edited(w, "newer"), epochStart); got.Batches != 1000 {
			b.Fatalf("%d batches", got.Batches)
		}
	}
}
