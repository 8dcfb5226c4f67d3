package reconcile

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"poolmgr/internal/pool"
	"poolmgr/internal/store"
)

// tasks is the work under way on single VMs. A task carries a row from phase to phase by itself, and looks at the row
// again before each step; it knows nothing that the row does not say, so that losing it costs time only.
type tasks struct {
	r  *Reconciler
	wg sync.WaitGroup

	mu       sync.Mutex
	running  map[string]*task             // by VM id
	deletes  map[string]int               // deletions under way, by host
	deferred map[string]map[pool.Key]bool // pools with deletions that wait for a free place, by host
	fresh    map[string]bool              // rows that this run placed, and no create was sent for
}

// task is one goroutine working on one VM.
type task struct {
	destroys bool               // it counts among the host's deletions
	abort    context.CancelFunc // ends the present step, after which the row is looked at again
}

func newTasks(r *Reconciler) *tasks {
	return &tasks{
		r: r, running: map[string]*task{}, deletes: map[string]int{},
		deferred: map[string]map[pool.Key]bool{}, fresh: map[string]bool{},
	}
}

// placed notes that this run placed a row, so that no host can have heard of it yet. Not to know it is safe: then its
// host is asked twice.
func (t *tasks) placed(vm string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.fresh[vm] = true
}

// takeFresh reports whether no create can have been sent for a row as it stands, once.
func (t *tasks) takeFresh(v pool.VM) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	fresh := t.fresh[v.ID]
	delete(t.fresh, v.ID)
	return fresh
}

// wait returns when every task has ended.
func (t *tasks) wait() { t.wg.Wait() }

// ensure starts work on a VM that needs some, and interrupts work that its row has overtaken: a VM that was condemned
// while it boots. It never waits; what it starts ends with ctx, which is that of Run and not of the pass.
func (t *tasks) ensure(ctx context.Context, v pool.VM) {
	if !needsWork(v) {
		return
	}
	destroys := v.Phase == pool.Deleting
	t.mu.Lock()
	defer t.mu.Unlock()
	if running := t.running[v.ID]; running != nil {
		if destroys && !running.destroys {
			running.abort()
		}
		return
	}
	if destroys && v.Host != "" {
		if t.deletes[v.Host] >= t.r.cfg.DeletesPerHost {
			t.deferLocked(v)
			return
		}
		t.deletes[v.Host]++
	}
	step, abort := context.WithCancel(ctx)
	t.running[v.ID] = &task{destroys: destroys, abort: abort}
	t.wg.Go(func() {
		defer abort()
		err := t.r.work(step, v)
		t.ended(step, v, destroys, err)
	})
}

// needsWork reports whether a row asks for something that only a host can do. A row that is not placed yet waits for
// the planner.
func needsWork(v pool.VM) bool {
	switch v.Phase {
	case pool.Provisioning:
		return v.Host != ""
	case pool.CreateHookRunning, pool.Deleting:
		return true
	default:
		return false
	}
}

func (t *tasks) deferLocked(v pool.VM) {
	if t.deferred[v.Host] == nil {
		t.deferred[v.Host] = map[pool.Key]bool{}
	}
	t.deferred[v.Host][v.Pool] = true
}

// rest is how long a task that ended in an error waits before its pool is looked at again: longer, the longer the row
// has been in its phase. So the backoff is a matter of the row and survives restarts like everything else.
func (r *Reconciler) rest(v pool.VM) time.Duration {
	return r.jittered(min(max(time.Second, r.cfg.Now().Sub(v.UpdatedAt)/4), pool.BackoffCap))
}

// ended gives a task's place to others, has a VM whose work failed rest for a while, and then forgets the task. The
// rest ends with the step, when the row is overtaken.
func (t *tasks) ended(step context.Context, v pool.VM, destroys bool, err error) {
	if destroys && v.Host != "" {
		t.makeRoom(v.Host)
	}
	if err != nil && step.Err() == nil {
		level := slog.LevelWarn
		if errors.Is(err, errStillThere) {
			level = slog.LevelDebug
		}
		t.r.log.Log(step, level, "work on a VM is not done; it is tried again", "pool", v.Pool.String(), "vm", v.ID, "host", v.Host, "error", err)
		sleep(step, t.r.rest(v))
	}
	t.mu.Lock()
	delete(t.running, v.ID)
	t.mu.Unlock()
	t.r.poke(v.Pool)
}

// makeRoom frees a place for deletions on a host and wakes the pools that wait for one. It comes before the rest, or a
// few VMs that cannot be deleted would keep every other from it.
func (t *tasks) makeRoom(host string) {
	t.mu.Lock()
	t.deletes[host]--
	if t.deletes[host] == 0 {
		delete(t.deletes, host)
	}
	wake := t.deferred[host]
	delete(t.deferred, host)
	t.mu.Unlock()
	for key := range wake {
		t.r.poke(key)
	}
}

// sleep waits for d or the end of ctx, and reports whether d passed.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// work carries a VM's row forward until nothing is left to do for it here. Each turn reads the row, takes the one step
// that its phase asks for, and goes on with what the row says then.
func (r *Reconciler) work(ctx context.Context, v pool.VM) error {
	began := v.Phase
	for {
		// Also before the first step: the pass may have seen the row before an earlier task moved it on.
		row, err := r.cfg.Store.GetVM(ctx, v.ID)
		switch {
		case pool.CodeOf(err) == pool.CodeNotFound || ctx.Err() != nil:
			return nil
		case err != nil:
			return err
		}
		step := r.stepFor(row)
		if step == nil || (row.Phase == pool.Deleting) != (began == pool.Deleting) {
			return nil // the next pass starts the work of the new phase
		}
		err = step(ctx, row)
		if ctx.Err() != nil {
			return nil // interrupted or shut down: whoever comes next reads the row
		}
		if err != nil {
			return err
		}
	}
}

// stepFor is the state machine of a row: what to do for a VM of this phase.
func (r *Reconciler) stepFor(v pool.VM) func(context.Context, pool.VM) error {
	switch {
	case !needsWork(v):
		return nil
	case v.Phase == pool.Deleting:
		return r.destroy
	case v.Phase == pool.CreateHookRunning:
		return r.runCreateCommands
	case v.UID == "":
		return r.create
	default:
		return r.awaitBoot
	}
}

// record writes the outcome of a step, conditional on the row that the step was taken for. A conflict means that the
// row was condemned meanwhile; the row is looked at again in any case.
func (r *Reconciler) record(ctx context.Context, v pool.VM, a store.Action) error {
	return r.recordAt(ctx, v, 0, a)
}

// recordAt is record, conditional on the pool's generation as well unless that is 0.
func (r *Reconciler) recordAt(ctx context.Context, v pool.VM, generation int64, a store.Action) error {
	// An outcome that is known is written down even while the daemon is being stopped.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), passLimit)
	defer cancel()
	results, err := r.cfg.Store.Apply(ctx, store.Step{
		Pool: v.Pool, Generation: generation, Epoch: r.cfg.Store.Epoch(), Now: r.cfg.Now(), Actions: []store.Action{a},
	})
	if err != nil {
		return err
	}
	return results[0]
}
