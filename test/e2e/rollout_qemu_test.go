package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	pb "poolmgr/api/poolmgr/v1alpha1"
)

// sampleEvery is the pause between two looks at a pool that a rollout changes.
const sampleEvery = 50 * time.Millisecond

// brokenKernel is an entry for a kernel's command line with which no guest comes up: it panics, short of memory.
const brokenKernel = `, mem: "32M"`

// machineSpec writes the spec of the pool "web" of small machines; cmdline and more are appended to their sections.
func machineSpec(t *testing.T, size, version int, cmdline string, more ...string) string {
	t.Helper()
	return writeSpec(t, fmt.Sprintf(`
name: web
size: %d
microvm_template:
  vcpu: 1
  memory_in_mb: 128
  kernel: {image: "local:base", cmdline: {web.version: "%d"%s}}
  root_volume: {id: root, source: {container_source: "local:base"}}
%s
`, size, version, cmdline, strings.Join(more, "\n")))
}

// machineRoom is poolmgrd with real machines and the pool "web" of revision 1, full and rolled out.
func machineRoom(t *testing.T, dir string, size int, more ...string) *daemon {
	t.Helper()
	d := qemuDaemon(t, dir)
	d.ok("pool", "create", "--spec-file", machineSpec(t, size, 1, "", more...))
	d.full(size)
	d.booted()
	return d
}

// full waits until the pool "web" has all its machines.
func (d *daemon) full(size int) {
	d.t.Helper()
	d.ok("pool", "wait", "web", "--available", fmt.Sprint(size), "--timeout", bootLimit.String())
}

// booted waits until the rollout of the pool "web" is completed; machines take longer than what rolledOut grants.
func (d *daemon) booted() {
	d.t.Helper()
	d.ok("rollout", "status", "web", "--wait", "--timeout", bootLimit.String())
}

// sampled is what a sampler saw: the extremes over all of its looks.
type sampled struct {
	looks           int
	lowest, warmest int32 // available; available and on their way together
}

// sample looks at the pool "web" until the returned function is called, which tells what was seen. The daemon must not
// be restarted meanwhile.
func (d *daemon) sample() (end func() sampled) {
	d.t.Helper()
	conn, err := grpc.NewClient(d.addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		d.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(d.t.Context())
	result := make(chan sampled, 1)
	go func() {
		defer conn.Close()
		result <- d.look(ctx, pb.NewPoolAdminClient(conn))
	}()
	return func() sampled {
		d.t.Helper()
		cancel()
		seen := <-result
		if seen.looks == 0 {
			d.t.Error("the pool was not sampled even once")
		}
		d.t.Logf("%d samples: at least %d available, at most %d warm", seen.looks, seen.lowest, seen.warmest)
		return seen
	}
}

func (d *daemon) look(ctx context.Context, pools pb.PoolAdminClient) sampled {
	var seen sampled
	tick := time.NewTicker(sampleEvery)
	defer tick.Stop()
	for {
		p, err := pools.GetPool(ctx, &pb.GetPoolRequest{Ref: &pb.PoolRef{Name: "web", Namespace: "default"}})
		if ctx.Err() != nil {
			return seen
		}
		if err != nil {
			d.t.Errorf("sample the pool: %v", err)
			return seen
		}
		status := p.GetStatus()
		available, warm := status.GetAvailableCount(), status.GetAvailableCount()+status.GetProvisioningCount()
		if seen.looks == 0 {
			seen.lowest = available
		}
		seen.looks, seen.lowest, seen.warmest = seen.looks+1, min(seen.lowest, available), max(seen.warmest, warm)
		select {
		case <-ctx.Done():
			return seen
		case <-tick.C:
		}
	}
}

// TestQEMUBadTemplateStalls: machines that never come up cost the pool its budget and no more. The rollout says so once,
// claims go on being served and replaced by what last worked, and undo heals the pool.
func TestQEMUBadTemplateStalls(t *testing.T) {
	dir := t.TempDir()
	d := machineRoom(t, dir, 3)
	end := d.sample()
	d.ok("pool", "update", "--spec-file", machineSpec(t, 3, 2, brokenKernel))
	r := d.ctl("rollout", "status", "web", "--wait", "--timeout", bootLimit.String())
	if r.code != 1 || !strings.Contains(r.stderr, "stalled") || !strings.Contains(r.stderr, "revision 2") {
		t.Errorf("waiting for a rollout that stalls: %s", r)
	}
	if seen := end(); seen.lowest < 2 {
		t.Errorf("%d available at the worst moment, the budget of 1 demands 2", seen.lowest)
	}
	s := d.rollout("status", "web")
	if s.GetState() != pb.RolloutState_ROLLOUT_STATE_STALLED || s.GetFailures() < 3 || s.GetLastError() == "" || s.GetReason() == "" {
		t.Errorf("the rollout is not shown as stalled: %v", s)
	}

	lease := d.claim("web")
	if out := d.ok("lease", "exec", lease.GetLeaseId(), "--", "cat", "/proc/cmdline"); !strings.Contains(out, "web.version=1") {
		t.Errorf("inside the VM that was claimed there is %q, want web.version=1", out)
	}
	d.full(2) // the claimed VM was replaced by one that comes up
	if got := d.warm(); len(got[2]) != 0 {
		t.Errorf("VMs of the broken template are available: %v", got)
	}
	d.restart()
	d.ok("lease", "release", lease.GetLeaseId())
	d.announced(map[pb.EventType]int{pb.EventType_POOL_ROLLOUT_STALLED: 1, pb.EventType_POOL_ROLLOUT_COMPLETED: 0})
	for _, e := range d.events("--types", "POOL_ROLLOUT_STALLED") {
		var told struct {
			Revision, Failures, Available, Desired int64
			LastError                              string `json:"last_error"`
		}
		err := json.Unmarshal([]byte(e.GetPayloadJson()), &told)
		if err != nil || told.Revision != 2 || told.Failures < 3 || told.Available != 2 || told.Desired != 3 || told.LastError == "" {
			t.Errorf("the event tells %s (%v)", e.GetPayloadJson(), err)
		}
	}

	if s := d.rollout("undo", "web"); s.GetRevision() != 3 || s.GetRolledBackFrom() != 2 {
		t.Errorf("undo answered %v", s)
	}
	d.booted()
	d.full(3)
	d.seenInside("web.version=1")
	d.announced(map[pb.EventType]int{
		pb.EventType_POOL_ROLLOUT_STALLED: 1, pb.EventType_POOL_ROLLOUT_ROLLED_BACK: 1, pb.EventType_POOL_ROLLOUT_COMPLETED: 1,
	})
	emptyHost(t, d, dir, "web")
}

// TestQEMUAutoRollback: a pool that asks for it goes back by itself, once, from a template whose machines never come up.
func TestQEMUAutoRollback(t *testing.T) {
	const policy = "rollout_policy: {auto_rollback: true}"
	dir := t.TempDir()
	d := machineRoom(t, dir, 2, policy)
	end := d.sample()
	d.ok("pool", "update", "--spec-file", machineSpec(t, 2, 2, brokenKernel, policy))
	if r := d.ctl("rollout", "status", "web", "--wait", "--timeout", bootLimit.String()); r.code != 1 {
		t.Errorf("waiting for a rollout that is rolled back: %s", r)
	}
	eventually(t, "the pool goes back by itself", bootLimit, func() bool {
		return d.rollout("status", "web").GetRolledBackFrom() == 2
	})
	d.booted()
	d.full(2)
	if seen := end(); seen.lowest < 1 {
		t.Errorf("%d available at the worst moment, the budget of 1 demands 1", seen.lowest)
	}
	d.restart()
	d.seenInside("web.version=1")
	if s := d.rollout("status", "web"); s.GetRevision() != 3 || s.GetState() != pb.RolloutState_ROLLOUT_STATE_COMPLETED {
		t.Errorf("after the roll-back: %v", s)
	}
	d.announced(map[pb.EventType]int{
		pb.EventType_POOL_ROLLOUT_STALLED: 1, pb.EventType_POOL_ROLLOUT_ROLLED_BACK: 1, pb.EventType_POOL_ROLLOUT_COMPLETED: 1,
	})
	emptyHost(t, d, dir, "web")
}

// TestQEMUSurge: with a budget of 0 a machine goes only when the one beside it is up.
func TestQEMUSurge(t *testing.T) {
	const policy = "rollout_policy: {count: 0, max_surge: {count: 1}}"
	dir := t.TempDir()
	d := machineRoom(t, dir, 2, policy)
	end := d.sample()
	d.ok("pool", "update", "--spec-file", machineSpec(t, 2, 2, "", policy))
	d.booted()
	if seen := end(); seen.lowest < 2 || seen.warmest > 3 {
		t.Errorf("from %d available to %d warm, want at least 2 and at most 3", seen.lowest, seen.warmest)
	}
	if got := d.warm(); len(got[1]) != 0 || len(got[2]) != 2 {
		t.Errorf("after the rollout: %v", got)
	}
	d.seenInside("web.version=2")
	d.announced(map[pb.EventType]int{pb.EventType_POOL_ROLLOUT_COMPLETED: 1, pb.EventType_VM_DELETED_FOR_ROLLOUT: 2})
	emptyHost(t, d, dir, "web")
}

// TestQEMUKillInTheMiddleOfARollout kills the daemon, and with it its embedded host, while the first new machine boots
// and when it is up. The rollout ends as if nothing had been, and the leased machine does not notice.
func TestQEMUKillInTheMiddleOfARollout(t *testing.T) {
	dir := t.TempDir()
	d := machineRoom(t, dir, 2)
	held := d.claim("web")
	d.ok("lease", "exec", held.GetLeaseId(), "--", "sh", "-c", "echo mine > /tmp/mark")
	d.full(2)
	d.ok("pool", "update", "--spec-file", machineSpec(t, 2, 2, ""))
	eventually(t, "a machine of the new template boots", bootLimit, func() bool { return d.onTheWay(2) })
	d.restart()
	eventually(t, "a machine of the new template is up", bootLimit, func() bool { return len(d.warm()[2]) > 0 })
	d.restart()
	end := d.sample()
	d.booted()
	d.full(2)
	if seen := end(); seen.lowest < 1 {
		t.Errorf("%d available at the worst moment after the kill, the budget of 1 demands 1", seen.lowest)
	}
	if got := d.warm(); len(got[1]) != 0 || len(got[2]) != 2 {
		t.Errorf("after the rollout: %v", got)
	}
	if out := d.ok("lease", "exec", held.GetLeaseId(), "--", "cat", "/tmp/mark"); out != "mine\n" {
		t.Errorf("the leased VM is not the same after the kills: %q", out)
	}
	eventually(t, "there is one machine for each VM", bootLimit, func() bool { return len(machines(t, dir)) == 3 })
	d.announced(map[pb.EventType]int{pb.EventType_POOL_ROLLOUT_STARTED: 1, pb.EventType_POOL_ROLLOUT_COMPLETED: 1})
	d.ok("lease", "release", held.GetLeaseId())
	emptyHost(t, d, dir, "web")
}

// onTheWay tells whether a VM of a revision was sent to its host and is not up.
func (d *daemon) onTheWay(revision int64) bool {
	d.t.Helper()
	for _, v := range d.vms() {
		if v.GetRevision() == revision && v.GetPhase() == pb.VMPhase_PROVISIONING && v.GetUid() != "" {
			return true
		}
	}
	return false
}
