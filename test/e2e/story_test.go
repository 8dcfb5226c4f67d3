package e2e

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	pb "poolmgr/api/poolmgr/v1alpha1"
)

// tellStory is the main job: a pool, a claim, a command inside, a heartbeat, a release with its replacement, and a
// rollout whose change is seen from inside the guest. It runs over any embedded host.
func tellStory(t *testing.T, d *daemon, limit time.Duration) {
	wait := limit.String()
	d.ok("pool", "create", "--spec-file", example("pool.yaml"))
	d.ok("pool", "wait", "quickstart", "--available", "2", "--timeout", wait)

	lease := d.claim("quickstart", "--consumer", "story")
	if lease.GetLeaseId() == "" || lease.GetVmUid() == "" || lease.GetHost().GetName() != "embedded" {
		t.Fatalf("claim answered %v", lease)
	}
	if out := d.ok("lease", "exec", lease.GetLeaseId(), "--", "echo", "hello from inside"); out != "hello from inside\n" {
		t.Errorf("exec printed %q", out)
	}
	if r := d.ctl("lease", "exec", lease.GetLeaseId(), "--", "sh", "-c", "exit 7"); r.code != 7 {
		t.Errorf("exec of `exit 7`: %s", r)
	}
	if out := d.ok("lease", "exec", lease.GetLeaseId(), "--", "cat", "/proc/cmdline"); !strings.Contains(out, "quickstart.version=1") {
		t.Errorf("the template's command line is not seen inside: %q", out)
	}
	d.ok("lease", "heartbeat", lease.GetLeaseId())
	if got := d.leases(); len(got) != 1 || got[0].GetConsumer() != "story" {
		t.Errorf("leases: %v", got)
	}
	d.ok("lease", "release", lease.GetLeaseId())
	d.refused("NOT_FOUND", nil, "lease", "heartbeat", lease.GetLeaseId())
	d.ok("pool", "wait", "quickstart", "--available", "2", "--timeout", wait)
	eventually(t, "the used VM is gone", limit, func() bool { return d.count(pb.EventType_VM_DELETED_ON_RELEASE) == 1 })
	for _, v := range d.vms() {
		if v.GetUid() == lease.GetVmUid() {
			t.Errorf("the used VM is still listed: %v", v)
		}
	}

	d.ok("pool", "update", "--spec-file", example("pool-v2.yaml"))
	d.ok("rollout", "status", "quickstart", "--wait", "--timeout", wait)
	d.ok("pool", "wait", "quickstart", "--available", "2", "--timeout", wait)
	again := d.claim("quickstart")
	if out := d.ok("lease", "exec", again.GetLeaseId(), "--", "cat", "/proc/cmdline"); !strings.Contains(out, "quickstart.version=2") {
		t.Errorf("the new template is not seen inside: %q", out)
	}
	if again.GetStale() {
		t.Error("the claim after the rollout is stale")
	}
	d.ok("lease", "release", again.GetLeaseId())
}

func TestStorySimulated(t *testing.T) {
	d := startPoolmgrd(t, "--db", filepath.Join(t.TempDir(), "poolmgr.db"), "--embedded-host", "simulated",
		"--host-boot-delay", "300ms", "--host-boot-jitter", "100ms")
	tellStory(t, d, time.Minute)
	checkEvents(t, d)
	if code, body := d.get("/readyz"); code != 200 {
		t.Errorf("/readyz: %d %s", code, body)
	}
	_, metrics := d.get("/metrics")
	for _, want := range []string{
		`poolmgr_pool_size{pool_name="quickstart",pool_namespace="default"} 2`,
		`poolmgr_vm_claims_total{pool_name="quickstart",pool_namespace="default",replayed="false"} 2`,
		`poolmgr_vm_releases_total{pool_name="quickstart",pool_namespace="default",reason="released"} 2`,
		"poolmgr_vm_provision_duration_seconds_count",
	} {
		if !strings.Contains(metrics, want) {
			t.Errorf("/metrics does not hold %s", want)
		}
	}
	d.ok("pool", "delete", "quickstart")
	eventually(t, "the pool is gone", time.Minute, func() bool {
		return strings.Contains(d.ctl("pool", "get", "quickstart").stderr, "NOT_FOUND")
	})
	if vms := d.vms(); len(vms) != 0 {
		t.Errorf("VMs are left: %v", vms)
	}
	d.stop()
}

// checkEvents reads the story back: ids grow without a gap, and the rollout was announced once.
func checkEvents(t *testing.T, d *daemon) {
	events := d.events()
	for i, e := range events {
		if e.GetId() != events[0].GetId()+int64(i) {
			t.Errorf("event %d follows %d", e.GetId(), events[0].GetId()+int64(i)-1)
		}
	}
	for typ, want := range map[pb.EventType]int{
		pb.EventType_POOL_ROLLOUT_STARTED: 1, pb.EventType_POOL_ROLLOUT_COMPLETED: 1, pb.EventType_VM_DELETED_FOR_ROLLOUT: 2,
	} {
		if got := d.count(typ); got != want {
			t.Errorf("%d %s, want %d", got, typ, want)
		}
	}
	half := events[len(events)/2].GetId()
	// The VM that was released last is still going and being replaced, so more may have come since the first read.
	rest, want := d.events("--after", itoa(half)), events[len(events)/2+1:]
	if len(rest) < len(want) || rest[0].GetId() != half+1 || !slices.EqualFunc(rest[:len(want)], want, sameEvent) {
		t.Errorf("resuming after %d did not give the rest", half)
	}
}

func sameEvent(a, b *pb.Event) bool { return a.GetId() == b.GetId() && a.GetType() == b.GetType() }

func TestLeaseRun(t *testing.T) {
	d := startPoolmgrd(t, "--db", filepath.Join(t.TempDir(), "poolmgr.db"), "--embedded-host", "simulated", "--host-boot-delay", "200ms")
	d.ok("pool", "create", "--spec-file", example("pool.yaml"))
	if r := d.ctl("lease", "run", "quickstart", "--wait", "30s", "--", "sh", "-c", "exit 5"); r.code != 5 {
		t.Errorf("lease run of `exit 5`: %s", r)
	}
	if out := d.ok("lease", "run", "quickstart", "--wait", "30s", "--", "echo", "done"); out != "done\n" {
		t.Errorf("lease run printed %q", out)
	}
	if got := d.leases(); len(got) != 0 {
		t.Errorf("lease run left leases: %v", got)
	}
}
