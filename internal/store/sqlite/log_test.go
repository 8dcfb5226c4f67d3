package sqlite

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"poolmgr/internal/pool"
	"poolmgr/internal/store"
	"poolmgr/internal/store/engine"
)

// firstRows is a commit of the pool web with two VMs, of which the first is leased.
func firstRows() engine.Changes {
	held, free := warmVM(1), warmVM(2)
	held.Slot, held.Phase, held.LeaseID = "", pool.Leased, "lease-1"
	lease := pool.Lease{ID: "lease-1", Pool: web, VM: held.ID, RequestID: "req", ClaimedAt: start, ExpiresAt: start, Version: 1}
	return engine.Changes{
		Pools:  []engine.Change[pool.Pool, pool.Key]{inserted(web, webPool())},
		VMs:    []engine.Change[pool.VM, string]{inserted(held.ID, held), inserted(free.ID, free)},
		Leases: []engine.Change[pool.Lease, string]{inserted(lease.ID, lease)},
		Events: []pool.Event{{ID: 1, Pool: web, Type: pool.EventVMClaimed, At: start}},
	}
}

func TestRowThatIsNotAsExpectedFailsTheWholeCommit(t *testing.T) {
	next := warmVM(2)
	next.Version = 4
	moved := next
	moved.Pool.Name = "other"
	for name, change := range map[string]engine.Change[pool.VM, string]{
		"update of another version":  {Key: next.ID, Before: 3, After: &next},
		"update of no row":           {Key: "web-99999999", Before: 1, After: &next},
		"update that moves the row":  {Key: next.ID, Before: 1, After: &moved},
		"removal of another version": {Key: next.ID, Before: 3},
		"removal of no row":          {Key: "web-99999999", Before: 1},
	} {
		t.Run(name, func(t *testing.T) {
			path := newDatabase(t)
			l := openTestLog(t, path)
			commit(t, l, firstRows())
			err := l.Commit(t.Context(), engine.Changes{
				Events: []pool.Event{{ID: 2, Pool: web}},
				Hosts:  []engine.Change[pool.Host, string]{inserted("host-a", pool.Host{Name: "host-a", Version: 1})},
				VMs:    []engine.Change[pool.VM, string]{change},
			})
			if !errors.Is(err, engine.ErrCorrupt) || !strings.Contains(err.Error(), "bug") {
				t.Errorf("commit: %v, want ErrCorrupt that says it is a bug", err)
			}
			if err := l.Commit(t.Context(), engine.Changes{Events: []pool.Event{{ID: 2, Pool: web}}}); !errors.Is(err, errStopped) {
				t.Errorf("commit after it: %v, want errStopped", err)
			}
			if err := l.Close(); err != nil {
				t.Fatal(err)
			}
			state := loadLog(t, path)
			if len(state.Hosts) != 0 || state.LastEvent != 1 || len(state.VMs) != 2 || state.VMs[1].Version != 1 {
				t.Errorf("something of the failed commit stayed: %+v", state)
			}
		})
	}
}

func TestWhatMustNeverBeFalseIsRefused(t *testing.T) {
	bad := func(edit func(*pool.VM)) engine.Changes {
		v := warmVM(7)
		edit(&v)
		return engine.Changes{VMs: []engine.Change[pool.VM, string]{inserted(v.ID, v)}}
	}
	lease := func(id, vm, request string) engine.Changes {
		return engine.Changes{Leases: []engine.Change[pool.Lease, string]{inserted(id, pool.Lease{ID: id, Pool: web, VM: vm, RequestID: request, Version: 1})}}
	}
	for name, changes := range map[string]engine.Changes{
		"a second lease of one VM":           lease("lease-2", "web-00000001", ""),
		"a second lease of one request id":   lease("lease-2", "web-00000002", "req"),
		"a lease of no VM":                   lease("lease-2", "web-00000009", ""),
		"a VM of no pool":                    bad(func(v *pool.VM) { v.Pool.Name = "none" }),
		"a VM on no host":                    bad(func(v *pool.VM) { v.Host = "none" }),
		"an unknown phase":                   bad(func(v *pool.VM) { v.Phase = "READY"; v.Slot = "" }),
		"a deleting VM in a slot":            bad(func(v *pool.VM) { v.Phase = pool.Deleting }),
		"a warm VM without a slot":           bad(func(v *pool.VM) { v.Slot = "" }),
		"a held VM without a lease":          bad(func(v *pool.VM) { v.Phase, v.Slot = pool.Leased, "" }),
		"an available VM with a lease":       bad(func(v *pool.VM) { v.LeaseID = "lease-1" }),
		"a row that is there already":        bad(func(v *pool.VM) { v.ID = "web-00000001" }),
		"the removal of a VM that is leased": {VMs: []engine.Change[pool.VM, string]{{Key: "web-00000001", Before: 1}}},
		"the removal of a pool with VMs":     {Pools: []engine.Change[pool.Pool, pool.Key]{{Key: web, Before: 1}}},
		"an event id that is taken":          {Events: []pool.Event{{ID: 1}}},
		"the removal of no revision":         {Forgotten: []engine.RevisionKey{{Pool: web, Number: 1}}},
		"a revision of no pool":              {Revisions: []pool.Revision{{Pool: pool.Key{Name: "none"}, Number: 1, Template: template("")}}},
	} {
		t.Run(name, func(t *testing.T) {
			l := openTestLog(t, newDatabase(t))
			commit(t, l, firstRows())
			if err := l.Commit(t.Context(), changes); err == nil {
				t.Error("the commit was accepted")
			} else {
				t.Log(err)
			}
		})
	}
}

// TestOneCommitMayFreeAndTakeAUniqueValue: a request id is free for the next claim in the very commit that ends its
// lease, and a pool takes its revisions along.
func TestOneCommitMayFreeAndTakeAUniqueValue(t *testing.T) {
	path := newDatabase(t)
	l := openTestLog(t, path)
	first := firstRows()
	first.Revisions = []pool.Revision{{Pool: web, Number: 1, Template: template("a")}, {Pool: web, Number: 2, Template: template("b")}}
	commit(t, l, first)

	gone, taken := *first.VMs[0].After, *first.VMs[1].After
	gone.Phase, gone.LeaseID, gone.Reason, gone.Version = pool.Deleting, "", pool.ReasonReleased, 2
	taken.Phase, taken.LeaseID, taken.Slot, taken.Version = pool.Leased, "lease-2", "", 2
	commit(t, l, engine.Changes{
		Leases: []engine.Change[pool.Lease, string]{
			{Key: "lease-1", Before: 1},
			inserted("lease-2", pool.Lease{ID: "lease-2", Pool: web, VM: taken.ID, RequestID: "req", Version: 1}),
		},
		VMs: []engine.Change[pool.VM, string]{{Key: gone.ID, Before: 1, After: &gone}, {Key: taken.ID, Before: 1, After: &taken}},
	})
	commit(t, l, engine.Changes{
		Leases: []engine.Change[pool.Lease, string]{{Key: "lease-2", Before: 1}},
		VMs:    []engine.Change[pool.VM, string]{{Key: gone.ID, Before: 2}, {Key: taken.ID, Before: 2}},
		Pools:  []engine.Change[pool.Pool, pool.Key]{{Key: web, Before: 1}},
	})
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	state := loadLog(t, path)
	if n := len(state.Pools) + len(state.Revisions) + len(state.VMs) + len(state.Leases); n != 0 {
		t.Errorf("%d rows are left: %+v", n, state)
	}
	if state.LastEvent != 1 {
		t.Errorf("the last event is %d, want 1: events outlive their pool", state.LastEvent)
	}
}

func TestCommitGoesOnWhenItsCallerGivesUp(t *testing.T) {
	path := newDatabase(t)
	l := openTestLog(t, path)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := l.Commit(ctx, firstRows()); err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if state := loadLog(t, path); len(state.Leases) != 1 {
		t.Errorf("%d leases after reopening, want 1", len(state.Leases))
	}
}

// TestFullDiskStopsTheStore: the claim that meets it fails, nothing is acknowledged after it, and what was
// acknowledged before is there when the store is opened again.
func TestFullDiskStopsTheStore(t *testing.T) {
	path := newDatabase(t)
	log := openTestLog(t, path)
	s, err := engine.Open(t.Context(), log, engine.Options{})
	if err != nil {
		t.Fatal(err)
	}
	fill(t, s, 300)
	if _, err := log.conn.ExecContext(t.Context(), "PRAGMA max_page_count = 1"); err != nil { // the size it has now
		t.Fatal(err)
	}
	var acked []string
	var failure error
	for i := 0; failure == nil && i < 300; i++ {
		id := fmt.Sprintf("lease-%032d", i)
		_, failure = s.Claim(t.Context(), store.Claim{Pool: web, LeaseID: id, Consumer: strings.Repeat("c", 400), Now: start})
		if failure == nil {
			acked = append(acked, id)
		}
	}
	if !errors.Is(failure, store.ErrBroken) || !strings.Contains(failure.Error(), "full") {
		t.Fatalf("after %d claims: %v, want ErrBroken that says the disk is full", len(acked), failure)
	}
	if _, err := s.Renew(t.Context(), acked[0], start); !errors.Is(err, store.ErrBroken) {
		t.Errorf("renew after it: %v, want ErrBroken", err)
	}
	if err := s.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
	again := openStore(t, path)
	views, err := again.ListLeases(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, v := range views {
		got = append(got, v.Lease.ID)
	}
	if diff := cmp.Diff(acked, got); diff != "" {
		t.Errorf("leases (-acknowledged +found):\n%s", diff)
	}
}

func TestEventsAreFoundByPoolTypeAndCursor(t *testing.T) {
	l := openTestLog(t, newDatabase(t))
	other := pool.Key{Namespace: "default", Name: "other"}
	var events []pool.Event
	for id := int64(1); id <= 40; id++ {
		e := pool.Event{ID: id, Pool: web, Type: pool.EventVMAvailable, At: start}
		if id%2 == 0 {
			e.Pool = other
		}
		if id%5 == 0 {
			e.Type = pool.EventVMClaimed
		}
		events = append(events, e)
	}
	commit(t, l, engine.Changes{Events: events})
	claims := []pool.EventType{pool.EventVMClaimed, pool.EventVMReleased}
	for name, c := range map[string]struct {
		query store.EventQuery
		upTo  int64
		want  []int64
	}{
		"all, limited":         {store.EventQuery{Limit: 3}, 40, []int64{1, 2, 3}},
		"after a cursor":       {store.EventQuery{After: 37}, 40, []int64{38, 39, 40}},
		"nothing past upTo":    {store.EventQuery{After: 37}, 38, []int64{38}},
		"of types":             {store.EventQuery{Types: claims}, 20, []int64{5, 10, 15, 20}},
		"of a pool":            {store.EventQuery{Pool: &other, After: 34}, 40, []int64{36, 38, 40}},
		"of a pool and types":  {store.EventQuery{Pool: &other, Types: claims}, 40, []int64{10, 20, 30, 40}},
		"of an unknown pool":   {store.EventQuery{Pool: &pool.Key{Name: "none"}}, 40, nil},
		"of types that are no": {store.EventQuery{Types: []pool.EventType{"'; DROP TABLE events"}}, 40, nil},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := l.Events(t.Context(), c.query, c.upTo)
			if err != nil {
				t.Fatal(err)
			}
			var ids []int64
			for _, e := range got {
				ids = append(ids, e.ID)
			}
			if diff := cmp.Diff(c.want, ids); diff != "" {
				t.Errorf("ids (-want +got):\n%s", diff)
			}
		})
	}
}

// TestQueriesUseTheirIndex: what runs often neither reads a whole table nor sorts.
func TestQueriesUseTheirIndex(t *testing.T) {
	l := openTestLog(t, newDatabase(t))
	byID, byPool := "SEARCH events USING INTEGER PRIMARY KEY (rowid>? AND rowid<?)", "SEARCH events USING INDEX events_pool (namespace=? AND pool=? AND rowid>? AND rowid<?)"
	for text, want := range map[string]string{
		eventQueries[0]:        byID,
		eventQueries[1]:        byID,
		eventQueries[2]:        byPool,
		eventQueries[3]:        byPool,
		vmTable.updateSQL():    "SEARCH vms USING INDEX sqlite_autoindex_vms_1 (id=?)",
		vmTable.deleteSQL():    "SEARCH vms USING INDEX sqlite_autoindex_vms_1 (id=?)",
		leaseTable.updateSQL(): "SEARCH leases USING INDEX sqlite_autoindex_leases_1 (id=?)",
		leaseTable.deleteSQL(): "SEARCH leases USING INDEX sqlite_autoindex_leases_1 (id=?)",
		forgetRevision:         "SEARCH revisions USING INDEX sqlite_autoindex_revisions_1 (namespace=? AND pool=? AND number=?)",
		poolTable.updateSQL():  "SEARCH pools USING INDEX sqlite_autoindex_pools_1 (namespace=? AND name=?)",
	} {
		plan := queryPlan(t, l, text)
		if plan[0] != want {
			t.Errorf("%s\n  plan %q\n  want %q", text, plan, want)
		}
		for _, step := range plan {
			if strings.Contains(step, "TEMP B-TREE") || strings.HasPrefix(step, "SCAN") && !strings.Contains(step, "json_each") {
				t.Errorf("%s\n  plan %q", text, plan)
			}
		}
	}
}

func queryPlan(t *testing.T, l *sqlLog, text string) []string {
	t.Helper()
	text = regexp.MustCompile(`@\w+`).ReplaceAllString(text, "?")
	args := make([]any, strings.Count(text, "?"))
	rows, err := l.readDB.QueryContext(t.Context(), "EXPLAIN QUERY PLAN "+text, args...)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = rows.Close() }()
	var plan []string
	for rows.Next() {
		var id, parent, unused int
		var detail string
		if err := rows.Scan(&id, &parent, &unused, &detail); err != nil {
			t.Fatal(err)
		}
		plan = append(plan, detail)
	}
	if err := rows.Err(); err != nil || len(plan) == 0 {
		t.Fatalf("plan of %s: %v, %v", text, plan, err)
	}
	return plan
}
