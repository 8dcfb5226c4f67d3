package sqlite

import (
	"bytes"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"poolmgr/internal/pool"
	"poolmgr/internal/store"
)

func TestOpenKeepsTheInstallationAndCountsEpochs(t *testing.T) {
	path := newPath(t)
	first := loadLog(t, path)
	if first.Epoch != 1 || len(first.Installation) != 32 {
		t.Errorf("a new database has epoch %d and installation %q", first.Epoch, first.Installation)
	}
	second := loadLog(t, path)
	if second.Epoch != 2 || second.Installation != first.Installation {
		t.Errorf("then epoch %d and installation %q, want 2 and %q", second.Epoch, second.Installation, first.Installation)
	}
	if other := loadLog(t, newPath(t)); other.Installation == first.Installation {
		t.Error("two databases have one installation id")
	}
}

func TestOpenWantsADirectory(t *testing.T) {
	path := filepath.Join(t.TempDir(), "missing", "poolmgr.db")
	_, err := Open(t.Context(), path, Options{})
	if err == nil || !strings.Contains(err.Error(), "create it") || !strings.Contains(err.Error(), filepath.Dir(path)) {
		t.Errorf("without its directory: %v, want an error that names it and says what to do", err)
	}
	for _, path := range []string{"", ":memory:", t.TempDir()} {
		if _, err := Open(t.Context(), path, Options{}); err == nil {
			t.Errorf("Open(%q) succeeded", path)
		}
	}
}

func TestOpenTakesAnyPath(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a b?mode=ro#x%20&'\"ü.db")
	s := openStore(t, path)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Errorf("the file is not where it should be: %v", err)
	}
	t.Chdir(filepath.Dir(path))
	again := openStore(t, filepath.Base(path))
	if again.Epoch() != 2 {
		t.Errorf("by its relative path the file is opened for the %dth time, want the 2nd", again.Epoch())
	}
}

// TestSecondDaemonIsRefused, whatever the file is called.
func TestSecondDaemonIsRefused(t *testing.T) {
	path := newPath(t)
	s := openStore(t, path)
	alias := filepath.Join(t.TempDir(), "alias.db")
	if err := os.Symlink(path, alias); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{path, alias} {
		_, err := Open(t.Context(), name, Options{})
		if !errors.Is(err, store.ErrLocked) || !strings.Contains(err.Error(), fmt.Sprintf("process %d", os.Getpid())) {
			t.Errorf("Open(%s): %v, want ErrLocked that names the process", name, err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := openStore(t, alias).Close(); err != nil {
		t.Errorf("after the first closed: %v", err)
	}
}

// TestOpenHoldsSQLitesLock: SQLite's own lock on the file tells other programs that the database is in use. Without it
// the sqlite3 shell, looking into a live database, removes the WAL when it ends, and all later commits with it.
func TestOpenHoldsSQLitesLock(t *testing.T) {
	path := newPath(t)
	for _, state := range []string{"new", "existing"} {
		s := openStore(t, path)
		if !lockedForOthers(t, path) {
			t.Errorf("%s database: SQLite holds no lock on it", state)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// lockedForOthers reports whether another program would find SQLite's shared lock on a database. It asks with the kind
// of lock that belongs to an open file, since a process never meets its own of the other kind. Closing the file drops
// those, so nothing can be asked afterwards.
func lockedForOthers(t *testing.T, path string) bool {
	t.Helper()
	const (
		ofdGetLock  = 36        // F_OFD_GETLK
		sharedFirst = 1<<30 + 2 // SQLite's SHARED_FIRST and SHARED_SIZE
		sharedSize  = 510
	)
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }() // nothing was written
	ask := syscall.Flock_t{Type: syscall.F_WRLCK, Whence: io.SeekStart, Start: sharedFirst, Len: sharedSize}
	if err := syscall.FcntlFlock(file.Fd(), ofdGetLock, &ask); err != nil {
		t.Fatal(err)
	}
	return ask.Type != syscall.F_UNLCK
}

func TestFilesAreTheirOwnersOnly(t *testing.T) {
	path := newPath(t)
	if err := os.WriteFile(path, nil, 0o644); err != nil { // as another tool may have left it
		t.Fatal(err)
	}
	s := openStore(t, path)
	fill(t, s, 3)
	if _, err := s.Since(t.Context(), store.EventQuery{}); err != nil {
		t.Fatal(err)
	}
	for _, suffix := range []string{"", "-wal", "-shm", ".lock"} {
		info, err := os.Stat(path + suffix)
		if err != nil {
			t.Errorf("%s: %v", suffix, err)
		} else if info.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %o, want 600", filepath.Base(path+suffix), info.Mode().Perm())
		}
	}
}

func TestEveryConnectionHasItsSettings(t *testing.T) {
	l := openTestLog(t, newDatabase(t))
	for name, db := range map[string]*sql.DB{"reader": l.readDB} {
		var conns []*sql.Conn
		for range 4 { // all at once, so that each is another connection
			conn, err := db.Conn(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			conns = append(conns, conn)
		}
		for _, conn := range conns {
			wantSettings(t, name, conn, pragmas("1"))
			if _, err := conn.ExecContext(t.Context(), "DELETE FROM store"); err == nil {
				t.Errorf("%s: a connection for reading writes", name)
			}
			if err := conn.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
	wantSettings(t, "writer", l.conn, pragmas("0"))
}

func wantSettings(t *testing.T, name string, conn *sql.Conn, settings []pragma) {
	t.Helper()
	for _, p := range settings {
		var got string
		if err := conn.QueryRowContext(t.Context(), "PRAGMA "+p.name).Scan(&got); err != nil || got != p.answer {
			t.Errorf("%s: %s is %s, %v, want %s", name, p.name, got, err, p.answer)
		}
	}
}

func TestConnectionWithoutItsSettingsIsRefused(t *testing.T) {
	for _, p := range []pragma{{"synchronous", "FULL", "3"}, {"no_such_setting", "1", "1"}} {
		db, err := openPool(newPath(t), []pragma{p}, 1)
		if err != nil {
			t.Fatal(err)
		}
		if err := db.PingContext(t.Context()); err == nil || !strings.Contains(err.Error(), p.name) {
			t.Errorf("%s: %v, want an error that names it", p.name, err)
		}
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestReleaseOfSQLite(t *testing.T) {
	for text, ok := range map[string]bool{
		"3.51.2": false, "3.51.3": true, "3.52.0": true, "4.0.0": true, "3.9.9": false, "2.99.99": false, "x": false,
	} {
		if err := checkReleaseText(text); (err == nil) != ok {
			t.Errorf("SQLite %s: %v", text, err)
		}
	}
	l := openTestLog(t, newDatabase(t))
	if err := checkRelease(t.Context(), l.readDB); err != nil {
		t.Error(err)
	}
}

// exec runs statements on a closed database, as some other tool would.
func execSQL(t *testing.T, path string, statements ...string) {
	t.Helper()
	db, err := sql.Open("sqlite", path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	for _, text := range statements {
		if _, err := db.ExecContext(t.Context(), text); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
	}
}

// refused opens a file that must be refused with the error, untouched.
func refused(t *testing.T, path string, want error, words ...string) {
	t.Helper()
	before, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	s, err := Open(t.Context(), path, Options{})
	if err == nil {
		_ = s.Close()
	}
	if !errors.Is(err, want) {
		t.Fatalf("open: %v, want %v", err, want)
	}
	for _, word := range append(words, path) {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("open: %v, want it to say %q", err, word)
		}
	}
	after, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(before, after) {
		t.Error("the file was changed")
	}
}

func TestNewerSchemaIsRefused(t *testing.T) {
	path := newPath(t)
	loadLog(t, path)
	execSQL(t, path, "INSERT INTO schema_version (version_id, is_applied) VALUES (4711, 1)")
	refused(t, path, store.ErrNewerSchema, "4711", fmt.Sprint(newestStep(t)))
}

func TestDatabaseOfAnotherProgramIsRefused(t *testing.T) {
	path := newPath(t)
	execSQL(t, path, "CREATE TABLE bookmarks (url TEXT)")
	refused(t, path, ErrForeign)
}

// TestDamagedFileIsRefused.
func TestDamagedFileIsRefused(t *testing.T) {
	sound := newPath(t)
	s := openStore(t, sound)
	fill(t, s, 200)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(sound)
	if err != nil {
		t.Fatal(err)
	}
	damage := map[string]func([]byte) []byte{
		"no database":       func([]byte) []byte { return bytes.Repeat([]byte("no database "), 1000) },
		"truncated":         func(b []byte) []byte { return b[:len(b)/2/4096*4096] },
		"without its start": func(b []byte) []byte { return b[4096:] },
	}
	for _, table := range []string{"vms", "leases", "pools", "hosts", "revisions", "store", "events", "vms_pool", "sqlite_autoindex_vms_1"} {
		damage["page of "+table] = func(b []byte) []byte { return zeroed(b, rootPage(t, sound, table)) }
	}
	for name, change := range damage {
		t.Run(name, func(t *testing.T) {
			path := newPath(t)
			if err := os.WriteFile(path, change(bytes.Clone(content)), 0o600); err != nil {
				t.Fatal(err)
			}
			refused(t, path, ErrDamaged, "backup")
		})
	}
}

// rootPage is the number of the first page of a table or an index.
func rootPage(t *testing.T, path, name string) int {
	t.Helper()
	db, err := sql.Open("sqlite", path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	var page int
	if err := db.QueryRowContext(t.Context(), "SELECT rootpage FROM sqlite_schema WHERE name = ?", name).Scan(&page); err != nil {
		t.Fatalf("find %s: %v", name, err)
	}
	return page
}

func zeroed(b []byte, page int) []byte {
	clear(b[(page-1)*4096 : page*4096])
	return b
}

// TestRowThatNoReleaseWroteIsRefused: what the types and constraints of the schema do not catch, loading does.
func TestRowThatNoReleaseWroteIsRefused(t *testing.T) {
	for name, change := range map[string]string{
		"a spec that is no message":  "UPDATE pools SET spec = x'ff'",
		"a spec of another pool":     "UPDATE pools SET name = 'other'",
		"interfaces that are no map": "UPDATE vms SET interfaces = '[1]'",
		"no id":                      "DELETE FROM store",
	} {
		t.Run(name, func(t *testing.T) {
			path := newDatabase(t)
			s := openStore(t, path)
			fill(t, s, 2)
			err := s.Close()
			if err != nil {
				t.Fatal(err)
			}
			execSQL(t, path, "PRAGMA foreign_keys = 0", change)
			if s, err = Open(t.Context(), path, Options{}); err == nil {
				_ = s.Close()
			}
			if !errors.Is(err, ErrDamaged) {
				t.Errorf("open: %v, want ErrDamaged", err)
			}
		})
	}
}

func TestMissingSharedMemoryFileIsMadeAnew(t *testing.T) {
	path, copied := newPath(t), newPath(t)
	s := openStore(t, path)
	fill(t, s, 5)
	for _, suffix := range []string{"", "-wal"} { // as a crash and a careless backup leave them, without -shm
		content, err := os.ReadFile(path + suffix)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(copied+suffix, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	vms, err := openStore(t, copied).ListVMs(t.Context(), store.VMQuery{Phases: []pool.Phase{pool.Available}})
	if err != nil || len(vms) != 5 {
		t.Errorf("%d VMs, %v; want 5", len(vms), err)
	}
}
