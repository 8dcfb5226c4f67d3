package cli

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){
		"poolmgrctl": func() { os.Exit(Main(Build{Version: "v1.2.3", Commit: "abcdef"})) },
	})
}

// The scripts are the words that others call, against a daemon of canned answers.
func TestScripts(t *testing.T) {
	examples, err := filepath.Abs("../../examples")
	if err != nil {
		t.Fatal(err)
	}
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script", UpdateScripts: os.Getenv("UPDATE_SCRIPTS") != "", RequireExplicitExec: true,
		Setup: func(env *testscript.Env) error {
			addr, stop := newFake().serve(t)
			env.Defer(stop)
			env.Setenv("POOLMGR_ADDR", addr)
			env.Setenv("EXAMPLES", examples)
			env.Setenv("GORACE", "atexit_sleep_ms=0") // a program under the race detector ends a second late without it
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"exits": exits},
	})
}

// exits CODE COMMAND...: the command ends with exactly this exit code.
func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits CODE COMMAND...")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	err = ts.Exec(args[1], args[2:]...)
	got := 0
	var failed *exec.ExitError
	switch {
	case err == nil:
	case asExit(err, &failed):
		got = failed.ExitCode()
	default:
		ts.Fatalf("%v: %v", args[1:], err)
	}
	if got != want {
		ts.Fatalf("%v: exit code %d, want %d", fmt.Sprint(args[1:]), got, want)
	}
}

func asExit(err error, into **exec.ExitError) bool { return errors.As(err, into) }
