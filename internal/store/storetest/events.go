package storetest

import (
	"poolmgr/internal/pool"
	"poolmgr/internal/store"
)

var eventTests = []test{
	{"CursorSeesEachEventOnce", testCursor},
	{"FiltersMoveTheCursorOn", testEventFilters},
	{"ChangedWakesEverybody", testChanged},
	{"DirtySetIsTakenOnce", testDirtySet},
	{"EventsSurviveReopening", testEventsReopen},
}

func testCursor(f *fixture) {
	f.pool()
	f.warm(4)
	f.claim()
	last := f.store.LastEvent()
	if last == 0 {
		f.Fatal("no events")
	}
	var next, cursor int64 = 1, 0
	for cursor < last {
		page, err := f.store.Since(f.Context(), store.EventQuery{After: cursor, Limit: 2})
		f.must(err)
		if len(page.Events) > 2 || page.Cursor <= cursor {
			f.Fatalf("after %d: %d events, cursor %d", cursor, len(page.Events), page.Cursor)
		}
		for _, e := range page.Events {
			if e.ID != next || e.Pool != key {
				f.Fatalf("event %d of %s, want %d", e.ID, e.Pool, next)
			}
			next++
		}
		cursor = page.Cursor
	}
	if cursor != last || next != last+1 {
		f.Fatalf("ended at %d with the next %d, the last is %d", cursor, next, last)
	}
	page, err := f.store.Since(f.Context(), store.EventQuery{After: last})
	f.must(err)
	if len(page.Events) != 0 || page.Cursor != last {
		f.Fatalf("after the last one: %+v", page)
	}
	page, err = f.store.Since(f.Context(), store.EventQuery{After: -5, Limit: 1})
	f.must(err)
	if len(page.Events) != 1 || page.Events[0].ID != 1 {
		f.Fatalf("from before the first one: %+v", page)
	}
}

func testEventFilters(f *fixture) {
	other := pool.Key{Namespace: "team-b", Name: "web"}
	_, err := f.store.CreatePool(f.Context(), store.CreatePool{Spec: spec(func(s *pool.Spec) { s.Key = other }), Now: f.now})
	f.must(err)
	_, err = f.store.Apply(f.Context(), store.Step{Pool: other, Epoch: f.store.Epoch(), Now: f.now, Actions: []store.Action{
		store.Grow{IDs: []string{"o-1"}, Revision: 1, MaxSlots: 1},
	}})
	f.must(err)
	f.pool()
	f.warm(3)
	last := f.store.LastEvent()
	for name, c := range map[string]struct {
		q      store.EventQuery
		events int
		cursor int64
	}{
		"of a pool":         {store.EventQuery{Pool: &other}, 1, last},
		"of a type":         {store.EventQuery{Types: []pool.EventType{pool.EventVMAvailable}}, 3, last},
		"of two types":      {store.EventQuery{Types: []pool.EventType{pool.EventVMAvailable, pool.EventPoolReplenishing}}, 5, last},
		"of both":           {store.EventQuery{Pool: &other, Types: []pool.EventType{pool.EventVMAvailable}}, 0, last},
		"of no pool":        {store.EventQuery{Pool: &pool.Key{Namespace: "x", Name: "y"}}, 0, last},
		"a full page":       {store.EventQuery{Pool: &other, Limit: 1}, 1, 1},
		"without any limit": {store.EventQuery{}, int(last), last},
	} {
		page, err := f.store.Since(f.Context(), c.q)
		f.must(err)
		if len(page.Events) != c.events || page.Cursor != c.cursor {
			f.Errorf("%s: %d events and cursor %d, want %d and %d", name, len(page.Events), page.Cursor, c.events, c.cursor)
		}
	}
}

func testChanged(f *fixture) {
	f.pool()
	f.warm(2)
	told := func(change func()) bool {
		f.Helper()
		a, b := f.store.Changed(), f.store.Changed()
		change()
		select {
		case <-a:
			<-b
			return true
		default:
			return false
		}
	}
	for name, change := range map[string]func(){
		"a claim":          func() { f.claim() },
		"a new size":       func() { f.update(func(s *pool.Spec) { s.Size = 9 }) },
		"a cordoned host":  func() { _, _ = f.store.CordonHost(f.Context(), "host-a", true, "", f.now) },
		"growth of a pool": func() { f.grow(1) },
	} {
		if !told(change) {
			f.Errorf("%s tells nobody", name)
		}
	}
	if told(func() { _, _ = f.tryClaim(func(c *store.Claim) { c.Pool.Name = "none" }) }) {
		f.Error("a refused claim tells everybody")
	}
}

func testDirtySet(f *fixture) {
	d := f.store.Dirty()
	ready := func() bool {
		select {
		case <-d.Ready():
			return true
		default:
			return false
		}
	}
	f.pool()
	f.grow(1)
	f.grow(1)
	if !ready() || ready() {
		f.Fatal("the notification has one slot")
	}
	if keys := d.Take(); len(keys) != 1 || keys[0] != key {
		f.Fatalf("dirty %v", keys)
	}
	if keys := d.Take(); len(keys) != 0 {
		f.Fatalf("taken twice: %v", keys)
	}
	f.failed(f.tryOne(store.Gone{VM: "none", Version: 1}), store.ErrConflict)
	shrink := f.condemn("web-00000001", pool.ReasonScaleDown)
	shrink.KeepSlots = 2 // found out after the row was written
	f.failed(f.tryOne(shrink), store.ErrConflict)
	if ready() || f.dirty() {
		f.Fatal("a conflict wakes the pool that it came from, for ever")
	}
	f.reopen()
	d = f.store.Dirty()
	if !ready() || !f.dirty() {
		f.Fatal("everything is dirty at opening")
	}
}

func testEventsReopen(f *fixture) {
	f.pool()
	f.warm(2)
	f.claim()
	before, last := f.events(0), f.store.LastEvent()
	f.reopen()
	if f.store.LastEvent() != last {
		f.Fatalf("the last event is %d, was %d", f.store.LastEvent(), last)
	}
	if d := diff(before, f.events(0)); d != "" {
		f.Fatalf("events changed over the reopening (-before +after):\n%s", d)
	}
	f.grow(1)
	f.told(last, pool.EventPoolReplenishing)
}
