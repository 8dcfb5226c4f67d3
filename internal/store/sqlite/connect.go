package sqlite

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strconv"

	sqlite "modernc.org/sqlite"
)

// walPages is the length of the WAL, in pages of 4 KiB, at which a commit empties it itself. It is large so that claims
// rarely pay for it; idle moments do that work before (see checkpointer).
const walPages = 16000

// pragma is a setting of a connection with what SQLite answers once it is in force.
type pragma struct {
	name, value, answer string
}

// pragmas are the settings of a connection.
func pragmas(queryOnly string) []pragma {
	return []pragma{
		{"busy_timeout", "5000", "5000"}, // ms; only a checkpoint or a foreign tool can be in the way
		{"journal_mode", "WAL", "wal"},
		{"synchronous", "FULL", "2"}, // a commit that was answered is on the disk
		{"foreign_keys", "1", "1"},
		{"wal_autocheckpoint", strconv.Itoa(walPages), strconv.Itoa(walPages)},
		{"cell_size_check", "1", "1"}, // finds torn pages where they are read
		{"trusted_schema", "0", "0"},
		{"query_only", queryOnly, queryOnly},
	}
}

// dsn names the file and its settings for the driver. Everything in the path but letters may mean something in a URI,
// so it is escaped.
func dsn(path string, settings []pragma) string {
	query := url.Values{
		"_txlock":    {"immediate"},
		"_defensive": {"1"},
		"_dqs":       {"0"},
		"_error_rc":  {"1"},
	}
	for _, p := range settings {
		query.Add("_pragma", p.name+"("+p.value+")")
	}
	return "file://" + (&url.URL{Path: path}).EscapedPath() + "?" + query.Encode()
}

// openWriter opens the one connection that writes.
func openWriter(path string) (*sql.DB, error) { return openPool(path, pragmas("0"), 1) }

// openReaders opens the connections that read beside it.
func openReaders(path string) (*sql.DB, error) { return openPool(path, pragmas("1"), 4) }

// openProbe opens a connection that takes the file as it is; it does not turn another program's file to WAL mode.
func openProbe(path string) (*sql.DB, error) {
	return openPool(path, []pragma{{"busy_timeout", "5000", "5000"}, {"cell_size_check", "1", "1"}, {"query_only", "1", "1"}}, 1)
}

func openPool(path string, settings []pragma, size int) (*sql.DB, error) {
	inner, err := sqlite.NewConnector(dsn(path, settings))
	if err != nil {
		return nil, fmt.Errorf("prepare connections to %s: %w", path, err)
	}
	db := sql.OpenDB(connector{inner, settings})
	db.SetMaxOpenConns(size)
	db.SetMaxIdleConns(size)
	return db, nil
}

// connector opens connections and proves of each that its settings are in force: SQLite ignores a pragma it does not
// know or cannot follow.
type connector struct {
	driver.Connector
	settings []pragma
}

// Connect implements driver.Connector.
func (c connector) Connect(ctx context.Context) (driver.Conn, error) {
	conn, err := c.Connector.Connect(ctx)
	if err != nil {
		return nil, damaged(err)
	}
	for _, p := range c.settings {
		if err := p.verify(ctx, conn); err != nil {
			return nil, errors.Join(err, conn.Close())
		}
	}
	return conn, nil
}

func (p pragma) verify(ctx context.Context, conn driver.Conn) error {
	rows, err := conn.(driver.QueryerContext).QueryContext(ctx, "PRAGMA "+p.name, nil)
	if err != nil {
		return damaged(fmt.Errorf("ask for %s: %w", p.name, err))
	}
	defer func() { _ = rows.Close() }() // a read: nothing is lost
	values := make([]driver.Value, len(rows.Columns()))
	if err := rows.Next(values); err != nil && !errors.Is(err, io.EOF) {
		return damaged(fmt.Errorf("ask for %s: %w", p.name, err))
	}
	if len(values) != 1 || fmt.Sprint(values[0]) != p.answer {
		return fmt.Errorf("SQLite keeps %s at %v instead of %s; the database must be on a local disk that supports it", p.name, values, p.answer)
	}
	return nil
}
