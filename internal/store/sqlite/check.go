package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
)

// oldestRelease is the first release of SQLite without the fault that let a reset WAL damage the database.
var oldestRelease = [3]int{3, 51, 3}

// maxCheckedEvents bounds the events that are checked at opening. More of them are old history, which no decision
// rests on; damage there shows when it is read.
const maxCheckedEvents = 20_000

// checkRelease refuses to run on a release of SQLite that can lose data.
func checkRelease(ctx context.Context, db *sql.DB) error {
	var text string
	if err := db.QueryRowContext(ctx, "SELECT sqlite_version()").Scan(&text); err != nil {
		return damaged(fmt.Errorf("ask for the release of SQLite: %w", err))
	}
	return checkReleaseText(text)
}

func checkReleaseText(text string) error {
	var have [3]int
	if _, err := fmt.Sscanf(text, "%d.%d.%d", &have[0], &have[1], &have[2]); err != nil {
		return fmt.Errorf("read the release of SQLite from %q: %w", text, err)
	}
	for i, n := range oldestRelease {
		if have[i] > n {
			return nil
		}
		if have[i] < n {
			return fmt.Errorf("this build has SQLite %s, which can damage a database; build it with %d.%d.%d or later",
				text, oldestRelease[0], oldestRelease[1], oldestRelease[2])
		}
	}
	return nil
}

// checkOwner fails with ErrForeign for a database that has tables, but none of ours.
func checkOwner(ctx context.Context, db *sql.DB) error {
	var tables, ours int
	row := db.QueryRowContext(ctx, "SELECT count(*), coalesce(sum(name = ?), 0) FROM sqlite_schema WHERE type = 'table'", versionTable)
	if err := row.Scan(&tables, &ours); err != nil {
		return damaged(fmt.Errorf("read the schema: %w", err))
	}
	if tables > 0 && ours == 0 {
		return fmt.Errorf("%w (%d tables, none of them %s)", ErrForeign, tables, versionTable)
	}
	return nil
}

// checkPages looks for damage in everything that is going to be loaded: pages, the order of rows, types and constraints.
// It reads what loading reads anyway.
func checkPages(ctx context.Context, db *sql.DB) error {
	tables, err := tablesToCheck(ctx, db)
	if err != nil {
		return damaged(err)
	}
	for _, table := range tables {
		var verdict string
		if err := db.QueryRowContext(ctx, "PRAGMA quick_check('"+table+"')").Scan(&verdict); err != nil {
			return damaged(fmt.Errorf("check %s: %w", table, err))
		}
		if verdict != "ok" {
			return fmt.Errorf("%w: %s: %s", ErrDamaged, table, verdict)
		}
	}
	return nil
}

func tablesToCheck(ctx context.Context, db *sql.DB) (tables []string, err error) {
	rows, err := db.QueryContext(ctx, "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite~_%' ESCAPE '~' ORDER BY name")
	if err != nil {
		return nil, fmt.Errorf("list the tables: %w", err)
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		var name string
		if err := rows.Scan(&name); err != nil {
			return nil, fmt.Errorf("list the tables: %w", err)
		}
		tables = append(tables, name)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("list the tables: %w", err)
	}
	return withoutLongEvents(ctx, db, tables)
}

// withoutLongEvents takes the events out of the list when there are too many to check at every start.
func withoutLongEvents(ctx context.Context, db *sql.DB, tables []string) ([]string, error) {
	var kept []string
	for _, table := range tables {
		if table == "events" {
			var n int64
			err := db.QueryRowContext(ctx, "SELECT coalesce((SELECT max(id) FROM events) - (SELECT min(id) FROM events) + 1, 0)").Scan(&n)
			if err != nil {
				return nil, fmt.Errorf("find the ends of the events: %w", err)
			}
			if n > maxCheckedEvents {
				continue
			}
		}
		kept = append(kept, table)
	}
	return kept, nil
}
