package reconcile

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"poolmgr/internal/host"
	"poolmgr/internal/plan"
	"poolmgr/internal/pool"
	"poolmgr/internal/store"
)

// Config is what a Reconciler works with. Store, Fleet and Logger are required.
type Config struct {
	Store    store.Store
	Fleet    host.Fleet
	Logger   *slog.Logger
	Observer Observer // nil = none

	Limits         plan.Limits   // zero StartsPerHost = 3
	Passes         int           // pools worked on at once; 0 = 4
	DeletesPerHost int           // deletions under way at once on a host; 0 = 8
	Resync         time.Duration // a pool is looked at again after this long in any case; 0 = 30 s
	HostProbe      time.Duration // how often a host is asked whether it is there; 0 = 5 s
	Sweep          time.Duration // how often a host is searched for VMs that no row knows; 0 = 30 s

	Now    func() time.Time         // nil = time.Now
	Random func() float64           // in [0, 1), for jitter; nil = math/rand
	NewID  func(pool string) string // a new row id "<pool>-<8 hex>"; nil = from crypto/rand
}

// Observer hears of what metrics count. Its methods must not block.
type Observer interface {
	// Provisioned: a VM became available, so long after it was placed.
	Provisioned(key pool.Key, took time.Duration)
	// HookRan: the boot or the create commands of a VM ended.
	HookRan(key pool.Key, hook string, took time.Duration, failed bool)
	// LeaseExpired: a lease ended for want of heartbeats.
	LeaseExpired(key pool.Key, held time.Duration)
	// Planned: a pass ended with so many actions.
	Planned(key pool.Key, actions int, took time.Duration)
}

// Reconciler works the pools of a store.
type Reconciler struct {
	cfg     Config
	log     *slog.Logger
	tasks   *tasks
	hosts   *hostProbes
	poked   chan pool.Key
	serving serving
	trouble trouble
}

// New makes a Reconciler; it does nothing until Run.
func New(cfg Config) *Reconciler {
	cfg = cfg.withDefaults()
	r := &Reconciler{cfg: cfg, log: cfg.Logger, poked: make(chan pool.Key, pokeBuffer)}
	r.tasks = newTasks(r)
	r.hosts = newHostProbes(r)
	return r
}

// pokeBuffer bounds the wake-ups of tasks that the loop has not taken yet. A poke that finds it full is dropped: the
// change it tells of made the pool dirty in the store as well, or the resync finds it.
const pokeBuffer = 1024

// poke asks for a pass over a pool.
func (r *Reconciler) poke(key pool.Key) {
	select {
	case r.poked <- key:
	default:
	}
}

// Run works until ctx ends, and returns when every pass, task and probe that it started has ended. Ending it is never
// a failure of a VM: work in flight is resumed by the next Run, of this process or another.
func (r *Reconciler) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	r.serving.turn(r.cfg.Now())
	var wg sync.WaitGroup
	wg.Go(func() { r.hosts.run(ctx) })
	err := r.loop(ctx)
	cancel() // a loop that could not begin ends everything else
	wg.Wait()
	r.tasks.wait()
	return err
}
