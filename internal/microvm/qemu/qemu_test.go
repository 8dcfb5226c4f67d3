package qemu_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"poolmgr/api/flintlock/vmtypes"
	"poolmgr/internal/microvm"
	"poolmgr/internal/microvm/guest/guesttest"
	"poolmgr/internal/microvm/qemu"
)

// bootLimit bounds the waits for real machines, on a loaded host too.
const bootLimit = 8 * time.Minute

func realMachines(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("boots real microVMs; run without -short")
	}
}

func testContext(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), bootLimit)
	t.Cleanup(cancel)
	return ctx
}

// testLog logs to the test's output.
func testLog(t *testing.T) *slog.Logger {
	return slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug}))
}

func open(t *testing.T, config qemu.Config) *qemu.Backend {
	t.Helper()
	config.Logger = testLog(t)
	b, err := qemu.New(testContext(t), config)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// destroy deletes every machine, waits until all are gone, and closes.
func destroy(t *testing.T, b *qemu.Backend) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), bootLimit)
	defer cancel()
	vms, err := b.List(ctx, "", "")
	if err != nil {
		t.Error(err)
	}
	for _, vm := range vms {
		if err := b.Delete(ctx, vm.Spec.GetUid()); err != nil {
			t.Error(err)
		}
	}
	for _, vm := range vms {
		waitGone(ctx, t, b, vm.Spec.GetUid())
	}
	if err := b.Close(); err != nil {
		t.Error(err)
	}
}

func spec(id string) *vmtypes.MicroVMSpec {
	source := "local:base"
	return &vmtypes.MicroVMSpec{
		Id: id, Namespace: "test", Vcpu: 1, MemoryInMb: 128,
		Kernel:     &vmtypes.Kernel{Image: source},
		RootVolume: &vmtypes.Volume{Id: "root", Source: &vmtypes.VolumeSource{ContainerSource: &source}},
	}
}

func create(ctx context.Context, t *testing.T, b *qemu.Backend, s *vmtypes.MicroVMSpec) string {
	t.Helper()
	vm, err := b.Create(ctx, s)
	if err != nil {
		t.Fatal(err)
	}
	if vm.Status.GetState() != vmtypes.MicroVMStatus_PENDING || vm.Spec.GetUid() == "" {
		t.Errorf("create answered state %v, uid %q", vm.Status.GetState(), vm.Spec.GetUid())
	}
	return vm.Spec.GetUid()
}

// poll asks until the answer is yes; the API has no way to be told.
func poll(ctx context.Context, t *testing.T, what string, ask func() bool) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !ask() {
		select {
		case <-ctx.Done():
			t.Fatalf("waited in vain for %s", what)
		case <-tick.C:
		}
	}
}

func waitState(ctx context.Context, t *testing.T, b *qemu.Backend, uid string, want vmtypes.MicroVMStatus_MicroVMState) *vmtypes.MicroVM {
	t.Helper()
	var vm *vmtypes.MicroVM
	poll(ctx, t, fmt.Sprintf("state %v of %s", want, uid), func() bool {
		var err error
		if vm, err = b.Get(ctx, uid); err != nil {
			t.Fatal(err)
		}
		if state := vm.Status.GetState(); state == vmtypes.MicroVMStatus_FAILED && want != state {
			t.Fatalf("microvm %s failed", uid)
		}
		return vm.Status.GetState() == want
	})
	return vm
}

func waitGone(ctx context.Context, t *testing.T, b *qemu.Backend, uid string) {
	t.Helper()
	poll(ctx, t, uid+" to be gone", func() bool {
		_, err := b.Get(ctx, uid)
		return errors.Is(err, microvm.ErrNotFound)
	})
}

// run runs a shell line in a machine.
func run(ctx context.Context, t *testing.T, b *qemu.Backend, uid, line string) (stdout, stderr string, code int) {
	t.Helper()
	var out, errOut bytes.Buffer
	code, err := b.Exec(ctx, microvm.ExecRequest{UID: uid, Cmd: line, Shell: true, Timeout: time.Minute},
		microvm.ExecStreams{Stdout: &out, Stderr: &errOut})
	if err != nil {
		t.Fatalf("exec %q: %v", line, err)
	}
	return out.String(), errOut.String(), code
}

// qemuProcesses returns the processes whose arguments name a uid.
func qemuProcesses(t *testing.T, uid string) (pids []int) {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if data, err := os.ReadFile(file); err == nil && bytes.Contains(data, []byte(uid)) {
			pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
			if err != nil {
				t.Fatal(err)
			}
			pids = append(pids, pid)
		}
	}
	return pids
}

// One machine, from its creation to its end, with everything that a template
// can tell it, through a restart of the backend.
func TestQEMUMachineFromBirthToDeath(t *testing.T) {
	realMachines(t)
	ctx := testContext(t)
	state := filepath.Join(t.TempDir(), strings.Repeat("long", 30)) // longer than a socket's path may be
	config := qemu.Config{StateDir: state, GuestBinary: guesttest.Build(t)}
	b := open(t, config)
	closed := false
	defer func() {
		if !closed {
			destroy(t, b)
		}
	}()

	s := spec("vm-one")
	s.Kernel.Cmdline = map[string]string{"template": "v2", "plain.flag": ""}
	s.Metadata = map[string]string{"color": base64.StdEncoding.EncodeToString([]byte("green\x00")), "poolmgr.owner": "", "a/b": "eA=="}
	s.Labels = map[string]string{"tier": "web", "app.io/name": "x y"}
	s.Interfaces = []*vmtypes.NetworkInterface{
		{DeviceId: "eth1"},
		{DeviceId: "net2", GuestMac: new("02:00:00:00:00:77"), Address: &vmtypes.StaticAddress{Address: "192.168.7.5/24", Gateway: new("192.168.7.1"), Nameservers: []string{"9.9.9.9"}}},
	}
	uid := create(ctx, t, b, s)
	vm := waitState(ctx, t, b, uid, vmtypes.MicroVMStatus_CREATED)
	mac := vm.Status.NetworkInterfaces["eth1"].GetMacAddress()
	if !strings.HasPrefix(mac[1:], "2:") && !strings.HasPrefix(mac[1:], "6:") && !strings.HasPrefix(mac[1:], "a:") && !strings.HasPrefix(mac[1:], "e:") {
		t.Errorf("address %q of eth1 is not a locally administered one", mac)
	}

	t.Run("what the template says is visible inside", func(t *testing.T) {
		for line, want := range map[string]string{
			"cat /run/poolmgr/metadata/color":                       "green\x00",
			"cat /run/poolmgr/metadata/a%2Fb":                       "x",
			"cat /run/poolmgr/labels/tier":                          "web",
			"cat /run/poolmgr/labels/app.io%2Fname":                 "x y",
			"cat /run/poolmgr/labels.json":                          `{"app.io/name":"x y","tier":"web"}` + "\n",
			"hostname":                                              "vm-one\n",
			"cat /sys/class/net/eth1/address":                       mac + "\n",
			"cat /sys/class/net/net2/address":                       "02:00:00:00:00:77\n",
			"ip -o -4 addr show net2 | awk '{print $4}'":            "192.168.7.5/24\n",
			"ip -o -4 addr show eth1 | awk '{print $4}'":            "10.0.2.15/24\n",
			"ip route | awk '/default/{print $3, $5}'":              "192.168.7.1 net2\n",
			"cat /etc/resolv.conf":                                  "nameserver 9.9.9.9\n",
			"ip -o -4 addr show lo | awk '{print $4}'":              "127.0.0.1/8\n",
			"uname -s; id -u; pwd; ls -d /tmp":                      "Linux\n0\n/\n/tmp\n",
			"tr ' ' '\\n' < /proc/cmdline | grep -c ^template=v2":   "1\n",
			"echo $((1+1)); seq 2 | while read x; do echo $x; done": "2\n1\n2\n",
		} {
			if stdout, stderr, code := run(ctx, t, b, uid, line); stdout != want || code != 0 {
				t.Errorf("%s: %q, stderr %q, code %d; want %q", line, stdout, stderr, code, want)
			}
		}
		cmdline, _, _ := run(ctx, t, b, uid, "cat /proc/cmdline")
		if !strings.Contains(cmdline, " plain.flag template=v2") {
			t.Errorf("kernel command line %q", cmdline)
		}
		epoch, _, _ := run(ctx, t, b, uid, "date +%s")
		if seconds, err := strconv.ParseInt(strings.TrimSpace(epoch), 10, 64); err != nil || time.Since(time.Unix(seconds, 0)).Abs() > time.Minute {
			t.Errorf("the guest's clock says %q", epoch)
		}
	})

	t.Run("streams, codes and limits", func(t *testing.T) {
		stdout, stderr, code := run(ctx, t, b, uid, "echo out; echo err >&2; exit 42")
		if stdout != "out\n" || stderr != "err\n" || code != 42 {
			t.Errorf("stdout %q stderr %q code %d", stdout, stderr, code)
		}
		var out bytes.Buffer
		input := bytes.Repeat([]byte("0123456789\x10"), 100_000)
		code, err := b.Exec(ctx, microvm.ExecRequest{UID: uid, Cmd: "cat", HasStdin: true}, microvm.ExecStreams{Stdin: bytes.NewReader(input), Stdout: &out})
		if err != nil || code != 0 || !bytes.Equal(out.Bytes(), input) {
			t.Errorf("cat: %d bytes of %d, code %d, %v", out.Len(), len(input), code, err)
		}
		for cmd, want := range map[string]int{"no-such-program": 127, "/etc/passwd": 127} {
			if code, err := b.Exec(ctx, microvm.ExecRequest{UID: uid, Cmd: cmd}, microvm.ExecStreams{}); code != want || err != nil {
				t.Errorf("%s: code %d, %v; want %d", cmd, code, err, want)
			}
		}
		if code, err := b.Exec(ctx, microvm.ExecRequest{UID: uid, Cmd: "true", Cwd: "/none"}, microvm.ExecStreams{}); code != 126 || err != nil {
			t.Errorf("missing directory: code %d, %v; want 126", code, err)
		}
		if _, _, code := run(ctx, t, b, uid, "kill -15 $$"); code != 143 {
			t.Errorf("terminated: code %d, want 143", code)
		}
		_, err = b.Exec(ctx, microvm.ExecRequest{UID: uid, Cmd: "sleep 1000 & sleep 1000", Shell: true, Timeout: 300 * time.Millisecond}, microvm.ExecStreams{})
		if !errors.Is(err, microvm.ErrExecTimeout) {
			t.Errorf("over its limit: %v", err)
		}
		if left, _, _ := run(ctx, t, b, uid, "ps | grep -c '[s]leep'"); left != "0\n" {
			t.Errorf("%q sleeps are left after the kill", left)
		}
		if who, _, _ := run(ctx, t, b, uid, "true & wait; ps | awk '$4 ~ /Z/' | wc -l"); who != "0\n" {
			t.Errorf("%q zombies", who)
		}
	})

	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	pids := qemuProcesses(t, uid)
	if len(pids) != 1 {
		t.Fatalf("processes %v after the backend was closed, want the one", pids)
	}
	b = open(t, config)
	t.Run("a new backend finds it again", func(t *testing.T) {
		vms, err := b.List(ctx, "test", "vm-one")
		if err != nil || len(vms) != 1 || vms[0].Spec.GetUid() != uid || vms[0].Status.GetState() != vmtypes.MicroVMStatus_CREATED {
			t.Fatalf("list: %v, %v", vms, err)
		}
		if stdout, _, _ := run(ctx, t, b, uid, "cat /run/poolmgr/labels/tier"); stdout != "web" {
			t.Errorf("inside: %q", stdout)
		}
	})
	t.Run("deleted, it leaves nothing", func(t *testing.T) {
		for range 2 {
			if err := b.Delete(ctx, uid); err != nil && !errors.Is(err, microvm.ErrNotFound) {
				t.Fatal(err)
			}
		}
		waitGone(ctx, t, b, uid)
		if pids := qemuProcesses(t, uid); len(pids) != 0 {
			t.Errorf("processes %v", pids)
		}
		if left, err := os.ReadDir(filepath.Join(state, "vms")); err != nil || len(left) != 0 {
			t.Errorf("files %v, %v", left, err)
		}
		if _, err := b.Exec(ctx, microvm.ExecRequest{UID: uid, Cmd: "true"}, microvm.ExecStreams{}); !errors.Is(err, microvm.ErrNotFound) {
			t.Errorf("exec: %v", err)
		}
	})
	closed = true
	if err := b.Close(); err != nil {
		t.Error(err)
	}
}

// A guest that ends, and one whose QEMU is killed, are seen to have failed.
func TestQEMUDeadMachineIsNoticed(t *testing.T) {
	realMachines(t)
	ctx := testContext(t)
	b := open(t, qemu.Config{StateDir: t.TempDir(), GuestBinary: guesttest.Build(t)})
	defer destroy(t, b)
	uid := create(ctx, t, b, spec("ends"))
	waitState(ctx, t, b, uid, vmtypes.MicroVMStatus_CREATED)
	_, err := b.Exec(ctx, microvm.ExecRequest{UID: uid, Cmd: "poweroff -f", Shell: true}, microvm.ExecStreams{})
	if !errors.Is(err, microvm.ErrNotRunning) {
		t.Errorf("the command that ended the machine: %v", err)
	}
	waitState(ctx, t, b, uid, vmtypes.MicroVMStatus_FAILED)
	if _, err := b.Exec(ctx, microvm.ExecRequest{UID: uid, Cmd: "true"}, microvm.ExecStreams{}); !errors.Is(err, microvm.ErrNotRunning) {
		t.Errorf("exec in a dead machine: %v", err)
	}
}

// A backend that is closed while machines boot leaves no half-started QEMU,
// and the next one boots them; a deletion that was asked for goes on too.
func TestQEMURestartResumesBootsAndDeletions(t *testing.T) {
	realMachines(t)
	ctx := testContext(t)
	config := qemu.Config{StateDir: t.TempDir(), GuestBinary: guesttest.Build(t)}
	b := open(t, config)
	kept := create(ctx, t, b, spec("kept"))
	dropped := create(ctx, t, b, spec("dropped"))
	poll(ctx, t, "a QEMU of both", func() bool { return len(qemuProcesses(t, kept)) > 0 && len(qemuProcesses(t, dropped)) > 0 })
	if err := b.Delete(ctx, dropped); err != nil {
		t.Fatal(err)
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	b = open(t, config)
	defer destroy(t, b)
	waitGone(ctx, t, b, dropped)
	waitState(ctx, t, b, kept, vmtypes.MicroVMStatus_CREATED)
	if pids := qemuProcesses(t, kept); len(pids) != 1 {
		t.Errorf("processes %v of the machine that was booted anew", pids)
	}
}

// Twenty creates at once, beside busy processors: all twenty come up, at the
// first attempt, with random numbers and addresses of their own. This counts
// boots and measures no time.
func TestQEMUTwentyBootsAtOnce(t *testing.T) {
	realMachines(t)
	const machines = 20
	ctx := testContext(t)
	b := open(t, qemu.Config{StateDir: t.TempDir(), GuestBinary: guesttest.Build(t)})
	defer destroy(t, b)
	stopLoad := load(2)
	defer stopLoad()
	uids := make([]string, machines)
	for i := range uids {
		uids[i] = create(ctx, t, b, spec(fmt.Sprintf("vm-%02d", i)))
	}
	var checks sync.WaitGroup
	var mu sync.Mutex
	seen := map[string]string{}
	for _, uid := range uids {
		vm := waitState(ctx, t, b, uid, vmtypes.MicroVMStatus_CREATED)
		if vm.Status.GetRetry() != 0 {
			t.Errorf("%s needed %d more boots", uid, vm.Status.GetRetry())
		}
		checks.Go(func() {
			var out bytes.Buffer
			code, err := b.Exec(ctx, microvm.ExecRequest{UID: uid, Cmd: "hostname; head -c 16 /dev/urandom | hexdump -C; cat /proc/sys/kernel/random/boot_id", Shell: true},
				microvm.ExecStreams{Stdout: &out})
			mu.Lock()
			defer mu.Unlock()
			if err != nil || code != 0 {
				t.Errorf("%s: code %d, %v", uid, code, err)
			}
			for line := range strings.Lines(out.String()) {
				if other, taken := seen[line]; taken && !strings.HasPrefix(line, "00000010") {
					t.Errorf("%s and %s both say %q", uid, other, line)
				}
				seen[line] = uid
			}
		})
	}
	checks.Wait()
}

// load keeps processors busy until the returned function is called.
func load(n int) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var spinning sync.WaitGroup
	for range n {
		spinning.Go(func() {
			for x := 1; ctx.Err() == nil; x = x*1664525 + 1013904223 {
			}
		})
	}
	return func() {
		cancel()
		spinning.Wait()
	}
}

func TestQEMUCapacityAndRefusals(t *testing.T) {
	realMachines(t)
	ctx := testContext(t)
	b := open(t, qemu.Config{StateDir: t.TempDir(), GuestBinary: guesttest.Build(t), MaxVMs: 2, MaxMemoryMB: 300})
	defer destroy(t, b)
	big := spec("big")
	big.MemoryInMb = 301
	if _, err := b.Create(ctx, big); !errors.Is(err, microvm.ErrNoCapacity) {
		t.Errorf("more memory than there is: %v", err)
	}
	uid := create(ctx, t, b, spec("same"))
	if other := create(ctx, t, b, spec("same")); other == uid {
		t.Error("two machines of one id share a uid")
	}
	if _, err := b.Create(ctx, spec("third")); !errors.Is(err, microvm.ErrNoCapacity) {
		t.Errorf("one machine too many: %v", err)
	}
	for name, change := range map[string]func(*vmtypes.MicroVMSpec){
		"memory":   func(s *vmtypes.MicroVMSpec) { s.MemoryInMb = 64 },
		"cmdline":  func(s *vmtypes.MicroVMSpec) { s.Kernel.Cmdline = map[string]string{"x": strings.Repeat("y", 2000)} },
		"quote":    func(s *vmtypes.MicroVMSpec) { s.Kernel.Cmdline = map[string]string{"x": `"`} },
		"kernel":   func(s *vmtypes.MicroVMSpec) { s.Kernel.Image = "docker.io/kernel:1" },
		"root":     func(s *vmtypes.MicroVMSpec) { s.RootVolume = nil },
		"metadata": func(s *vmtypes.MicroVMSpec) { s.Metadata = map[string]string{"k": "not base64!"} },
		"volumes":  func(s *vmtypes.MicroVMSpec) { s.AdditionalVolumes = []*vmtypes.Volume{{}} },
		"mac": func(s *vmtypes.MicroVMSpec) {
			s.Interfaces = []*vmtypes.NetworkInterface{{DeviceId: "e", GuestMac: new("zz")}}
		},
		"ipv6": func(s *vmtypes.MicroVMSpec) {
			s.Interfaces = []*vmtypes.NetworkInterface{{DeviceId: "e", Address: &vmtypes.StaticAddress{Address: "fe80::1/64"}}}
		},
		"image root":  func(s *vmtypes.MicroVMSpec) { s.Kernel.Image = "file:../vmlinux" },
		"label's key": func(s *vmtypes.MicroVMSpec) { s.Labels = map[string]string{strings.Repeat("k", 300): ""} },
	} {
		s := spec("refused")
		change(s)
		if _, err := b.Create(ctx, s); !errors.Is(err, microvm.ErrRefused) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v, want one line that refuses", name, err)
		}
	}
}

// A guest that does not answer in time gets a second attempt and then counts as
// failed; nothing of it is left running.
func TestQEMUBootWatchdog(t *testing.T) {
	realMachines(t)
	ctx := testContext(t)
	b := open(t, qemu.Config{StateDir: t.TempDir(), GuestBinary: guesttest.Build(t), BootTimeout: 200 * time.Millisecond})
	defer destroy(t, b)
	uid := create(ctx, t, b, spec("never"))
	vm := waitState(ctx, t, b, uid, vmtypes.MicroVMStatus_FAILED)
	if vm.Status.GetRetry() != 1 {
		t.Errorf("%d further boots, want 1", vm.Status.GetRetry())
	}
	if pids := qemuProcesses(t, uid); len(pids) != 0 {
		t.Errorf("processes %v", pids)
	}
}
