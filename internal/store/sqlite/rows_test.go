package sqlite

import (
	"fmt"
	"reflect"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"

	"poolmgr/api/flintlock/vmtypes"
	"poolmgr/internal/pool"
	"poolmgr/internal/store"
	"poolmgr/internal/store/engine"
)

var compareMessages = cmp.Comparer(sameMessages)

// words are values for the fields that only take some.
var words = map[reflect.Type]any{
	reflect.TypeFor[pool.Phase]():                pool.Leased,
	reflect.TypeFor[pool.Health]():               pool.HealthBroken,
	reflect.TypeFor[pool.Strategy]():             pool.MinSizeThreshold,
	reflect.TypeFor[pool.HookFailurePolicy]():    pool.Quarantine,
	reflect.TypeFor[pool.ClaimPreference]():      pool.CurrentOnly,
	reflect.TypeFor[pool.Limit]():                pool.Limit{Kind: pool.LimitPercent, Value: 30},
	reflect.TypeFor[*vmtypes.MicroVMSpec]():      template("every field"),
	reflect.TypeFor[pool.Key]():                  web,
	reflect.TypeFor[map[string]any]():            map[string]any{"count": 3.0, "message": "\x00 <tail> ü", "list": []any{"a"}},
	reflect.TypeFor[map[string]pool.Interface](): map[string]pool.Interface{"eth1": {HostDevice: "tap7", Index: 9, MAC: "02:aa"}, "eth2": {}},
}

// everything sets each field of a row to a value of its own, so that a field without a column cannot hide.
func everything[R any](n *int64) R {
	var row R
	set(reflect.ValueOf(&row).Elem(), n)
	return row
}

func set(v reflect.Value, n *int64) {
	*n++
	if word, ok := words[v.Type()]; ok {
		v.Set(reflect.ValueOf(word))
		return
	}
	if v.Type() == reflect.TypeFor[time.Time]() {
		v.Set(reflect.ValueOf(start.Add(time.Duration(*n))))
		return
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString(fmt.Sprintf("text %d", *n))
	case reflect.Int, reflect.Int32, reflect.Int64:
		v.SetInt(*n)
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		set(v.Elem(), n)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		set(v.Index(0), n)
		set(v.Index(1), n)
	case reflect.Struct:
		for i := range v.NumField() {
			set(v.Field(i), n)
		}
	default:
		panic("no value for " + v.Type().String())
	}
}

// allFields is one row of each kind with every field set, and their changes.
func allFields() (engine.State, engine.Changes) {
	n := int64(100)
	host, p, vm := everything[pool.Host](&n), everything[pool.Pool](&n), everything[pool.VM](&n)
	lease, revision, event := everything[pool.Lease](&n), everything[pool.Revision](&n), everything[pool.Event](&n)
	vm.Host, vm.Slot = host.Name, "" // a leased VM has no slot
	lease.VM, vm.LeaseID = vm.ID, lease.ID
	state := engine.State{
		Hosts: []pool.Host{host}, Pools: []pool.Pool{p}, VMs: []pool.VM{vm}, Leases: []pool.Lease{lease}, Revisions: []pool.Revision{revision},
		FirstEvent: event.ID, LastEvent: event.ID,
	}
	changes := engine.Changes{
		Hosts:     []engine.Change[pool.Host, string]{inserted(host.Name, host)},
		Pools:     []engine.Change[pool.Pool, pool.Key]{inserted(web, p)},
		VMs:       []engine.Change[pool.VM, string]{inserted(vm.ID, vm)},
		Leases:    []engine.Change[pool.Lease, string]{inserted(lease.ID, lease)},
		Revisions: []pool.Revision{revision},
		Events:    []pool.Event{event},
	}
	return state, changes
}

func TestEveryFieldSurvivesReopening(t *testing.T) {
	path := newDatabase(t)
	want, changes := allFields()
	l := openTestLog(t, path)
	commit(t, l, changes)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	got := loadLog(t, path)
	want.Installation, want.Epoch = got.Installation, got.Epoch
	if diff := cmp.Diff(want, got, compareMessages); diff != "" {
		t.Errorf("after reopening (-written +read):\n%s", diff)
	}
	l = openTestLog(t, path)
	events, err := l.Events(t.Context(), store.EventQuery{}, got.LastEvent)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(changes.Events, events); diff != "" {
		t.Errorf("events (-written +read):\n%s", diff)
	}
}

func TestEveryFieldSurvivesAnUpdate(t *testing.T) {
	path := newDatabase(t)
	want, inserts := allFields()
	l := openTestLog(t, path)

	// First rows with as little as possible, then an update that sets every field.
	vm, lease := warmVM(1), pool.Lease{}
	vm.ID, vm.Slot, vm.Phase, vm.LeaseID = want.VMs[0].ID, "", pool.Leased, want.Leases[0].ID
	lease.ID, lease.Pool, lease.VM, lease.RequestID, lease.Version = want.Leases[0].ID, web, vm.ID, want.Leases[0].RequestID, 1
	commit(t, l, engine.Changes{
		Hosts:  []engine.Change[pool.Host, string]{inserted(want.Hosts[0].Name, pool.Host{Name: want.Hosts[0].Name, Version: 1})},
		Pools:  []engine.Change[pool.Pool, pool.Key]{inserted(web, webPool())},
		VMs:    []engine.Change[pool.VM, string]{inserted(vm.ID, vm)},
		Leases: []engine.Change[pool.Lease, string]{inserted(lease.ID, lease)},
	})
	inserts.Hosts[0].Before, inserts.Pools[0].Before, inserts.VMs[0].Before, inserts.Leases[0].Before = 1, 1, 1, 1
	commit(t, l, inserts)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	got := loadLog(t, path)
	want.Installation, want.Epoch = got.Installation, got.Epoch
	if diff := cmp.Diff(want, got, compareMessages); diff != "" {
		t.Errorf("after the update (-written +read):\n%s", diff)
	}
}

func TestUnsetAndEmptyValuesSurvive(t *testing.T) {
	path := newDatabase(t)
	zero := 0
	unset, explicit := webPool(), webPool()
	unset.Spec = pool.Spec{Key: pool.Key{Name: "unset"}, Template: template("unset")}
	explicit.Spec.Name = "zero"
	explicit.Spec.MaxQuarantined = &zero
	explicit.Spec.Rollout.MaxUnavailable = pool.Limit{Kind: pool.LimitCount}
	explicit.Spec.Rollout.MaxSurge = pool.Limit{Kind: pool.LimitPercent}
	explicit.Spec.Template.Provider = proto.String("")
	explicit.Rollout.Failures = []pool.Failure{}
	bare, empty := warmVM(1), warmVM(2)
	bare.Pool, empty.Pool = unset.Key(), unset.Key()
	bare.Message = "not \xff UTF-8, and a \x00 in it"
	empty.Interfaces = map[string]pool.Interface{}
	none := pool.Revision{Pool: unset.Key(), Number: 1, Template: template("none")}
	some := pool.Revision{Pool: unset.Key(), Number: 2, Template: &vmtypes.MicroVMSpec{}, CreateCommands: []string{}}

	l := openTestLog(t, path)
	commit(t, l, engine.Changes{
		Pools:     []engine.Change[pool.Pool, pool.Key]{inserted(explicit.Key(), explicit), inserted(unset.Key(), unset)},
		VMs:       []engine.Change[pool.VM, string]{inserted(bare.ID, bare), inserted(empty.ID, empty)},
		Revisions: []pool.Revision{none, some},
		Events:    []pool.Event{{ID: 1, Type: pool.EventPoolReplenishing}, {ID: 2, Payload: map[string]any{}}},
	})
	events, err := l.Events(t.Context(), store.EventQuery{}, 2)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]pool.Event{{ID: 1, Type: pool.EventPoolReplenishing}, {ID: 2, Payload: map[string]any{}}}, events); diff != "" {
		t.Errorf("events (-written +read):\n%s", diff)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	got := loadLog(t, path)
	want := engine.State{
		Installation: got.Installation, Epoch: got.Epoch, FirstEvent: 1, LastEvent: 2,
		Pools: []pool.Pool{unset, explicit}, Revisions: []pool.Revision{none, some}, VMs: []pool.VM{bare, empty},
		Hosts: []pool.Host{}, Leases: []pool.Lease{},
	}
	if diff := cmp.Diff(want, got, compareMessages); diff != "" {
		t.Errorf("after reopening (-written +read):\n%s", diff)
	}
}

func TestInstantsAreStoredExactly(t *testing.T) {
	for _, want := range []time.Time{
		{},
		time.Unix(0, 1).UTC(),
		time.Unix(0, -1).UTC(),
		time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC),
		time.Date(2261, 12, 31, 23, 59, 59, 999999999, time.UTC),
	} {
		got := time.Now()
		if err := at(&got).Scan(nanos(want)); err != nil || got != want {
			t.Errorf("%v came back as %v, %v", want, got, err)
		}
	}
}
