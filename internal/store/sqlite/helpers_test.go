package sqlite

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"poolmgr/api/flintlock/vmtypes"
	"poolmgr/internal/pool"
	"poolmgr/internal/store"
	"poolmgr/internal/store/engine"
)

// start is the instant at which tests begin.
var start = time.Date(2026, 3, 4, 5, 6, 7, 89, time.UTC)

// web is the pool of most tests.
var web = pool.Key{Namespace: "default", Name: "web"}

// newPath is a path for a database in a directory of the test.
func newPath(t testing.TB) string { return filepath.Join(t.TempDir(), "poolmgr.db") }

// newDatabase is the path of a database without rows. It is a copy of one that was made once, since making each anew
// takes longer than most tests.
func newDatabase(t testing.TB) string {
	t.Helper()
	emptyDatabase.Do(func() {
		path := newPath(t)
		l, err := openLog(context.Background(), path, slog.New(slog.DiscardHandler))
		if err == nil {
			err = l.Close()
		}
		if err == nil {
			emptyContent, err = os.ReadFile(path)
		}
		if err != nil {
			t.Fatalf("make the empty database: %v", err)
		}
	})
	path := newPath(t)
	if err := os.WriteFile(path, emptyContent, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

var (
	emptyDatabase sync.Once
	emptyContent  []byte
)

// openTestLog opens a log that the test closes at its end, unless it did before.
func openTestLog(t testing.TB, path string) *sqlLog {
	t.Helper()
	l, err := openLog(t.Context(), path, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	t.Cleanup(func() { _ = l.Close() }) // closing twice is the test's own doing
	return l
}

// loadLog opens, loads and closes.
func loadLog(t testing.TB, path string) engine.State {
	t.Helper()
	l := openTestLog(t, path)
	state, err := l.Load(t.Context())
	if err != nil {
		t.Fatalf("load: %v", err)
	}
	if err := l.Close(); err != nil {
		t.Fatalf("close: %v", err)
	}
	return state
}

func commit(t testing.TB, l *sqlLog, c engine.Changes) {
	t.Helper()
	if err := l.Commit(t.Context(), c); err != nil {
		t.Fatalf("commit: %v", err)
	}
}

// openStore opens a store that is closed at the end of the test.
func openStore(t testing.TB, path string) store.Store {
	t.Helper()
	s, err := Open(t.Context(), path, Options{})
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	t.Cleanup(func() { _ = s.Close() }) // closing twice does nothing
	return s
}

func inserted[R any, K comparable](key K, row R) engine.Change[R, K] {
	return engine.Change[R, K]{Key: key, After: &row}
}

// webPool is a row of the pool web.
func webPool() pool.Pool {
	return pool.Pool{Spec: webSpec(4), Generation: 1, Revision: 1, TemplateHash: "v1:a", CreatedAt: start, UpdatedAt: start, Version: 1}
}

// webSpec is a spec of the pool web.
func webSpec(size int) pool.Spec {
	return pool.Spec{Key: web, Size: size, Template: template("base")}.WithDefaults()
}

// template is a template that the label tells from others.
func template(label string) *vmtypes.MicroVMSpec {
	return &vmtypes.MicroVMSpec{Vcpu: 1, MemoryInMb: 128, Labels: map[string]string{"template": label}}
}

// warmVM is a row of an available VM of web.
func warmVM(n int) pool.VM {
	return pool.VM{
		ID: fmt.Sprintf("web-%08x", n), Pool: web, Slot: fmt.Sprintf("s%d", n), Phase: pool.Available, UID: fmt.Sprintf("uid-%d", n),
		Revision: 1, TemplateHash: "v1:a", CreatedAt: start, AvailableAt: start, UpdatedAt: start, Health: pool.HealthGood, Version: 1,
	}
}

// fill makes a store with one host and a pool of n available VMs, through the verbs.
func fill(t testing.TB, s store.Store, n int) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	if _, err := s.AddHost(ctx, pool.Host{Name: "host-a", Address: "127.0.0.1:9090", Reachable: true}, start); err != nil {
		t.Fatalf("add the host: %v", err)
	}
	if _, err := s.CreatePool(ctx, store.CreatePool{Spec: webSpec(n), Now: start}); err != nil {
		t.Fatalf("create the pool: %v", err)
	}
	for from := 0; from < n; from += store.MaxActions {
		var ids []string
		for i := from; i < min(n, from+store.MaxActions); i++ {
			ids = append(ids, fmt.Sprintf("web-%08x", i))
		}
		applied(t, s, store.Grow{IDs: ids, Revision: 1, MaxSlots: n})
		stage(t, s, ids, func(v pool.VM) store.Action {
			return store.Place{VM: v.ID, Version: v.Version, Host: "host-a", MaxStarts: 1 << 20}
		})
		stage(t, s, ids, func(v pool.VM) store.Action {
			return store.Accepted{VM: v.ID, Version: v.Version, UID: "uid-" + v.ID}
		})
		stage(t, s, ids, func(v pool.VM) store.Action {
			return store.Booted{VM: v.ID, Version: v.Version, Interfaces: map[string]pool.Interface{"eth1": {HostDevice: "tap0", Index: 3, MAC: "02:00:00:00:00:01"}}}
		})
	}
}

// stage applies one action to each of the VMs.
func stage(t testing.TB, s store.Store, ids []string, action func(pool.VM) store.Action) {
	t.Helper()
	var actions []store.Action
	for _, id := range ids {
		vm, err := s.GetVM(t.Context(), id)
		if err != nil {
			t.Fatalf("get %s: %v", id, err)
		}
		actions = append(actions, action(vm))
	}
	applied(t, s, actions...)
}

// applied carries out actions of the pool web, all of which must succeed.
func applied(t testing.TB, s store.Store, actions ...store.Action) {
	t.Helper()
	results, err := s.Apply(t.Context(), store.Step{Pool: web, Epoch: s.Epoch(), Now: start, Actions: actions})
	if err != nil {
		t.Fatalf("apply: %v", err)
	}
	for i, err := range results {
		if err != nil {
			t.Fatalf("apply %T: %v", actions[i], err)
		}
	}
}

// sameMessages compares protobuf messages with cmp.
func sameMessages(a, b proto.Message) bool { return proto.Equal(a, b) }

// changesOf is a commit of events alone.
func changesOf(events ...pool.Event) engine.Changes { return engine.Changes{Events: events} }
