package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"sync"

	"poolmgr/internal/pool"
	"poolmgr/internal/store/engine"
)

// sqlLog is the engine's Log on an open database. Its lock makes commits and closing wait for each other; events are
// read beside them.
type sqlLog struct {
	logger  *slog.Logger
	lock    *lockFile
	writeDB *sql.DB
	readDB  *sql.DB
	events  [4]*sql.Stmt // see eventQueries
	idle    *checkpointer

	mu         sync.Mutex
	conn       *sql.Conn // the one connection of writeDB
	stopped    error     // why nothing is written any more
	statements statements
	begin      *sql.Stmt
	commit     *sql.Stmt
	rollback   *sql.Stmt
	pools      writer[pool.Pool, pool.Key]
	vms        writer[pool.VM, string]
	leases     writer[pool.Lease, string]
	hosts      writer[pool.Host, string]
	revision   *sql.Stmt
	forget     *sql.Stmt
	event      *sql.Stmt
}

var _ engine.Log = (*sqlLog)(nil)

// prepare makes the statements of every commit, on the writer's connection.
func (l *sqlLog) prepare(ctx context.Context) error {
	s := &l.statements
	l.begin = s.prepare(ctx, l.conn, "BEGIN IMMEDIATE")
	l.commit = s.prepare(ctx, l.conn, "COMMIT")
	l.rollback = s.prepare(ctx, l.conn, "ROLLBACK")
	l.pools = prepare(ctx, l.conn, poolTable, s)
	l.vms = prepare(ctx, l.conn, vmTable, s)
	l.leases = prepare(ctx, l.conn, leaseTable, s)
	l.hosts = prepare(ctx, l.conn, hostTable, s)
	l.revision = s.prepare(ctx, l.conn, revisionTable.insertSQL())
	l.forget = s.prepare(ctx, l.conn, forgetRevision)
	l.event = s.prepare(ctx, l.conn, insertEvent)
	return s.err
}

// Load implements engine.Log.
func (l *sqlLog) Load(ctx context.Context) (engine.State, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var state engine.State
	err := l.transaction(context.WithoutCancel(ctx), func(ctx context.Context) error {
		var err error
		state, err = l.load(ctx)
		return err
	})
	if err != nil {
		return engine.State{}, damaged(err)
	}
	return state, nil
}

func (l *sqlLog) load(ctx context.Context) (engine.State, error) {
	var s engine.State
	row := l.conn.QueryRowContext(ctx, "UPDATE store SET epoch = epoch + 1 RETURNING installation, epoch")
	err := row.Scan(&s.Installation, &s.Epoch)
	if errors.Is(err, sql.ErrNoRows) {
		return s, fmt.Errorf("%w: its id is missing", ErrDamaged)
	}
	if err != nil {
		return s, fmt.Errorf("open a new epoch: %w", err)
	}
	row = l.conn.QueryRowContext(ctx, "SELECT coalesce(min(id), 0), (SELECT coalesce(max(id), 0) FROM events) FROM events")
	if err := row.Scan(&s.FirstEvent, &s.LastEvent); err != nil {
		return s, fmt.Errorf("find the ends of the events: %w", err)
	}
	if s.Hosts, err = hostTable.all(ctx, l.conn); err != nil {
		return s, err
	}
	if s.Pools, err = poolTable.all(ctx, l.conn); err != nil {
		return s, err
	}
	if s.Revisions, err = revisionTable.all(ctx, l.conn); err != nil {
		return s, err
	}
	if s.VMs, err = vmTable.all(ctx, l.conn); err != nil {
		return s, err
	}
	s.Leases, err = leaseTable.all(ctx, l.conn)
	return s, err
}

// Commit implements engine.Log. It goes on when ctx ends: others may share the commit, and a transaction that is broken
// off leaves as much unknown as one that fails.
func (l *sqlLog) Commit(ctx context.Context, c engine.Changes) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.stopped != nil {
		return l.stopped
	}
	err := l.transaction(context.WithoutCancel(ctx), func(ctx context.Context) error { return l.write(ctx, c) })
	if err != nil {
		l.stopped = fmt.Errorf("%w: %w", errStopped, err)
		return damaged(fmt.Errorf("commit: %w", err))
	}
	l.idle.committed()
	return nil
}

// transaction runs the work between BEGIN and COMMIT, with nothing of it left when it fails.
func (l *sqlLog) transaction(ctx context.Context, work func(context.Context) error) error {
	if _, err := l.begin.ExecContext(ctx); err != nil {
		return fmt.Errorf("begin a transaction: %w", err)
	}
	err := work(ctx)
	if err == nil {
		if _, err = l.commit.ExecContext(ctx); err == nil {
			return nil
		}
		err = fmt.Errorf("end the transaction: %w", err)
	}
	// SQLite rolls back by itself after some failures, and then there is nothing to roll back.
	_, _ = l.rollback.ExecContext(ctx)
	return err
}

// write puts the changes into the open transaction. Leases go before VMs, and rows before what refers to them, only for
// the sake of reading; foreign keys are checked at its end.
func (l *sqlLog) write(ctx context.Context, c engine.Changes) error {
	if err := l.hosts.write(ctx, c.Hosts); err != nil {
		return err
	}
	if err := l.pools.write(ctx, c.Pools); err != nil {
		return err
	}
	for i := range c.Revisions {
		if err := l.addRevision(ctx, &c.Revisions[i]); err != nil {
			return err
		}
	}
	if err := l.vms.write(ctx, c.VMs); err != nil {
		return err
	}
	for _, key := range c.Forgotten {
		if err := l.forgetRevision(ctx, key); err != nil {
			return err
		}
	}
	if err := l.leases.write(ctx, c.Leases); err != nil {
		return err
	}
	for i := range c.Events {
		if err := l.addEvent(ctx, &c.Events[i]); err != nil {
			return err
		}
	}
	return nil
}

func (l *sqlLog) addRevision(ctx context.Context, r *pool.Revision) error {
	rest, err := revisionTable.restOf(r)
	if err != nil {
		return err
	}
	key := revisionTable.keyOf(engine.RevisionKey{Pool: r.Pool, Number: r.Number})
	if _, err := l.revision.ExecContext(ctx, append(key, rest...)...); err != nil {
		return fmt.Errorf("write revision %d of %s: %w", r.Number, r.Pool, err)
	}
	return nil
}

// forgetRevision removes a revision that a pool needs no more. It has no version: it is there as it was written.
const forgetRevision = "DELETE FROM revisions WHERE namespace = ? AND pool = ? AND number = ?"

func (l *sqlLog) forgetRevision(ctx context.Context, key engine.RevisionKey) error {
	if err := exactlyOne(l.forget.ExecContext(ctx, revisionTable.keyOf(key)...)); err != nil {
		return fmt.Errorf("remove revision %d of %s: %w", key.Number, key.Pool, err)
	}
	return nil
}

// Close implements engine.Log. The last connection to close empties the WAL and removes it.
func (l *sqlLog) Close() error {
	if l.idle != nil {
		l.idle.stop()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	var errs []error
	for _, stmt := range l.events {
		if stmt != nil {
			errs = append(errs, stmt.Close())
		}
	}
	if l.readDB != nil {
		errs = append(errs, l.readDB.Close())
	}
	errs = append(errs, l.statements.close())
	if l.conn != nil {
		errs = append(errs, l.conn.Close())
	}
	if l.writeDB != nil {
		errs = append(errs, l.writeDB.Close())
	}
	errs = append(errs, l.lock.unlock())
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("close the database: %w", err)
	}
	return nil
}
