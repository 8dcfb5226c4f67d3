package sqlite

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"poolmgr/internal/pool"
	"poolmgr/internal/store"
	"poolmgr/internal/store/storetest"
)

// childDatabase makes the test binary a daemon's stand-in that claims until it is killed.
const childDatabase = "POOLMGR_TEST_CHILD_DATABASE"

func TestMain(m *testing.M) {
	if path := os.Getenv(childDatabase); path != "" {
		fmt.Fprintln(os.Stdout, "failed:", claimForEver(path))
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// claimForEver claims and releases with several callers at once, and tells what was acknowledged.
func claimForEver(path string) error {
	ctx := context.Background()
	s, err := Open(ctx, path, Options{})
	if err != nil {
		return err
	}
	failed := make(chan error, 8)
	var tell sync.Mutex
	say := func(what, lease string) {
		tell.Lock()
		defer tell.Unlock()
		fmt.Fprintln(os.Stdout, what, lease)
	}
	for caller := range cap(failed) {
		go func() {
			for i := 0; ; i++ {
				lease := fmt.Sprintf("lease-%d-%d-%d", s.Epoch(), caller, i)
				if _, err := s.Claim(ctx, store.Claim{Pool: web, LeaseID: lease, Now: start}); err != nil {
					failed <- err
					return
				}
				say("claimed", lease)
				if i%3 == 0 {
					say("releasing", lease)
					if err := s.Release(ctx, lease, "", start); err != nil {
						failed <- err
						return
					}
					say("released", lease)
				}
			}
		}()
	}
	return <-failed
}

// TestKilledDaemonLosesNothing (F1, F2): whatever was acknowledged before a SIGKILL is there afterwards.
func TestKilledDaemonLosesNothing(t *testing.T) {
	const vms = 800
	path := newDatabase(t)
	s := openStore(t, path)
	fill(t, s, vms)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	told := map[string]string{} // by lease: the last that was told of it
	for _, lines := range []int{1, 40, 113, 250} {
		killedChild(t, path, lines, told)
		s := openStore(t, path)
		leases, err := s.ListLeases(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		alive := map[string]bool{}
		for _, l := range leases {
			alive[l.Lease.ID] = true
		}
		for lease, what := range told {
			switch {
			case what == "claimed" && !alive[lease]:
				t.Errorf("%s was acknowledged and is gone", lease)
			case what == "released" && alive[lease]:
				t.Errorf("the release of %s was acknowledged and is undone", lease)
			}
		}
		if unknown := len(alive) - len(told); unknown > 8 {
			t.Errorf("%d leases nobody was told of, from 8 callers", unknown)
		}
		storetest.Check(t, s)
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%d leases were acknowledged by daemons that were killed", len(told))
}

// killedChild runs a child, kills it once it has told that many lines, and collects all that it told.
func killedChild(t *testing.T, path string, lines int, told map[string]string) {
	t.Helper()
	child := exec.CommandContext(t.Context(), os.Args[0])
	child.Env = append(os.Environ(), childDatabase+"="+path)
	child.Stderr = os.Stderr
	out, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	n := 0
	for scanner := bufio.NewScanner(out); scanner.Scan(); n++ {
		what, lease, _ := strings.Cut(scanner.Text(), " ")
		if what == "failed:" {
			t.Errorf("the child: %s", scanner.Text())
		}
		told[lease] = what
		if n == lines {
			if err := child.Process.Kill(); err != nil {
				t.Errorf("kill the child: %v", err)
			}
		}
	}
	var exit *exec.ExitError
	if err := child.Wait(); !errors.As(err, &exit) || n <= lines {
		t.Fatalf("the child ended by itself after %d lines: %v", n, err)
	}
}

// TestTornLogKeepsWholeCommits: when the end of the WAL did not reach the disk, wherever it ends, what is left is
// every commit that reached it whole, in order, and nothing of the next.
func TestTornLogKeepsWholeCommits(t *testing.T) {
	const claims = 5
	path := newDatabase(t)
	s := openStore(t, path)
	fill(t, s, claims)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = openStore(t, path)
	var ends []int64 // of each claim's commit in the WAL
	for i := range claims {
		if _, err := s.Claim(t.Context(), store.Claim{Pool: web, LeaseID: fmt.Sprintf("lease-%02d", i), Now: start}); err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(path + "-wal")
		if err != nil {
			t.Fatal(err)
		}
		ends = append(ends, info.Size())
	}
	file, wal := read(t, path), read(t, path+"-wal")
	if int64(len(wal)) != ends[claims-1] {
		t.Fatalf("the WAL has %d bytes, want %d", len(wal), ends[claims-1])
	}
	for whole, end := range ends[:claims-1] {
		next := ends[whole+1]
		for name, torn := range map[string][]byte{
			"ends there":        wal[:end],
			"ends in a header":  wal[:end+11],
			"lacks one byte":    wal[:next-1],
			"ends in a page":    wal[:(end+next)/2],
			"ends with a hole":  append(append([]byte{}, wal[:next-64]...), make([]byte, 64)...),
			"has lost a middle": append(append(append([]byte{}, wal[:end]...), make([]byte, 512)...), wal[end+512:]...),
		} {
			copied := newPath(t)
			write(t, copied, file)
			write(t, copied+"-wal", torn)
			again := openStore(t, copied)
			leases, err := again.ListLeases(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			if len(leases) != whole+1 || leases[whole].Lease.ID != fmt.Sprintf("lease-%02d", whole) {
				t.Errorf("a WAL that %s after claim %d leaves %d leases, want the first %d", name, whole, len(leases), whole+1)
			}
			storetest.Check(t, again)
			if err := again.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return content
}

func write(t *testing.T, path string, content []byte) {
	t.Helper()
	if err := os.WriteFile(filepath.Clean(path), content, 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestIdleCheckpoint: many commits plan a checkpoint for the first idle moment, and what runs then copies the WAL into
// the database.
func TestIdleCheckpoint(t *testing.T) {
	path := newDatabase(t)
	l := openTestLog(t, path)
	for id := range int64(idleCommits) {
		if l.idle.timer != nil {
			t.Fatalf("a checkpoint is planned after %d commits", id)
		}
		commit(t, l, changesOf(pool.Event{ID: id + 1, Pool: web, Type: pool.EventVMAvailable, At: start}))
	}
	if l.idle.timer == nil {
		t.Fatal("no checkpoint is planned")
	}
	l.idle.run()
	copied := newPath(t)
	write(t, copied, read(t, path)) // without the WAL
	if state := loadLog(t, copied); state.LastEvent != idleCommits {
		t.Errorf("the database without its WAL ends at event %d, want %d", state.LastEvent, idleCommits)
	}
}
