package reconcile_test

import (
	"testing"
	"time"

	"poolmgr/api/flintlock/vmtypes"
	"poolmgr/internal/host"
	"poolmgr/internal/host/fake"
	"poolmgr/internal/pool"
)

// TestTroubleForAnHourStormsNothing counts what an hour of each kind of trouble costs: commits, passes, calls to the host
// and lines of the log. What fails is tried again further and further apart, and nothing goes round in a circle.
func TestTroubleForAnHourStormsNothing(t *testing.T) {
	const vms = 3
	fault := func(f fake.Fault) func(*rig) { return func(r *rig) { r.hosts[0].Inject(f) } }
	tests := []struct {
		name    string
		options func(*fake.Options)
		trouble func(*rig)
		full    bool // the pool was full before the trouble, and its template is changed in it
	}{
		{"a template that never boots", func(o *fake.Options) {
			o.Boot = func(*vmtypes.MicroVMSpec, int) fake.Boot { return fake.Boot{Fail: true} }
		}, nil, false},
		{"a template that is refused", nil, fault(fake.Fault{Op: fake.Create, Err: host.ErrRefused}), false},
		{"creates that fail", nil, fault(fake.Fault{Op: fake.Create, Err: errStumble}), false},
		{"create commands that fail", nil, func(r *rig) { r.hosts[0].Script("prepare", fake.Reply{Code: 1}) }, false},
		{"a host that has no room of its own", nil, fault(fake.Fault{Op: fake.Create, Err: host.ErrNoCapacity}), false},
		{"a host that is full by our books", nil, func(r *rig) {
			h, err := r.store.GetHost(t.Context(), "host-0")
			r.must(err)
			h.MaxVMs = 1
			_, err = r.store.UpdateHost(t.Context(), h.Host, time.Now())
			r.must(err)
		}, false},
		{"a rollout on a host that has no room of its own", nil, fault(fake.Fault{Op: fake.Create, Err: host.ErrNoCapacity}), true},
		{"a host that is down", nil, func(r *rig) { r.hosts[0].Down() }, true},
		{"a host that is silent", nil, func(r *rig) { r.hosts[0].Silence() }, true},
		{"deletions that fail", nil, fault(fake.Fault{Op: fake.Delete, Err: errStumble}), true},
		{"lists that fail", nil, fault(fake.Fault{Op: fake.List, Err: errStumble}), true},
		{"execs that fail", nil, fault(fake.Fault{Op: fake.Exec, Err: errStumble}), true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			inBubble(t, 1, tt.options, func(r *rig) {
				s := spec(vms, "1")
				if tt.full {
					r.create(s)
					r.until("the pool is full", r.full(vms))
				}
				if tt.trouble != nil {
					tt.trouble(r)
				}
				if s.CreateCommands = []string{"prepare"}; tt.full {
					r.update(s)
				} else {
					r.create(s)
				}
				commits, passes, lines := r.storage.Commits(), r.passes.Load(), r.lines.Load()
				calls := r.calls()
				r.pass(time.Hour)
				commits, passes, lines = r.storage.Commits()-commits, r.passes.Load()-passes, r.lines.Load()-lines
				calls = r.calls() - calls
				t.Logf("%d commits, %d passes, %d calls to the host, %d lines", commits, passes, calls, lines)
				// A failing slot makes six writes a minute at the longest backoff; a pool that waits for room looks every five
				// seconds, and a VM that boots or goes is asked about once a second.
				for _, c := range []struct {
					what      string
					got, most int
				}{
					{"commits", commits, 1500},
					{"passes", int(passes), 2000 + 4*commits},
					{"calls to the host", calls, 720 + vms*2*3600},
					{"lines of the log", int(lines), 1500},
				} {
					if c.got > c.most {
						t.Errorf("%d %s, at most %d are right", c.got, c.what, c.most)
					}
				}
			})
		})
	}
}

// calls is how many calls the hosts got.
func (r *rig) calls() int {
	n := 0
	for _, h := range r.hosts {
		for _, op := range []fake.Op{fake.Create, fake.Get, fake.List, fake.Delete, fake.Exec, fake.Info} {
			n += h.Count(op)
		}
	}
	return n
}

// TestAPoolThatHealsIsWholeSoon: after each kind of trouble the longest backoff bounds how long it takes.
func TestAPoolThatHealsIsWholeSoon(t *testing.T) {
	for _, f := range []fake.Fault{
		{Op: fake.Create, Err: host.ErrNoCapacity},
		{Op: fake.Create, Err: host.ErrRefused},
		{Op: fake.Create, Err: errStumble},
		{Op: fake.Create, Late: true, Err: host.ErrUnreachable},
		{Op: fake.List, Err: errStumble},
		{Op: fake.Get, Err: errStumble},
		{Op: fake.Delete, Err: errStumble},
		{Op: fake.Delete, Late: true, Err: host.ErrUnreachable},
		{Op: fake.Exec, Err: errStumble},
		{Op: fake.Exec, Err: host.ErrExecTimeout},
		{Err: host.ErrUnreachable},
		{Hang: true},
		{Late: true, Hang: true},
	} {
		t.Run(string(f.Op), func(t *testing.T) {
			inBubble(t, 2, nil, func(r *rig) {
				r.create(spec(3, "1"))
				r.until("the pool is full", r.full(3))
				var heal []func()
				for _, h := range r.hosts {
					heal = append(heal, h.Inject(f))
				}
				got, err := r.claim()
				r.must(err)
				r.update(spec(4, "2"))
				r.must(r.store.Release(t.Context(), got.Lease.ID, "", time.Now()))
				r.pass(20 * time.Minute)
				for _, h := range heal {
					h()
				}
				r.eventually("the rollout is completed", 10*time.Minute, r.rolloutCompleted(2))
				r.eventually("the pool is full", 2*time.Minute, r.full(4))
				if n := r.count(pool.EventRolloutCompleted); n != 1 {
					t.Errorf("%d POOL_ROLLOUT_COMPLETED, want 1", n)
				}
			})
		})
	}
}
