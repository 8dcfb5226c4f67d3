package engine

import (
	"context"
	"fmt"
	"maps"
	"time"

	"poolmgr/internal/pool"
	"poolmgr/internal/store"
)

// payload is what an event tells beside its columns; keys are in snake_case.
type payload map[string]any

// emit writes an event about a pool in the transaction of its change. Every event is written here.
func (x *tx) emit(e pool.Event) {
	e.ID = x.base.lastEvent + int64(len(x.events)) + 1
	e.At = x.now
	x.events = append(x.events, e)
	x.touch(e.Pool)
}

// emitPool writes an event about a pool as a whole.
func (x *tx) emitPool(key pool.Key, what pool.EventType, with payload) {
	x.emit(pool.Event{Pool: key, Type: what, Payload: with})
}

// emitVM writes an event about a VM as its row now is; what the row does not tell comes in with. Lease ids are
// credentials and never part of an event.
func (x *tx) emitVM(vm *pool.VM, what pool.EventType, with payload) {
	p := payload{}
	maps.Copy(p, with)
	p["vm_id"] = vm.ID
	p["revision"] = vm.Revision
	p["template_hash"] = vm.TemplateHash
	p.text("host", vm.Host)
	p.text("slot", vm.Slot)
	p.text("reason", string(vm.Reason))
	p.text("message", vm.Message)
	if vm.Attempt > 0 {
		p["attempt"] = vm.Attempt
	}
	x.emit(pool.Event{Pool: vm.Pool, VM: vm.ID, UID: vm.UID, Type: what, Payload: p})
}

// text sets a key unless the text is empty.
func (p payload) text(key, text string) {
	if text != "" {
		p[key] = text
	}
}

// at sets a key to an instant in RFC 3339.
func (p payload) at(key string, t time.Time) { p[key] = t.UTC().Format(time.RFC3339Nano) }

// defaultEvents is how many events a page holds when the query does not say.
const defaultEvents = 256

// Since implements store.Events.
func (e *Engine) Since(ctx context.Context, q store.EventQuery) (store.EventPage, error) {
	if q.Limit <= 0 {
		q.Limit = defaultEvents
	}
	q.After = max(0, q.After)
	var upTo int64
	err := e.read(ctx, func(m *mirror) error {
		upTo = m.lastEvent
		if q.After < e.firstEvent-1 {
			return pool.Errorf(pool.CodeOutOfRange, "events after %d are not kept any more; the oldest is %d: start from there", q.After, e.firstEvent)
		}
		return nil
	})
	if err != nil {
		return store.EventPage{}, err
	}
	if q.After >= upTo {
		return store.EventPage{Cursor: q.After}, nil
	}
	events, err := e.log.Events(ctx, q, upTo)
	if err != nil {
		return store.EventPage{}, fmt.Errorf("read events after %d: %w", q.After, err)
	}
	page := store.EventPage{Events: events, Cursor: upTo}
	if len(events) >= q.Limit {
		page.Cursor = events[len(events)-1].ID
	}
	return page, nil
}

// LastEvent implements store.Events.
func (e *Engine) LastEvent() int64 {
	e.mu.RLock()
	defer e.mu.RUnlock()
	return e.published.lastEvent
}

// Changed implements store.Events.
func (e *Engine) Changed() <-chan struct{} { return e.changed.wait() }
