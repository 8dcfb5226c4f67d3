package store

import (
	"context"
	"time"

	"poolmgr/internal/pool"
)

// MaxActions bounds the actions of one step, and so the size of a transaction.
const MaxActions = 256

// KeptRevisions is how many of a pool's latest revisions are kept, whether or not anything is made from them.
const KeptRevisions = 10

// Store is the memory of the daemon. Every verb is atomic and safe for concurrent use; what it returns is immutable.
// Verbs that change something are durable when they return. All instants come from the caller (one now per verb).
type Store interface {
	Pools
	Leases
	Hosts
	Events

	// Snapshot is one consistent read of everything a pass over the pool needs. NOT_FOUND without the pool.
	Snapshot(ctx context.Context, key pool.Key) (Snapshot, error)

	// Apply carries out the actions of a step, each on its own: the error at an index is that action's result, and
	// one action's conflict does not touch the others. The second result is an error of the step as a whole (fenced,
	// broken, closed), after which nothing of it was done. At most MaxActions actions.
	Apply(ctx context.Context, step Step) ([]error, error)

	// Dirty is the set of pools that changed since they were last taken from it. Ready is a one-slot notification;
	// Take empties the set. Keys only, never facts: whoever wakes looks again. Everything is dirty at opening.
	Dirty() DirtySet

	// Epoch numbers this opening of the store; it only grows. Steps and pending leases carry it.
	Epoch() int64

	// Installation is the random id of this database, made when it was created; it marks our VMs on hosts.
	Installation() string

	// Close releases the store and its lock. Verbs after it answer ErrClosed.
	Close() error
}

// DirtySet is the store's wake-up list.
type DirtySet interface {
	Ready() <-chan struct{}
	Take() []pool.Key
}

// Pools are the verbs about pools and the reads of their VMs.
type Pools interface {
	// CreatePool stores a validated spec with its defaults filled in, as generation 1 and revision 1.
	// ALREADY_EXISTS when the name is taken, also by a pool that is being deleted.
	CreatePool(ctx context.Context, c CreatePool) (pool.Pool, error)

	// UpdatePool replaces the whole spec. A changed hash makes a new revision and starts a new rollout, with
	// POOL_ROLLOUT_STARTED when that leaves any VM stale, leased ones included. A pause that is set or lifted does what
	// SteerRollout does. NOT_FOUND without the pool, ABORTED when a named generation is not the present one,
	// FAILED_PRECONDITION while it is being deleted.
	UpdatePool(ctx context.Context, u UpdatePool) (pool.Pool, error)

	// ClosePool begins a deletion: from then on there are no claims and its leases have ended; passes condemn the VMs in
	// batches and the row goes with the last one. FAILED_PRECONDITION with held VMs unless forced; again is OK.
	ClosePool(ctx context.Context, c ClosePool) error

	// SteerRollout pauses, resumes, restarts or undoes the rollout of a pool; the pool's generation grows when something
	// changed. NOT_FOUND without the pool, or for a revision that is not stored; FAILED_PRECONDITION while the pool is
	// being deleted, or when there is nothing to undo to; INVALID_ARGUMENT for another verb. The events are
	// POOL_ROLLOUT_PAUSED, _RESUMED and _ROLLED_BACK, and POOL_ROLLOUT_STARTED when a restart or an undo leaves any VM
	// stale.
	SteerRollout(ctx context.Context, s SteerRollout) (pool.Pool, error)

	GetPool(ctx context.Context, key pool.Key) (PoolView, error)
	ListPools(ctx context.Context, namespace string) ([]PoolView, error) // empty namespace = all; sorted by key
	GetVM(ctx context.Context, id string) (pool.VM, error)
	// ListVMs pages through VMs in order of id.
	ListVMs(ctx context.Context, q VMQuery) ([]pool.VM, error)
	// Revisions lists the stored revisions, oldest first: the last KeptRevisions, and those that were in use when the
	// latest was made (the last completed one, and every VM's).
	Revisions(ctx context.Context, key pool.Key) ([]pool.Revision, error)
}

// CreatePool asks for a new pool.
type CreatePool struct {
	Spec  pool.Spec
	Actor string // identity of the caller; empty until identities exist
	Now   time.Time
}

// UpdatePool asks for a new spec of an existing pool.
type UpdatePool struct {
	Spec       pool.Spec
	Generation int64 // must match when not 0
	Actor      string
	Now        time.Time
}

// ClosePool asks for the end of a pool.
type ClosePool struct {
	Pool  pool.Key
	Force bool // also when VMs are held: their leases end
	Actor string
	Now   time.Time
}

// RolloutVerb is what a caller wants of a rollout.
type RolloutVerb string

// The verbs of SteerRollout.
const (
	RolloutPause   RolloutVerb = "PAUSE"   // nothing stale is replaced until it is resumed; again is OK and changes nothing
	RolloutResume  RolloutVerb = "RESUME"  // lifts the pause; the clock and the failures of the rollout begin anew, paused or not
	RolloutRestart RolloutVerb = "RESTART" // every VM is replaced, without a change of the template
	RolloutUndo    RolloutVerb = "UNDO"    // template and create commands of an earlier revision, as a new revision
)

// SteerRollout asks for a change of how a pool's rollout goes on.
type SteerRollout struct {
	Pool pool.Key
	Verb RolloutVerb
	// To is the revision that UNDO goes back to; 0 = the last completed one or, when that is the current one or has its
	// hash, the newest stored one of another hash.
	To         int64
	Generation int64 // must match when not 0; ABORTED otherwise
	Actor      string
	Now        time.Time
}

// PoolView is a pool with the counts of its VMs.
type PoolView struct {
	Pool   pool.Pool
	Counts Counts
}

// Counts are numbers of a pool's VMs, as PoolStatus shows them.
type Counts struct {
	Claimable   int // available_count
	Held        int // leased_count
	Warming     int // provisioning_count
	Quarantined int
	Deleting    int
	Failed      int
	Stale       int // of another revision, DELETING ones not counted
	StaleLeased int
	Desired     int // slots the strategy asks for at present
}

// VMQuery selects VMs; empty fields select all.
type VMQuery struct {
	Pool   *pool.Key
	Host   string
	Phases []pool.Phase
	After  string // ids greater than this
	Limit  int    // at most this many; 0 = 1000
}

// Snapshot is what one pass over a pool decides from.
type Snapshot struct {
	Pool      pool.Pool
	Revisions []pool.Revision // those in use: the current, the last completed, and every warm VM's
	VMs       []pool.VM       // every row, sorted by id
	Leases    []pool.Lease    // sorted by id
	Hosts     []pool.HostLoad // every registered host, sorted by name; counts are over all pools
}

// Leases are the verbs of claiming.
type Leases interface {
	// Claim takes one claimable VM for the caller, or finds the lease that the same request id made before.
	// RESOURCE_EXHAUSTED without a claimable VM, NOT_FOUND without the pool or while it is being deleted.
	// With Hooks the VM becomes PRE_LEASE_HOOK_RUNNING and the lease is pending until CompleteClaim or FailClaim;
	// without, it is LEASED at once.
	Claim(ctx context.Context, c Claim) (ClaimResult, error)

	// CompleteClaim turns a pending lease into a lease: the VM is LEASED, the expiry counts from now.
	// ABORTED when the lease ended meanwhile (pool deleted, host lost).
	CompleteClaim(ctx context.Context, lease string, now time.Time) (pool.Lease, error)

	// FailClaim ends a pending lease and applies the hook failure policy to its VM; the request id is free again.
	// Without a payload no hook failed, and the VM is condemned whatever the policy. ABORTED as for CompleteClaim.
	FailClaim(ctx context.Context, f FailClaim) error

	// Renew sets the expiry to now + the pool's threshold, never past its max_lease_duration, and clears the warning.
	// NOT_FOUND for an unknown, pending or ended lease.
	Renew(ctx context.Context, lease string, now time.Time) (RenewResult, error)

	// Release ends a lease: the lease is gone and the VM is DELETING when it returns. NOT_FOUND as for Renew.
	Release(ctx context.Context, lease, actor string, now time.Time) error

	GetLease(ctx context.Context, lease string) (pool.Lease, pool.VM, error) // NOT_FOUND as for Renew
	ListLeases(ctx context.Context, key *pool.Key) ([]LeaseView, error)      // nil = all pools; sorted by id; pending ones not shown
}

// Claim asks for one VM of a pool.
type Claim struct {
	Pool      pool.Key
	LeaseID   string // new random id, used unless the request id finds a lease
	RequestID string
	Consumer  string
	Actor     string
	Hooks     time.Duration // > 0: the pool has pre-lease commands, and this is their deadline from now
	Exclude   []string      // VMs that this claim already failed on
	Now       time.Time

	// ReplayOnly looks for the request id's lease and takes nothing: RESOURCE_EXHAUSTED without it. It is how a claim
	// that must stand in line finds out that it was answered before.
	ReplayOnly bool
}

// ClaimResult is a lease with its VM.
type ClaimResult struct {
	Lease    pool.Lease
	VM       pool.VM
	Host     pool.Host
	Spec     pool.Spec // as of the claim: its pre-lease commands and policy
	Stale    bool      // the VM is not of the pool's current revision
	Replayed bool      // found by its request id; Lease.Pending tells whether the first caller is still at it
}

// FailClaim ends a pending lease without handing it out.
type FailClaim struct {
	Lease   string
	Message string         // for the row
	Payload map[string]any // for VM_HOOK_FAILED; nil = no such event (the caller gave up, the daemon stops)
	Now     time.Time
}

// RenewResult is a renewed lease.
type RenewResult struct {
	Lease    pool.Lease
	Outdated bool // the pool's template has changed since the VM was made
}

// LeaseView is a lease with what a list shows of its VM.
type LeaseView struct {
	Lease pool.Lease
	UID   string
}

// Hosts are the verbs about the registered hosts.
type Hosts interface {
	// AddHost registers a host. ALREADY_EXISTS for the name, FAILED_PRECONDITION for an address another host has.
	AddHost(ctx context.Context, h pool.Host, now time.Time) (pool.Host, error)
	// UpdateHost replaces address, TLS and limits. NOT_FOUND; FAILED_PRECONDITION for a change of address with rows there.
	UpdateHost(ctx context.Context, h pool.Host, now time.Time) (pool.Host, error)
	// CordonHost sets or lifts the cordon. NOT_FOUND.
	CordonHost(ctx context.Context, name string, cordoned bool, reason string, now time.Time) (pool.Host, error)
	// RemoveHost forgets a host. NOT_FOUND; FAILED_PRECONDITION while a pool names it or VMs are on it.
	RemoveHost(ctx context.Context, name string) error
	// SetReachable stores what the last calls to a host told; it makes the pools with VMs there dirty.
	SetReachable(ctx context.Context, name string, reachable bool, message string, now time.Time) error
	GetHost(ctx context.Context, name string) (pool.HostLoad, error)
	ListHosts(ctx context.Context) ([]pool.HostLoad, error) // sorted by name
}

// Events are the reads of what happened.
type Events interface {
	// Since returns up to q.Limit events after the cursor, oldest first, together with the cursor to go on from: it
	// covers only ids below which nothing can still appear. OUT_OF_RANGE when q.After is older than what is kept.
	Since(ctx context.Context, q EventQuery) (EventPage, error)
	// LastEvent is the newest id that is visible; 0 without events.
	LastEvent() int64
	// Changed returns a channel that is closed at the next commit that wrote an event or touched a pool. Take it before
	// reading, then wait on it.
	Changed() <-chan struct{}
}

// EventQuery selects events; empty fields select all.
type EventQuery struct {
	After int64
	Pool  *pool.Key
	Types []pool.EventType
	Limit int // 0 = 256
}

// EventPage is a page of events with the cursor to go on from, which may be past the last event of the page.
type EventPage struct {
	Events []pool.Event
	Cursor int64
}
