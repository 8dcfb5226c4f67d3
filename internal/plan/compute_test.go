package plan

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"poolmgr/internal/pool"
)

// testWorld is a pool of a size over hosts h0, h1, ... without limits.
func testWorld(size, hosts int) World {
	w := World{
		Pool: pool.Pool{
			Spec: pool.Spec{
				Key: pool.Key{Namespace: "default", Name: "p"}, Size: size, Strategy: pool.ImmediateOnLease,
				HeartbeatInterval: 10 * time.Second, HeartbeatExpiry: time.Minute,
			},
			TemplateHash: "new", Revision: 2,
		},
		ServingSince: epochStart.Add(-time.Hour), Epoch: 7,
	}
	for i := range hosts {
		w.Hosts = append(w.Hosts, pool.HostLoad{Host: pool.Host{Name: fmt.Sprintf("h%d", i), Reachable: true}})
	}
	return w
}

func (w *World) add(id string, phase pool.Phase, hash, host string) *pool.VM {
	v := pool.VM{
		ID: id, Phase: phase, TemplateHash: hash, Host: host, Health: pool.HealthGood, Version: 1,
		CreatedAt: epochStart.Add(-time.Minute),
	}
	if phase.Warm() {
		v.Slot = "s-" + id
	}
	if phase == pool.Available {
		v.AvailableAt = epochStart.Add(-time.Minute)
	}
	w.VMs = append(w.VMs, v)
	load(w)
	return &w.VMs[len(w.VMs)-1]
}

func TestLeaseEnds(t *testing.T) {
	lease := func(change func(*pool.Lease)) pool.Lease {
		l := pool.Lease{
			ID: "l", Version: 3, ClaimedAt: epochStart.Add(-30 * time.Minute), ExpiresAt: epochStart.Add(30 * time.Second),
		}
		change(&l)
		return l
	}
	tests := []struct {
		name         string
		lease        pool.Lease
		servingSince time.Duration // before now
		maxDuration  time.Duration
		expire, warn bool
		wake         time.Duration
	}{
		{"alive", lease(func(*pool.Lease) {}), time.Hour, 0, false, false, 20 * time.Second},
		{"nearing its end", lease(func(l *pool.Lease) { l.ExpiresAt = epochStart.Add(5 * time.Second) }), time.Hour, 0, false, true, 5 * time.Second},
		{"warned already", lease(func(l *pool.Lease) { l.ExpiresAt, l.Warned = epochStart.Add(5*time.Second), true }), time.Hour, 0, false, false, 5 * time.Second},
		{"over at the very instant", lease(func(l *pool.Lease) { l.ExpiresAt = epochStart }), time.Hour, 0, true, false, 0},
		{"over while the daemon was away", lease(func(l *pool.Lease) { l.ExpiresAt = epochStart.Add(-time.Hour) }), 5 * time.Second, 0, false, false, 45 * time.Second},
		{"over, and the grace too", lease(func(l *pool.Lease) { l.ExpiresAt = epochStart.Add(-time.Hour) }), time.Minute, 0, true, false, 0},
		{"its longest life is not extended", lease(func(l *pool.Lease) { l.ExpiresAt = epochStart }), 5 * time.Second, 30 * time.Minute, true, false, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := testWorld(0, 1)
			w.Leases = []pool.Lease{tt.lease}
			w.ServingSince = epochStart.Add(-tt.servingSince)
			w.Pool.Spec.MaxLeaseDuration = tt.maxDuration
			p := Compute(w, epochStart)
			if got := len(p.Expire) == 1; got != tt.expire {
				t.Errorf("expire: %v, want %v", got, tt.expire)
			}
			if got := len(p.Warn) == 1; got != tt.warn {
				t.Errorf("warn: %v, want %v", got, tt.warn)
			}
			var wake time.Duration
			if !p.Wake.IsZero() {
				wake = p.Wake.Sub(epochStart)
			}
			if wake != tt.wake {
				t.Errorf("wake in %s, want %s", wake, tt.wake)
			}
		})
	}
}

func TestAbandonedClaims(t *testing.T) {
	w := testWorld(0, 1)
	for id, l := range map[string]pool.Lease{
		"mine": {Epoch: 7, ExpiresAt: epochStart.Add(time.Minute)},
		"old":  {Epoch: 6, ExpiresAt: epochStart.Add(time.Minute)},
		"late": {Epoch: 7, ExpiresAt: epochStart},
	} {
		v := w.add(id, pool.PreLeaseHookRunning, "new", "h0")
		v.LeaseID = "lease-" + id
		l.ID, l.VM, l.Pending = v.LeaseID, id, true
		w.Leases = append(w.Leases, l)
	}
	var got []string
	for _, c := range Compute(w, epochStart).Condemn {
		got = append(got, c.VM+" "+string(c.Reason))
	}
	if diff := cmp.Diff([]string{"late FAILED", "old FAILED"}, got); diff != "" {
		t.Errorf("condemned (-want +got)\n%s", diff)
	}
}

func TestAClosingPoolTakesEverythingAndThenItself(t *testing.T) {
	w := testWorld(3, 1)
	w.Pool.Closing = true
	for _, phase := range pool.Phases {
		w.add(string(phase), phase, "new", "h0")
	}
	p := Compute(w, epochStart)
	if got, want := len(p.Condemn), len(pool.Phases)-1; got != want || p.Remove {
		t.Errorf("%d condemned (remove %v), want %d: all but the DELETING one", got, p.Remove, want)
	}
	for _, c := range p.Condemn {
		if c.Successor || c.Reason != pool.ReasonPoolDeleted {
			t.Errorf("%+v: want POOL_DELETED without a successor", c)
		}
	}
	w.VMs = nil
	if !Compute(w, epochStart).Remove {
		t.Error("a closing pool without rows goes")
	}
}

func TestPlacementSpreadsAndCountsWhatItPlaced(t *testing.T) {
	w := testWorld(6, 3)
	w.Limits.StartsPerHost = 3
	w.add("busy", pool.Leased, "new", "h1")
	for i := range 6 {
		w.add(fmt.Sprintf("w%d", i), pool.Provisioning, "new", "")
	}
	var got []string
	for _, p := range Compute(w, epochStart).Place {
		got = append(got, p.VM+"@"+p.Host)
	}
	want := []string{"w0@h0", "w1@h2", "w2@h0", "w3@h1", "w4@h2", "w5@h0"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("placed (-want +got)\n%s", diff)
	}
}

func TestNothingGoodIsDestroyedForAReplacementThatCannotCome(t *testing.T) {
	tests := []struct {
		name string
		host func(*pool.HostLoad)
		want int
	}{
		{"a full host: the VM that goes makes the room", func(h *pool.HostLoad) { h.MaxVMs = 2 }, 1},
		{"over-full", func(h *pool.HostLoad) { h.MaxVMs = 1 }, 0},
		{"cordoned", func(h *pool.HostLoad) { h.Cordoned = true }, 0},
		{"no free start", func(h *pool.HostLoad) { h.Starts = 3 }, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := testWorld(2, 1)
			w.Limits.StartsPerHost = 3
			w.add("a", pool.Available, "old", "h0")
			w.add("b", pool.Available, "old", "h0")
			tt.host(&w.Hosts[0])
			p := Compute(w, epochStart)
			if len(p.Condemn) != tt.want {
				t.Errorf("%d condemned, want %d; %q", len(p.Condemn), tt.want, p.Explain)
			}
			if tt.want == 0 && (len(p.Explain) == 0 || p.Wake.IsZero()) {
				t.Errorf("a blocked rollout says why and looks again: %q, wake %s", p.Explain, p.Wake)
			}
		})
	}
}

func TestVMsOnAHostThatDoesNotAnswerAreNeitherReadyNorTaken(t *testing.T) {
	w := testWorld(2, 2)
	w.Hosts[1].Reachable = false
	w.add("a", pool.Available, "old", "h0")
	w.add("b", pool.Available, "old", "h1")
	p := Compute(w, epochStart)
	if p.Ready != 1 || len(p.Condemn) != 0 {
		t.Errorf("ready %d, condemned %v; want 1 and none: the budget is spent on the VM nobody can reach", p.Ready, p.Condemn)
	}
}

func TestAWaitingRowKeepsItsBackoff(t *testing.T) {
	w := testWorld(1, 1)
	w.add("w", pool.Provisioning, "new", "").NotBefore = epochStart.Add(4 * time.Second)
	p := Compute(w, epochStart)
	if len(p.Place) != 0 || p.Wake != epochStart.Add(4*time.Second) {
		t.Errorf("place %v, wake %s; want none before the backoff's end", p.Place, p.Wake)
	}
}

func TestMaxVMsBoundsGrowth(t *testing.T) {
	w := testWorld(5, 1)
	w.Pool.Spec.MaxVMs = 6
	for i := range 3 {
		w.add(fmt.Sprintf("l%d", i), pool.Leased, "new", "h0")
	}
	w.add("d", pool.Deleting, "new", "h0")
	p := Compute(w, epochStart)
	if p.Grow != 2 || !strings.Contains(strings.Join(p.Explain, ";"), "max_vms") {
		t.Errorf("grow %d (%q), want 2: leased and DELETING VMs count", p.Grow, p.Explain)
	}
}

func TestExplanations(t *testing.T) {
	tests := []struct {
		name  string
		shape func(*World)
		want  []string
	}{
		{"at rest", func(w *World) { w.Pool.Spec.Size = 0 }, nil},
		{"no host", func(w *World) { w.Hosts = nil }, []string{"2 of 2 slots are not filled: no host is registered for the pool"}},
		{"hosts that do not fit", func(w *World) {
			w.Hosts[0].MaxVMs, w.Hosts[0].Rows = 20, 20
			w.Hosts[1].Cordoned = true
		}, []string{"2 of 2 slots are not filled: no host fits: h0 full 20/20, h1 cordoned"}},
		{"a slow replacement", func(w *World) {
			w.add("a", pool.Available, "old", "h0")
			v := w.add("b", pool.Provisioning, "new", "h0")
			v.Attempt, v.Message = 2, "the guest has not answered"
		}, []string{
			"VMs due for replacement that wait: 1; budget 1/1",
			"slot s-b waits for vm b, PROVISIONING, attempt 3, last error: the guest has not answered",
		}},
		{"a zero budget", func(w *World) {
			w.Pool.Spec.Rollout.MaxUnavailable = pool.Limit{Kind: pool.LimitCount}
			w.add("a", pool.Available, "old", "h0")
			w.add("b", pool.Available, "old", "h0")
		}, []string{"VMs due for replacement that wait: 2; max_unavailable and max_surge are both 0"}},
		{"paused", func(w *World) {
			w.Pool.Spec.Rollout.Paused = true
			w.add("a", pool.Available, "old", "h0")
			w.add("b", pool.Available, "new", "h0")
		}, []string{"stale VMs that stay: 1; the rollout is paused by request (rollout_policy.paused)"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := testWorld(2, 2)
			tt.shape(&w)
			if diff := cmp.Diff(tt.want, Compute(w, epochStart).Explain); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

func TestRolloutCompletion(t *testing.T) {
	tests := []struct {
		name  string
		shape func(*World)
		want  bool
	}{
		{"a stale VM is left", func(w *World) { w.add("a", pool.Available, "old", "h0") }, false},
		{"a replacement is on its way", func(w *World) { w.add("a", pool.Provisioning, "new", "h0").ForRollout = true }, false},
		{"a refill of a claim is on its way", func(w *World) { w.add("a", pool.Provisioning, "new", "h0") }, true},
		{"only leased VMs are stale", func(w *World) { w.add("a", pool.Leased, "old", "h0") }, true},
		{"everything is current", func(w *World) { w.add("a", pool.Available, "new", "h0") }, true},
		{"announced already", func(w *World) { w.Pool.Rollout.Completed = true }, false},
		{"first fill, nothing booted yet", func(w *World) { w.Pool.Rollout.Started = false }, false},
		{"first fill, proven", func(w *World) { w.Pool.Rollout.Started, w.Pool.Rollout.Proven = false, true }, true},
		{"a new VM that is not min_ready", func(w *World) {
			w.Pool.Spec.Rollout.MinReady = time.Hour
			w.add("a", pool.Available, "new", "h0").ForRollout = true
		}, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := testWorld(1, 1)
			w.Pool.Rollout.Started = true
			tt.shape(&w)
			if got := Compute(w, epochStart).Complete; got != tt.want {
				t.Errorf("complete: %v, want %v", got, tt.want)
			}
		})
	}
}

func TestRolloutState(t *testing.T) {
	w := testWorld(1, 1)
	if s, _ := RolloutState(w, epochStart); s != Progressing {
		t.Errorf("%s, want PROGRESSING", s)
	}
	w.Pool.Spec.Rollout.MaxUnavailable = pool.Limit{Kind: pool.LimitPercent}
	if s, why := RolloutState(w, epochStart); s != Paused || why == "" {
		t.Errorf("%s (%s), want PAUSED with a reason", s, why)
	}
	w.Pool.Rollout.Completed = true
	if s, _ := RolloutState(w, epochStart); s != Completed {
		t.Errorf("%s, want COMPLETED: the first match wins", s)
	}
}
