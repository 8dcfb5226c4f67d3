package e2e

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	pb "poolmgr/api/poolmgr/v1alpha1"
)

// rolling is poolmgrd with a pool "web" of revision 1, full and rolled out.
func rolling(t *testing.T, size int, more ...string) *daemon {
	t.Helper()
	d := startPoolmgrd(t, "--db", filepath.Join(t.TempDir(), "poolmgr.db"), "--embedded-host", "simulated",
		"--host-boot-delay", "200ms", "--host-boot-jitter", "100ms")
	d.ok("pool", "create", "--spec-file", versionSpec(t, "web", size, 1, more...))
	d.rolledOut("web")
	d.ok("pool", "wait", "web", "--available", fmt.Sprint(size), "--timeout", "1m")
	return d
}

// versionSpec writes a spec whose kernel is told a version, which is seen inside; more are further lines.
func versionSpec(t *testing.T, name string, size, version int, more ...string) string {
	t.Helper()
	return writeSpec(t, fmt.Sprintf(`
name: %s
size: %d
microvm_template:
  vcpu: 1
  memory_in_mb: 256
  kernel: {image: "local:base", cmdline: {web.version: "%d"}}
  root_volume: {id: root, source: {container_source: "local:base"}}
%s
`, name, size, version, strings.Join(more, "\n")))
}

func (d *daemon) rolledOut(pool string) {
	d.t.Helper()
	d.ok("rollout", "status", pool, "--wait", "--timeout", "1m")
}

func (d *daemon) rollout(args ...string) *pb.RolloutStatus {
	d.t.Helper()
	return decode(d.t, d.ok(append([]string{"rollout", "-o", "json"}, args...)...), &pb.RolloutStatus{})
}

// announced checks how often each event was written.
func (d *daemon) announced(want map[pb.EventType]int) {
	d.t.Helper()
	for typ, n := range want {
		if got := d.count(typ); got != n {
			d.t.Errorf("%d %s, want %d", got, typ, n)
		}
	}
}

// warm is the ids of the VMs that nobody holds, by their revision.
func (d *daemon) warm() map[int64][]string {
	d.t.Helper()
	ids := map[int64][]string{}
	for _, v := range d.vms() {
		if v.GetPhase() == pb.VMPhase_AVAILABLE {
			ids[v.GetRevision()] = append(ids[v.GetRevision()], v.GetId())
		}
	}
	return ids
}

func TestPauseHoldsARolloutAndResumeFinishesIt(t *testing.T) {
	d := rolling(t, 3)
	for range 2 {
		d.rollout("pause", "web")
	}
	d.ok("pool", "update", "--spec-file", versionSpec(t, "web", 3, 2, "rollout_policy: {paused: true}"))
	d.restart() // a pause outlives the daemon

	// The claim is answered by a new VM, so the planner has been at work; the others must have stayed all the same.
	held := d.claim("web")
	eventually(t, "the claimed VM is replaced", time.Minute, func() bool { return len(d.warm()[2]) == 1 })
	d.ok("pool", "wait", "web", "--available", "3", "--timeout", "1m")
	if got := d.warm(); len(got[1]) != 2 || len(got[2]) != 1 {
		t.Errorf("a paused rollout replaced VMs: %v", got)
	}
	if s := d.rollout("status", "web"); s.GetState() != pb.RolloutState_ROLLOUT_STATE_PAUSED || s.GetReason() == "" {
		t.Errorf("the rollout is not shown as paused: %v", s)
	}
	if r := d.ctl("rollout", "status", "web", "--wait", "--timeout", "1s"); r.code != 3 || !strings.Contains(r.stderr, "PAUSED") {
		t.Errorf("waiting for a paused rollout: %s", r)
	}

	d.rollout("resume", "web")
	d.rolledOut("web")
	d.ok("pool", "wait", "web", "--available", "3", "--timeout", "1m")
	if got := d.warm(); len(got[1]) != 0 || len(got[2]) != 3 {
		t.Errorf("after the rollout: %v", got)
	}
	d.ok("lease", "heartbeat", held.GetLeaseId())
	d.announced(map[pb.EventType]int{
		pb.EventType_POOL_ROLLOUT_PAUSED: 1, pb.EventType_POOL_ROLLOUT_RESUMED: 1,
		pb.EventType_POOL_ROLLOUT_STARTED: 1, pb.EventType_POOL_ROLLOUT_COMPLETED: 1,
	})
}

func TestRestartReplacesEveryIdleVM(t *testing.T) {
	d := rolling(t, 3)
	held := d.claim("web")
	d.ok("pool", "wait", "web", "--available", "3", "--timeout", "1m")
	before, hash := d.warm()[1], d.pool("web").GetSpec().GetTemplateHash()
	d.rollout("restart", "web")
	d.restart()
	d.rolledOut("web")
	d.ok("pool", "wait", "web", "--available", "3", "--timeout", "1m")
	for _, id := range slices.Concat(d.warm()[1], d.warm()[2]) {
		if slices.Contains(before, id) {
			t.Errorf("VM %s was not replaced", id)
		}
	}
	if got := d.pool("web").GetSpec().GetTemplateHash(); got != hash {
		t.Errorf("the hash went from %s to %s", hash, got)
	}
	d.ok("lease", "heartbeat", held.GetLeaseId())
	if out := d.ok("lease", "exec", held.GetLeaseId(), "--", "echo", "still here"); out != "still here\n" {
		t.Errorf("the leased VM printed %q", out)
	}
	d.announced(map[pb.EventType]int{
		pb.EventType_POOL_ROLLOUT_STARTED: 1, pb.EventType_POOL_ROLLOUT_COMPLETED: 1, pb.EventType_VM_DELETED_FOR_ROLLOUT: 3,
	})
}

func TestUndoGoesBackToTheEarlierTemplate(t *testing.T) {
	d := rolling(t, 2, `create_commands: ["echo one"]`)
	d.refused("FAILED_PRECONDITION", nil, "rollout", "undo", "web")
	d.ok("pool", "update", "--spec-file", versionSpec(t, "web", 2, 2))
	d.rolledOut("web")
	d.seenInside("web.version=2")

	if s := d.rollout("undo", "web"); s.GetRevision() != 3 || s.GetRolledBackFrom() != 2 {
		t.Errorf("undo answered %v", s)
	}
	d.rolledOut("web")
	d.seenInside("web.version=1")
	if got := d.pool("web").GetSpec().GetCreateCommands(); !slices.Equal(got, []string{"echo one"}) {
		t.Errorf("create commands %q are not those of revision 1", got)
	}
	d.announced(map[pb.EventType]int{pb.EventType_POOL_ROLLOUT_ROLLED_BACK: 1, pb.EventType_POOL_ROLLOUT_COMPLETED: 2})
	for _, e := range d.events("--types", "POOL_ROLLOUT_ROLLED_BACK") {
		var got struct{ From, To, Revision int64 }
		if err := json.Unmarshal([]byte(e.GetPayloadJson()), &got); err != nil || got.From != 2 || got.To != 1 || got.Revision != 3 {
			t.Errorf("the event tells %s (%v)", e.GetPayloadJson(), err)
		}
	}

	d.rollout("undo", "web", "--to", "2")
	d.rolledOut("web")
	d.seenInside("web.version=2")
}

// A template whose create commands fail costs the pool its budget and no more, and going back heals it.
func TestUndoHealsABadTemplate(t *testing.T) {
	d := rolling(t, 3)
	d.ok("pool", "update", "--spec-file", versionSpec(t, "web", 3, 2, `create_commands: ["exit 9"]`))
	eventually(t, "two failures are told", time.Minute, func() bool {
		if got := d.warm(); len(got[1]) != 2 || len(got[2]) != 0 {
			return false
		}
		s := d.rollout("status", "web")
		return s.GetFailures() >= 2 && strings.Contains(s.GetLastError(), "9")
	})
	if got := d.warm(); len(got[1]) != 2 {
		t.Errorf("a bad template took more than the budget: %v", got)
	}
	d.rollout("undo", "web")
	d.rolledOut("web")
	d.ok("pool", "wait", "web", "--available", "3", "--timeout", "1m")
	d.seenInside("web.version=1")
	if got := d.count(pb.EventType_VM_DELETED_FOR_ROLLOUT); got > 2 {
		t.Errorf("%d VMs went for a rollout; two of the old ones were good all along", got)
	}
}

// seenInside expects a text on the command line of the kernel of a VM of the pool web, which is then given back.
func (d *daemon) seenInside(text string) {
	d.t.Helper()
	if out := d.ok("lease", "run", "web", "--wait", "30s", "--", "cat", "/proc/cmdline"); !strings.Contains(out, text) {
		d.t.Errorf("inside there is %q, want %s", out, text)
	}
}

// Twelve edits keep ten revisions, and those that are in use beside them.
func TestHistoryKeepsTenRevisionsAndThoseInUse(t *testing.T) {
	d := rolling(t, 1)
	d.claim("web")
	d.ok("pool", "create", "--spec-file", versionSpec(t, "empty", 0, 1))
	for version := 2; version <= 13; version++ {
		d.ok("pool", "update", "--spec-file", versionSpec(t, "web", 0, version))
		d.ok("pool", "update", "--spec-file", versionSpec(t, "empty", 0, version))
	}
	last10 := []int64{13, 12, 11, 10, 9, 8, 7, 6, 5, 4}
	if got := d.history("empty"); !slices.Equal(got, last10) {
		t.Errorf("kept %v, want %v", got, last10)
	}
	if got, want := d.history("web"), append(last10, 1); !slices.Equal(got, want) {
		t.Errorf("kept %v, want %v: revision 1 last completed, and a leased VM is of it", got, want)
	}
	d.refused("NOT_FOUND", []string{"4", "13"}, "rollout", "undo", "empty", "--to", "2")
	d.rollout("undo", "web", "--to", "1")
	if cmdline := d.pool("web").GetSpec().GetMicrovmTemplate().GetKernel().GetCmdline(); cmdline["web.version"] != "1" {
		t.Errorf("undo --to 1 went back to %v", cmdline)
	}
	if out := d.ok("rollout", "history", "empty"); len(strings.Split(strings.TrimSpace(out), "\n")) != 11 {
		t.Errorf("history printed\n%s", out)
	}
}

// history is the numbers of the revisions that are kept, as they are listed.
func (d *daemon) history(pool string) []int64 {
	d.t.Helper()
	var numbers []int64
	list := decode(d.t, d.ok("rollout", "history", pool, "-o", "json"), &pb.ListRevisionsResponse{})
	for _, r := range list.GetRevisions() {
		numbers = append(numbers, r.GetNumber())
	}
	return numbers
}
