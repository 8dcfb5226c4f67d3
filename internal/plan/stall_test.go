package plan

import (
	"strings"
	"testing"
	"time"

	"poolmgr/internal/pool"
)

// rollout is a world in the middle of a rollout from revision 1, "old", to revision 2, "new".
func rollout(size, hosts int) World {
	w := testWorld(size, hosts)
	w.Pool.Rollout = pool.Rollout{LastCompleted: 1, Started: true, Total: size, StartedAt: epochStart, LastSuccess: epochStart}
	w.Revisions = []pool.Revision{{Number: 1, TemplateHash: "old"}, {Number: 2, TemplateHash: "new"}}
	w.Pool.NextSlot = 100
	return w
}

// row adds a warm VM in a slot.
func (w *World) row(slot string, phase pool.Phase, hash string) *pool.VM {
	v := w.add("vm-"+slot+"-"+hash, phase, hash, "h0")
	v.Slot, v.Revision, v.ForRollout = slot, map[string]int64{"old": 1, "new": 2}[hash], hash == "new"
	if phase == pool.Provisioning {
		v.UID = "uid"
	}
	return v
}

// failed adds failures of different VMs on the hosts.
func (w *World) failed(hosts ...string) {
	for i, h := range hosts {
		w.Pool.Rollout.Failures = append(w.Pool.Rollout.Failures, pool.Failure{VM: string(rune('a' + i)), Host: h, Message: "exit code 1"})
	}
}

func TestStates(t *testing.T) {
	minute := func(n int) time.Time { return epochStart.Add(time.Duration(n) * time.Minute) }
	tests := []struct {
		name  string
		hosts int
		now   time.Time
		world func(*World)
		want  State
		why   string
	}{
		{"on its way", 1, epochStart, func(*World) {}, Progressing, ""},
		{"two failures", 1, epochStart, func(w *World) { w.failed("h0", "h0") }, Progressing, ""},
		{"three failures on the only host", 1, epochStart, func(w *World) { w.failed("h0", "h0", "h0") }, Stalled, "exit code 1"},
		{"three failures on one of two hosts", 2, epochStart, func(w *World) { w.failed("h0", "h0", "h0") }, Progressing, ""},
		{"three failures on two hosts", 2, epochStart, func(w *World) { w.failed("h0", "h1", "h0") }, Stalled, "3 VMs failed"},
		{"three failures on the only usable host", 2, epochStart, func(w *World) {
			w.Hosts[1].Cordoned = true
			w.failed("h0", "h0", "h0")
		}, Stalled, "3 VMs failed"},
		{"one VM three times", 1, epochStart, func(w *World) {
			w.failed("h0", "h0", "h0")
			for i := range w.Pool.Rollout.Failures {
				w.Pool.Rollout.Failures[i].VM = "a"
			}
		}, Progressing, ""},
		{"before the deadline", 1, minute(10).Add(-1), func(*World) {}, Progressing, ""},
		{"at the deadline", 1, minute(10), func(*World) {}, Stalled, "progress_deadline"},
		{"at a deadline of its own", 1, minute(2), func(w *World) { w.Pool.Spec.Rollout.ProgressDeadline = 2 * time.Minute }, Stalled, "2m0s"},
		{"the daemon was away", 1, minute(60), func(w *World) { w.ServingSince = minute(59) }, Progressing, ""},
		{"stalled before the daemon was away", 1, minute(60), func(w *World) {
			w.ServingSince, w.Pool.Rollout.Announced = minute(59), Stalled
		}, Stalled, "progress_deadline"},
		{"the clock stands still while it was blocked", 1, minute(60), func(w *World) { w.Pool.Rollout.Announced = Blocked }, Progressing, ""},
		{"paused goes before stalled", 1, minute(60), func(w *World) {
			w.Pool.Spec.Rollout.Paused = true
			w.failed("h0", "h0", "h0")
		}, Paused, "by request"},
		{"over goes before all", 1, minute(60), func(w *World) {
			w.Pool.Rollout.Completed = true
			w.failed("h0", "h0", "h0")
		}, Completed, ""},
		{"its host is down", 1, epochStart, func(w *World) { w.Hosts[0].Reachable = false }, Blocked, "h0 does not answer"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := rollout(2, tt.hosts)
			w.row("s0", pool.Provisioning, "new")
			w.row("s1", pool.Available, "old")
			tt.world(&w)
			p := Compute(w, tt.now)
			if p.State != tt.want || !strings.Contains(p.StateReason, tt.why) || tt.why == "" && p.StateReason != "" {
				t.Errorf("%s (%s), want %s (%s)", p.State, p.StateReason, tt.want, tt.why)
			}
			was := w.Pool.Rollout.Announced
			if was == "" {
				was = Progressing
			}
			if want := tt.want != was && tt.want != Completed; p.Announce != want {
				t.Errorf("announce %v, want %v", p.Announce, want)
			}
		})
	}
}

func TestTheDeadlineIsAWake(t *testing.T) {
	w := rollout(2, 1)
	w.row("s0", pool.Provisioning, "new")
	w.row("s1", pool.Available, "old")
	if p := Compute(w, epochStart); !p.Wake.Equal(epochStart.Add(pool.DefaultProgressDeadline)) {
		t.Errorf("wake %s", p.Wake)
	}
}

func TestBlockedStates(t *testing.T) {
	full := func(w *World) { w.Hosts[0].MaxVMs, w.Hosts[0].Cordoned = 2, true }
	tests := []struct {
		name  string
		world func(*World)
		want  State
		why   string
	}{
		{"no room for a successor", func(w *World) {
			w.row("s0", pool.Available, "old")
			w.row("s1", pool.Available, "old")
			full(w)
		}, Blocked, "h0 cordoned"},
		{"room", func(w *World) {
			w.row("s0", pool.Available, "old")
			w.row("s1", pool.Available, "old")
		}, Progressing, ""},
		{"no room for the replacement", func(w *World) {
			v := w.row("s0", pool.Provisioning, "new")
			v.Host, v.UID = "", ""
			w.row("s1", pool.Available, "old")
			full(w)
		}, Blocked, "h0 cordoned"},
		{"its host has no room", func(w *World) {
			v := w.row("s0", pool.Provisioning, "new")
			v.Host, v.UID, v.NotBefore, v.Message = "", "", epochStart.Add(time.Second), "h0: no capacity"
			w.row("s1", pool.Available, "old")
		}, Blocked, "no capacity"},
		{"the backoff after a failure", func(w *World) {
			v := w.row("s0", pool.Provisioning, "new")
			v.Host, v.UID, v.NotBefore, v.Attempt = "", "", epochStart.Add(time.Second), 1
			w.row("s1", pool.Available, "old")
			w.failed("h0")
		}, Progressing, ""},
		{"demand", func(w *World) {
			w.row("s0", pool.Provisioning, "new").ForRollout = false
			w.row("s1", pool.Available, "old")
		}, Blocked, "budget 1/1"},
		{"a budget that failures use up", func(w *World) {
			w.row("s0", pool.Provisioning, "new").ForRollout = false
			w.row("s1", pool.Available, "old")
			w.failed("h0")
		}, Progressing, ""},
		{"a host is asked once more", func(w *World) {
			w.row("s0", pool.Provisioning, "new").UID = ""
			w.row("s1", pool.Available, "old")
			w.Pool.Rollout.Announced = Blocked
		}, Blocked, "no host has accepted"},
		{"a host said yes", func(w *World) {
			w.row("s0", pool.Provisioning, "new")
			w.row("s1", pool.Available, "old")
			w.Pool.Rollout.Announced = Blocked
		}, Progressing, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := rollout(2, 1)
			tt.world(&w)
			load(&w)
			if p := Compute(w, epochStart); p.State != tt.want || !strings.Contains(p.StateReason, tt.why) {
				t.Errorf("%s (%s), want %s (%s)", p.State, p.StateReason, tt.want, tt.why)
			}
		})
	}
}

func TestWhileStalledNothingStaleGoes(t *testing.T) {
	w := rollout(4, 1)
	w.Pool.Spec.Rollout.MaxUnavailable = pool.Limit{Kind: pool.LimitCount, Value: 4}
	w.failed("h0", "h0", "h0")
	w.row("s0", pool.Provisioning, "new")
	w.row("s1", pool.Provisioning, "old")
	w.row("s2", pool.Available, "old")
	w.row("s3", pool.Available, "old").Health = pool.HealthBroken
	p := Compute(w, epochStart)
	if len(p.Condemn) != 1 || p.Condemn[0].VM != "vm-s3-old" || p.Condemn[0].Revision != 1 {
		t.Errorf("condemned %+v, want the broken one, with a successor of revision 1", p.Condemn)
	}
}

func TestGrowthWhileStalled(t *testing.T) {
	tests := []struct {
		name     string
		world    func(*World)
		revision int64
		trial    bool
	}{
		{"one slot tries", func(w *World) { w.row("s0", pool.Provisioning, "new") }, 1, false},
		{"nothing tries", func(w *World) { w.row("s0", pool.Available, "old") }, 1, true},
		{"paused as well", func(w *World) {
			w.row("s0", pool.Provisioning, "new")
			w.Pool.Spec.Rollout.Paused = true
		}, 1, false},
		{"nothing to fall back on", func(w *World) {
			w.row("s0", pool.Provisioning, "new")
			w.Pool.Rollout.LastCompleted = 0
		}, 2, false},
		{"the last completed one has the same template", func(w *World) {
			w.row("s0", pool.Provisioning, "new")
			w.Revisions[0].TemplateHash = "new"
		}, 2, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := rollout(3, 1)
			w.failed("h0", "h0", "h0")
			tt.world(&w)
			p := Compute(w, epochStart)
			if p.Grow != 2 || p.Revision != tt.revision || p.Trial != tt.trial {
				t.Errorf("grow %d of revision %d, trial %v; want 2 of %d, %v", p.Grow, p.Revision, p.Trial, tt.revision, tt.trial)
			}
		})
	}
}

func TestAStalledRolloutMakesATryWithinTheBudget(t *testing.T) {
	w := rollout(3, 1)
	w.failed("h0", "h0", "h0")
	for _, s := range []string{"s0", "s1", "s2"} {
		w.row(s, pool.Available, "old")
	}
	w.Pool.Spec.Rollout.MaxUnavailable = pool.Limit{Kind: pool.LimitCount, Value: 3}
	p := Compute(w, epochStart)
	if len(p.Condemn) != 1 || p.Condemn[0].Revision != 2 || p.Condemn[0].KeepReady != 0 {
		t.Errorf("condemned %+v, want one for a try", p.Condemn)
	}
}

func TestWithoutAFallbackOneAtATimeIsStarted(t *testing.T) {
	w := rollout(3, 1)
	w.Pool.Rollout.LastCompleted = 0
	w.failed("h0", "h0", "h0")
	for _, s := range []string{"s0", "s1", "s2"} {
		v := w.row(s, pool.Provisioning, "new")
		v.Host, v.UID = "", ""
	}
	load(&w)
	if p := Compute(w, epochStart); len(p.Place) != 1 {
		t.Errorf("placed %+v, want one", p.Place)
	}
	w.VMs[1].Host = "h0"
	load(&w)
	if p := Compute(w, epochStart); len(p.Place) != 0 {
		t.Errorf("placed %+v beside one that is being started", p.Place)
	}
}

func TestSuccessorRevision(t *testing.T) {
	w := rollout(3, 1)
	s0, s1 := *w.row("s0", pool.Provisioning, "new"), *w.row("s1", pool.Provisioning, "new")
	w.failed("h0")
	for _, tt := range []struct {
		name   string
		vm     pool.VM
		more   int
		blamed bool
		want   int64
	}{
		{"the second failure", s1, 0, true, 2},
		{"the third", s1, 1, true, 1},
		{"the third, not blamed", s1, 1, false, 2},
		{"the third, of the slot that tries", s0, 1, true, 2},
	} {
		x := w
		x.Pool = w.Pool.Clone()
		for range tt.more {
			x.Pool.Rollout.Failures = append(x.Pool.Rollout.Failures, pool.Failure{VM: "b", Host: "h0"})
		}
		if got := SuccessorRevision(x, tt.vm, tt.blamed, epochStart); got != tt.want {
			t.Errorf("%s: revision %d, want %d", tt.name, got, tt.want)
		}
	}
}

func TestAutoRollbackFollowsTheAnnouncement(t *testing.T) {
	w := rollout(2, 1)
	w.Pool.Spec.Rollout.AutoRollback = true
	w.failed("h0", "h0", "h0")
	w.row("s0", pool.Provisioning, "new")
	if p := Compute(w, epochStart); p.RollbackTo != 0 || !p.Announce {
		t.Errorf("rolls back to %d before it was told", p.RollbackTo)
	}
	w.Pool.Rollout.Announced = Stalled
	if p := Compute(w, epochStart); p.RollbackTo != 1 || p.Announce {
		t.Errorf("rolls back to %d, want 1", p.RollbackTo)
	}
	w.Pool.Rollout.LastCompleted = 0
	if p := Compute(w, epochStart); p.RollbackTo != 0 {
		t.Errorf("rolls back to %d, which never completed", p.RollbackTo)
	}
}

func TestTheSlotThatTriesDoesNotKeepAThresholdFromBeingReached(t *testing.T) {
	w := rollout(4, 1)
	w.Pool.Spec.Strategy, w.Pool.Spec.MinSize = pool.MinSizeThreshold, 1
	w.row("s0", pool.Provisioning, "new")
	if p := Compute(w, epochStart); p.Grow != 0 {
		t.Errorf("grow %d, want 0: the threshold is met", p.Grow)
	}
	w.failed("h0", "h0", "h0")
	if p := Compute(w, epochStart); p.Grow != 3 || p.Revision != 1 || p.Desired != 4 {
		t.Errorf("grow %d of revision %d, desired %d; want 3 of 1, 4", p.Grow, p.Revision, p.Desired)
	}
	w.row("s1", pool.Available, "old")
	if p := Compute(w, epochStart); p.Grow != 0 || p.Desired != 2 {
		t.Errorf("grow %d, desired %d; want 0, 2", p.Grow, p.Desired)
	}
}

// TestDemandIsNotedAsTheCause: from BLOCKED on, also while a claim is made up for, until something stale goes.
func TestDemandIsNotedAsTheCause(t *testing.T) {
	eaten := func(w *World) {
		w.row("s0", pool.Provisioning, "new").ForRollout = false
		w.row("s1", pool.Available, "old")
	}
	tests := []struct {
		name             string
		since            time.Time
		announced        State
		world            func(*World)
		want             State
		demand, announce bool
	}{
		{"it begins", time.Time{}, "", eaten, Blocked, true, true},
		{"another cause was told", time.Time{}, Blocked, eaten, Blocked, true, true},
		{"it goes on", epochStart, Blocked, eaten, Blocked, true, false},
		{"a claim is made up for", epochStart, Blocked, func(w *World) { w.row("s1", pool.Available, "old") }, Progressing, true, true},
		{"a claim was made up for", epochStart, "", func(w *World) { w.row("s1", pool.Available, "old") }, Progressing, true, false},
		{"growth alone does not begin it", time.Time{}, "", func(w *World) { w.row("s1", pool.Available, "old") }, Progressing, true, false},
		{"a stale one goes", epochStart, "", func(w *World) {
			w.row("s0", pool.Available, "new")
			w.row("s1", pool.Available, "old")
		}, Progressing, false, true},
		{"its host is down", epochStart, Blocked, func(w *World) {
			eaten(w)
			w.Hosts[0].Reachable = false
		}, Blocked, false, true},
		{"paused", epochStart, Blocked, func(w *World) {
			eaten(w)
			w.Pool.Spec.Rollout.Paused = true
		}, Paused, false, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := rollout(2, 1)
			w.Pool.Rollout.Announced, w.Pool.Rollout.BlockedSince = tt.announced, tt.since
			tt.world(&w)
			load(&w)
			if p := Compute(w, epochStart); p.State != tt.want || p.Demand != tt.demand || p.Announce != tt.announce {
				t.Errorf("%s, demand %t, announce %t (%s); want %s, %t, %t", p.State, p.Demand, p.Announce, p.StateReason, tt.want, tt.demand, tt.announce)
			}
		})
	}
}
