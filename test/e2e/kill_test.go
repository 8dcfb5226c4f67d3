package e2e

import (
	"fmt"
	"path/filepath"
	"testing"
	"time"

	pb "poolmgr/api/poolmgr/v1alpha1"
)

// fleet is poolmgrd with one simulated host in a process of its own, so that the host's VMs can be counted by its own
// API whatever happens to poolmgrd.
func fleet(t *testing.T, hostArgs ...string) (d, host *daemon) {
	t.Helper()
	host = startMicrovmd(t, append([]string{"--backend", "simulated", "--state-dir", t.TempDir()}, hostArgs...)...)
	d = startPoolmgrd(t, "--db", filepath.Join(t.TempDir(), "poolmgr.db"))
	d.ok("host", "add", "host-0", "--address", host.addr, "--insecure")
	return d, host
}

const poolSpec = `
name: web
size: %d
microvm_template:
  vcpu: 1
  memory_in_mb: 1024
  kernel: {image: "local:base"}
  root_volume: {id: root, source: {container_source: "local:base"}}
%s`

// settled waits until the pool is whole and the host has exactly the VMs of the rows, then checks that no VM was ever
// claimed twice.
func settled(t *testing.T, d, host *daemon, size int) {
	t.Helper()
	d.ok("pool", "wait", "web", "--available", fmt.Sprint(size), "--timeout", "2m")
	eventually(t, "nothing is on its way, and the host has the rows' VMs and no others", 2*time.Minute, func() bool {
		rows := map[string]bool{}
		for _, v := range d.vms() {
			if p := v.GetPhase(); p != pb.VMPhase_AVAILABLE && p != pb.VMPhase_LEASED {
				return false // still on its way, or going
			}
			rows[v.GetUid()] = true
		}
		vms := onHost(t, host.addr)
		if len(vms) != len(rows) {
			return false
		}
		for uid := range vms {
			if !rows[uid] {
				return false
			}
		}
		return true
	})
	claimed := map[string]bool{}
	for _, e := range d.events() {
		if e.GetType() != pb.EventType_VM_CLAIMED {
			continue
		}
		if claimed[e.GetVmUid()] {
			t.Errorf("VM %s was handed out twice", e.GetVmUid())
		}
		claimed[e.GetVmUid()] = true
	}
}

func TestKillWhileVMsBoot(t *testing.T) {
	d, host := fleet(t, "--boot-delay", "1500ms", "--boot-jitter", "500ms")
	d.ok("pool", "create", "--spec-file", writeSpec(t, fmt.Sprintf(poolSpec, 4, "")))
	for range 5 {
		eventually(t, "something boots", time.Minute, func() bool { return len(onHost(t, host.addr)) > 0 })
		d.restart()
	}
	settled(t, d, host, 4)
}

func TestKillWhileAClaimIsInItsHook(t *testing.T) {
	d, host := fleet(t, "--boot-delay", "100ms")
	d.ok("pool", "create", "--spec-file", writeSpec(t, fmt.Sprintf(poolSpec, 2, "pre_lease_commands: [\"sleep 60\"]\n")))
	d.ok("pool", "wait", "web", "--available", "2", "--timeout", "1m")
	claim := make(chan result, 1)
	go func() { claim <- d.ctl("lease", "claim", "web", "--request-id", "job-1", "--timeout", "2m") }()
	eventually(t, "a VM is in its hook", time.Minute, func() bool { return d.pool("web").GetStatus().GetLeasedCount() == 1 })
	d.restart()
	if r := <-claim; r.code == 0 {
		t.Errorf("a claim that was cut off in its hook succeeded: %s", r)
	}
	if got := d.leases(); len(got) != 0 {
		t.Errorf("a claim that was never answered left a lease: %v", got)
	}
	settled(t, d, host, 2)
}

func TestKillWhileAVMIsDeleted(t *testing.T) {
	d, host := fleet(t, "--boot-delay", "100ms", "--delete-delay", "3s")
	d.ok("pool", "create", "--spec-file", writeSpec(t, fmt.Sprintf(poolSpec, 2, "")))
	d.ok("pool", "wait", "web", "--available", "2", "--timeout", "1m")
	kept, used := d.claim("web"), d.claim("web")
	d.ok("lease", "release", used.GetLeaseId())
	d.restart()
	if got := d.leases(); len(got) != 1 || got[0].GetLeaseId() != kept.GetLeaseId() {
		t.Errorf("leases after the kill: %v, want the kept one", got)
	}
	d.ok("lease", "heartbeat", kept.GetLeaseId())
	settled(t, d, host, 2)
	if got := d.count(pb.EventType_VM_DELETED_ON_RELEASE); got != 1 {
		t.Errorf("%d VM_DELETED_ON_RELEASE, want 1", got)
	}
	if _, there := onHost(t, host.addr)[used.GetVmUid()]; there {
		t.Error("the used VM is still on the host")
	}
}

func TestKillInTheMiddleOfARollout(t *testing.T) {
	d, host := fleet(t, "--boot-delay", "300ms")
	d.ok("pool", "create", "--spec-file", writeSpec(t, fmt.Sprintf(poolSpec, 4, "")))
	d.ok("pool", "wait", "web", "--available", "4", "--timeout", "1m")
	held := d.claim("web")
	d.ok("pool", "update", "--spec-file", writeSpec(t, fmt.Sprintf(poolSpec, 4, "create_commands: [\"true\"]\n")))
	for range 4 {
		d.restart()
	}
	d.ok("rollout", "status", "web", "--wait", "--timeout", "2m")
	settled(t, d, host, 4)
	if got := d.count(pb.EventType_POOL_ROLLOUT_COMPLETED); got != 1 {
		t.Errorf("%d POOL_ROLLOUT_COMPLETED, want 1", got)
	}
	d.ok("lease", "heartbeat", held.GetLeaseId())
}

// TestTheHostDaemonIsKilled: simulated VMs outlive their daemon, and poolmgrd goes on with it when it is back.
func TestTheHostDaemonIsKilled(t *testing.T) {
	host := startMicrovmd(t, "--backend", "simulated", "--state-dir", t.TempDir(), "--boot-delay", "200ms")
	host.args = append(host.args, "--listen", host.addr) // the last one counts: it comes back on its port
	d := startPoolmgrd(t, "--db", filepath.Join(t.TempDir(), "poolmgr.db"))
	d.ok("host", "add", "host-0", "--address", host.addr, "--insecure")
	d.ok("pool", "create", "--spec-file", writeSpec(t, fmt.Sprintf(poolSpec, 3, "")))
	d.ok("pool", "wait", "web", "--available", "3", "--timeout", "1m")
	before := onHost(t, host.addr)
	host.restart()
	if after := onHost(t, host.addr); len(after) != len(before) {
		t.Errorf("%d VMs after the host daemon's restart, want %d", len(after), len(before))
	}
	lease := d.claim("web", "--wait", "30s")
	d.ok("lease", "release", lease.GetLeaseId())
	settled(t, d, host, 3)
}
