package sqlite

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"

	"poolmgr/internal/pool"
	"poolmgr/internal/store"
)

const insertEvent = "INSERT INTO events (id, namespace, pool, vm, uid, type, at, payload) VALUES (?, ?, ?, ?, ?, ?, ?, ?)"

// defaultEvents is the length of a page whose query does not say.
const defaultEvents = 256

// eventQueries are the reads of events: of all pools or one, of all types or some. Each walks an index in order of the
// ids, so that it stops at its limit without sorting; types are picked on the way, since the pages between two of them
// are what a reader that waits for a rare type has to skip only once.
var eventQueries = [4]string{
	eventsFrom + eventsTo,
	eventsFrom + eventsOfTypes + eventsTo,
	eventsFrom + eventsOfPool + eventsTo,
	eventsFrom + eventsOfPool + eventsOfTypes + eventsTo,
}

const (
	eventsFrom    = "SELECT id, namespace, pool, vm, uid, type, at, payload FROM events WHERE id > @after AND id <= @upto"
	eventsOfPool  = " AND namespace = @namespace AND pool = @pool"
	eventsOfTypes = " AND type IN (SELECT value FROM json_each(@types))"
	eventsTo      = " ORDER BY id LIMIT @limit"
)

// eventQuery picks the query and its arguments.
func eventQuery(q store.EventQuery, upTo int64) (int, []any, error) {
	which := 0
	limit := q.Limit
	if limit <= 0 {
		limit = defaultEvents
	}
	args := []any{sql.Named("after", q.After), sql.Named("upto", upTo), sql.Named("limit", limit)}
	if q.Pool != nil {
		which += 2
		args = append(args, sql.Named("namespace", q.Pool.Namespace), sql.Named("pool", q.Pool.Name))
	}
	if len(q.Types) > 0 {
		which++
		types, err := json.Marshal(q.Types)
		if err != nil {
			return 0, nil, fmt.Errorf("encode the types of events: %w", err)
		}
		args = append(args, sql.Named("types", string(types)))
	}
	return which, args, nil
}

// Events implements engine.Log.
func (l *sqlLog) Events(ctx context.Context, q store.EventQuery, upTo int64) ([]pool.Event, error) {
	which, args, err := eventQuery(q, upTo)
	if err != nil {
		return nil, err
	}
	rows, err := l.events[which].QueryContext(ctx, args...)
	if err != nil {
		return nil, damaged(fmt.Errorf("read events: %w", err))
	}
	defer func() { _ = rows.Close() }() // a read: rows.Err tells what matters
	var events []pool.Event
	for rows.Next() {
		var e pool.Event
		if err := rows.Scan(&e.ID, &e.Pool.Namespace, &e.Pool.Name, &e.VM, &e.UID, &e.Type,
			at(&e.At), parse(&e.Payload)); err != nil {
			return nil, fmt.Errorf("%w: make sense of events: %w", ErrDamaged, err)
		}
		events = append(events, e)
	}
	if err := rows.Err(); err != nil {
		return nil, damaged(fmt.Errorf("read events: %w", err))
	}
	return events, nil
}

func (l *sqlLog) addEvent(ctx context.Context, e *pool.Event) error {
	payload, err := toJSON(e.Payload, e.Payload == nil)
	if err != nil {
		return fmt.Errorf("encode the payload of a %s: %w", e.Type, err)
	}
	if _, err := l.event.ExecContext(ctx, e.ID, e.Pool.Namespace, e.Pool.Name, e.VM, e.UID, string(e.Type), nanos(e.At), payload); err != nil {
		return fmt.Errorf("write event %d, a %s: %w", e.ID, e.Type, err)
	}
	return nil
}
