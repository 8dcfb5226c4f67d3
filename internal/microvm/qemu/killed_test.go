package qemu_test

import (
	"bufio"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"testing"

	"poolmgr/api/flintlock/vmtypes"
	"poolmgr/internal/microvm/guest/guesttest"
	"poolmgr/internal/microvm/qemu"
)

// A daemon that is killed without warning leaves one machine up, one booting
// and one being deleted: the first lives on untouched, the second is booted,
// the third goes, and nothing runs twice.
func TestQEMUDaemonKilled(t *testing.T) {
	realMachines(t)
	ctx := testContext(t)
	config := qemu.Config{StateDir: t.TempDir(), GuestBinary: guesttest.Build(t)}
	daemon := exec.CommandContext(ctx, os.Args[0], "-test.run=^TestDaemonToKill$")
	daemon.Env = append(os.Environ(), "STATE_DIR="+config.StateDir, "GUEST_BINARY="+config.GuestBinary)
	daemon.Stderr = t.Output()
	out, err := daemon.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := daemon.Start(); err != nil {
		t.Fatal(err)
	}
	said := map[string]string{}
	for in := bufio.NewScanner(out); len(said) < 4 && in.Scan(); {
		if key, value, found := strings.Cut(in.Text(), "="); found {
			said[key] = value
		}
	}
	daemon.Process.Kill()
	daemon.Wait()
	up, booting, dropped := said["up"], said["booting"], said["dropped"]
	b := open(t, config)
	defer destroy(t, b)
	if up == "" || booting == "" || dropped == "" {
		t.Fatalf("the daemon said %v", said)
	}
	waitGone(ctx, t, b, dropped)
	waitState(ctx, t, b, booting, vmtypes.MicroVMStatus_CREATED)
	waitState(ctx, t, b, up, vmtypes.MicroVMStatus_CREATED)
	if bootID, _, _ := run(ctx, t, b, up, "cat /proc/sys/kernel/random/boot_id"); strings.TrimSpace(bootID) != said["boot_id"] {
		t.Errorf("boot id %q, want %q: the machine was booted anew", bootID, said["boot_id"])
	}
	for _, uid := range []string{up, booting} {
		if pids := qemuProcesses(t, uid); len(pids) != 1 {
			t.Errorf("processes %v of %s", pids, uid)
		}
	}
	if pids := qemuProcesses(t, dropped); len(pids) != 0 {
		t.Errorf("processes %v of the deleted one", pids)
	}
}

// TestDaemonToKill is the process that TestQEMUDaemonKilled kills; by itself it
// does nothing.
func TestDaemonToKill(t *testing.T) {
	state := os.Getenv("STATE_DIR")
	if state == "" {
		return
	}
	ctx := testContext(t)
	b, err := qemu.New(ctx, qemu.Config{
		StateDir: state, GuestBinary: os.Getenv("GUEST_BINARY"),
		Logger: slog.New(slog.NewTextHandler(os.Stderr, nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	up := create(ctx, t, b, spec("up"))
	waitState(ctx, t, b, up, vmtypes.MicroVMStatus_CREATED)
	bootID, _, _ := run(ctx, t, b, up, "cat /proc/sys/kernel/random/boot_id")
	booting, dropped := create(ctx, t, b, spec("booting")), create(ctx, t, b, spec("dropped"))
	poll(ctx, t, "a QEMU that boots", func() bool { return len(qemuProcesses(t, booting)) > 0 })
	if err := b.Delete(ctx, dropped); err != nil {
		t.Fatal(err)
	}
	fmt.Printf("up=%s\nboot_id=%sbooting=%s\ndropped=%s\n", up, bootID, booting, dropped)
	select {}
}
