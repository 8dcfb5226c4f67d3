package hosttest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"poolmgr/internal/host"
)

// testExec boots one VM and runs all its tests in it, since a boot may cost many seconds.
func testExec(t *testing.T, s *suite) {
	vm := s.create(t, "exec-0a1b2c3d")
	s.waitGuest(t, vm.UID)
	guest := &guest{suite: s, uid: vm.UID}
	t.Run("exit codes", guest.testExitCodes)
	t.Run("output", guest.testOutput)
	t.Run("input", guest.testInput)
	t.Run("the command's own limit", guest.testTimeout)
	t.Run("the caller's deadline", guest.testDeadline)
	t.Run("commands at once", guest.testConcurrent)
	if s.RealGuest {
		t.Run("codes for what did not run or was killed", guest.testSignals)
		t.Run("environment and directory", guest.testEnvironment)
		t.Run("separate streams", guest.testStreams)
	}
}

type guest struct {
	*suite
	uid string
}

// shell runs a line for /bin/sh and gives what it printed.
func (g *guest) shell(t *testing.T, line string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errOut bytes.Buffer
	code, err := g.driver.Exec(g.within(t), host.ExecRequest{UID: g.uid, Cmd: line, Shell: true},
		host.ExecStreams{Stdout: &out, Stderr: &errOut})
	if err != nil {
		t.Errorf("exec %q: %v", line, err)
	}
	return code, out.String(), errOut.String()
}

func (g *guest) testExitCodes(t *testing.T) {
	for line, want := range map[string]int{"true": 0, "false": 1, "exit 7": 7, "exit 255": 255} {
		if code, _, _ := g.shell(t, line); code != want {
			t.Errorf("%q exited with %d, want %d", line, code, want)
		}
	}
}

func (g *guest) testOutput(t *testing.T) {
	var out bytes.Buffer
	req := host.ExecRequest{UID: g.uid, Cmd: "echo", Args: []string{"warm", "and", "ready"}}
	code, err := g.driver.Exec(g.within(t), req, host.ExecStreams{Stdout: &out})
	if code != 0 || err != nil || out.String() != "warm and ready\n" {
		t.Errorf("echo: %d, %q, %v", code, out.String(), err)
	}
	broken := errors.New("the reader went away")
	if _, err := g.driver.Exec(g.within(t), req, host.ExecStreams{Stdout: failingWriter{broken}}); err == nil {
		t.Error("output that could not be passed on was no error")
	}
}

type failingWriter struct{ err error }

func (w failingWriter) Write([]byte) (int, error) { return 0, w.err }

// testInput sends more than any buffer on the way holds, through a reader that can be closed and one that cannot.
func (g *guest) testInput(t *testing.T) {
	text := strings.Repeat("0123456789abcdef", 64<<10) // 1 MiB
	for name, stdin := range map[string]io.Reader{
		"empty":     strings.NewReader(""),
		"large":     strings.NewReader(text),
		"closeable": io.NopCloser(strings.NewReader(text)),
	} {
		var out bytes.Buffer
		code, err := g.driver.Exec(g.within(t), host.ExecRequest{UID: g.uid, Cmd: "cat"},
			host.ExecStreams{Stdin: stdin, Stdout: &out})
		want := text
		if name == "empty" {
			want = ""
		}
		if code != 0 || err != nil || out.String() != want {
			t.Errorf("cat of %s input: %d, %d bytes of %d, %v", name, code, out.Len(), len(want), err)
		}
	}
}

func (g *guest) testTimeout(t *testing.T) {
	req := host.ExecRequest{UID: g.uid, Cmd: "sleep", Args: []string{"600"}, Timeout: 200 * time.Millisecond}
	code, err := g.driver.Exec(g.within(t), req, host.ExecStreams{})
	if !errors.Is(err, host.ErrExecTimeout) {
		t.Errorf("a command over its own limit: %d, %v; want ErrExecTimeout", code, err)
	}
}

func (g *guest) testDeadline(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	input, feed := io.Pipe() // never written to: its Read waits until it is closed
	defer feed.Close()
	streams := host.ExecStreams{Stdin: input}
	_, err := g.driver.Exec(ctx, host.ExecRequest{UID: g.uid, Cmd: "sleep", Args: []string{"600"}}, streams)
	if !errors.Is(err, host.ErrExecTimeout) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a command at its caller's deadline: %v; want ErrExecTimeout", err)
	}
	if errors.Is(err, host.ErrUnreachable) {
		t.Errorf("a silent command counts against the host: %v", err)
	}
	if _, err := feed.Write([]byte("x")); err == nil {
		t.Error("the input was not closed when the command ended")
	}
	if code, _, _ := g.shell(t, "true"); code != 0 {
		t.Errorf("the next command exited with %d", code)
	}
}

func (g *guest) testConcurrent(t *testing.T) {
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			word := fmt.Sprintf("word-%d", i)
			if code, out, _ := g.shell(t, "echo "+word); code != 0 || out != word+"\n" {
				t.Errorf("echo %s: %d, %q", word, code, out)
			}
		})
	}
	all.Wait()
}

func (g *guest) testSignals(t *testing.T) {
	if code, _, _ := g.shell(t, "kill -9 $$"); code != 128+9 {
		t.Errorf("a command killed by signal 9 exited with %d, want 137", code)
	}
	code, err := g.driver.Exec(g.within(t), host.ExecRequest{UID: g.uid, Cmd: "no-such-program"}, host.ExecStreams{})
	if code != 127 || err != nil {
		t.Errorf("a program that is not there: %d, %v; want 127", code, err)
	}
	req := host.ExecRequest{UID: g.uid, Cmd: "true", Cwd: "/no/such/directory"}
	if code, err = g.driver.Exec(g.within(t), req, host.ExecStreams{}); code != 126 || err != nil {
		t.Errorf("a directory that is not there: %d, %v; want 126", code, err)
	}
}

func (g *guest) testEnvironment(t *testing.T) {
	var out bytes.Buffer
	req := host.ExecRequest{
		UID: g.uid, Cmd: `printf '%s %s %s' "$GREETING" "$(pwd)" "$(id -u)"`, Shell: true,
		Cwd: "/tmp", Env: map[string]string{"GREETING": "good morning"},
	}
	code, err := g.driver.Exec(g.within(t), req, host.ExecStreams{Stdout: &out})
	if want := "good morning /tmp 0"; code != 0 || err != nil || out.String() != want {
		t.Errorf("environment and directory: %d, %q, %v; want %q", code, out.String(), err, want)
	}
}

func (g *guest) testStreams(t *testing.T) {
	code, stdout, stderr := g.shell(t, "echo out; echo err >&2; exit 3")
	if code != 3 || stdout != "out\n" || stderr != "err\n" {
		t.Errorf("two streams: %d, stdout %q, stderr %q", code, stdout, stderr)
	}
}
