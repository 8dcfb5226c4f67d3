package sqlite

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strings"

	"poolmgr/internal/store/engine"
)

// table says how one kind of row is stored. Columns come in three groups: those of the key; those that never change
// while the row exists, so that no update touches their indexes; and all others, of which the last is the version.
type table[R any, K comparable] struct {
	name   string
	key    []string
	fixed  []string
	rest   []string
	keyOf  func(K) []any
	fixOf  func(*R) []any
	restOf func(*R) ([]any, error)
	load   func(*sql.Rows, int) ([]R, error)
}

func (t table[R, K]) insertSQL() string {
	columns := slices.Concat(t.key, t.fixed, t.rest)
	marks := strings.TrimSuffix(strings.Repeat("?, ", len(columns)), ", ")
	return fmt.Sprintf("INSERT INTO %s (%s) VALUES (%s)", t.name, strings.Join(columns, ", "), marks)
}

// updateSQL names the row by its key and version, and by what never changes: a mismatch there is a bug as well. The plus
// signs keep SQLite from looking for the row by an index of those.
func (t table[R, K]) updateSQL() string {
	guards := slices.Clone(t.key)
	for _, column := range t.fixed {
		guards = append(guards, "+"+column)
	}
	return fmt.Sprintf("UPDATE %s SET %s = ? WHERE %s = ?", t.name,
		strings.Join(t.rest, " = ?, "), strings.Join(append(guards, "version"), " = ? AND "))
}

func (t table[R, K]) deleteSQL() string {
	return fmt.Sprintf("DELETE FROM %s WHERE %s = ?", t.name, strings.Join(slices.Concat(t.key, []string{"version"}), " = ? AND "))
}

func (t table[R, K]) selectSQL() string {
	return fmt.Sprintf("SELECT %s FROM %s ORDER BY %s",
		strings.Join(slices.Concat(t.key, t.fixed, t.rest), ", "), t.name, strings.Join(t.key, ", "))
}

// all reads every row, sorted by key.
func (t table[R, K]) all(ctx context.Context, conn *sql.Conn) ([]R, error) {
	var n int
	if err := conn.QueryRowContext(ctx, "SELECT count(*) FROM "+t.name).Scan(&n); err != nil {
		return nil, fmt.Errorf("count %s: %w", t.name, err)
	}
	rows, err := conn.QueryContext(ctx, t.selectSQL())
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", t.name, err)
	}
	defer func() { _ = rows.Close() }() // a read: rows.Err tells what matters
	list, err := t.load(rows, n)
	if err != nil {
		return nil, fmt.Errorf("%w: make sense of %s: %w", ErrDamaged, t.name, err)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("read %s: %w", t.name, err)
	}
	return list, nil
}

// writer is the prepared statements of one table.
type writer[R any, K comparable] struct {
	table[R, K]
	insert, update, remove *sql.Stmt
}

// prepare makes the statements of a table; the list collects them for closing.
func prepare[R any, K comparable](ctx context.Context, conn *sql.Conn, t table[R, K], list *statements) writer[R, K] {
	return writer[R, K]{
		table:  t,
		insert: list.prepare(ctx, conn, t.insertSQL()),
		update: list.prepare(ctx, conn, t.updateSQL()),
		remove: list.prepare(ctx, conn, t.deleteSQL()),
	}
}

// write carries out the changes of one table in their order.
func (w *writer[R, K]) write(ctx context.Context, changes []engine.Change[R, K]) error {
	for _, c := range changes {
		if err := w.writeOne(ctx, c); err != nil {
			return fmt.Errorf("write to %s: %w", w.name, err)
		}
	}
	return nil
}

func (w *writer[R, K]) writeOne(ctx context.Context, c engine.Change[R, K]) error {
	key := w.keyOf(c.Key)
	if c.After == nil {
		return exactlyOne(w.remove.ExecContext(ctx, append(key, c.Before)...))
	}
	rest, err := w.restOf(c.After)
	if err != nil {
		return err
	}
	fixed := w.fixOf(c.After)
	if c.Before == 0 {
		_, err := w.insert.ExecContext(ctx, slices.Concat(key, fixed, rest)...)
		return err
	}
	return exactlyOne(w.update.ExecContext(ctx, append(slices.Concat(rest, key, fixed), c.Before)...))
}

// exactlyOne is the check of every conditional write. The row's key stays out of the error, since that of a lease is a
// credential.
func exactlyOne(result sql.Result, err error) error {
	if err != nil {
		return err
	}
	n, err := result.RowsAffected()
	if err != nil {
		return err
	}
	if n != 1 {
		return fmt.Errorf("%w: %d rows have the key and version that a write names, instead of 1", engine.ErrCorrupt, n)
	}
	return nil
}

// statements collects prepared statements, and the first failure to prepare one.
type statements struct {
	all []*sql.Stmt
	err error
}

func (s *statements) prepare(ctx context.Context, conn *sql.Conn, text string) *sql.Stmt {
	if s.err != nil {
		return nil
	}
	stmt, err := conn.PrepareContext(ctx, text)
	if err != nil {
		s.err = fmt.Errorf("prepare %q: %w", text, err)
		return nil
	}
	s.all = append(s.all, stmt)
	return stmt
}

func (s *statements) close() error {
	var first error
	for _, stmt := range s.all {
		if err := stmt.Close(); err != nil && first == nil {
			first = fmt.Errorf("close a statement: %w", err)
		}
	}
	return first
}
