package e2e

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// bootLimit is for a pool of two guests under emulation on a machine that is busy with other tests.
const bootLimit = 4 * time.Minute

// qemuDaemon is poolmgrd with the embedded QEMU host. The image is built once and shared by the tests of this run.
func qemuDaemon(t *testing.T, dir string) *daemon {
	t.Helper()
	t.Cleanup(func() { // whatever a failing test leaves running
		for _, pid := range machines(t, dir) {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	})
	return startPoolmgrd(t, "--db", filepath.Join(dir, "poolmgr.db"), "--embedded-host", "qemu",
		"--host-image-dir", filepath.Join(bin, "images"), "--host-guest-binary", filepath.Join(bin, "poolmgr-guest"))
}

// machines is the processes that run inside a daemon's folder: each QEMU has its VM's folder as working folder.
func machines(t *testing.T, dir string) []int {
	t.Helper()
	links, err := filepath.Glob("/proc/[0-9]*/cwd")
	if err != nil {
		t.Fatal(err)
	}
	var pids []int
	for _, link := range links {
		cwd, err := os.Readlink(link) // a process that ended meanwhile is none of ours
		if err == nil && strings.HasPrefix(cwd, dir+"/") {
			pid, err := strconv.Atoi(filepath.Base(filepath.Dir(link)))
			if err != nil {
				t.Fatal(err)
			}
			pids = append(pids, pid)
		}
	}
	return pids
}

// emptyHost deletes the pool and expects that nothing of its VMs is left: no process, no file, no socket.
func emptyHost(t *testing.T, d *daemon, dir, pool string) {
	t.Helper()
	d.ok("pool", "delete", pool, "--force")
	eventually(t, "the pool is gone", 2*time.Minute, func() bool {
		return strings.Contains(d.ctl("pool", "get", pool).stderr, "NOT_FOUND")
	})
	if left := machines(t, dir); len(left) != 0 {
		t.Errorf("machines are left: processes %v", left)
	}
	entries, err := os.ReadDir(filepath.Join(dir, "poolmgr.db.host", "vms"))
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	for _, e := range entries {
		t.Errorf("%s is left of a deleted VM", e.Name())
	}
}

func TestQEMUStory(t *testing.T) {
	dir := t.TempDir()
	d := qemuDaemon(t, dir)
	tellStory(t, d, bootLimit)
	lease := d.claim("quickstart", "--wait", bootLimit.String(), "--timeout", bootLimit.String())
	for file, want := range map[string]string{
		"/run/poolmgr/metadata/greeting": "hello from version 2",
		"/run/poolmgr/labels/example":    "quickstart",
	} {
		if out := d.ok("lease", "exec", lease.GetLeaseId(), "--", "cat", file); strings.TrimSpace(out) != want {
			t.Errorf("%s holds %q inside the guest, want %q", file, out, want)
		}
	}
	r := d.ctl("lease", "exec", lease.GetLeaseId(), "--", "sh", "-c", "echo out; echo err >&2; exit 3")
	if r.stdout != "out\n" || r.stderr != "err\n" || r.code != 3 {
		t.Errorf("stdout, stderr and exit code of a command: %s", r)
	}
	emptyHost(t, d, dir, "quickstart")
}

// TestQEMUKill kills the daemon, and with it its embedded host, while real machines boot and while one is leased. The
// machines outlive it, and the next daemon goes on with them.
func TestQEMUKill(t *testing.T) {
	dir := t.TempDir()
	d := qemuDaemon(t, dir)
	d.ok("pool", "create", "--spec-file", example("pool.yaml"))
	eventually(t, "a machine boots", time.Minute, func() bool { return len(machines(t, dir)) > 0 })
	d.restart()
	d.ok("pool", "wait", "quickstart", "--available", "2", "--timeout", bootLimit.String())
	lease := d.claim("quickstart")
	d.ok("lease", "exec", lease.GetLeaseId(), "--", "sh", "-c", "echo mine > /tmp/mark")
	d.restart()
	if out := d.ok("lease", "exec", lease.GetLeaseId(), "--", "cat", "/tmp/mark"); out != "mine\n" {
		t.Errorf("the leased VM is not the same after the kill: %q", out)
	}
	d.ok("lease", "release", lease.GetLeaseId())
	d.ok("pool", "wait", "quickstart", "--available", "2", "--timeout", bootLimit.String())
	emptyHost(t, d, dir, "quickstart")
}

// TestQEMUMissingImageIsTold: a template that names an image which is not there fails its boots, and the pool says why.
func TestQEMUMissingImageIsTold(t *testing.T) {
	d := qemuDaemon(t, t.TempDir())
	d.ok("pool", "create", "--spec-file", writeSpec(t, `
name: web
size: 1
microvm_template:
  vcpu: 1
  memory_in_mb: 128
  kernel: {image: "local:nosuch"}
  root_volume: {id: root, source: {container_source: "local:base"}}
`))
	eventually(t, "the pool explains that local:nosuch is missing", time.Minute, func() bool {
		return strings.Contains(strings.Join(d.pool("web").GetStatus().GetExplanations(), "\n"), "local:nosuch")
	})
	told := strings.Join(d.pool("web").GetStatus().GetExplanations(), "\n")
	if !strings.Contains(told, "local:base") {
		t.Errorf("the explanation does not say what to do: %s", told)
	}
	d.ok("pool", "delete", "web")
}
