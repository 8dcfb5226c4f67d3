package guest_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"poolmgr/internal/microvm/guest"
	"poolmgr/internal/microvm/guest/client"
	"poolmgr/internal/microvm/guest/guesttest"
	"poolmgr/internal/microvm/guest/wire"
)

// testLimit bounds every wait of these tests; it passes only when something hangs.
const testLimit = 60 * time.Second

// startAgent serves an agent on a socket and returns a way to connect to it.
func startAgent(t *testing.T, missEnds bool, configure func(wire.Configure) error) func(context.Context) (net.Conn, error) {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "agent.sock")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	port := guesttest.NewPort(listener, missEnds)
	agent := &guest.Agent{
		Configure: configure,
		Info:      func() (wire.Info, error) { return wire.Info{BootID: "boot-1", Hostname: "vm"}, nil },
		Processes: guest.NewReaper(),
		Log:       slog.New(slog.DiscardHandler),
	}
	var served sync.WaitGroup
	served.Go(func() { agent.Serve(port) })
	t.Cleanup(func() {
		port.Close()
		served.Wait()
	})
	return func(ctx context.Context) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}
}

func newClient(t *testing.T, dial func(context.Context) (net.Conn, error)) *client.Client {
	t.Helper()
	c := client.New(dial, slog.New(slog.DiscardHandler))
	t.Cleanup(func() { c.Close() })
	return c
}

func limited(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testLimit)
	t.Cleanup(cancel)
	return ctx
}

// run executes a command and returns what it wrote and how it ended.
func run(ctx context.Context, c *client.Client, req wire.Exec, stdin io.Reader) (stdout, stderr string, code int, err error) {
	var out, errOut bytes.Buffer
	code, err = c.Exec(ctx, req, client.Streams{Stdin: stdin, Stdout: &out, Stderr: &errOut})
	return out.String(), errOut.String(), code, err
}

func TestExec(t *testing.T) {
	c := newClient(t, startAgent(t, false, nil))
	dir := t.TempDir()
	for _, tc := range []struct {
		name           string
		req            wire.Exec
		stdin          io.Reader
		stdout, stderr string
		code           int
	}{
		{name: "plain", req: wire.Exec{Cmd: "echo", Args: []string{"a b", "c"}}, stdout: "a b c\n"},
		{name: "streams apart", req: wire.Exec{Cmd: "echo out; echo err >&2; exit 7", Shell: true}, stdout: "out\n", stderr: "err\n", code: 7},
		{name: "shell arguments", req: wire.Exec{Cmd: `echo "$1-$2"`, Args: []string{"x", "y z"}, Shell: true}, stdout: "x-y z\n"},
		{name: "environment", req: wire.Exec{Cmd: "echo $FOO $HOME", Env: map[string]string{"FOO": "bar"}, Shell: true}, stdout: "bar /root\n"},
		{name: "working directory", req: wire.Exec{Cmd: "pwd", Cwd: dir}, stdout: dir + "\n"},
		{name: "default directory", req: wire.Exec{Cmd: "pwd"}, stdout: "/\n"},
		{name: "stdin", req: wire.Exec{Cmd: "cat"}, stdin: strings.NewReader("hello"), stdout: "hello"},
		{name: "no stdin is empty stdin", req: wire.Exec{Cmd: "cat"}},
		{name: "stdin that nobody reads", req: wire.Exec{Cmd: "true"}, stdin: bytes.NewReader(make([]byte, 1<<20))},
		{name: "not found", req: wire.Exec{Cmd: "no-such-program"}, stderr: "poolmgr-guest: exec: \"no-such-program\": executable file not found in $PATH\n", code: 127},
		{name: "never from the working directory", req: wire.Exec{Cmd: "agent_test.go", Cwd: mustGetwd(t)}, stderr: "poolmgr-guest: exec: \"agent_test.go\": executable file not found in $PATH\n", code: 127},
		{name: "not executable", req: wire.Exec{Cmd: "/etc/passwd"}, stderr: "poolmgr-guest: fork/exec /etc/passwd: permission denied\n", code: 127},
		{name: "no such directory", req: wire.Exec{Cmd: "true", Cwd: "/no/such"}, stderr: "poolmgr-guest: working directory: stat /no/such: no such file or directory\n", code: 126},
		{name: "no such user", req: wire.Exec{Cmd: "true", User: "nobody-here"}, stderr: "poolmgr-guest: user \"nobody-here\" does not exist\n", code: 126},
		{name: "killed by a signal", req: wire.Exec{Cmd: "kill -9 $$", Shell: true}, code: 137},
		{name: "terminated by a signal", req: wire.Exec{Cmd: "kill $$", Shell: true}, code: 143},
	} {
		t.Run(tc.name, func(t *testing.T) {
			stdout, stderr, code, err := run(limited(t), c, tc.req, tc.stdin)
			if err != nil || stdout != tc.stdout || stderr != tc.stderr || code != tc.code {
				t.Errorf("stdout %q stderr %q code %d error %v; want %q %q %d", stdout, stderr, code, err, tc.stdout, tc.stderr, tc.code)
			}
		})
	}
}

func mustGetwd(t *testing.T) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestExecCarriesLargeStreamsWhole(t *testing.T) {
	c := newClient(t, startAgent(t, false, nil))
	want := bytes.Repeat([]byte("\x10\x00\x01abc\x10"), 1<<20)
	stdout, _, code, err := run(limited(t), c, wire.Exec{Cmd: "cat"}, bytes.NewReader(want))
	if err != nil || code != 0 || stdout != string(want) {
		t.Errorf("%d bytes of %d, code %d, %v", len(stdout), len(want), code, err)
	}
}

// A command that ends while its output is unread, and that leaves a child
// which holds the pipes, has delivered everything it wrote.
func TestExecDoesNotWaitForBackgroundChildren(t *testing.T) {
	c := newClient(t, startAgent(t, false, nil))
	script := `sleep 1000 & echo $!; head -c 60000 /dev/zero`
	stdout, _, code, err := run(limited(t), c, wire.Exec{Cmd: script, Shell: true}, nil)
	first, rest, _ := strings.Cut(stdout, "\n")
	pid, convErr := strconv.Atoi(first)
	if convErr != nil {
		t.Fatalf("no pid in %q", first)
	}
	defer syscall.Kill(pid, syscall.SIGKILL)
	if err != nil || code != 0 || len(rest) != 60000 {
		t.Errorf("code %d, %d bytes, %v", code, len(rest), err)
	}
	if err := syscall.Kill(pid, 0); err != nil {
		t.Errorf("the child in the background is gone: %v", err)
	}
}

func TestExecTimeoutKillsTheGroup(t *testing.T) {
	c := newClient(t, startAgent(t, false, nil))
	script := `sleep 1000 & echo $!; wait`
	stdout, _, _, err := run(limited(t), c, wire.Exec{Cmd: script, Shell: true, TimeoutSec: 0.3}, nil)
	if !errors.Is(err, client.ErrTimeout) {
		t.Fatalf("got %v, want ErrTimeout", err)
	}
	waitGone(t, stdout)
}

// waitGone waits until the process whose number is in text has died.
func waitGone(t *testing.T, text string) {
	t.Helper()
	pid, err := strconv.Atoi(strings.TrimSpace(text))
	if err != nil {
		t.Fatalf("no pid in %q", text)
	}
	fd, err := openPid(pid)
	if err != nil {
		return // gone
	}
	defer fd.Close()
	if err := fd.wait(testLimit); err != nil {
		t.Errorf("process %d lives on: %v", pid, err)
	}
}

func TestCancelKillsACommandThatNobodyReads(t *testing.T) {
	c := newClient(t, startAgent(t, false, nil))
	ctx, cancel := context.WithCancel(limited(t))
	pids := make(chan string, 1)
	stdin, stdinWriter := io.Pipe()
	defer stdinWriter.Close()
	first := true
	stdout := writerFunc(func(p []byte) (int, error) {
		if first {
			first = false
			line, _, _ := strings.Cut(string(p), "\n")
			pids <- line
			return len(p), nil
		}
		<-ctx.Done() // as a caller whose own client does not read
		return 0, ctx.Err()
	})
	result := make(chan error, 1)
	go func() {
		// It writes for ever and never reads its input.
		_, err := c.Exec(ctx, wire.Exec{Cmd: `echo $$; sleep 0.05; exec cat /dev/zero`, Shell: true},
			client.Streams{Stdin: stdin, Stdout: stdout})
		result <- err
	}()
	pid := <-pids
	cancel()
	if err := <-result; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want context.Canceled", err)
	}
	waitGone(t, pid)
	if err := c.Ping(limited(t)); err != nil {
		t.Errorf("the session is gone too: %v", err)
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

func TestPingAnswersBesideAStreamThatNobodyReads(t *testing.T) {
	c := newClient(t, startAgent(t, false, nil))
	ctx, cancel := context.WithCancel(limited(t))
	started := make(chan struct{})
	var once sync.Once
	blocked := writerFunc(func(p []byte) (int, error) {
		once.Do(func() { close(started) })
		<-ctx.Done()
		return 0, ctx.Err()
	})
	var done sync.WaitGroup
	done.Go(func() {
		c.Exec(ctx, wire.Exec{Cmd: "cat", Args: []string{"/dev/zero"}}, client.Streams{Stdout: blocked})
	})
	<-started
	for range 20 {
		if err := c.Ping(limited(t)); err != nil {
			t.Fatal(err)
		}
	}
	cancel()
	done.Wait()
}

func TestCommandsDieWithTheSession(t *testing.T) {
	for _, missEnds := range []bool{false, true} {
		t.Run(fmt.Sprintf("missEnds=%v", missEnds), func(t *testing.T) {
			dial := startAgent(t, missEnds, nil)
			c := newClient(t, dial)
			pids := make(chan string, 1)
			result := make(chan error, 1)
			go func() {
				_, err := c.Exec(limited(t), wire.Exec{Cmd: `echo $$; exec sleep 1000`, Shell: true},
					client.Streams{Stdout: writerFunc(func(p []byte) (int, error) { pids <- string(p); return len(p), nil })})
				result <- err
			}()
			pid := <-pids
			c.Close()
			if err := <-result; !errors.Is(err, client.ErrUnreachable) {
				t.Errorf("got %v, want ErrUnreachable", err)
			}
			if missEnds { // then the next host's reset tells the guest
				if err := newClient(t, dial).Ping(limited(t)); err != nil {
					t.Fatal(err)
				}
			}
			waitGone(t, pid)
		})
	}
}

func TestTooManyCommandsAreRefused(t *testing.T) {
	c := newClient(t, startAgent(t, false, nil))
	ctx, cancel := context.WithCancel(limited(t))
	var running, done sync.WaitGroup
	for range 64 {
		running.Add(1)
		done.Go(func() {
			c.Exec(ctx, wire.Exec{Cmd: `echo; exec sleep 1000`, Shell: true},
				client.Streams{Stdout: writerFunc(func(p []byte) (int, error) { running.Done(); return len(p), nil })})
		})
	}
	running.Wait()
	_, _, _, err := run(ctx, c, wire.Exec{Cmd: "true"}, nil)
	var failure *wire.Failure
	if !errors.As(err, &failure) || failure.Code != wire.FailureBusy {
		t.Errorf("got %v, want a failure that says busy", err)
	}
	cancel()
	done.Wait()
}

func TestConfigureAndInfo(t *testing.T) {
	var got wire.Configure
	fail := errors.New("no clock")
	dial := startAgent(t, false, func(c wire.Configure) error {
		got = c
		if c.UnixNano < 0 {
			return fail
		}
		return nil
	})
	c := newClient(t, dial)
	want := wire.Configure{Hostname: "vm-1", Metadata: map[string][]byte{"k": {0, 255}}}
	if err := c.Configure(limited(t), want); err != nil || got.Hostname != "vm-1" || !bytes.Equal(got.Metadata["k"], []byte{0, 255}) {
		t.Errorf("configured %+v, %v", got, err)
	}
	err := c.Configure(limited(t), wire.Configure{UnixNano: -1})
	if err == nil || !strings.Contains(err.Error(), "no clock") {
		t.Errorf("got %v, want the guest's reason", err)
	}
	info, err := c.Info(limited(t))
	if err != nil || info.BootID != "boot-1" {
		t.Errorf("info %+v, %v", info, err)
	}
}
