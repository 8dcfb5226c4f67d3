package qemu

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/testing/protocmp"

	"poolmgr/api/flintlock/vmtypes"
	"poolmgr/internal/microvm"
	"poolmgr/internal/microvm/image"
	"poolmgr/internal/microvm/qemu/kvmprobe"
)

var quiet = slog.New(slog.DiscardHandler)

func TestKernelCmdline(t *testing.T) {
	long := strings.Repeat("v", maxCmdline-len(baseCmdline)-len(" k="))
	for _, tc := range []struct {
		name    string
		entries map[string]string
		khz     int
		want    string // behind our own options
		refused bool
	}{
		{name: "nothing", want: ""},
		{name: "clock rate", khz: 2596150, want: " tsc_early_khz=2596150"},
		{name: "sorted, flags without =", entries: map[string]string{"b": "2", "a": "", "c.d-e": "x=y,z;w:/"}, want: " a b=2 c.d-e=x=y,z;w:/"},
		{name: "ours come first", entries: map[string]string{"panic": "1"}, khz: 1, want: " tsc_early_khz=1 panic=1"},
		{name: "the longest", entries: map[string]string{"k": long}, want: " k=" + long},
		{name: "one byte longer", entries: map[string]string{"k": long + "v"}, refused: true},
		{name: "the clock rate counts too", entries: map[string]string{"k": long}, khz: 1, refused: true},
		{name: "blank in key", entries: map[string]string{"a b": ""}, refused: true},
		{name: "= in key", entries: map[string]string{"a=b": ""}, refused: true},
		{name: "empty key", entries: map[string]string{"": "x"}, refused: true},
		{name: "blank in value", entries: map[string]string{"a": "x init=/bin/sh"}, refused: true},
		{name: "newline in value", entries: map[string]string{"a": "x\ny"}, refused: true},
		{name: "quote in value", entries: map[string]string{"a": `"x"`}, refused: true},
		{name: "beyond ASCII", entries: map[string]string{"a": "ü"}, refused: true},
		{name: "another first process", entries: map[string]string{"rdinit": "/bin/sh"}, refused: true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := kernelCmdline(tc.entries, tc.khz)
			if errors.Is(err, microvm.ErrRefused) != tc.refused {
				t.Fatalf("error %v, want refused: %v", err, tc.refused)
			}
			if err == nil && got != baseCmdline+tc.want {
				t.Errorf("got %q, want it to end in %q", got, tc.want)
			}
		})
	}
}

func TestTSCKHz(t *testing.T) {
	for in, want := range map[string]int{
		"processor\t: 0\nbogomips\t: 5192.30\n\nprocessor\t: 1\nbogomips\t: 1.00\n": 2596150,
		"bogomips : 4000.00": 2000000,
		"BogoMIPS\t: 50.00":  0, // other architectures write it so, and mean another thing
		"bogomips\t: zero":   0,
		"bogomips\t: NaN":    0,
		"bogomips\t: -5":     0,
		"":                   0,
	} {
		if got := tscKHz(in); got != want {
			t.Errorf("%q: %d, want %d", in, got, want)
		}
	}
}

// fakeHost makes a host's files; the probe answers by per and err.
func fakeHost(t *testing.T, flags string, per time.Duration, probeErr error, modules ...string) platform {
	t.Helper()
	dir := t.TempDir()
	for _, m := range modules {
		os.MkdirAll(filepath.Join(dir, "module", m), 0o755)
	}
	for file, text := range map[string]string{"kvm": "", "cpuinfo": "flags\t\t: fpu " + flags + " sse\n", "boot_id": "boot-1\n"} {
		if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return platform{
		kvm: filepath.Join(dir, "kvm"), modules: filepath.Join(dir, "module"),
		cpuinfo: filepath.Join(dir, "cpuinfo"), bootID: filepath.Join(dir, "boot_id"),
		probe: func(context.Context, string) (time.Duration, error) { return per, probeErr },
	}
}

func TestChooseAcceleration(t *testing.T) {
	slow := fmt.Errorf("%w: 600ns", kvmprobe.ErrTooSlow)
	none := fakeHost(t, "vmx", 1, nil)
	none.kvm += "-not-there"
	for _, tc := range []struct {
		name, asked string
		host        platform
		want        string
		err         error
	}{
		{"good hardware", "auto", fakeHost(t, "vmx", 1, nil), "kvm", nil},
		{"good hardware of the other maker", "auto", fakeHost(t, "svm", 1, nil), "kvm", nil},
		{"no device", "auto", none, "tcg", nil},
		{"kvm_pvm", "auto", fakeHost(t, "vmx", 1, nil, "kvm_pvm"), "tcg", nil},
		{"no flag", "auto", fakeHost(t, "vmxx", 1, nil), "tcg", nil},
		{"too slow", "auto", fakeHost(t, "vmx", 600, slow), "tcg", nil},
		{"asked for, good", "kvm", fakeHost(t, "vmx", 1, nil), "kvm", nil},
		{"asked for, emulated", "kvm", fakeHost(t, "", 600, slow, "kvm_pvm"), "", ErrAccel},
		{"asked for tcg", "tcg", fakeHost(t, "vmx", 1, nil), "tcg", nil},
		{"nonsense", "xen", fakeHost(t, "vmx", 1, nil), "", ErrAccel},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, reason, err := tc.host.choose(t.Context(), tc.asked)
			if got != tc.want || !errors.Is(err, tc.err) || (err == nil && reason == "") {
				t.Errorf("got %q because %q, %v", got, reason, err)
			}
			if errors.Is(err, kvmprobe.ErrTooSlow) && !strings.Contains(err.Error(), "600ns") {
				t.Errorf("the error %q lacks the figure", err)
			}
		})
	}
}

// Under auto, KVM has to boot a guest first; a verdict holds until the host
// boots anew, and what was asked for by name never changes.
func TestAccelerationProvesItself(t *testing.T) {
	host := fakeHost(t, "vmx", 1, nil)
	file := filepath.Join(t.TempDir(), "accel.json")
	open := func(asked string) *acceleration {
		t.Helper()
		a, err := newAcceleration(t.Context(), host, asked, file, quiet)
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	a := open("auto")
	if a.current() != "kvm" || !a.failed("kvm") || a.current() != "tcg" || a.failed("tcg") {
		t.Errorf("after a failed boot: %s", a.current())
	}
	if got := open("auto").current(); got != "tcg" {
		t.Errorf("the verdict was forgotten: %s", got)
	}
	if got := open("kvm"); got.current() != "kvm" || got.failed("kvm") {
		t.Errorf("asked for by name: %s", got.current())
	}
	os.WriteFile(host.bootID, []byte("boot-2\n"), 0o644)
	a = open("auto")
	a.booted("kvm")
	if a.failed("kvm") || open("auto").current() != "kvm" {
		t.Error("one failed boot takes back a proof")
	}
	os.WriteFile(file, []byte("broken"), 0o644)
	if got := open("auto").current(); got != "kvm" {
		t.Errorf("after a broken file: %s", got)
	}
}

func TestRecordSurvivesItsFile(t *testing.T) {
	want := record{
		uid: "u1", phase: phaseFailed, message: "why", attempts: 2,
		spec: &vmtypes.MicroVMSpec{Id: "vm", Vcpu: 1, Labels: map[string]string{"a": "b"}, Uid: new("u1")},
	}
	data, err := want.marshal()
	if err != nil {
		t.Fatal(err)
	}
	got, err := parseRecord(data)
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(record{}), protocmp.Transform()); err != nil || diff != "" {
		t.Errorf("%v\n%s", err, diff)
	}
	for name, text := range map[string]string{
		"empty": "", "cut": string(data[:len(data)/2]), "newer": strings.Replace(string(data), `"version": 1`, `"version": 2`, 1),
		"unknown phase": strings.Replace(string(data), "failed", "flying", 1), "no uid": `{"version":1,"phase":"failed","spec":{}}`,
	} {
		if r, err := parseRecord([]byte(text)); err == nil {
			t.Errorf("%s was understood as %+v", name, r)
		}
	}
}

// A deletion is never taken back, whoever writes last.
func TestUpdateNeverLeavesDeleting(t *testing.T) {
	m := &machine{uid: "u", dir: t.TempDir(), record: record{uid: "u", spec: &vmtypes.MicroVMSpec{}, phase: phasePending}}
	var writers sync.WaitGroup
	for _, p := range []phase{phaseCreated, phaseDeleting, phaseFailed, phaseCreated} {
		writers.Go(func() {
			if err := m.update(func(r record) record { r.phase = p; return r }); err != nil {
				t.Error(err)
			}
		})
	}
	writers.Wait()
	data, err := os.ReadFile(filepath.Join(m.dir, stateFile))
	if err != nil {
		t.Fatal(err)
	}
	onDisk, err := parseRecord(data)
	if err != nil || onDisk.phase != phaseDeleting || m.current().phase != phaseDeleting {
		t.Errorf("on disk %s, in memory %s, %v", onDisk.phase, m.current().phase, err)
	}
	if left, _ := filepath.Glob(filepath.Join(m.dir, ".*")); len(left) > 0 {
		t.Errorf("litter: %v", left)
	}
}

func TestMACAddresses(t *testing.T) {
	seen := map[string]bool{}
	for i := range 200 {
		mac := macOf(fmt.Sprintf("uid-%d", i/2), &vmtypes.NetworkInterface{DeviceId: fmt.Sprintf("eth%d", i%2)})
		hw, err := net.ParseMAC(mac)
		if err != nil || hw[0]&3 != 2 {
			t.Errorf("%s is no locally administered unicast address, %v", mac, err)
		}
		if seen[mac] {
			t.Errorf("%s is used twice", mac)
		}
		seen[mac] = true
	}
	if got := macOf("u", &vmtypes.NetworkInterface{GuestMac: new("02:00:00:00:00:01")}); got != "02:00:00:00:00:01" {
		t.Errorf("the template's own: %s", got)
	}
}

func TestNamesInTheGuest(t *testing.T) {
	for id, want := range map[string]string{"pool-0a1b2c3d": "pool-0a1b2c3d", "a b/ü": "a-b--", strings.Repeat("x", 80): strings.Repeat("x", 63)} {
		if got := hostname(id); got != want {
			t.Errorf("host name of %q: %q", id, got)
		}
	}
	for id, want := range map[string]string{"eth1": "eth1", "a/b": "", "": "", strings.Repeat("x", 16): "", "a b": "", "eth0:1": ""} {
		if got := linkName(id); got != want {
			t.Errorf("interface of %q: %q", id, got)
		}
	}
}

func TestArguments(t *testing.T) {
	r := record{uid: "u1", spec: &vmtypes.MicroVMSpec{
		Vcpu: 2, MemoryInMb: 256, Interfaces: []*vmtypes.NetworkInterface{{DeviceId: "eth1"}},
	}}
	args := arguments(r, image.Boot{Kernel: "/k", Initrd: "/i"}, AccelTCG, "quiet x=y")
	line := strings.Join(args, " ")
	for _, want := range []string{
		"-M microvm,acpi=on", "-accel tcg,", "-cpu max", "-m 256 -smp 2", "-nodefaults", "-no-reboot",
		"-kernel /k -initrd /i -append quiet x=y", "-pidfile pid", "restrict=on", "mac=" + macOf("u1", r.spec.Interfaces[0]),
	} {
		if !strings.Contains(line, want) {
			t.Errorf("arguments lack %q: %s", want, line)
		}
	}
	if slices.Contains(args, "-serial") {
		t.Error("a serial device lets a guest fill the host's disk")
	}
	if line := strings.Join(arguments(r, image.Boot{}, AccelKVM, ""), " "); !strings.Contains(line, "-accel kvm -cpu host") {
		t.Errorf("with KVM: %s", line)
	}
}

// lockedFile makes a folder with a pid file that another process has locked,
// as QEMU's is, and returns that process.
func lockedFile(t *testing.T) (dir string, holder *exec.Cmd) {
	t.Helper()
	dir = t.TempDir()
	cmd := exec.Command(os.Args[0], "-test.run=^TestHoldLock$")
	cmd.Env = append(os.Environ(), "HOLD_LOCK="+filepath.Join(dir, pidFile))
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := out.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	return dir, cmd
}

// TestHoldLock is the process that lockedFile starts; by itself it does nothing.
func TestHoldLock(t *testing.T) {
	file := os.Getenv("HOLD_LOCK")
	if file == "" {
		return
	}
	f, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	lock := unix.Flock_t{Type: unix.F_WRLCK}
	if err := unix.FcntlFlock(f.Fd(), unix.F_SETLK, &lock); err != nil {
		t.Fatal(err)
	}
	os.Stdout.WriteString("locked\n")
	select {}
}

// The lock tells the truth where the number in the file and kill -0 lie.
func TestFindAndKillByTheLock(t *testing.T) {
	dir, holder := lockedFile(t)
	if err := os.WriteFile(filepath.Join(dir, pidFile), []byte("1\n"), 0o644); err != nil { // the same file, another number
		t.Fatal(err)
	}
	p, err := find(dir)
	if err != nil || p == nil || p.pid != holder.Process.Pid {
		t.Fatalf("found %+v, %v; want process %d", p, err, holder.Process.Pid)
	}
	defer p.close()

	ended, cancel := context.WithCancelCause(t.Context())
	reason := errors.New("enough waited")
	cancel(reason)
	for range 2 {
		if err := p.wait(ended); !errors.Is(err, reason) {
			t.Errorf("wait for a living process: %v", err)
		}
	}
	if err := p.kill(); err != nil {
		t.Fatal(err)
	}
	if err := p.kill(); err != nil {
		t.Errorf("again: %v", err)
	}
	if err := holder.Process.Signal(syscall.Signal(0)); err == nil {
		t.Error("our child is left as a zombie")
	}
	if p, err := find(dir); p != nil || err != nil {
		t.Errorf("found %+v, %v after its death", p, err)
	}
	if p, err := find(t.TempDir()); p != nil || err != nil {
		t.Errorf("found %+v, %v in an empty folder", p, err)
	}
}

func TestStartOutlivesUsAndCanBeWaitedFor(t *testing.T) {
	dir := t.TempDir()
	p, err := start("/bin/sh", []string{"-c", "echo words >&2; ps -o sid= -p $$; echo $$"}, dir)
	if err != nil {
		t.Fatal(err)
	}
	defer p.close()
	if err := p.wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(dir, logFile))
	fields := strings.Fields(string(text))
	if err != nil || len(fields) != 3 || fields[0] != "words" || fields[1] != fields[2] {
		t.Errorf("log %q, %v; want the words, and a session of its own", text, err)
	}
	if got := tail(dir); !strings.Contains(got, "words") || strings.Contains(got, "\n") {
		t.Errorf("tail %s", got)
	}
	if _, err := start("/no/such/program", nil, dir); err == nil {
		t.Error("a program that is not there was started")
	}
}

func TestDialerReachesSocketsInDeepFolders(t *testing.T) {
	dir := filepath.Join(t.TempDir(), strings.Repeat("d", 120))
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	// As QEMU does: the name is relative to the working directory.
	short := filepath.Join(t.TempDir(), "s")
	if err := os.Symlink(dir, short); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", filepath.Join(short, "x.sock"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	conn, err := dialer(dir, "x.sock")(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	conn.Close()
	if _, err := dialer(dir, "none.sock")(t.Context()); err == nil {
		t.Error("a socket that is not there was reached")
	}
}

func TestConfigureOf(t *testing.T) {
	c, err := configureOf("u", &vmtypes.MicroVMSpec{
		Id: "vm", Metadata: map[string]string{"k": "dg=="}, Labels: map[string]string{"l": "x"},
		Interfaces: []*vmtypes.NetworkInterface{{DeviceId: "eth1"}},
	})
	if err != nil || string(c.Metadata["k"]) != "v" || c.Hostname != "vm" || !maps.Equal(c.Labels, map[string]string{"l": "x"}) {
		t.Errorf("got %+v, %v", c, err)
	}
	if len(c.Interfaces) != 1 || c.Interfaces[0].Address != userNetAddress || c.Interfaces[0].Name != "eth1" {
		t.Errorf("interfaces %+v", c.Interfaces)
	}
}

func TestConfigSaysWhatIsMissing(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	_, err := New(t.Context(), Config{StateDir: t.TempDir(), Logger: quiet})
	if !errors.Is(err, ErrNoQEMU) || !strings.Contains(err.Error(), "apt-get install qemu-system-x86") {
		t.Errorf("without QEMU: %v", err)
	}
	if _, err := New(t.Context(), Config{Logger: quiet}); err == nil {
		t.Error("without a state directory: no error")
	}
}
