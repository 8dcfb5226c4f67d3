package lease_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"poolmgr/internal/host/fake"
	"poolmgr/internal/lease"
	"poolmgr/internal/pool"
	"poolmgr/internal/store"
)

func TestHooksRunInOrderBeforeTheAnswer(t *testing.T) {
	inBubble(t, []string{"sleep 2", "mark"}, func(r *rig) {
		r.warm(1)
		p := r.start(lease.Request{})
		if n := r.phases(); n[pool.PreLeaseHookRunning] != 1 || p.done() {
			t.Fatalf("phases %v while the hooks run", n)
		}
		if list, _ := r.manager.List(r.Context(), nil); len(list) != 0 {
			t.Errorf("a pending lease is listed: %v", list)
		}
		got, err := p.wait()
		r.must(err)
		if got.VM.Phase != pool.Leased || got.Lease.Pending || !got.Lease.ExpiresAt.Equal(time.Now().Add(5*time.Minute)) {
			t.Errorf("claimed %+v", got)
		}
		if n := r.host.Count(fake.Exec); n != 2 {
			t.Errorf("%d commands ran", n)
		}
		if diff := cmp.Diff([]int{1, 0}, []int{r.seen.hooks, r.seen.hooksFailed}); diff != "" {
			t.Errorf("observed hooks and failures (-want +got)\n%s", diff)
		}
	})
}

// TestHookFailsOnOneVM: the claim goes on with the next one, and the touched VM does not come back.
func TestHookFailsOnOneVM(t *testing.T) {
	inBubble(t, []string{"true", "prepare"}, func(r *rig) {
		r.host.Script("prepare", fake.Reply{Code: 3, Stderr: "disk full\n"}, fake.Reply{})
		r.warm(2)
		got, err := r.claim("job")
		r.must(err)
		if got.VM.ID != "web-00000002" {
			t.Errorf("got %s", got.VM.ID)
		}
		bad := r.vm("web-00000001")
		if bad.Phase != pool.Deleting || bad.Reason != pool.ReasonFailed || !strings.Contains(bad.Message, "disk full") {
			t.Errorf("the failed VM: %s %s %q", bad.Phase, bad.Reason, bad.Message)
		}
		failed := r.events(pool.EventVMHookFailed)
		if len(failed) != 1 {
			t.Fatalf("%d VM_HOOK_FAILED", len(failed))
		}
		for key, want := range map[string]any{
			"hook": "pre_lease_commands", "command": "prepare", "exit_code": 3, "stderr_tail": "disk full\n", "vm_id": bad.ID,
		} {
			if fmt.Sprint(failed[0].Payload[key]) != fmt.Sprint(want) { // numbers come back from JSON
				t.Errorf("payload %s is %v, want %v", key, failed[0].Payload[key], want)
			}
		}
		again, err := r.claim("job")
		r.must(err)
		if again.Lease.ID != got.Lease.ID {
			t.Error("the request id finds another lease")
		}
	})
}

func TestHookFailsQuarantine(t *testing.T) {
	inBubble(t, []string{"prepare"}, func(r *rig) {
		r.update(func(s *pool.Spec) { s.HookFailurePolicy = pool.Quarantine })
		r.host.Script("prepare", fake.Reply{Code: 1})
		r.warm(1)
		_, err := r.claim("")
		r.refused(err, pool.CodeInternal)
		if n := r.phases(); n[pool.Quarantined] != 1 {
			t.Errorf("phases %v", n)
		}
	})
}

func TestHookThatDoesNotEnd(t *testing.T) {
	inBubble(t, []string{"hang"}, func(r *rig) {
		r.warm(1)
		began := time.Now()
		_, err := r.claim("")
		r.refused(err, pool.CodeInternal, "did not end in time")
		if took := time.Since(began); took < time.Minute || took > time.Minute+10*time.Second {
			t.Errorf("it took %s, the limit is 1m", took)
		}
		if e := r.events(pool.EventVMHookFailed); len(e) != 1 || fmt.Sprint(e[0].Payload["exit_code"]) != "-1" {
			t.Errorf("events %v", e)
		}
	})
}

// TestHooksFailInARow: a claim tries three VMs; after that one claim at a time tries one, until a success.
func TestHooksFailInARow(t *testing.T) {
	inBubble(t, []string{"prepare"}, func(r *rig) {
		r.host.Script("prepare", fake.Reply{Code: 1, Stderr: "no license", Delay: time.Second})
		r.warm(9)
		_, err := r.claim("")
		r.refused(err, pool.CodeInternal, "no license", "3 VMs")
		if n := r.phases(); n[pool.Deleting] != 3 {
			t.Fatalf("phases %v", n)
		}
		trying := r.start(lease.Request{})
		_, err = r.claim("")
		r.refused(err, pool.CodeUnavailable, "no license", "3 times")
		_, err = trying.wait()
		r.refused(err, pool.CodeInternal, "no license")
		if n := r.phases(); n[pool.Deleting] != 4 {
			t.Errorf("a claim that tries took more than one VM: %v", n)
		}

		r.host.Script("prepare", fake.Reply{Delay: time.Second}) // repaired from outside
		trying = r.start(lease.Request{})
		_, err = r.claim("")
		r.refused(err, pool.CodeUnavailable)
		_, err = trying.wait()
		r.must(err)
		one, two := r.start(lease.Request{}), r.start(lease.Request{})
		_, err = one.wait()
		r.must(err)
		_, err = two.wait()
		r.must(err)
	})
}

func TestUpdateEndsTheStreak(t *testing.T) {
	inBubble(t, []string{"prepare"}, func(r *rig) {
		r.host.Script("prepare", fake.Reply{Code: 1})
		r.warm(6)
		_, err := r.claim("")
		r.refused(err, pool.CodeInternal)
		r.update(func(s *pool.Spec) { s.PreLeaseCommands = []string{"sleep 1"} })
		one, two := r.start(lease.Request{}), r.start(lease.Request{})
		_, err = one.wait()
		r.must(err)
		_, err = two.wait()
		r.must(err)
	})
}

// TestStreakKeepsReplays: a lease that was made is found however the hooks fare now.
func TestStreakKeepsReplays(t *testing.T) {
	inBubble(t, []string{"prepare"}, func(r *rig) {
		r.warm(6)
		mine, err := r.claim("mine")
		r.must(err)
		r.host.Script("prepare", fake.Reply{Code: 1, Delay: time.Second})
		_, err = r.claim("")
		r.refused(err, pool.CodeInternal)
		trying := r.start(lease.Request{})
		again, err := r.claim("mine")
		r.must(err)
		if again.Lease.ID != mine.Lease.ID {
			t.Error("another lease")
		}
		_, err = trying.wait()
		r.refused(err, pool.CodeInternal)
	})
}

// TestTwoAtOnceWithOneID: one VM is taken, and the loser runs no hook.
func TestTwoAtOnceWithOneID(t *testing.T) {
	inBubble(t, []string{"sleep 3"}, func(r *rig) {
		r.warm(2)
		one, two := r.start(lease.Request{RequestID: "job"}), r.start(lease.Request{RequestID: "job"})
		if two.done() {
			t.Fatal("the second did not wait for the outcome")
		}
		a, err := one.wait()
		r.must(err)
		b, err := two.wait()
		r.must(err)
		if a.Lease.ID != b.Lease.ID || a.Replayed || !b.Replayed {
			t.Errorf("%+v and %+v", a, b)
		}
		if n := r.host.Count(fake.Exec); n != 1 {
			t.Errorf("%d commands ran", n)
		}
		if n := r.phases(); n[pool.Available] != 1 || n[pool.Leased] != 1 {
			t.Errorf("phases %v", n)
		}
	})
}

// TestTwoAtOnceShareTheFailure: the hooks' verdict is for both.
func TestTwoAtOnceShareTheFailure(t *testing.T) {
	inBubble(t, []string{"prepare"}, func(r *rig) {
		r.host.Script("prepare", fake.Reply{Code: 1, Stderr: "broken", Delay: time.Second})
		r.warm(6)
		one, two := r.start(lease.Request{RequestID: "job"}), r.start(lease.Request{RequestID: "job"})
		_, err := one.wait()
		r.refused(err, pool.CodeInternal, "broken")
		_, err = two.wait()
		r.refused(err, pool.CodeInternal, "broken")
		if n := r.phases(); n[pool.Deleting] != 3 {
			t.Errorf("phases %v", n)
		}
	})
}

// TestSecondTakesOverFromTheGone: when the first caller hangs up, its retry gets a VM of its own.
func TestSecondTakesOverFromTheGone(t *testing.T) {
	inBubble(t, []string{"sleep 3"}, func(r *rig) {
		r.warm(2)
		one, two := r.start(lease.Request{RequestID: "job"}), r.start(lease.Request{RequestID: "job"})
		one.cancel()
		if _, err := one.wait(); err == nil {
			t.Error("the caller that is gone got a lease")
		}
		got, err := two.wait()
		r.must(err)
		if got.VM.ID != "web-00000002" || got.Replayed {
			t.Errorf("got %+v", got)
		}
		if n := len(r.events(pool.EventVMHookFailed)); n != 0 {
			t.Errorf("%d VM_HOOK_FAILED", n)
		}
	})
}

// TestLostDuringTheHooks: a host that goes or a pool that is deleted is no failure of the hook.
func TestLostDuringTheHooks(t *testing.T) {
	for name, lose := range map[string]func(*rig){
		"host down":   func(r *rig) { r.host.Down() },
		"vm vanished": func(r *rig) { r.host.Vanish(r.host.VMs()[0].UID) },
		"pool deleted": func(r *rig) {
			r.must(r.store.ClosePool(r.Context(), store.ClosePool{Pool: web, Force: true, Now: time.Now()}))
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, []string{"sleep 3"}, func(r *rig) {
				r.warm(2)
				p := r.start(lease.Request{})
				lose(r)
				_, err := p.wait()
				r.refused(err, pool.CodeAborted)
				if n := len(r.events(pool.EventVMHookFailed)); n != 0 {
					t.Errorf("%d VM_HOOK_FAILED", n)
				}
				if r.seen.claims != 0 {
					t.Error("observed a claim")
				}
			})
		})
	}
}

func TestExecDisabled(t *testing.T) {
	inBubble(t, []string{"true"}, func(r *rig) {
		r.warm(1)
		r.fleet.Add(fake.New(fake.Options{Name: "host-a", NoExec: true}))
		_, err := r.claim("")
		r.refused(err, pool.CodeFailedPrecondition, "exec")
	})
}

// TestRestartDuringTheHooks: the id finds a pending lease of an earlier run. Its claim waits for the pass that condemns
// that VM, and then takes another.
func TestRestartDuringTheHooks(t *testing.T) {
	inBubble(t, []string{"hang"}, func(r *rig) {
		r.warm(2)
		lost := r.start(lease.Request{RequestID: "job"})
		r.storage.Crash()
		old := r.manager
		r.open(nil)
		r.update(func(s *pool.Spec) { s.PreLeaseCommands = []string{"true"} })
		p := r.start(lease.Request{RequestID: "job"})
		if p.done() {
			t.Fatal("the claim did not wait for the pending lease of the earlier run")
		}
		r.apply(store.Condemn{VM: "web-00000001", Version: r.vm("web-00000001").Version, Reason: pool.ReasonFailed, KeepReady: -1, KeepSlots: -1})
		got, err := p.wait()
		r.must(err)
		if got.VM.ID != "web-00000002" {
			t.Errorf("got %s", got.VM.ID)
		}
		r.must(old.Close())
		if _, err := lost.wait(); err == nil {
			t.Error("the earlier run answered its claim")
		}
	})
}

// TestRestartAndNobodyCondemns: even then the claim has an end.
func TestRestartAndNobodyCondemns(t *testing.T) {
	inBubble(t, []string{"hang"}, func(r *rig) {
		r.warm(1)
		lost := r.start(lease.Request{RequestID: "job"})
		r.storage.Crash()
		old := r.manager
		r.open(nil)
		_, err := r.claim("job")
		r.refused(err, pool.CodeUnavailable)
		r.must(old.Close())
		_, _ = lost.wait()
	})
}

func TestCloseInterruptsHooks(t *testing.T) {
	inBubble(t, []string{"hang"}, func(r *rig) {
		r.warm(1)
		p := r.start(lease.Request{})
		r.manager.Drain()
		synctest.Wait()
		if p.done() {
			t.Fatal("draining interrupted a hook")
		}
		r.must(r.manager.Close())
		_, err := p.wait()
		r.refused(err, pool.CodeUnavailable)
		if n := r.phases(); n[pool.Deleting] != 1 {
			t.Errorf("phases %v", n)
		}
		_, err = r.claim("")
		r.refused(err, pool.CodeUnavailable)
	})
}
