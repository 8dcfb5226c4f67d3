package lease

import (
	"context"
	"crypto/rand"
	"log/slog"
	"strings"
	"sync"
	"time"

	"poolmgr/internal/host"
	"poolmgr/internal/pool"
	"poolmgr/internal/store"
)

// Observer hears of what happened, for metrics. Its methods must not block.
type Observer interface {
	// Claimed: a claim was answered with a lease; replayed when its request id found one made before.
	Claimed(key pool.Key, replayed bool)
	// Released: a consumer gave its lease back after holding it for so long.
	Released(key pool.Key, held time.Duration)
	// HookRan: the pre-lease commands of one VM ended. failed is false when they were interrupted.
	HookRan(key pool.Key, hook string, took time.Duration, failed bool)
}

type noObserver struct{}

func (noObserver) Claimed(pool.Key, bool)                        {}
func (noObserver) Released(pool.Key, time.Duration)              {}
func (noObserver) HookRan(pool.Key, string, time.Duration, bool) {}

// Config is what a Manager is made of. Store and Fleet are required.
type Config struct {
	Store    store.Store
	Fleet    host.Fleet
	Logger   *slog.Logger     // nil = discard
	Observer Observer         // nil = nobody
	Now      func() time.Time // nil = time.Now
	NewID    func() string    // a new lease id of at least 128 random bits; nil = from crypto/rand
}

// Manager answers claims, heartbeats and releases. It is safe for concurrent use.
type Manager struct {
	cfg Config
	log *slog.Logger

	draining chan struct{} // closed by Drain
	calls    sync.WaitGroup

	mu      sync.Mutex
	drained bool
	running map[*call]bool
	lines   map[pool.Key][]*waiter
	flights map[requestKey]*flight
	streaks map[pool.Key]*streak
}

// call is a claim under way, so that Close can end it.
type call struct{ cancel context.CancelCauseFunc }

// New returns a Manager that serves at once. Close it when the calls to it have ended.
func New(cfg Config) *Manager {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Observer == nil {
		cfg.Observer = noObserver{}
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.NewID == nil {
		cfg.NewID = newID
	}
	return &Manager{
		cfg: cfg, log: cfg.Logger, draining: make(chan struct{}),
		running: map[*call]bool{}, lines: map[pool.Key][]*waiter{}, flights: map[requestKey]*flight{}, streaks: map[pool.Key]*streak{},
	}
}

// newID returns 130 random bits.
func newID() string { return strings.ToLower(rand.Text()) }

// Drain refuses new claims with UNAVAILABLE and sends those that wait away; pre-lease commands under way go on, and
// heartbeats, releases and commands are served as before.
func (m *Manager) Drain() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.drained {
		m.drained = true
		close(m.draining)
	}
}

// Close drains, interrupts the claims that are still under way and waits for them. Their VMs are condemned: they were
// touched and never handed out.
func (m *Manager) Close() error {
	m.Drain()
	m.mu.Lock()
	for c := range m.running {
		c.cancel(errStopping)
	}
	m.mu.Unlock()
	m.calls.Wait()
	return nil
}

// begin admits a claim. end must be called when it is over.
func (m *Manager) begin(ctx context.Context) (_ context.Context, end func(), _ error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.drained {
		return nil, nil, stopping()
	}
	ctx, cancel := context.WithCancelCause(ctx)
	c := &call{cancel: cancel}
	m.running[c] = true
	m.calls.Add(1)
	return ctx, func() {
		m.mu.Lock()
		delete(m.running, c)
		m.mu.Unlock()
		cancel(nil)
		m.calls.Done()
	}, nil
}

// Heartbeat extends a lease by its pool's threshold. NOT_FOUND for an unknown or ended lease.
func (m *Manager) Heartbeat(ctx context.Context, lease string) (store.RenewResult, error) {
	return m.cfg.Store.Renew(ctx, lease, m.cfg.Now())
}

// Release ends a lease. When it returns, the lease is gone and its VM will be deleted, whatever happens to the daemon;
// the host is told later. NOT_FOUND for an unknown or ended lease.
func (m *Manager) Release(ctx context.Context, lease string) error {
	l, vm, err := m.cfg.Store.GetLease(ctx, lease)
	if err != nil {
		return err
	}
	now := m.cfg.Now()
	if err := m.cfg.Store.Release(ctx, lease, "", now); err != nil {
		return err
	}
	held := max(0, now.Sub(l.ClaimedAt))
	m.cfg.Observer.Released(l.Pool, held)
	m.log.Info("released", "pool", l.Pool.String(), "vm", vm.ID, "host", vm.Host, "held", held.Round(time.Millisecond))
	return nil
}

// List shows the leases of a pool, or of all pools when key is nil, sorted by id. NOT_FOUND without the pool.
func (m *Manager) List(ctx context.Context, key *pool.Key) ([]store.LeaseView, error) {
	return m.cfg.Store.ListLeases(ctx, key)
}
