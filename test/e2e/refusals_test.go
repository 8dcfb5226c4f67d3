package e2e

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

func itoa(n int64) string { return strconv.FormatInt(n, 10) }

func writeSpec(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "spec.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestRefusals(t *testing.T) {
	d := startPoolmgrd(t, "--db", filepath.Join(t.TempDir(), "poolmgr.db"), "--embedded-host", "simulated", "--host-boot-delay", "1h")

	unknown := writeSpec(t, "name: web\nsize: 1\nsise: 2\nmicrovm_template:\n  vcpus: 1\n")
	if r := d.ctl("pool", "create", "--spec-file", unknown); r.code == 0 ||
		!strings.Contains(r.stderr, "3") || !strings.Contains(r.stderr, "sise") ||
		!strings.Contains(r.stderr, "5") || !strings.Contains(r.stderr, "vcpus") {
		t.Errorf("unknown keys are told with line and key: %s", r)
	}
	invalid := writeSpec(t, `
name: Web_1
size: -1
microvm_template:
  vcpu: 100
  memory_in_mb: 1
replenishment_strategy: {type: MIN_SIZE_THRESHOLD}
rollout_policy: {percent: 150}
`)
	d.refused("INVALID_ARGUMENT", []string{
		"name", "size", "microvm_template.vcpu", "microvm_template.memory_in_mb", "microvm_template.kernel",
		"replenishment_strategy.min_size", "rollout_policy.percent",
	}, "pool", "create", "--spec-file", invalid)
	if out := d.ok("pool", "list", "-o", "json"); strings.Contains(out, "Web_1") {
		t.Errorf("an invalid spec changed something: %s", out)
	}

	d.refused("NOT_FOUND", []string{"nosuch"}, "pool", "get", "nosuch")
	d.refused("NOT_FOUND", nil, "lease", "claim", "nosuch")
	d.refused("NOT_FOUND", nil, "lease", "release", "nosuch")
	d.ok("pool", "create", "--spec-file", example("pool.yaml"))
	d.refused("ALREADY_EXISTS", nil, "pool", "create", "--spec-file", example("pool.yaml"))
	d.refused("RESOURCE_EXHAUSTED", nil, "lease", "claim", "quickstart")
	if r := d.ctl("pool", "wait", "quickstart", "--available", "1", "--timeout", "1s"); r.code != 3 {
		t.Errorf("pool wait that times out exits with 3: %s", r)
	}
	if r := d.ctl("pool", "frobnicate"); r.code != 2 {
		t.Errorf("an unknown command exits with 2: %s", r)
	}
}

func TestASecondDaemonOnTheSameDatabaseIsRefused(t *testing.T) {
	db := filepath.Join(t.TempDir(), "poolmgr.db")
	startPoolmgrd(t, "--db", db, "--embedded-host", "simulated")
	r := run(t, "poolmgrd", nil, "--db", db, "--listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0")
	oneClearLine(t, r, db, "poolmgrd")
}

func TestAPortInUseIsTold(t *testing.T) {
	d := startPoolmgrd(t, "--db", filepath.Join(t.TempDir(), "poolmgr.db"))
	r := run(t, "poolmgrd", nil, "--db", filepath.Join(t.TempDir(), "other.db"), "--listen", d.addr, "--http-listen", "127.0.0.1:0")
	oneClearLine(t, r, d.addr, "--listen")
}

func TestMissingQEMUIsTold(t *testing.T) {
	r := run(t, "poolmgrd", []string{"PATH=/nonexistent"}, "--db", filepath.Join(t.TempDir(), "poolmgr.db"),
		"--listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0", "--embedded-host", "qemu")
	oneClearLine(t, r, "qemu-system-x86", "apt-get install")
}

func TestAnUnreachableDaemonIsTold(t *testing.T) {
	r := run(t, "poolmgrctl", []string{"POOLMGR_ADDR=127.0.0.1:1"}, "pool", "list")
	if r.code != 1 || !strings.Contains(r.stderr, "127.0.0.1:1") || !strings.Contains(r.stderr, "UNAVAILABLE") {
		t.Errorf("want UNAVAILABLE with the address: %s", r)
	}
}

// oneClearLine expects a failure that is told in one line which holds all of the texts.
func oneClearLine(t *testing.T, r result, texts ...string) {
	t.Helper()
	var told []string
	for _, line := range strings.Split(strings.TrimSpace(r.stderr), "\n") {
		if strings.HasPrefix(line, "poolmgrd: ") {
			told = append(told, line)
		}
	}
	if r.code == 0 || len(told) != 1 {
		t.Fatalf("want one line of error: %s", r)
	}
	for _, text := range texts {
		if !strings.Contains(told[0], text) {
			t.Errorf("the error does not tell %q: %s", text, told[0])
		}
	}
}
