package plan

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"poolmgr/internal/pool"
)

var epochStart = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// worlds draws any pool: every strategy, policy and phase, with hosts that are full, cordoned or gone.
func worlds(t *rapid.T) World {
	size := rapid.IntRange(0, 8).Draw(t, "size")
	w := World{Pool: pool.Pool{
		Spec: pool.Spec{
			Key: pool.Key{Namespace: "default", Name: "p"}, Size: size,
			Strategy: rapid.SampledFrom([]pool.Strategy{
				pool.ImmediateOnLease, pool.MinSizeThreshold, pool.ReplaceOnDelete,
			}).Draw(t, "strategy"),
			MinSize: rapid.IntRange(1, max(1, size)).Draw(t, "min_size"),
			Rollout: pool.RolloutPolicy{
				MaxUnavailable: limits(t, "max_unavailable"), MaxSurge: limits(t, "max_surge"),
				Paused:   rapid.Bool().Draw(t, "paused"),
				MinReady: rapid.SampledFrom([]time.Duration{0, 30 * time.Second}).Draw(t, "min_ready"),
			},
			MaxWarmAge:      rapid.SampledFrom([]time.Duration{0, time.Hour}).Draw(t, "max_warm_age"),
			HeartbeatExpiry: time.Minute, HeartbeatInterval: time.Second,
		},
		TemplateHash: "new", Revision: 3,
	}}
	w.Revisions = []pool.Revision{{Number: 1, TemplateHash: "older"}, {Number: 2, TemplateHash: "old"}, {Number: 3, TemplateHash: "new"}}
	w.Pool.Rollout.LastCompleted = int64(rapid.IntRange(0, 3).Draw(t, "last completed"))
	w.Pool.Rollout.Announced = rapid.SampledFrom([]State{"", Paused, Blocked, Stalled}).Draw(t, "announced")
	if rapid.Bool().Draw(t, "blocked by demand") {
		w.Pool.Rollout.BlockedSince = epochStart.Add(-time.Minute)
	}
	w.Pool.Rollout.LastSuccess = epochStart.Add(-time.Duration(rapid.IntRange(0, 20).Draw(t, "last success")) * time.Minute)
	for i := range rapid.IntRange(0, 5).Draw(t, "failures") {
		w.Pool.Rollout.Failures = append(w.Pool.Rollout.Failures, pool.Failure{VM: fmt.Sprintf("failed-%d", i), Host: fmt.Sprintf("host-%d", i%2)})
	}
	for i := range rapid.IntRange(1, 3).Draw(t, "hosts") {
		w.Hosts = append(w.Hosts, pool.HostLoad{Host: pool.Host{
			Name: fmt.Sprintf("host-%d", i), Reachable: rapid.IntRange(0, 4).Draw(t, "reachable") > 0,
			Cordoned: rapid.IntRange(0, 4).Draw(t, "cordoned") == 0, MaxVMs: rapid.SampledFrom([]int{0, 4, 20}).Draw(t, "max_vms"),
		}})
	}
	w.Limits.StartsPerHost = rapid.IntRange(0, 4).Draw(t, "starts")
	for i := range rapid.IntRange(0, 14).Draw(t, "rows") {
		w.VMs = append(w.VMs, vms(t, i, w.Hosts))
	}
	load(&w)
	return w
}

// revisionOf is the revision of each template of worlds.
var revisionOf = map[string]int64{"older": 1, "old": 2, "new": 3}

func limits(t *rapid.T, name string) pool.Limit {
	return pool.Limit{
		Kind:  rapid.SampledFrom([]pool.LimitKind{pool.LimitUnset, pool.LimitCount, pool.LimitPercent}).Draw(t, name+" kind"),
		Value: rapid.IntRange(0, 10).Draw(t, name),
	}
}

func vms(t *rapid.T, i int, hosts []pool.HostLoad) pool.VM {
	v := pool.VM{
		ID:           fmt.Sprintf("vm-%02d", i),
		Phase:        rapid.SampledFrom(pool.Phases).Draw(t, "phase"),
		TemplateHash: rapid.SampledFrom([]string{"new", "old", "older"}).Draw(t, "hash"),
		Health:       rapid.SampledFrom([]pool.Health{pool.HealthGood, pool.HealthGood, pool.HealthUnknown, pool.HealthBroken}).Draw(t, "health"),
		Host:         rapid.SampledFrom(hosts).Draw(t, "host").Name,
		Version:      int64(i + 1),
		CreatedAt:    epochStart.Add(-time.Duration(rapid.IntRange(1, 7200).Draw(t, "age")) * time.Second),
		ForRollout:   rapid.Bool().Draw(t, "for rollout"),
	}
	v.Revision = revisionOf[v.TemplateHash]
	if v.Phase.Warm() {
		v.Slot = fmt.Sprintf("s%d", rapid.IntRange(0, 8).Draw(t, "slot"))
	}
	if v.Phase == pool.Available {
		v.AvailableAt = v.CreatedAt.Add(time.Second)
	}
	if v.Phase == pool.Provisioning && rapid.Bool().Draw(t, "unplaced") {
		v.Host = ""
	}
	return v
}

// load counts the rows on the hosts, as the store does.
func load(w *World) {
	for i := range w.Hosts {
		h := &w.Hosts[i]
		h.Rows, h.Live, h.Starts = 0, 0, 0
		for _, v := range w.VMs {
			if v.Host != h.Name {
				continue
			}
			h.Rows++
			if v.Phase != pool.Deleting {
				h.Live++
			}
			if v.Phase == pool.Provisioning {
				h.Starts++
			}
		}
	}
}

func clone(w World) World {
	w.VMs = slices.Clone(w.VMs)
	w.Hosts = slices.Clone(w.Hosts)
	w.Leases = slices.Clone(w.Leases)
	return w
}

func readySlots(w World, now time.Time) int {
	slots, up := map[string]bool{}, map[string]bool{}
	for _, h := range w.Hosts {
		up[h.Name] = h.Reachable
	}
	for _, v := range w.VMs {
		if v.CountsReady(w.Pool, now) && up[v.Host] {
			slots[v.Slot] = true
		}
	}
	return len(slots)
}

func extraRows(w World) int {
	slots, rows := map[string]bool{}, 0
	for _, v := range w.VMs {
		if v.Phase.Warm() {
			slots[v.Slot] = true
			rows++
		}
	}
	return rows - len(slots)
}

// carryOut does what a plan says, as the executor and the store would.
func carryOut(w World, p Plan, now time.Time, next *int) World {
	w = clone(w)
	add := func(slot string, revision int64, rollout bool) {
		*next++
		hash := w.Pool.TemplateHash
		for _, r := range w.Revisions {
			if r.Number == revision {
				hash = r.TemplateHash
			}
		}
		w.VMs = append(w.VMs, pool.VM{
			ID: fmt.Sprintf("new-%03d", *next), Slot: slot, Phase: pool.Provisioning, Revision: revision, TemplateHash: hash,
			Restart: w.Pool.Restart, CreatedAt: now, Version: 1, Health: pool.HealthGood, ForRollout: rollout,
		})
	}
	at := func(id string) *pool.VM {
		return &w.VMs[slices.IndexFunc(w.VMs, func(v pool.VM) bool { return v.ID == id })]
	}
	for _, c := range p.Condemn {
		v := at(c.VM)
		v.Phase, v.Slot, v.Reason = pool.Deleting, "", c.Reason
		if c.Successor {
			add(c.Slot, c.Revision, true)
		}
	}
	for _, x := range p.Place {
		at(x.VM).Host = x.Host
	}
	for _, x := range p.Surge {
		add(x.Slot, x.Revision, true)
	}
	for i := range p.Grow {
		revision := p.Revision
		if i == 0 && p.Trial {
			revision = w.Pool.Revision
		}
		add(fmt.Sprintf("g%03d", *next), revision, false)
	}
	if p.Announce {
		w.Pool.Rollout.Announced = p.State
		if p.State == Progressing {
			w.Pool.Rollout.Announced = ""
		}
		if w.Pool.Rollout.BlockedSince = (time.Time{}); p.Demand {
			w.Pool.Rollout.BlockedSince = epochStart
		}
	}
	load(&w)
	return w
}

func TestPlanKeepsItsPromises(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := worlds(t)
		before := clone(w)
		p := Compute(w, epochStart)
		if diff := cmp.Diff(before, w); diff != "" {
			t.Fatalf("the world was written to:\n%s", diff)
		}
		if !p.Wake.IsZero() && !p.Wake.After(epochStart) {
			t.Fatalf("wake %s is not in the future", p.Wake)
		}
		phases := map[string]pool.VM{}
		for _, v := range w.VMs {
			phases[v.ID] = v
		}
		for _, c := range p.Condemn {
			if v := phases[c.VM]; v.Phase == pool.Leased || v.Phase == pool.Deleting {
				t.Fatalf("condemned %s in phase %s", c.VM, v.Phase)
			}
		}
		n := 0
		after := carryOut(w, p, epochStart, &n)
		floor := min(readySlots(w, epochStart), p.Desired-p.MaxUnavailable)
		if got := readySlots(after, epochStart); got < floor {
			t.Fatalf("%d slots are ready after the plan, the budget demands %d", got, floor)
		}
		if got := extraRows(after); got > max(p.MaxSurge, extraRows(w)) {
			t.Fatalf("%d rows beyond one per slot, max_surge is %d", got, p.MaxSurge)
		}
		if slots := len(group(after.VMs)); slots > p.Desired {
			t.Fatalf("%d slots after the plan, desired %d", slots, p.Desired)
		}
		slices.Reverse(w.VMs)
		slices.Reverse(w.Hosts)
		if diff := cmp.Diff(p, Compute(w, epochStart)); diff != "" {
			t.Fatalf("the order of rows matters:\n%s", diff)
		}
	})
}

// settle plays a perfect fleet: every placed VM comes up, every condemned one goes, and time passes. A hold-out is a
// world in which the plan is still not empty after many rounds.
func settle(t *rapid.T, w World) World {
	now, next := epochStart, 0
	for range 500 {
		p := Compute(w, now)
		if len(p.Condemn)+len(p.Place)+len(p.Surge)+p.Grow == 0 {
			quiet := true
			for _, v := range w.VMs {
				quiet = quiet && !v.Phase.Warming() && v.Phase != pool.Deleting
			}
			if quiet && (p.Wake.IsZero() || p.Wake.Sub(now) > time.Minute) {
				return w
			}
		}
		w = carryOut(w, p, now, &next)
		now = now.Add(time.Second)
		w.VMs = slices.DeleteFunc(w.VMs, func(v pool.VM) bool { return v.Phase == pool.Deleting })
		for i := range w.VMs {
			if v := &w.VMs[i]; v.Phase.Warming() && v.Host != "" {
				v.Phase, v.AvailableAt = pool.Available, now
				if !v.Stale(w.Pool) {
					w.Pool.Rollout.LastSuccess, w.Pool.Rollout.Failures = now, nil
				}
			}
		}
		load(&w)
	}
	t.Fatalf("no rest after 500 rounds: %+v", Compute(w, now))
	return w
}

func TestPerfectExecutionEndsAtTheGoal(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := worlds(t)
		w.Pool.Spec.Rollout.Paused = false
		for i := range w.Hosts {
			w.Hosts[i].Reachable, w.Hosts[i].Cordoned, w.Hosts[i].MaxVMs = true, false, 0
		}
		for i := range w.VMs {
			if w.VMs[i].Health == pool.HealthUnknown {
				w.VMs[i].Health = pool.HealthGood
			}
		}
		w = settle(t, w)
		p := Compute(w, epochStart.Add(time.Hour))
		if p.Ready != p.Desired {
			t.Fatalf("%d of %d slots are ready at rest", p.Ready, p.Desired)
		}
		for _, v := range w.VMs {
			if v.Phase.Warm() && v.Stale(w.Pool) && p.MaxUnavailable+p.MaxSurge > 0 {
				t.Fatalf("stale %s is left at rest", v.ID)
			}
		}
	})
}
