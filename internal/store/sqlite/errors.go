package sqlite

import (
	"errors"
	"fmt"

	driver "modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"
)

// The sentinels of opening a file, beside store.ErrLocked and store.ErrNewerSchema.
var (
	// ErrDamaged: the file is not what poolmgr wrote: torn pages, broken rows, or no SQLite database at all.
	ErrDamaged = errors.New("the database is damaged; poolmgr never repairs one: restore a backup, or move it away to begin anew")

	// ErrForeign: the file is a sound SQLite database of some other program.
	ErrForeign = errors.New("the database belongs to another program; choose another path")

	// errStopped: an earlier commit failed.
	errStopped = errors.New("an earlier commit failed, and nothing is written after it")
)

// damaged adds ErrDamaged to an error by which SQLite says that it cannot make sense of the file.
func damaged(err error) error {
	var e *driver.Error
	if !errors.As(err, &e) {
		return err
	}
	switch e.Code() & 0xff {
	case sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_FORMAT:
		return fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	return err
}
