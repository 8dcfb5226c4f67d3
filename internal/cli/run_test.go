package cli

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

func timestamp(year int, month time.Month, day int) *timestamppb.Timestamp {
	return timestamppb.New(time.Date(year, month, day, 12, 0, 0, 0, time.UTC))
}

func noEnv(string) string { return "" }

// ctl runs the program in this process.
func ctl(ctx context.Context, s streams, addr string, args ...string) (code int, out, errs string) {
	var stdout, stderr bytes.Buffer
	s.out, s.err = &stdout, &stderr
	if s.in == nil {
		s.in = strings.NewReader("")
	}
	code = run(ctx, s, noEnv, Build{}, append([]string{"--addr", addr}, args...))
	return code, stdout.String(), stderr.String()
}

// A signal ends the command, and the VM is given back before the program ends.
func TestLeaseRunGivesBackAfterASignal(t *testing.T) {
	f := newFake()
	addr, stop := f.serve(t)
	defer stop()
	in, keep := io.Pipe() // an input that never ends
	defer keep.Close()
	for i, number := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
		ctx, cancel := context.WithCancelCause(t.Context())
		go func() {
			<-f.guest.started
			cancel(interrupted{number})
		}()
		code, _, errs := ctl(ctx, streams{in: in}, addr, "lease", "run", "web", "--request-id", "r", "--", "hang")
		if code != 128+int(number) || !strings.Contains(errs, "poolmgrctl: CANCELLED: stopped by signal: ") {
			t.Errorf("exit code %d, stderr %q; want %d and the reason", code, errs, 128+int(number))
		}
		f.mu.Lock()
		if len(f.leases) != 0 || len(f.released) != i+1 {
			t.Errorf("%d leases left after %d releases, want none", len(f.leases), len(f.released))
		}
		f.mu.Unlock()
	}
}

// A lease that ends while its command runs is a failure, and there is nothing to give back.
func TestLeaseRunTellsOfALostLease(t *testing.T) {
	f := newFake()
	f.pools[0].Spec.HeartbeatInterval = durationpb.New(100 * time.Millisecond)
	addr, stop := f.serve(t)
	defer stop()
	go func() {
		<-f.guest.started
		f.mu.Lock()
		clear(f.leases)
		f.mu.Unlock()
	}()
	code, _, errs := ctl(t.Context(), streams{}, addr, "lease", "run", "web", "--", "hang")
	if code != exitFailed || !strings.Contains(errs, "ABORTED: the lease has ended") {
		t.Errorf("exit code %d, stderr %q; want 1 and the reason", code, errs)
	}
}

// Tailing events has no other end than a signal, which is therefore no failure.
func TestEventsTailEndsBySignal(t *testing.T) {
	f := newFake()
	addr, stop := f.serve(t)
	defer stop()
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	out := &watcher{until: "POOL_REPLENISHING", then: func() { cancel(interrupted{syscall.SIGTERM}) }}
	code := run(ctx, streams{out: out, err: io.Discard}, noEnv, Build{}, []string{"--addr", addr, "events", "tail"})
	if code != exitOK {
		t.Errorf("exit code %d, want 0", code)
	}
}

// watcher calls then when a text has been written to it.
type watcher struct {
	until string
	then  func()
}

func (w *watcher) Write(p []byte) (int, error) {
	if strings.Contains(string(p), w.until) {
		w.then()
	}
	return len(p), nil
}

func TestFirstSignalEndsTheContext(t *testing.T) {
	ctx, stop := untilSignal(t.Context())
	defer stop()
	self, err := os.FindProcess(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	if err := self.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	<-ctx.Done()
	var got interrupted
	if !errors.As(context.Cause(ctx), &got) || got.signal != syscall.SIGTERM {
		t.Errorf("cause %v, want SIGTERM", context.Cause(ctx))
	}
}

// On a terminal, one line is drawn over and taken away in the end; hints tell what to do next.
func TestTerminal(t *testing.T) {
	f := newFake()
	addr, stop := f.serve(t)
	defer stop()
	_, out, errs := ctl(t.Context(), streams{terminal: true}, addr, "pool", "wait", "filling", "--available", "2")
	if strings.Contains(errs, "\n") || !strings.HasPrefix(errs, "\r\x1b[K0 of 2 available, 2 provisioning (0s)") || !strings.HasSuffix(errs, "\r\x1b[K") {
		t.Errorf("stderr %q, want one line that changes and goes", errs)
	}
	if strings.Contains(out, "\x1b") {
		t.Errorf("stdout %q holds control characters", out)
	}
	_, _, errs = ctl(t.Context(), streams{terminal: true}, addr, "-n", "team", "pool", "create", "--spec-file", "../../examples/quickstart/pool.yaml")
	if want := "poolmgrctl -n team pool wait quickstart --available 2"; !strings.Contains(errs, want) {
		t.Errorf("stderr %q, want %q", errs, want)
	}
	_, _, errs = ctl(t.Context(), streams{terminal: true}, addr, "-n", "team", "pool", "update", "--spec-file", "../../examples/quickstart/pool-v2.yaml")
	if want := "poolmgrctl -n team rollout status quickstart --wait"; !strings.Contains(errs, want) {
		t.Errorf("stderr %q, want %q", errs, want)
	}
}

func TestLongLinesAreCutOnATerminal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var buf bytes.Buffer
		p := &progress{w: &buf, live: true, begin: time.Now()}
		time.Sleep(61 * time.Second)
		p.say("short\nand safe\x1b[31m")
		p.say(strings.Repeat("é", 200))
		want := "\r\x1b[Kshort and safe\uFFFD[31m (61s)\r\x1b[K" + strings.Repeat("é", liveWidth-1) + "…"
		if buf.String() != want {
			t.Errorf("got %q, want %q", buf.String(), want)
		}
	})
}

// The token may come from the environment, where other users do not see it.
func TestTokenFromTheEnvironment(t *testing.T) {
	f := newFake()
	addr, stop := f.serve(t)
	defer stop()
	env := func(name string) string {
		return map[string]string{"POOLMGR_TOKEN": "s3cret", "POOLMGR_ADDR": addr}[name]
	}
	var out, errs bytes.Buffer
	s := streams{in: strings.NewReader(""), out: &out, err: &errs}
	if code := run(t.Context(), s, env, Build{}, []string{"pool", "get", "web"}); code != exitOK || f.token != "Bearer s3cret" {
		t.Errorf("exit code %d, token %q, stderr %q", code, f.token, errs.String())
	}
	if run(t.Context(), s, env, Build{}, []string{"--help"}); strings.Contains(out.String(), "s3cret") {
		t.Error("--help prints the token")
	}
}

func TestShort(t *testing.T) {
	for d, want := range map[time.Duration]string{
		-time.Second: "0s", 119 * time.Second: "119s", 2 * time.Minute: "2m", 119 * time.Minute: "119m", 2 * time.Hour: "2h",
		47 * time.Hour: "47h", 48 * time.Hour: "2d",
	} {
		if got := short(d); got != want {
			t.Errorf("%v: %q, want %q", d, got, want)
		}
	}
}
