package e2e

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// The limits of waits. A guest under emulation on a loaded machine takes its time; nothing is asserted about it.
const (
	startLimit = 3 * time.Minute // the first start with the qemu backend builds the image
	stopLimit  = time.Minute
	callLimit  = 5 * time.Minute
)

// daemon is a running poolmgrd or microvmd.
type daemon struct {
	t    *testing.T
	name string
	args []string

	cmd   *exec.Cmd
	ended chan struct{}
	addr  string // gRPC
	http  string
	log   *logBuffer
}

// logBuffer keeps a process's log, for the report of a failing test.
type logBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// startPoolmgrd starts the daemon on free ports and waits until it serves.
func startPoolmgrd(t *testing.T, args ...string) *daemon {
	t.Helper()
	d := &daemon{t: t, name: "poolmgrd", args: append([]string{
		"--listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0", "--log-format", "json",
	}, args...), log: &logBuffer{}}
	d.start()
	t.Cleanup(d.cleanup)
	return d
}

// startMicrovmd starts a host daemon on a free port and waits until it serves.
func startMicrovmd(t *testing.T, args ...string) *daemon {
	t.Helper()
	d := &daemon{t: t, name: "microvmd", args: append([]string{"--listen", "127.0.0.1:0"}, args...), log: &logBuffer{}}
	d.start()
	t.Cleanup(d.cleanup)
	return d
}

func (d *daemon) start() {
	d.t.Helper()
	d.cmd = exec.Command(filepath.Join(bin, d.name), d.args...)
	out, in := io.Pipe()
	d.cmd.Stderr = io.MultiWriter(d.log, in)
	if err := d.cmd.Start(); err != nil {
		d.t.Fatal(err)
	}
	d.ended = make(chan struct{})
	go func() {
		_ = d.cmd.Wait()
		_ = in.Close()
		close(d.ended)
	}()
	serving := make(chan bool, 1)
	go d.follow(out, serving)
	select {
	case ok := <-serving:
		if !ok {
			d.t.Fatalf("%s did not start:\n%s", d.name, d.log)
		}
	case <-time.After(startLimit):
		d.t.Fatalf("%s does not serve after %s:\n%s", d.name, startLimit, d.log)
	}
}

// follow reads the log until the daemon says where it serves, and then drains it.
func (d *daemon) follow(out io.Reader, serving chan<- bool) {
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		if d.serves(lines.Bytes()) {
			serving <- true
			_, _ = io.Copy(io.Discard, out)
			return
		}
	}
	serving <- false
}

// microvmdServes is the line with which microvmd tells its address.
var microvmdServes = regexp.MustCompile(`msg="microvmd serves" addr=(\S+)`)

// serves reads the addresses from the line of the log that tells them.
func (d *daemon) serves(line []byte) bool {
	var told struct{ Msg, GRPC, HTTP string }
	if json.Unmarshal(line, &told) == nil && told.Msg == "serving" {
		d.addr, d.http = told.GRPC, told.HTTP
		return true
	}
	if m := microvmdServes.FindSubmatch(line); m != nil {
		d.addr = string(m[1])
		return true
	}
	return false
}

// kill ends the daemon with SIGKILL, as a power cut would, and waits until it is gone.
func (d *daemon) kill() {
	d.t.Helper()
	_ = d.cmd.Process.Kill()
	<-d.ended
}

// restart kills the daemon and starts it again on the same files. With port 0 it gets other ports.
func (d *daemon) restart() {
	d.t.Helper()
	d.kill()
	d.start()
}

// stop ends the daemon with SIGTERM and expects exit code 0.
func (d *daemon) stop() {
	d.t.Helper()
	_ = d.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-d.ended:
	case <-time.After(stopLimit):
		_ = d.cmd.Process.Kill()
		d.t.Fatalf("%s did not stop within %s:\n%s", d.name, stopLimit, d.log)
	}
	if code := d.cmd.ProcessState.ExitCode(); code != 0 {
		d.t.Errorf("%s exited with %d after SIGTERM:\n%s", d.name, code, d.log)
	}
}

func (d *daemon) cleanup() {
	if d.t.Failed() {
		d.t.Logf("log of %s:\n%s", d.name, lastLines(d.log.String(), 120))
	}
	select {
	case <-d.ended:
	default:
		d.stop()
	}
	if strings.Contains(d.log.String(), "DATA RACE") {
		d.t.Errorf("%s: data race:\n%s", d.name, d.log)
	}
}

func lastLines(s string, n int) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

// get reads a page of the HTTP port.
func (d *daemon) get(path string) (int, string) {
	d.t.Helper()
	req, err := http.NewRequestWithContext(d.t.Context(), http.MethodGet, "http://"+d.http+path, nil)
	if err != nil {
		d.t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		d.t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		d.t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

// result is the outcome of a command.
type result struct {
	stdout, stderr string
	code           int
}

func (r result) String() string {
	return fmt.Sprintf("exit %d\nstdout:\n%s\nstderr:\n%s", r.code, r.stdout, r.stderr)
}

// run runs a binary to its end, whatever its exit code.
func run(t *testing.T, name string, env []string, args ...string) result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), callLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(bin, name), args...)
	cmd.Env = append(os.Environ(), env...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatalf("%s %s: %v", name, strings.Join(args, " "), err)
	}
	return result{stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()}
}

// ctl runs poolmgrctl against the daemon, whatever its exit code.
func (d *daemon) ctl(args ...string) result {
	d.t.Helper()
	return run(d.t, "poolmgrctl", []string{"POOLMGR_ADDR=" + d.addr}, args...)
}

// ok runs poolmgrctl and expects success; it returns what was printed.
func (d *daemon) ok(args ...string) string {
	d.t.Helper()
	r := d.ctl(args...)
	if r.code != 0 {
		d.t.Fatalf("poolmgrctl %s: %s", strings.Join(args, " "), r)
	}
	return r.stdout
}

// refused runs poolmgrctl and expects exit code 1 with an error of this code that holds every one of the texts.
func (d *daemon) refused(code string, texts []string, args ...string) {
	d.t.Helper()
	r := d.ctl(args...)
	if r.code != 1 || !strings.Contains(r.stderr, "poolmgrctl: "+code+": ") {
		d.t.Errorf("poolmgrctl %s: want %s, got %s", strings.Join(args, " "), code, r)
	}
	for _, text := range texts {
		if !strings.Contains(r.stderr, text) {
			d.t.Errorf("poolmgrctl %s: the error does not tell %q: %s", strings.Join(args, " "), text, r)
		}
	}
}

// eventually asks until cond holds.
func eventually(t *testing.T, what string, limit time.Duration, cond func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for !cond() {
		select {
		case <-ctx.Done():
			t.Fatalf("not within %s: %s", limit, what)
		case <-tick.C:
		}
	}
}
