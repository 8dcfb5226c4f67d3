package simulated

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"

	"poolmgr/api/flintlock/vmtypes"
	"poolmgr/internal/microvm"
)

// open opens a host that is closed at the end of the test. In a synctest bubble
// an unended goroutine fails the test by itself.
func open(t *testing.T, cfg Config) *Backend {
	t.Helper()
	cfg.Logger = slog.New(slog.DiscardHandler)
	b, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	return b
}

func spec(id string) *vmtypes.MicroVMSpec {
	return &vmtypes.MicroVMSpec{
		Id: id, Namespace: "default", Vcpu: 1, MemoryInMb: 128, AllowGuestAgent: true,
		Kernel:     &vmtypes.Kernel{Image: "local:base", Cmdline: map[string]string{"version": "1", "quiet": ""}},
		Interfaces: []*vmtypes.NetworkInterface{{DeviceId: "eth1"}, {DeviceId: "eth2", GuestMac: new("02:00:00:00:00:01")}},
		Metadata:   map[string]string{"color": "Ymx1ZQ==", "team/name": "YQ=="},
		Labels:     map[string]string{"tier": "gold"},
	}
}

func create(t *testing.T, b *Backend, id string) string {
	t.Helper()
	vm, err := b.Create(t.Context(), spec(id))
	if err != nil {
		t.Fatalf("create %s: %v", id, err)
	}
	if got := vm.GetStatus().GetState(); got != vmtypes.MicroVMStatus_PENDING {
		t.Errorf("create answered state %v, want PENDING", got)
	}
	return vm.GetSpec().GetUid()
}

// state is the machine's state, or "gone".
func state(t *testing.T, b *Backend, uid string) string {
	t.Helper()
	vm, err := b.Get(t.Context(), uid)
	if errors.Is(err, microvm.ErrNotFound) {
		return "gone"
	}
	if err != nil {
		t.Fatalf("get: %v", err)
	}
	return vm.GetStatus().GetState().String()
}

func wantState(t *testing.T, b *Backend, uid, want string) {
	t.Helper()
	if got := state(t, b, uid); got != want {
		t.Errorf("state at %v is %s, want %s", time.Now().Format(time.TimeOnly), got, want)
	}
}

func exec(t *testing.T, b *Backend, uid, line string) (int, string, error) {
	t.Helper()
	var out bytes.Buffer
	code, err := b.Exec(t.Context(), microvm.ExecRequest{UID: uid, Cmd: line, Shell: true}, microvm.ExecStreams{Stdout: &out})
	return code, out.String(), err
}

func files(t *testing.T, dir string) []string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(dir, "simulated", "*"))
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func TestLifeOfAMachine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		b := open(t, Config{StateDir: dir, Behaviour: Behaviour{BootDelay: 2 * time.Second, DeleteDelay: time.Second}})
		uid := create(t, b, "vm-1")
		if _, _, err := exec(t, b, uid, "true"); !errors.Is(err, microvm.ErrNotRunning) {
			t.Errorf("exec in a pending machine: %v, want ErrNotRunning", err)
		}
		time.Sleep(2*time.Second - 1)
		wantState(t, b, uid, "PENDING")
		time.Sleep(time.Nanosecond)
		wantState(t, b, uid, "CREATED")
		if code, out, err := exec(t, b, uid, "echo hello; exit 7"); code != 7 || out != "hello\n" || err != nil {
			t.Errorf("exec: %d, %q, %v", code, out, err)
		}

		for range 2 { // repeating a deletion is harmless, and does not put it off
			if err := b.Delete(t.Context(), uid); err != nil {
				t.Fatal(err)
			}
			wantState(t, b, uid, "DELETING")
			time.Sleep(time.Second / 2)
		}
		wantState(t, b, uid, "gone")
		synctest.Wait()
		if left := files(t, dir); len(left) > 0 {
			t.Errorf("files are left of a machine that is gone: %v", left)
		}
		if err := b.Delete(t.Context(), uid); !errors.Is(err, microvm.ErrNotFound) {
			t.Errorf("delete of a machine that is gone: %v, want ErrNotFound", err)
		}
		if _, _, err := exec(t, b, uid, "true"); !errors.Is(err, microvm.ErrNotFound) {
			t.Errorf("exec in a machine that is gone: %v, want ErrNotFound", err)
		}
	})
}

func TestSameIDMakesTwoMachines(t *testing.T) {
	b := open(t, Config{})
	first, second := create(t, b, "vm-1"), create(t, b, "vm-1")
	if first == second {
		t.Fatal("two creates made one uid")
	}
	create(t, b, "vm-2")
	other := spec("vm-1")
	other.Namespace = "other"
	if _, err := b.Create(t.Context(), other); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		namespace, name string
		want            int
	}{
		{"", "", 4}, {"default", "", 3}, {"default", "vm-1", 2}, {"", "vm-1", 3}, {"nowhere", "", 0}, {"default", "vm-3", 0},
	} {
		found, err := b.List(t.Context(), c.namespace, c.name)
		if err != nil || len(found) != c.want {
			t.Errorf("list %q/%q: %d machines, %v; want %d", c.namespace, c.name, len(found), err, c.want)
		}
	}
}

func TestAddressesAreUniqueUnlessTheTemplateSetsThem(t *testing.T) {
	b := open(t, Config{})
	seen := map[string]bool{}
	for range 20 {
		vm, err := b.Get(t.Context(), create(t, b, "vm"))
		if err != nil {
			t.Fatal(err)
		}
		nics := vm.GetStatus().GetNetworkInterfaces()
		if got := nics["eth2"].GetMacAddress(); got != "02:00:00:00:00:01" {
			t.Errorf("the template's address became %q", got)
		}
		mac := nics["eth1"].GetMacAddress()
		if !strings.HasPrefix(mac, "02:") || seen[mac] {
			t.Errorf("address %q is not a new, locally administered one", mac)
		}
		seen[mac] = true
	}
}

func TestMachinesOutliveARestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := Config{StateDir: t.TempDir(), Behaviour: Behaviour{BootDelay: 10 * time.Second, DeleteDelay: 10 * time.Second}}
		b := open(t, cfg)
		up, deleting := create(t, b, "up"), create(t, b, "deleting")
		time.Sleep(8 * time.Second)
		booting := create(t, b, "booting")
		if err := b.Delete(t.Context(), deleting); err != nil {
			t.Fatal(err)
		}
		before, err := b.List(t.Context(), "", "")
		if err != nil {
			t.Fatal(err)
		}

		// Close writes nothing down, so this is as good as kill -9; the test of
		// the real binary does that one.
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
		b = open(t, cfg)
		after, err := b.List(t.Context(), "", "")
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(before, after, protocmp.Transform()); diff != "" {
			t.Errorf("a restart changed what is known (-before +after):\n%s", diff)
		}
		time.Sleep(2 * time.Second)
		wantState(t, b, up, "CREATED")
		wantState(t, b, booting, "PENDING")
		wantState(t, b, deleting, "DELETING")
		if code, _, err := exec(t, b, up, "exit 3"); code != 3 || err != nil {
			t.Errorf("exec after a restart: %d, %v", code, err)
		}
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}

		time.Sleep(8 * time.Second) // while nobody runs, the deletion ends and so does the boot
		b = open(t, cfg)
		wantState(t, b, booting, "CREATED")
		wantState(t, b, deleting, "gone")
		synctest.Wait()
		if left := files(t, cfg.StateDir); len(left) != 2 {
			t.Errorf("files %v, want those of two machines", left)
		}
	})
}

func TestStateFilesThatCannotBeUsed(t *testing.T) {
	cfg := Config{StateDir: t.TempDir(), Logger: slog.New(slog.DiscardHandler)}
	dir := filepath.Join(cfg.StateDir, "simulated")
	write := func(name, text string) {
		t.Helper()
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("ABC.json.tmp", `{"version": 1, "ui`)
	b := open(t, cfg)
	if left := files(t, cfg.StateDir); len(left) > 0 {
		t.Errorf("half-written files stay: %v", left)
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"torn":    `{"version": 1, "ui`,
		"newer":   `{"version": 99, "uid": "X", "spec": {}}`,
		"another": `{"version": 1, "uid": "Y", "spec": {}}`,
	} {
		write("X.json", text)
		_, err := New(cfg)
		if err == nil || !strings.Contains(err.Error(), "X.json") || !strings.Contains(err.Error(), "remove the file") {
			t.Errorf("%s: error %v does not name the file and what to do", name, err)
		}
	}
}

func TestCapacityCountsWhatIsBeingDeleted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := open(t, Config{MaxVMs: 2, MaxMemoryMB: 300, Behaviour: Behaviour{DeleteDelay: time.Second}})
		first := create(t, b, "vm-1")
		big := spec("big")
		big.MemoryInMb = 173
		if _, err := b.Create(t.Context(), big); !errors.Is(err, microvm.ErrNoCapacity) {
			t.Errorf("create beyond the memory: %v, want ErrNoCapacity", err)
		}
		create(t, b, "vm-2")
		if _, err := b.Create(t.Context(), spec("vm-3")); !errors.Is(err, microvm.ErrNoCapacity) {
			t.Errorf("create beyond the count: %v, want ErrNoCapacity", err)
		}
		if err := b.Delete(t.Context(), first); err != nil {
			t.Fatal(err)
		}
		if _, err := b.Create(t.Context(), spec("vm-3")); !errors.Is(err, microvm.ErrNoCapacity) {
			t.Errorf("create while the deletion goes on: %v, want ErrNoCapacity", err)
		}
		time.Sleep(time.Second)
		create(t, b, "vm-3")
	})
}

func TestCapacityHoldsWhenManyCreateAtOnce(t *testing.T) {
	b := open(t, Config{MaxVMs: 10, StateDir: t.TempDir()})
	var wg sync.WaitGroup
	var mu sync.Mutex
	made := 0
	for i := range 40 {
		wg.Go(func() {
			_, err := b.Create(context.Background(), spec(fmt.Sprint("vm-", i)))
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				made++
			} else if !errors.Is(err, microvm.ErrNoCapacity) {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if made != 10 {
		t.Errorf("%d machines were made on a host for 10", made)
	}
}

func TestCreatesAndDeletesRaceWithTheSweeper(t *testing.T) {
	dir := t.TempDir()
	b := open(t, Config{StateDir: dir, Behaviour: Behaviour{Vanish: 0.5}})
	var wg sync.WaitGroup
	for i := range 32 {
		wg.Go(func() {
			vm, err := b.Create(context.Background(), spec(fmt.Sprint("vm-", i)))
			if err != nil {
				t.Error(err)
				return
			}
			uid := vm.GetSpec().GetUid()
			var both sync.WaitGroup
			for range 2 {
				both.Go(func() {
					if err := b.Delete(context.Background(), uid); err != nil && !errors.Is(err, microvm.ErrNotFound) {
						t.Error(err)
					}
				})
			}
			both.Wait()
		})
	}
	wg.Wait()
	if left, err := b.List(t.Context(), "", ""); err != nil || len(left) > 0 {
		t.Errorf("%d machines are left, %v", len(left), err)
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	// What the first one had no time to remove is removed by the next.
	next := open(t, Config{StateDir: dir})
	if left, err := next.List(t.Context(), "", ""); err != nil || len(left) > 0 {
		t.Errorf("%d machines came back, %v", len(left), err)
	}
}

func TestClosedBackendAnswersClosed(t *testing.T) {
	b := open(t, Config{})
	uid := create(t, b, "vm")
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	_, createErr := b.Create(t.Context(), spec("vm"))
	_, getErr := b.Get(t.Context(), uid)
	_, listErr := b.List(t.Context(), "", "")
	_, _, execErr := exec(t, b, uid, "true")
	for i, err := range []error{createErr, getErr, listErr, execErr, b.Delete(t.Context(), uid)} {
		if !errors.Is(err, microvm.ErrClosed) {
			t.Errorf("call %d: %v, want ErrClosed", i, err)
		}
	}
}

func TestConfigNamesEveryFault(t *testing.T) {
	_, err := New(Config{MaxVMs: -1, Behaviour: Behaviour{BootDelay: -1, Vanish: 1.5}})
	for _, want := range []string{"boot delay", "vanish", "max VMs", "logger"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v does not name %q", err, want)
		}
	}
}

func TestCreateFailsWithoutMakingAnything(t *testing.T) {
	b := open(t, Config{MaxVMs: 1, Behaviour: Behaviour{FailCreate: 1}})
	for range 3 { // it takes no room either
		if _, err := b.Create(t.Context(), spec("vm")); !errors.Is(err, errCreateFails) {
			t.Fatalf("create: %v", err)
		}
	}
	if found, err := b.List(t.Context(), "", ""); err != nil || len(found) > 0 {
		t.Errorf("%d machines after failed creates, %v", len(found), err)
	}
}

func TestLostRepliesLookLikeABrokenConnection(t *testing.T) {
	b := open(t, Config{Behaviour: Behaviour{LoseReply: 1, DeleteDelay: time.Hour}})
	_, err := b.Create(t.Context(), spec("vm"))
	if got := status.Code(err); got != codes.Unavailable {
		t.Errorf("create: %v, want UNAVAILABLE", err)
	}
	found, err := b.List(t.Context(), "default", "vm")
	if err != nil || len(found) != 1 {
		t.Fatalf("%d machines after a lost reply, %v; want 1", len(found), err)
	}
	uid := found[0].GetSpec().GetUid()
	if got := status.Code(b.Delete(t.Context(), uid)); got != codes.Unavailable {
		t.Errorf("delete: %v, want UNAVAILABLE", got)
	}
	wantState(t, b, uid, "DELETING")
}
