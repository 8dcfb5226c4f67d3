package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	sqlite "modernc.org/sqlite"

	"poolmgr/internal/store"
	"poolmgr/internal/store/engine"
)

// Options are what a store can be given beside its path.
type Options struct {
	Logger *slog.Logger // nil = discard
}

// Open opens the store in the file at path, which is created with mode 0600 when it is missing; its directory must
// exist. The database has two files of SQLite beside it (-wal and -shm) and one of ours (.lock), which stays.
//
// Errors to tell apart: store.ErrLocked, store.ErrNewerSchema, ErrDamaged, ErrForeign. Nothing was changed then.
func Open(ctx context.Context, path string, o Options) (store.Store, error) {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	log, err := openLog(ctx, path, o.Logger)
	if err != nil {
		return nil, fmt.Errorf("open the database %s: %w", path, err)
	}
	e, err := engine.Open(ctx, log, engine.Options{Logger: o.Logger})
	if err != nil {
		return nil, fmt.Errorf("open the database %s: %w", path, err)
	}
	return e, nil
}

// openLog opens the log of the file at path, its schema up to date.
func openLog(ctx context.Context, path string, logger *slog.Logger) (_ *sqlLog, err error) {
	if path, err = locate(path); err != nil {
		return nil, err
	}
	l := &sqlLog{logger: logger}
	if l.lock, err = lock(path); err != nil {
		return nil, err
	}
	if err := l.open(ctx, path); err != nil {
		_ = l.Close() // the failure to open says more
		return nil, err
	}
	return l, nil
}

// locate resolves the path, so that one file has one lock whatever it is called.
func locate(path string) (string, error) {
	if path == "" || strings.HasPrefix(filepath.Base(path), ":") {
		return "", fmt.Errorf("%q is not the path of a file", path)
	}
	path, err := filepath.Abs(path)
	if err != nil {
		return "", fmt.Errorf("resolve the path: %w", err)
	}
	dir, err := filepath.EvalSymlinks(filepath.Dir(path))
	if errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("the directory %s does not exist; create it, or choose another path", filepath.Dir(path))
	}
	if err != nil {
		return "", fmt.Errorf("resolve the directory: %w", err)
	}
	path = filepath.Join(dir, filepath.Base(path))
	target, err := filepath.EvalSymlinks(path)
	if errors.Is(err, fs.ErrNotExist) {
		return path, nil
	}
	if err != nil {
		return "", fmt.Errorf("resolve the path: %w", err)
	}
	return target, nil
}

// writable asks access(2) for W_OK and R_OK.
const writable = 0x2 | 0x4

// secure creates the file where it is missing, and leaves it and its companions to their owner only: lease ids are
// credentials. SQLite gives new companions the mode of the database.
//
// A file that exists is never opened here: closing it would drop every lock that SQLite holds on it in this process
// (that is what POSIX locks do), and then another program that opens and closes the database, such as the sqlite3
// shell, would take itself for the last one and remove the WAL under the daemon.
func secure(path string) error {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	switch {
	case errors.Is(err, fs.ErrExist):
		if err := syscall.Access(path, writable); err != nil {
			return fmt.Errorf("look at the file: %w; the daemon needs write access to it", err)
		}
	case err != nil:
		return fmt.Errorf("create the file: %w; the daemon needs write access to it", err)
	default:
		if err := file.Close(); err != nil {
			return fmt.Errorf("create the file: %w", err)
		}
	}
	for _, name := range []string{path, path + "-wal", path + "-shm", path + ".lock"} {
		info, err := os.Stat(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil && !info.Mode().IsRegular() {
			err = fmt.Errorf("%s is not a regular file", name)
		}
		if err == nil && info.Mode().Perm() != 0o600 {
			err = os.Chmod(name, 0o600)
		}
		if err != nil {
			return fmt.Errorf("keep the file to its owner: %w", err)
		}
	}
	return syncDir(filepath.Dir(path))
}

// syncDir makes the names in a directory durable.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("open the directory: %w", err)
	}
	defer func() { _ = d.Close() }() // nothing was written through it
	if err := d.Sync(); err != nil {
		return fmt.Errorf("sync the directory: %w", err)
	}
	return nil
}

// open connects, checks and migrates. What it leaves open is closed by Close, also after a failure.
func (l *sqlLog) open(ctx context.Context, path string) error {
	useFdatasync(l.logger)
	probe, err := openProbe(path)
	if err != nil {
		return err
	}
	// It stays until the writer is connected: the last connection to close would empty the WAL, and take its time.
	defer func() { _ = probe.Close() }() // it only read
	if err := inspect(ctx, path, probe); err != nil {
		return err
	}
	if err := secure(path); err != nil {
		return err
	}
	if l.writeDB, err = openWriter(path); err != nil {
		return err
	}
	if err := migrate(ctx, l.writeDB, l.logger); err != nil {
		return err
	}
	return l.connect(ctx, path)
}

// inspect looks at a file that exists before anything of it is changed.
func inspect(ctx context.Context, path string, probe *sql.DB) error {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look at the file: %w", err)
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("it is not a regular file; choose another path")
	}
	if info.Size() == 0 {
		return nil
	}
	if err := checkRelease(ctx, probe); err != nil {
		return err
	}
	if err := checkOwner(ctx, probe); err != nil {
		return err
	}
	return checkPages(ctx, probe)
}

// connect takes the writer's connection for good and opens the readers.
func (l *sqlLog) connect(ctx context.Context, path string) error {
	var err error
	if l.conn, err = l.writeDB.Conn(ctx); err != nil {
		return damaged(fmt.Errorf("connect: %w", err))
	}
	if err := l.prepare(ctx); err != nil {
		return damaged(err)
	}
	if l.readDB, err = openReaders(path); err != nil {
		return err
	}
	l.idle = &checkpointer{logger: l.logger, db: l.readDB}
	for i, text := range eventQueries {
		if l.events[i], err = l.readDB.PrepareContext(ctx, text); err != nil {
			return damaged(fmt.Errorf("prepare %q: %w", text, err))
		}
	}
	return nil
}

// useFdatasync makes commits sync with fdatasync, which is as durable as fsync and spares a write of the file's times.
// The switch is one for the whole process.
func useFdatasync(logger *slog.Logger) {
	if _, err := sqlite.Fdatasync(true); err != nil {
		logger.Debug("commits sync with fsync", slog.Any("reason", err))
	}
}
