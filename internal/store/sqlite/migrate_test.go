package sqlite

import (
	"context"
	"database/sql"
	"flag"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"poolmgr/internal/pool"
	"poolmgr/internal/store"
	"poolmgr/internal/store/engine"
	"poolmgr/internal/store/storetest"
)

// A fixture is the dump of a database as some release wrote it. It is written once, when its schema is new, by
//
//	go test ./internal/store/sqlite -run TestFixtures -write-fixture
//
// and never again: what it shows is that later releases still open it.
var writeFixture = flag.Bool("write-fixture", false, "write the fixture of the present schema, unless there is one")

// schemaVersions are the schemas that a release of poolmgr had. Version 1 is synthetic, as it was before rollouts; 2 is
// on the way to 3 and was never left.
var schemaVersions = []int64{1, 3, 4}

func fixtureName(version int64) string {
	return filepath.Join("testdata", fmt.Sprintf("schema-%04d.sql", version))
}

func TestFixtures(t *testing.T) {
	newest := schemaVersions[len(schemaVersions)-1]
	if want := newestStep(t); newest != want {
		t.Fatalf("the newest schema is version %d, and schemaVersions ends with %d: add it there and write its fixture", want, newest)
	}
	for _, version := range schemaVersions {
		t.Run(fmt.Sprintf("schema %d", version), func(t *testing.T) {
			if *writeFixture {
				newFixture(t, version)
			}
			testFixture(t, version)
		})
	}
}

// testFixture opens a fixture with the present code, twice, and finds everything in it.
func testFixture(t *testing.T, version int64) {
	path := newPath(t)
	text, err := os.ReadFile(fixtureName(version))
	if err != nil {
		t.Fatalf("%v; see writeFixture", err)
	}
	execSQL(t, path, string(text))
	var first engine.State
	for opening := range 2 {
		state := loadLog(t, path)
		if opening == 0 {
			first = state
		} else if diff := cmp.Diff(first, state, compareMessages, cmpopts.IgnoreFields(engine.State{}, "Epoch")); diff != "" {
			t.Errorf("the second opening differs (-first +second):\n%s", diff)
		}
		if want := int64(2 + 2*opening); state.Epoch != want { // 1 in the dump, and a store is opened at the end of each round
			t.Errorf("epoch %d, want %d", state.Epoch, want)
		}
		wantFixture(t, state)
		s := openStore(t, path)
		storetest.Check(t, s)
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// wantFixture checks the content of a fixture.
func wantFixture(t *testing.T, state engine.State) {
	t.Helper()
	if len(state.Pools) != 1 || len(state.Revisions) != 1 || len(state.Hosts) != 2 {
		t.Fatalf("%d pools, %d revisions, %d hosts; want 1, 1, 2", len(state.Pools), len(state.Revisions), len(state.Hosts))
	}
	p, hash := state.Pools[0], pool.TemplateHash(template("fixture"), []string{"true"})
	if diff := cmp.Diff(fixtureSpec(), p.Spec, compareMessages); diff != "" {
		t.Errorf("the spec (-written +read):\n%s", diff)
	}
	if p.TemplateHash != hash || p.Revision != 1 || state.Revisions[0].TemplateHash != hash {
		t.Errorf("revision %d with hash %s, want 1 with %s", p.Revision, p.TemplateHash, hash)
	}
	if !p.Rollout.Proven || p.Rollout.LastCompleted > 1 {
		t.Errorf("the rollout is %+v", p.Rollout)
	}
	phases := map[string]pool.Phase{}
	for _, vm := range state.VMs {
		phases[vm.ID] = vm.Phase
		if vm.Stale(p) {
			t.Errorf("VM %s is stale: the upgrade would replace it", vm.ID)
		}
		if vm.Phase == pool.Leased && vm.Interfaces["eth1"].MAC != "02:00:00:00:00:05" {
			t.Errorf("VM %s has interfaces %v", vm.ID, vm.Interfaces)
		}
	}
	if diff := cmp.Diff(fixturePhases, phases); diff != "" {
		t.Errorf("VMs (-written +read):\n%s", diff)
	}
	leases := map[string]bool{}
	for _, l := range state.Leases {
		leases[l.ID+" "+l.VM+" "+l.RequestID] = l.Pending
	}
	want := map[string]bool{"lease-leased web-00000005 request-1": false, "lease-pending web-00000004 ": true}
	if diff := cmp.Diff(want, leases); diff != "" {
		t.Errorf("leases (-written +read):\n%s", diff)
	}
	if state.FirstEvent != 1 || state.LastEvent < 10 {
		t.Errorf("events %d to %d", state.FirstEvent, state.LastEvent)
	}
}

// fixturePhases are the VMs of a fixture. No VM is FAILED, since nothing writes that phase.
var fixturePhases = map[string]pool.Phase{
	"web-00000001": pool.Provisioning,
	"web-00000002": pool.CreateHookRunning,
	"web-00000003": pool.Available,
	"web-00000004": pool.PreLeaseHookRunning,
	"web-00000005": pool.Leased,
	"web-00000006": pool.Deleting,
	"web-00000007": pool.Quarantined,
	"web-00000008": pool.Provisioning, // successor of 7
}

func fixtureSpec() pool.Spec {
	seven := 7
	return pool.Spec{
		Key: web, Template: template("fixture"), Size: 7, Hosts: []string{"host-a", "host-b"},
		Strategy: pool.MinSizeThreshold, MinSize: 2, CreateCommands: []string{"true"}, PreLeaseCommands: []string{"true"},
		HookFailurePolicy: pool.Quarantine, HeartbeatInterval: 10 * time.Second, HeartbeatExpiry: time.Minute, MaxLeaseDuration: time.Hour,
		ClaimPreference: pool.OldestFirst, MaxVMs: 50, MaxWarmAge: 24 * time.Hour, MaxQuarantined: &seven,
		BootTimeout: time.Minute, CommandTimeout: time.Minute,
	}
}

// newFixture writes the fixture of a schema unless there is one.
func newFixture(t *testing.T, version int64) {
	if _, err := os.Stat(fixtureName(version)); err == nil {
		return
	}
	path := newPath(t)
	s := openStore(t, path)
	fillFixture(t, s)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if version != newestStep(t) {
		path = downgraded(t, path, version)
	}
	if err := os.WriteFile(fixtureName(version), []byte(dump(t, path)), 0o644); err != nil {
		t.Fatal(err)
	}
}

// fillFixture makes the content of a fixture through the verbs.
func fillFixture(t *testing.T, s store.Store) {
	t.Helper()
	ctx := t.Context()
	for _, name := range []string{"host-a", "host-b"} {
		if _, err := s.AddHost(ctx, pool.Host{Name: name, Address: name + ":9090", Reachable: true, MaxVMs: 40}, start); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.CreatePool(ctx, store.CreatePool{Spec: fixtureSpec(), Now: start}); err != nil {
		t.Fatal(err)
	}
	ids := slices.Sorted(func(yield func(string) bool) {
		for id := range fixturePhases {
			if id != "web-00000008" && !yield(id) {
				return
			}
		}
	})
	applied(t, s, store.Grow{IDs: ids, Revision: 1, MaxSlots: 7})
	started := ids[1:]
	stage(t, s, started, func(v pool.VM) store.Action {
		return store.Place{VM: v.ID, Version: v.Version, Host: "host-a", MaxStarts: 20}
	})
	stage(t, s, started, func(v pool.VM) store.Action {
		return store.Accepted{VM: v.ID, Version: v.Version, UID: "uid-" + v.ID}
	})
	stage(t, s, started, func(v pool.VM) store.Action {
		mac := fmt.Sprintf("02:00:00:00:00:%s", v.ID[len(v.ID)-2:])
		return store.Booted{VM: v.ID, Version: v.Version, Interfaces: map[string]pool.Interface{"eth1": {HostDevice: "tap-" + v.ID, Index: 4, MAC: mac}}}
	})
	stage(t, s, ids[6:], func(v pool.VM) store.Action {
		return store.Fail{VM: v.ID, Version: v.Version, Message: "exit code 1", Payload: map[string]any{"exit_code": 1}, Successor: store.Successor{ID: "web-00000008", Revision: 1, Attempt: 1}}
	})
	// Each claim takes the oldest, and VMs become available one after another in the order of their ids.
	for i, id := range []string{"web-00000004", "web-00000005", "web-00000006", "web-00000003"} {
		vm, err := s.GetVM(ctx, id)
		if err != nil {
			t.Fatal(err)
		}
		results, err := s.Apply(ctx, store.Step{Pool: web, Epoch: s.Epoch(), Now: start.Add(time.Duration(i+1) * time.Second), Actions: []store.Action{store.HooksDone{VM: id, Version: vm.Version}}})
		if err != nil || results[0] != nil {
			t.Fatalf("%v, %v", results, err)
		}
	}
	now := start.Add(time.Minute)
	for _, c := range []store.Claim{
		{Pool: web, LeaseID: "lease-pending", Hooks: time.Minute, Consumer: "somebody", Now: now},
		{Pool: web, LeaseID: "lease-leased", RequestID: "request-1", Now: now},
		{Pool: web, LeaseID: "lease-released", Now: now},
	} {
		if _, err := s.Claim(ctx, c); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Release(ctx, "lease-released", "", now); err != nil {
		t.Fatal(err)
	}
}

// downgraded is a copy of a database with the columns that an older schema has.
func downgraded(t *testing.T, from string, version int64) string {
	t.Helper()
	path := newPath(t)
	db, err := openWriter(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	provider, err := newProvider(db, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := provider.UpTo(t.Context(), version); err != nil {
		t.Fatal(err)
	}
	statements := []string{"PRAGMA foreign_keys = 0", "DELETE FROM store", fmt.Sprintf("ATTACH '%s' AS source", from)}
	for _, table := range []string{"store", "hosts", "pools", "vms", "leases", "events"} {
		columns := strings.Join(column(t, db, "SELECT name FROM pragma_table_info('"+table+"')"), ", ")
		statements = append(statements, fmt.Sprintf("INSERT INTO %s SELECT %s FROM source.%s", table, columns, table))
	}
	for _, text := range append(statements, "DETACH source") {
		if _, err := db.ExecContext(t.Context(), text); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
	}
	return path
}

// dump is a database as SQL text.
func dump(t *testing.T, path string) string {
	t.Helper()
	db, err := sql.Open("sqlite", path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	text := "-- A database as a release of poolmgr wrote it. Never changed: later releases must open it.\nBEGIN;\n"
	for _, table := range column(t, db, "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite~_%' ESCAPE '~' ORDER BY rowid") {
		text += strings.Join(column(t, db, "SELECT sql FROM sqlite_schema WHERE name = '"+table+"'"), "") + ";\n"
		var quoted []string
		for _, name := range column(t, db, "SELECT name FROM pragma_table_info('"+table+"')") {
			value := "quote(" + name + ")"
			if table == versionTable && name == "tstamp" {
				value = "quote('2026-03-04 05:06:07')"
			}
			quoted = append(quoted, value)
		}
		for _, row := range column(t, db, "SELECT "+strings.Join(quoted, " || ', ' || ")+" FROM "+table+" ORDER BY rowid") {
			text += "INSERT INTO " + table + " VALUES (" + row + ");\n"
		}
	}
	for _, index := range column(t, db, "SELECT sql FROM sqlite_schema WHERE type = 'index' AND sql IS NOT NULL ORDER BY rowid") {
		text += index + ";\n"
	}
	return text + "COMMIT;\n"
}

// column reads the one column of a query.
func column(t *testing.T, db *sql.DB, query string) []string {
	t.Helper()
	rows, err := db.QueryContext(t.Context(), query)
	if err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	defer func() { _ = rows.Close() }()
	var texts []string
	for rows.Next() {
		var text string
		if err := rows.Scan(&text); err != nil {
			t.Fatal(err)
		}
		texts = append(texts, text)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return texts
}

// newestStep is the number of the last migration.
func newestStep(t *testing.T) int64 {
	t.Helper()
	files, err := fs.Glob(migrations, "migrations/*.sql")
	if err != nil {
		t.Fatal(err)
	}
	newest := int64(adoptVersion)
	for _, file := range files {
		var number int64
		if _, err := fmt.Sscanf(filepath.Base(file), "%05d_", &number); err != nil {
			t.Fatalf("%s does not begin with a number of five digits", file)
		}
		newest = max(newest, number)
	}
	return newest
}

// TestBrokenOffMigrationGoesOn: each step is a transaction, so that a daemon that died between two of them goes on.
func TestBrokenOffMigrationGoesOn(t *testing.T) {
	for version := int64(1); version < newestStep(t); version++ {
		path := newPath(t)
		db, err := openWriter(path)
		if err != nil {
			t.Fatal(err)
		}
		provider, err := newProvider(db, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := provider.UpTo(context.WithoutCancel(t.Context()), version); err != nil {
			t.Fatal(err)
		}
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
		if state := loadLog(t, path); state.Epoch != 1 || state.Installation == "" {
			t.Errorf("after step %d: %+v", version, state)
		}
	}
}
