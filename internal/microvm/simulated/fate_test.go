package simulated

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"poolmgr/internal/microvm"
)

// lives tells what becomes of machines with these ids on a fresh host: by id,
// what can be seen of them at some instants.
func lives(t *testing.T, cfg Config, ids []string) map[string]string {
	t.Helper()
	seen := map[string]string{}
	synctest.Test(t, func(t *testing.T) {
		b := open(t, cfg)
		uids := map[string]string{}
		for _, id := range ids {
			vm, err := b.Create(t.Context(), spec(id))
			if err != nil {
				seen[id] += " " + strings.TrimPrefix(err.Error(), "create simulated microvm default/"+id)
				continue
			}
			uids[id] = vm.GetSpec().GetUid()
		}
		for range 8 {
			time.Sleep(500 * time.Millisecond)
			for id, uid := range uids {
				what := state(t, b, uid)
				if what == "CREATED" {
					if _, _, err := exec(t, b, uid, "true"); err != nil {
						what = "DEAD"
					}
				}
				seen[id] += " " + what
			}
		}
	})
	return seen
}

func TestTheSeedDecidesWhateverTheOrder(t *testing.T) {
	cfg := Config{HostName: "a", Seed: 7, Behaviour: Behaviour{
		BootDelay: time.Second, BootJitter: 2 * time.Second, FailCreate: 0.2, FailBoot: 0.3, LoseReply: 0.2, Vanish: 0.5,
	}}
	var ids []string
	for i := range 60 {
		ids = append(ids, fmt.Sprint("vm-", i))
	}
	first := lives(t, cfg, ids)
	slices.Reverse(ids)
	if diff := cmp.Diff(first, lives(t, cfg, ids)); diff != "" {
		t.Errorf("another order of calls made another history:\n%s", diff)
	}
	for _, what := range []string{"nothing was made", "loss of the reply", "FAILED", "DEAD", "gone", "CREATED"} {
		if !strings.Contains(fmt.Sprint(first), what) {
			t.Errorf("nothing of 60 machines met with %q", what)
		}
	}
	cfg.HostName = "b"
	if cmp.Equal(first, lives(t, cfg, ids)) {
		t.Error("two hosts of one seed fail in step")
	}
	cfg.HostName, cfg.Seed = "a", 8
	if cmp.Equal(first, lives(t, cfg, ids)) {
		t.Error("two seeds give one history")
	}
}

func TestAnotherAttemptIsAnotherDecision(t *testing.T) {
	b := open(t, Config{Seed: 3, Behaviour: Behaviour{FailCreate: 0.9}})
	for attempt := range 200 {
		if _, err := b.Create(t.Context(), spec("vm")); err == nil {
			t.Logf("seed 3: attempt %d succeeded", attempt)
			return
		}
	}
	t.Error("200 attempts failed with a probability of 0.9 each")
}

func TestDiceAreFair(t *testing.T) {
	d := dice{seed: 1, host: "h"}
	const rolls = 20000
	hits := 0
	for i := range rolls {
		if r := d.roll("q", fmt.Sprint("vm-", i), i%3); r < 0 || r >= 1 {
			t.Fatalf("roll %v is outside [0, 1)", r)
		}
		if d.happens(0.3, "question", fmt.Sprint("vm-", i), 0) {
			hits++
		}
	}
	if share := float64(hits) / rolls; share < 0.28 || share > 0.32 {
		t.Errorf("a probability of 0.3 came true in %v of cases", share)
	}
	if d.happens(0, "q", "s", 0) || !d.happens(1, "q", "s", 0) {
		t.Error("never happens, or always does not")
	}
}

func TestAVanishedMachineEndsItsCommands(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		b := open(t, Config{StateDir: dir, Behaviour: Behaviour{Vanish: 1}})
		uid := create(t, b, "vm")
		_, _, err := exec(t, b, uid, "hang")
		if !errors.Is(err, microvm.ErrNotRunning) {
			t.Errorf("exec: %v, want ErrNotRunning", err)
		}
		wantState(t, b, uid, "gone")
		synctest.Wait()
		if left := files(t, dir); len(left) > 0 {
			t.Errorf("files are left: %v", left)
		}
	})
}

func TestWhatEndsACommand(t *testing.T) {
	for _, c := range []struct {
		name    string
		hang    float64 // probability that the host hangs
		line    string
		timeout time.Duration
		end     func(context.CancelFunc, *Backend, string) error
		after   time.Duration // when end is called
		want    error
		wantAt  time.Duration
	}{
		{name: "its timeout", line: "hang", timeout: 3 * time.Second, want: microvm.ErrExecTimeout, wantAt: 3 * time.Second},
		{name: "its timeout while it sleeps", line: "sleep inf", timeout: 3 * time.Second, want: microvm.ErrExecTimeout, wantAt: 3 * time.Second},
		{name: "its timeout while it reads", line: "cat", timeout: 3 * time.Second, want: microvm.ErrExecTimeout, wantAt: 3 * time.Second},
		{
			name: "its caller", line: "hang", after: time.Second, wantAt: time.Second, want: context.Canceled,
			end: func(cancel context.CancelFunc, _ *Backend, _ string) error { cancel(); return nil },
		},
		{
			name: "a deletion", line: "hang", after: time.Second, wantAt: time.Second, want: microvm.ErrNotRunning,
			end: func(_ context.CancelFunc, b *Backend, uid string) error { return b.Delete(context.Background(), uid) },
		},
		{
			name: "the daemon", line: "sleep 5", after: time.Second, wantAt: time.Second, want: microvm.ErrClosed,
			end: func(_ context.CancelFunc, b *Backend, _ string) error { return b.Close() },
		},
		{
			name: "only its caller where the host hangs", hang: 1, line: "true", timeout: time.Second, after: time.Hour, wantAt: time.Hour,
			want: context.Canceled, end: func(cancel context.CancelFunc, _ *Backend, _ string) error { cancel(); return nil },
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := open(t, Config{Behaviour: Behaviour{HangExec: c.hang, DeleteDelay: time.Hour}})
				uid := create(t, b, "vm")
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				if c.end != nil {
					time.AfterFunc(c.after, func() {
						if err := c.end(cancel, b, uid); err != nil {
							t.Error(err)
						}
					})
				}
				start := time.Now()
				stdin, feed := io.Pipe()
				defer feed.Close()
				_, err := b.Exec(ctx, microvm.ExecRequest{UID: uid, Cmd: c.line, Shell: true, Timeout: c.timeout, HasStdin: true},
					microvm.ExecStreams{Stdin: stdin})
				if !errors.Is(err, c.want) || time.Since(start) != c.wantAt {
					t.Errorf("exec ended after %v with %v; want %v with %v", time.Since(start), err, c.wantAt, c.want)
				}
			})
		})
	}
}

func TestGuestCommands(t *testing.T) {
	b := open(t, Config{})
	uid := create(t, b, "vm")
	vm, err := b.Get(t.Context(), uid)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		line           string
		stdin          string
		code           int
		stdout, stderr string
	}{
		{line: "true"},
		{line: "false", code: 1},
		{line: "exit 42", code: 42},
		{line: "exit 256"},
		{line: "exit nonsense", code: 2},
		{line: "false; exit", code: 1},
		{line: "sleep 0.001"},
		{line: "sleep soon", code: 1, stderr: "sleep: invalid number 'soon'\n"},
		{line: "echo hello   world", stdout: "hello world\n"},
		{line: "echo -n hello", stdout: "hello"},
		{line: `echo "two  blanks" 'and $this' a\ b`, stdout: "two  blanks and $this a b\n"},
		{line: "echo a; echo b\necho c", stdout: "a\nb\nc\n"},
		{line: "echo oops >&2", stderr: "oops\n"},
		{line: "echo oops 1>&2; exit 3", code: 3, stderr: "oops\n"},
		{line: "cat /run/poolmgr/metadata/none 2>&1", code: 1, stdout: "cat: can't open '/run/poolmgr/metadata/none': No such file or directory\n"},
		{line: "echo x > /tmp/file; echo y >> /tmp/file"},
		{line: "false && echo no; echo yes", stdout: "yes\n"},
		{line: "false || echo rescued", stdout: "rescued\n"},
		{line: "true && false && echo no", code: 1},
		{line: "echo a | grep b"},
		{line: "(exit 3)"},
		{line: "exit 3 & echo on", stdout: ""},
		{line: "# only a comment"},
		{line: "echo a # the rest", stdout: "a\n"},
		{line: "apt-get install -y nginx"},
		{line: "/bin/echo path", stdout: "path\n"},
		{line: `sh -c "echo inner; exit 5"; echo outer`, stdout: "inner\nouter\n"},
		{line: `sh -c 'exit 5'`, code: 5},
		{line: "cat /proc/cmdline", stdout: "quiet version=1\n"},
		{line: "cat /run/poolmgr/metadata/color", stdout: "blue"},
		{line: "cat /run/poolmgr/metadata/team%2Fname", stdout: "a"},
		{line: "cat /run/poolmgr/labels/tier", stdout: "gold"},
		{line: "cat /run/poolmgr/labels/none", code: 1, stderr: "cat: can't open '/run/poolmgr/labels/none': No such file or directory\n"},
		{line: "cat /etc/hostname"},
		{line: "cat", stdin: "from outside", stdout: "from outside"},
		{line: "cat - /run/poolmgr/labels/tier", stdin: "x", stdout: "xgold"},
		{line: ""},
	} {
		var stdout, stderr bytes.Buffer
		code, err := b.Exec(t.Context(), microvm.ExecRequest{UID: uid, Cmd: c.line, Shell: true, HasStdin: c.stdin != ""},
			microvm.ExecStreams{Stdin: strings.NewReader(c.stdin), Stdout: &stdout, Stderr: &stderr})
		if err != nil || code != c.code || stdout.String() != c.stdout || stderr.String() != c.stderr {
			t.Errorf("%q: code %d, stdout %q, stderr %q, %v; want %d, %q, %q",
				c.line, code, stdout.String(), stderr.String(), err, c.code, c.stdout, c.stderr)
		}
	}
	var out bytes.Buffer
	code, err := b.Exec(t.Context(), microvm.ExecRequest{UID: uid, Cmd: "echo", Args: []string{"a;b", ">&2"}}, microvm.ExecStreams{Stdout: &out})
	if err != nil || code != 0 || out.String() != "a;b >&2\n" {
		t.Errorf("words are not a shell line: code %d, stdout %q, %v", code, out.String(), err)
	}
	_, bootID, err := exec(t, b, uid, "cat /proc/sys/kernel/random/boot_id")
	if err != nil || len(bootID) != 37 {
		t.Errorf("boot id %q of %s, %v", bootID, vm.GetSpec().GetUid(), err)
	}
}

func FuzzScriptsAlwaysEnd(f *testing.F) {
	for _, seed := range []string{"", "echo 'open", `a\`, `"\`, "1>&2>&1>", "a&&&b|||c", "<<EOF", ">", "2>", "#", "\x00\xff;"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, line string) {
		total := 0
		for _, s := range parseScript(line) {
			for _, word := range s.words {
				total += len(word)
			}
		}
		if total > len(line) {
			t.Errorf("%d bytes of words from %d bytes of script %q", total, len(line), line)
		}
	})
}
