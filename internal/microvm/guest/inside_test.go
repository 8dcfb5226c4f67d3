package guest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"poolmgr/internal/microvm/guest/wire"
)

// The reaper takes orphans and never the exit code of a process that somebody
// waits for, however many of both end at once.
func TestReaperLeavesOwnProcessesAlone(t *testing.T) {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		t.Fatal(err)
	}
	defer unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
	r := NewReaper()
	stop := make(chan struct{})
	var reaping, commands sync.WaitGroup
	reaping.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				r.reapAll()
			}
		}
	})
	for i := range 60 {
		commands.Go(func() {
			want := i % 50
			// The inner shell ends first, and its child becomes an orphan.
			cmd := exec.Command("sh", "-c", fmt.Sprintf("sh -c 'true & true &'; exit %d", want))
			if err := r.Start(cmd); err != nil {
				t.Error(err)
				return
			}
			err := r.Wait(cmd)
			if got := exitCode(err); got != want {
				t.Errorf("exit code %d (%v), want %d", got, err, want)
			}
		})
	}
	commands.Wait()
	close(stop)
	reaping.Wait()
	r.reapAll()
	if pid, err := peekZombie(); pid != 0 || (err != nil && !errors.Is(err, syscall.ECHILD)) {
		t.Errorf("zombie %d is left, %v", pid, err)
	}
	if len(r.own) != 0 {
		t.Errorf("%d own processes are remembered after their end", len(r.own))
	}
}

func TestWriteFacts(t *testing.T) {
	dir := t.TempDir()
	metadata := map[string][]byte{"plain": []byte("v\x00"), "a/b": []byte("1"), "..": []byte("2"), ".": []byte("3"), "": []byte("4"), "%2F": []byte("5")}
	labels := map[string]string{"app.io/tier": "web", "sp ace": "x"}
	for range 2 { // again is harmless
		if err := writeFacts(dir, metadata, labels); err != nil {
			t.Fatal(err)
		}
	}
	for file, want := range map[string]string{
		"metadata/plain": "v\x00", "metadata/a%2Fb": "1", "metadata/%2E%2E": "2", "metadata/%2E": "3", "metadata/%": "4", "metadata/%252F": "5",
		"labels/app.io%2Ftier": "web", "labels/sp%20ace": "x",
		"labels.json": `{"app.io/tier":"web","sp ace":"x"}` + "\n",
	} {
		got, err := os.ReadFile(filepath.Join(dir, file))
		if err != nil || string(got) != want {
			t.Errorf("%s holds %q, %v; want %q", file, got, err, want)
		}
	}
	if err := writeFacts(dir, nil, nil); err != nil {
		t.Fatal(err)
	}
	left, err := os.ReadDir(filepath.Join(dir, "metadata"))
	if err != nil || len(left) != 0 {
		t.Errorf("%v is left of the earlier metadata, %v", left, err)
	}
}

func TestFindPort(t *testing.T) {
	dir := t.TempDir()
	for device, name := range map[string]string{"vport0p1": "log\n", "vport0p2": "agent\n"} {
		if err := os.MkdirAll(filepath.Join(dir, device), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, device, "name"), []byte(name), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := waitForPort(dir, "agent"); got != "vport0p2" || err != nil {
		t.Errorf("got %q, %v", got, err)
	}
}

func TestCommandOfAnAccount(t *testing.T) {
	cmd, err := command(wire.Exec{Cmd: "id", User: "4242"})
	if err != nil {
		t.Fatal(err)
	}
	if c := cmd.SysProcAttr.Credential; c == nil || c.Uid != 4242 || c.Gid != 4242 {
		t.Errorf("credential %+v, want the number", c)
	}
	if !cmd.SysProcAttr.Setpgid {
		t.Error("the command gets no group of its own, and could not be killed as one")
	}
	if env := strings.Join(cmd.Env, " "); !strings.Contains(env, "HOME=/ ") || !strings.Contains(env, "PATH="+defaultPath) {
		t.Errorf("environment %q", env)
	}
}
