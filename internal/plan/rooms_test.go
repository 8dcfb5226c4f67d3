package plan

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"poolmgr/api/flintlock/vmtypes"
	"poolmgr/internal/pool"
)

func sized(number int64, memory int32) pool.Revision {
	return pool.Revision{Number: number, Template: &vmtypes.MicroVMSpec{MemoryInMb: memory}}
}

// TestARowTakesTheMemoryOfItsOwnTemplate: a paused pool still places rows of the old template, which may be larger than
// the current one. A placement that the store refuses every time would be tried for ever.
func TestARowTakesTheMemoryOfItsOwnTemplate(t *testing.T) {
	w := testWorld(2, 1)
	w.Pool.Spec.Rollout.Paused = true
	w.Pool.Spec.Template = &vmtypes.MicroVMSpec{MemoryInMb: 1024}
	w.Revisions = []pool.Revision{sized(1, 2048), sized(2, 1024)}
	w.Hosts[0].Host.MemoryMB = 1500
	w.add("large", pool.Provisioning, "old", "").Revision = 1
	w.add("small", pool.Provisioning, "new", "").Revision = 2
	p := Compute(w, epochStart)
	if diff := cmp.Diff([]Place{{VM: "small", Version: 1, Host: "h0"}}, p.Place); diff != "" {
		t.Errorf("placed (-want +got)\n%s", diff)
	}
}

// TestALargerTemplateDoesNotFitWhereASmallerOneGoes: what a VM frees is its own memory, not its successor's.
func TestALargerTemplateDoesNotFitWhereASmallerOneGoes(t *testing.T) {
	for _, tt := range []struct{ memory, condemned int }{{4096, 1}, {3000, 0}} {
		w := testWorld(2, 1)
		w.Pool.Spec.Template = &vmtypes.MicroVMSpec{MemoryInMb: 2048}
		w.Revisions = []pool.Revision{sized(1, 1024), sized(2, 2048)}
		w.Hosts[0].Host.MemoryMB = tt.memory
		w.add("a", pool.Available, "old", "h0").Revision = 1
		w.add("b", pool.Available, "old", "h0").Revision = 1
		w.Hosts[0].MemoryMB = 2048
		if p := Compute(w, epochStart); len(p.Condemn) != tt.condemned {
			t.Errorf("%d MiB: %d condemned, want %d; %q", tt.memory, len(p.Condemn), tt.condemned, p.Explain)
		}
	}
}

// TestRowsInTheirBackoffHoldUpNobody: what waits for a minute reserves room, but neither a start nor its turn.
func TestRowsInTheirBackoffHoldUpNobody(t *testing.T) {
	w := testWorld(5, 1)
	w.Limits.StartsPerHost = 2
	for i := range 3 {
		v := w.add(fmt.Sprintf("rests-%d", i), pool.Provisioning, "new", "")
		v.CreatedAt, v.NotBefore = epochStart.Add(-time.Hour), epochStart.Add(time.Minute)
	}
	w.add("x", pool.Provisioning, "new", "")
	w.add("y", pool.Provisioning, "new", "")
	p := Compute(w, epochStart)
	if len(p.Place) != 2 || p.Place[0].VM != "x" || p.Place[1].VM != "y" {
		t.Errorf("placed %v, want x and y", p.Place)
	}
}

func TestAHostThatFailsItsStartsIsTriedLast(t *testing.T) {
	w := testWorld(3, 2)
	w.Limits.StartsPerHost = 2
	w.Avoid = map[string]bool{"h0": true}
	for i := range 3 {
		w.add(fmt.Sprintf("w%d", i), pool.Provisioning, "new", "")
	}
	var got []string
	for _, p := range Compute(w, epochStart).Place {
		got = append(got, p.Host)
	}
	if diff := cmp.Diff([]string{"h1", "h1", "h0"}, got); diff != "" {
		t.Errorf("hosts (-want +got)\n%s", diff)
	}
}

// TestAFixedAddressIsOneVMAtATime: two VMs of one MAC on a network are none.
func TestAFixedAddressIsOneVMAtATime(t *testing.T) {
	mac := "02:00:00:00:00:01"
	for _, phase := range []pool.Phase{pool.Deleting, pool.Quarantined, pool.Leased} {
		w := testWorld(1, 2)
		w.Pool.Spec.Template = &vmtypes.MicroVMSpec{Interfaces: []*vmtypes.NetworkInterface{{DeviceId: "eth1", GuestMac: &mac}}}
		w.add("used", phase, "new", "h0")
		w.add("next", pool.Provisioning, "new", "")
		p := Compute(w, epochStart)
		if len(p.Place) != 0 || !strings.Contains(strings.Join(p.Explain, ";"), "address") {
			t.Errorf("beside a %s VM: placed %v (%q), want none", phase, p.Place, p.Explain)
		}
		w.VMs = w.VMs[1:]
		load(&w)
		if p := Compute(w, epochStart); len(p.Place) != 1 {
			t.Errorf("after the %s VM: placed %v, want one", phase, p.Place)
		}
	}
}

// TestASurgeThatFindsNoRoomTakesTheVMsPlace: a surge row that cannot be placed never blocks the in-place path.
func TestASurgeThatFindsNoRoomTakesTheVMsPlace(t *testing.T) {
	w := testWorld(1, 1)
	w.Hosts[0].MaxVMs = 1
	w.Pool.Spec.Rollout.MaxSurge = pool.Limit{Kind: pool.LimitCount, Value: 1}
	old := w.add("old", pool.Available, "old", "h0")
	slot := old.Slot
	w.add("surge", pool.Provisioning, "new", "").Slot = slot
	p := Compute(w, epochStart)
	if len(p.Condemn) != 1 || p.Condemn[0].VM != "old" || p.Condemn[0].Successor || p.Condemn[0].KeepReady != 0 {
		t.Errorf("condemned %+v, want the old VM, with the surge row as what follows", p.Condemn)
	}
	w.Pool.Spec.Rollout.MaxUnavailable = pool.Limit{Kind: pool.LimitCount}
	if p := Compute(w, epochStart); len(p.Condemn) != 0 {
		t.Errorf("condemned %+v without a budget", p.Condemn)
	}
}

// TestTheThresholdGrowsAtOnce: with min_size reached by the first part of a growth, the rest would never come.
func TestTheThresholdGrowsAtOnce(t *testing.T) {
	for strategy, want := range map[pool.Strategy]int{pool.MinSizeThreshold: 50, pool.ImmediateOnLease: 10} {
		w := testWorld(50, 1)
		w.Limits.NewRows = 10
		w.Pool.Spec.Strategy, w.Pool.Spec.MinSize = strategy, 5
		if p := Compute(w, epochStart); p.Grow != want {
			t.Errorf("%s: grow %d, want %d", strategy, p.Grow, want)
		}
	}
}

func TestABrokenVMsSuccessorIsAnotherAttempt(t *testing.T) {
	w := testWorld(1, 1)
	v := w.add("a", pool.Available, "new", "h0")
	v.Health, v.Attempt, v.Revision = pool.HealthBroken, 2, w.Pool.Revision
	if p := Compute(w, epochStart); len(p.Condemn) != 1 || p.Condemn[0].Attempt != 3 {
		t.Errorf("condemned %+v, want a successor of attempt 3", p.Condemn)
	}
	v.Revision--
	if p := Compute(w, epochStart); p.Condemn[0].Attempt != 1 {
		t.Errorf("condemned %+v, want attempt 1: counted per revision", p.Condemn)
	}
}

// TestAnUnreachableHostDoesNotHoldUpTheEndOfARollout: its VM is of the current template, and came up.
func TestAnUnreachableHostDoesNotHoldUpTheEndOfARollout(t *testing.T) {
	w := testWorld(1, 1)
	w.Pool.Rollout.Started = true
	w.add("a", pool.Available, "new", "h0").ForRollout = true
	w.Hosts[0].Reachable = false
	if !Compute(w, epochStart).Complete {
		t.Error("no stale VM is left and none is on its way: the rollout is over")
	}
}

// TestAHeldUpSurgeIsNotAReasonWhereTheBudgetMoves: no room for a surge is no explanation while VMs are replaced in place.
func TestAHeldUpSurgeIsNotAReasonWhereTheBudgetMoves(t *testing.T) {
	w := testWorld(1, 1)
	w.Hosts[0].MaxVMs = 1
	w.Pool.Spec.Rollout.MaxSurge = pool.Limit{Kind: pool.LimitCount, Value: 1}
	w.add("a", pool.Available, "old", "h0")
	p := Compute(w, epochStart)
	if len(p.Condemn) != 1 || len(p.Explain) != 0 || !p.Wake.IsZero() {
		t.Errorf("condemned %v, %q, wake %s; want one, in silence", p.Condemn, p.Explain, p.Wake)
	}
}
