package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// bin is the folder of the binaries under test.
var bin string

// TestMain builds the real binaries once. They are built with the race detector, except the guest's, which must be
// static and small.
func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "poolmgr-e2e-")
	if err == nil {
		err = build(dir)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "build the binaries:", err)
		os.Exit(1)
	}
	bin = dir
	// A process with the race detector rests for a second when it ends, in case a report is still on its way. Reports
	// are written when a race is found; the tests read them from the logs.
	if err := os.Setenv("GORACE", "atexit_sleep_ms=0"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

func build(dir string) error {
	root := repoRoot()
	for _, b := range []struct {
		name string
		args []string
		env  string
	}{
		{"poolmgr-guest", []string{"-trimpath", "-ldflags=-s -w"}, "CGO_ENABLED=0"},
		{"poolmgrd", []string{"-race"}, "CGO_ENABLED=1"},
		{"poolmgrctl", []string{"-race"}, "CGO_ENABLED=1"},
		{"microvmd", []string{"-race"}, "CGO_ENABLED=1"},
	} {
		args := append([]string{"build", "-o", filepath.Join(dir, b.name)}, b.args...)
		cmd := exec.Command("go", append(args, "./cmd/"+b.name)...)
		cmd.Dir, cmd.Env = root, append(os.Environ(), b.env)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w\n%s", b.name, err, out)
		}
	}
	return nil
}

// repoRoot is the top of the checkout: tests run in their package's folder.
func repoRoot() string {
	root, err := filepath.Abs("../..")
	if err != nil {
		panic(err)
	}
	return root
}

func example(name string) string { return filepath.Join(repoRoot(), "examples", "quickstart", name) }
