package fake_test

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"poolmgr/api/flintlock/vmtypes"
	"poolmgr/internal/host"
	"poolmgr/internal/host/fake"
	"poolmgr/internal/pool"
)

func spec(name string) *vmtypes.MicroVMSpec {
	return host.SpecFor(fake.Template(), name, "default", "owner-of-"+name)
}

func mustCreate(t *testing.T, d host.Driver, name string) host.VM {
	t.Helper()
	vm, err := d.Create(t.Context(), spec(name))
	if err != nil {
		t.Fatalf("create %s: %v", name, err)
	}
	return vm
}

func stateOf(t *testing.T, d host.Driver, uid string) host.State {
	t.Helper()
	vm, err := d.Get(t.Context(), uid)
	if errors.Is(err, host.ErrNotFound) {
		return "gone"
	}
	if err != nil {
		t.Fatalf("get %s: %v", uid, err)
	}
	return vm.State
}

func TestLifeOfAVM(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := fake.New(fake.Options{BootDelay: time.Second, GuestDelay: time.Second, DeleteDelay: time.Second})
		vm := mustCreate(t, h, "web-0a1b2c3d")
		want := host.VM{
			UID: "fake-uid-000001", Namespace: "default", Name: "web-0a1b2c3d", State: host.Pending,
			Owner: "owner-of-web-0a1b2c3d",
		}
		if diff := cmp.Diff(want, vm); diff != "" {
			t.Errorf("create (-want +got):\n%s", diff)
		}
		if _, err := h.Exec(t.Context(), host.ExecRequest{UID: vm.UID, Cmd: "true"}, host.ExecStreams{}); err == nil {
			t.Error("a PENDING VM answered an exec")
		}
		time.Sleep(time.Second)
		if got := stateOf(t, h, vm.UID); got != host.Created {
			t.Errorf("after the boot delay: %s, want CREATED", got)
		}
		if _, err := h.Exec(t.Context(), host.ExecRequest{UID: vm.UID, Cmd: "true"}, host.ExecStreams{}); err == nil {
			t.Error("a guest that is not up answered an exec")
		}
		time.Sleep(time.Second)
		if code, err := h.Exec(t.Context(), host.ExecRequest{UID: vm.UID, Cmd: "true"}, host.ExecStreams{}); err != nil || code != 0 {
			t.Errorf("exec true: %d, %v", code, err)
		}
		if err := h.Delete(t.Context(), vm.UID); err != nil {
			t.Errorf("delete: %v", err)
		}
		if got := stateOf(t, h, vm.UID); got != host.Deleting {
			t.Errorf("after delete: %s, want DELETING", got)
		}
		if err := h.Delete(t.Context(), vm.UID); err != nil {
			t.Errorf("delete again: %v", err)
		}
		time.Sleep(time.Second)
		if got := stateOf(t, h, vm.UID); got != "gone" {
			t.Errorf("after the delete delay: %s, want gone", got)
		}
		if err := h.Delete(t.Context(), vm.UID); !errors.Is(err, host.ErrNotFound) {
			t.Errorf("delete of a gone VM: %v, want ErrNotFound", err)
		}
	})
}

func TestRefusesWhatFlintlockRefuses(t *testing.T) {
	bridgeless := &vmtypes.NetworkInterface{DeviceId: "eth1", Overrides: &vmtypes.NetworkOverrides{}}
	for name, breakIt := range map[string]func(*vmtypes.MicroVMSpec){
		"no id":               func(s *vmtypes.MicroVMSpec) { s.Id = "" },
		"too many vcpus":      func(s *vmtypes.MicroVMSpec) { s.Vcpu = 65 },
		"too little memory":   func(s *vmtypes.MicroVMSpec) { s.MemoryInMb = 1023 },
		"too much memory":     func(s *vmtypes.MicroVMSpec) { s.MemoryInMb = 32769 },
		"no kernel":           func(s *vmtypes.MicroVMSpec) { s.Kernel = nil },
		"no root volume":      func(s *vmtypes.MicroVMSpec) { s.RootVolume = nil },
		"device eth0":         func(s *vmtypes.MicroVMSpec) { s.Interfaces[0].DeviceId = "eth0" },
		"device without id":   func(s *vmtypes.MicroVMSpec) { s.Interfaces[0].DeviceId = "" },
		"override, no bridge": func(s *vmtypes.MicroVMSpec) { s.Interfaces[0] = bridgeless },
	} {
		t.Run(name, func(t *testing.T) {
			h := fake.New(fake.Options{})
			s := spec("web-1")
			breakIt(s)
			if _, err := h.Create(t.Context(), s); !errors.Is(err, host.ErrRefused) {
				t.Errorf("create: %v, want ErrRefused", err)
			}
			if n := len(h.VMs()); n != 0 {
				t.Errorf("%d VMs on the host after a refusal", n)
			}
		})
	}
}

func TestCapacityCountsDeletingVMs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := fake.New(fake.Options{MaxVMs: 1, DeleteDelay: time.Minute})
		vm := mustCreate(t, h, "web-1")
		if err := h.Delete(t.Context(), vm.UID); err != nil {
			t.Fatal(err)
		}
		if _, err := h.Create(t.Context(), spec("web-2")); !errors.Is(err, host.ErrNoCapacity) {
			t.Errorf("create beside a DELETING VM: %v, want ErrNoCapacity", err)
		}
		time.Sleep(time.Minute)
		mustCreate(t, h, "web-2")
	})
}

// TestLostReplies is fault F19: the create was done, and nobody was told.
func TestLostReplies(t *testing.T) {
	h := fake.New(fake.Options{})
	h.LoseReplies(fake.Create, 1)
	if _, err := h.Create(t.Context(), spec("web-1")); !errors.Is(err, host.ErrUnreachable) {
		t.Errorf("create: %v, want ErrUnreachable", err)
	}
	found, err := h.List(t.Context(), "default", "web-1")
	if err != nil || len(found) != 1 {
		t.Fatalf("list by name after the lost reply: %v, %v; want the one VM", found, err)
	}
	mustCreate(t, h, "web-1")
	if n := len(h.Find("web-1")); n != 2 {
		t.Errorf("%d VMs of one name, want 2: create is not idempotent", n)
	}
}

func TestHangsEndWithTheDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := fake.New(fake.Options{})
		vm := mustCreate(t, h, "web-1")
		h.Inject(fake.Fault{Op: fake.Get, Hang: true, Times: 1})
		began := time.Now()
		if _, err := h.Get(t.Context(), vm.UID); !errors.Is(err, host.ErrUnreachable) {
			t.Errorf("get without a deadline: %v, want ErrUnreachable", err)
		}
		if took := time.Since(began); took != host.CallTimeout {
			t.Errorf("the hang took %v, want the default limit %v", took, host.CallTimeout)
		}
		h.KillGuest(vm.UID)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := h.Exec(ctx, host.ExecRequest{UID: vm.UID, Cmd: "true"}, host.ExecStreams{})
		if !errors.Is(err, host.ErrExecTimeout) || errors.Is(err, host.ErrUnreachable) {
			t.Errorf("exec in a dead guest: %v, want ErrExecTimeout alone", err)
		}
	})
}

func TestListLies(t *testing.T) {
	h := fake.New(fake.Options{})
	first, second := mustCreate(t, h, "web-1"), mustCreate(t, h, "web-2")
	remove := h.Inject(fake.Fault{Op: fake.List, List: fake.Hide(first.UID)})
	if got := uids(t, h); !cmp.Equal(got, []string{second.UID}) {
		t.Errorf("short list: %v", got)
	}
	remove()
	thaw := h.FreezeLists()
	third := mustCreate(t, h, "web-3")
	if got := uids(t, h); !cmp.Equal(got, []string{first.UID, second.UID}) {
		t.Errorf("stale list: %v", got)
	}
	thaw()
	if got := uids(t, h); !cmp.Equal(got, []string{first.UID, second.UID, third.UID}) {
		t.Errorf("true list: %v", got)
	}
}

func uids(t *testing.T, d host.Driver) []string {
	t.Helper()
	vms, err := d.List(t.Context(), "", "")
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, vm := range vms {
		out = append(out, vm.UID)
	}
	return out
}

// TestHostComesBack is fault F21: empty, and later with its old VMs.
func TestHostComesBack(t *testing.T) {
	h := fake.New(fake.Options{})
	vm := mustCreate(t, h, "web-1")
	h.Down()
	if _, err := h.Info(t.Context()); !errors.Is(err, host.ErrUnreachable) {
		t.Errorf("info of a host that is down: %v, want ErrUnreachable", err)
	}
	image := h.Wipe()
	h.Up()
	if got := stateOf(t, h, vm.UID); got != "gone" {
		t.Errorf("after a wipe: %s", got)
	}
	h.Restore(image)
	if got := stateOf(t, h, vm.UID); got != host.Created {
		t.Errorf("the zombie is %s", got)
	}
}

func TestRecreatedGuestHasAnotherBootID(t *testing.T) {
	h := fake.New(fake.Options{})
	vm := mustCreate(t, h, "web-1")
	read := func() string {
		var out bytes.Buffer
		req := host.ExecRequest{UID: vm.UID, Cmd: "cat", Args: []string{"/proc/sys/kernel/random/boot_id"}}
		if code, err := h.Exec(t.Context(), req, host.ExecStreams{Stdout: &out}); code != 0 || err != nil {
			t.Fatalf("read the boot id: %d, %v", code, err)
		}
		return out.String()
	}
	before := read()
	if before != read() {
		t.Error("the boot id changes by itself")
	}
	h.Recreate(vm.UID)
	if before == read() {
		t.Error("the boot id survived a new start of the guest")
	}
}

// TestExecEndsWithItsVM: a command under way fails when its VM is deleted or its host goes down.
func TestExecEndsWithItsVM(t *testing.T) {
	for name, end := range map[string]func(*fake.Host, string){
		"deleted":   func(h *fake.Host, uid string) { _ = h.Delete(context.Background(), uid) },
		"vanished":  func(h *fake.Host, uid string) { h.Vanish(uid) },
		"host down": func(h *fake.Host, _ string) { h.Down() },
		"wiped":     func(h *fake.Host, _ string) { h.Wipe() },
		"restarted": func(h *fake.Host, uid string) { h.Recreate(uid) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := fake.New(fake.Options{})
				vm := mustCreate(t, h, "web-1")
				failed := make(chan error, 1)
				go func() {
					_, err := h.Exec(t.Context(), host.ExecRequest{UID: vm.UID, Cmd: "hang"}, host.ExecStreams{})
					failed <- err
				}()
				synctest.Wait()
				end(h, vm.UID)
				if err := <-failed; err == nil {
					t.Error("the exec succeeded")
				}
			})
		})
	}
}

func TestScriptedReplies(t *testing.T) {
	h := fake.New(fake.Options{})
	vm := mustCreate(t, h, "web-1")
	h.Script("setup --fast", fake.Reply{Code: 3, Stderr: "no disk\n"}, fake.Reply{})
	var stderr bytes.Buffer
	for i, want := range []int{3, 0, 0} {
		req := host.ExecRequest{UID: vm.UID, Cmd: "setup --fast", Shell: true}
		code, err := h.Exec(t.Context(), req, host.ExecStreams{Stderr: &stderr})
		if code != want || err != nil {
			t.Errorf("run %d: %d, %v; want %d", i, code, err, want)
		}
	}
	if got := stderr.String(); got != "no disk\n" {
		t.Errorf("stderr: %q", got)
	}
}

func TestGuestLanguage(t *testing.T) {
	h := fake.New(fake.Options{})
	s := spec("web-1")
	s.Kernel.Cmdline = map[string]string{"rev": "2", "quiet": ""}
	vm, err := h.Create(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		line, stdin    string
		code           int
		stdout, stderr string
	}{
		{line: "true"},
		{line: "false", code: 1},
		{line: "exit 42", code: 42},
		{line: "echo a b", stdout: "a b\n"},
		{line: "echo oops >&2; exit 7", stderr: "oops\n", code: 7},
		{line: "echo a && false && echo b", stdout: "a\n", code: 1},
		{line: "echo a && false; echo b", stdout: "a\nb\n"},
		{line: "cat", stdin: "hello", stdout: "hello"},
		{line: "cat /proc/cmdline", stdout: "quiet rev=2\n"},
		{line: "cat /run/poolmgr/metadata/poolmgr.owner", stdout: "owner-of-web-1"},
		{line: "whatever else"},
	} {
		var stdout, stderr bytes.Buffer
		code, err := h.Exec(t.Context(), host.ExecRequest{UID: vm.UID, Cmd: c.line, Shell: true},
			host.ExecStreams{Stdin: strings.NewReader(c.stdin), Stdout: &stdout, Stderr: &stderr})
		if err != nil || code != c.code || stdout.String() != c.stdout || stderr.String() != c.stderr {
			t.Errorf("%q: %d, %q, %q, %v", c.line, code, stdout.String(), stderr.String(), err)
		}
	}
}

// TestSeesEveryDelete is how a test asserts invariant S6: the hook runs before the host does anything.
func TestSeesEveryDelete(t *testing.T) {
	var seen []fake.Call
	var h *fake.Host
	h = fake.New(fake.Options{OnCall: func(c fake.Call) {
		if c.Op == fake.Delete {
			seen = append(seen, c)
			if len(h.VMs()) != 1 {
				t.Error("the VM was gone before the delete was seen")
			}
		}
	}})
	vm := mustCreate(t, h, "web-1")
	if err := h.Delete(t.Context(), vm.UID); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]fake.Call{{Op: fake.Delete, UID: vm.UID}}, seen); diff != "" {
		t.Errorf("deletes seen (-want +got):\n%s", diff)
	}
}

func TestPeakStarts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := fake.New(fake.Options{BootDelay: time.Second, GuestDelay: time.Second})
		mustCreate(t, h, "web-1")
		mustCreate(t, h, "web-2")
		time.Sleep(2 * time.Second)
		mustCreate(t, h, "web-3")
		if got := h.PeakStarts(); got != 2 {
			t.Errorf("peak of starts in flight: %d, want 2", got)
		}
		h.FailNext(fake.Create, 1, host.ErrNoCapacity)
		if _, err := h.Create(t.Context(), spec("web-4")); !errors.Is(err, host.ErrNoCapacity) {
			t.Errorf("create: %v", err)
		}
		mustCreate(t, h, "web-5")
		if got := h.PeakStarts(); got != 2 {
			t.Errorf("peak of starts in flight after a failed create: %d, want 2", got)
		}
	})
}

func TestFleetOutlivedByItsHosts(t *testing.T) {
	h := fake.New(fake.Options{Name: "h1"})
	for range 2 {
		fleet := fake.NewFleet(h)
		d, err := fleet.Driver(pool.Host{Name: "h1"})
		if err != nil {
			t.Fatal(err)
		}
		mustCreate(t, d, "web-1")
		if err := fleet.Close(); err != nil {
			t.Fatal(err)
		}
		if _, err := d.Info(t.Context()); !errors.Is(err, host.ErrUnreachable) {
			t.Errorf("info over a closed connection: %v, want ErrUnreachable", err)
		}
		if _, err := fleet.Driver(pool.Host{Name: "h2"}); err == nil {
			t.Error("the fleet found a host it does not have")
		}
	}
	if n := len(h.VMs()); n != 2 {
		t.Errorf("%d VMs, want 2", n)
	}
}
