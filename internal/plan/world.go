package plan

import (
	"time"

	"poolmgr/internal/pool"
)

// World is everything a decision about one pool may depend on. It is read, never written to.
type World struct {
	Pool pool.Pool
	// Revisions are the stored templates of the rows, for what a VM of each takes; a row of a revision that is not among
	// them counts like one of the current template.
	Revisions []pool.Revision
	VMs       []pool.VM       // every row of the pool, in any order
	Hosts     []pool.HostLoad // every registered host, with counts over all pools, in any order
	// Avoid names hosts on which the latest starts failed. Others are tried first: a host that fails every start is the
	// emptiest one, and would get every VM.
	Avoid  map[string]bool
	Limits Limits
	Epoch  int64 // the daemon run that asks: pending leases of earlier runs are abandoned
	Leases []pool.Lease
	// ServingSince is when this daemon began to serve without a gap: no lease ends before it had a full threshold
	// from then, because the silence was ours.
	ServingSince time.Time
}

// Limits are the daemon's bounds on work. A zero field means no limit.
type Limits struct {
	StartsPerHost int // VMs placed on a host that did not answer yet
	NewRows       int // slots made in one pass; the rest follows in the next (see grow for the exception)
}

// Plan is what to do now. An empty plan means: nothing until Wake.
type Plan struct {
	Desired        int // slots the strategy asks for
	Slots          int // slots with a warm row, before this plan
	Ready          int // slots with a ready row, before this plan
	MaxUnavailable int // resolved
	MaxSurge       int // resolved

	Condemn []Condemn // sorted by VM
	Grow    int       // new slots
	Surge   []Surge   // sorted by slot
	Place   []Place   // in order of placement

	Expire []LeaseEnd // leases whose time is over
	Warn   []LeaseEnd // leases whose consumer should hear that they are about to end

	Short    *bool // set when the stored "below target" flag must change
	Complete bool  // this rollout is over
	Remove   bool  // the closing pool has no rows left

	State       State  // where the rollout stands
	StateReason string // why, in a sentence; empty for PROGRESSING and COMPLETED
	Demand      bool   // demand holds the pool at its floor, so that nothing stale can go
	Announce    bool   // the state, or that demand is its cause, is not what is written down
	RollbackTo  int64  // > 0: the policy asks for this revision to be restored

	Revision int64     // the revision new slots are made from
	Trial    bool      // except the first of them, which is of the pool's current one
	Wake     time.Time // the earliest moment something can change by itself; zero = only when a row changes
	Explain  []string  // one sentence for each shortfall, with its numbers, for people
}

// Condemn says which VM goes and why.
type Condemn struct {
	VM        string
	Version   int64
	Slot      string
	Reason    pool.Reason
	Successor bool  // a new row takes the slot in the same transaction
	Revision  int64 // the successor's
	// Attempt is the successor's: how many VMs of the slot and revision failed before it. Above 0 it waits for a backoff.
	Attempt int
	// KeepReady, KeepSlots and KeepPeer are what the store recounts in the transaction; negative = not counted.
	KeepReady int
	KeepSlots int
	KeepPeer  bool
}

// Surge says beside which VM a second one is made.
type Surge struct {
	Slot    string
	VM      string
	Version int64
	// Revision is what the second one is made from.
	Revision int64
}

// Place says where a row's VM is made.
type Place struct {
	VM      string
	Version int64
	Host    string
}

// LeaseEnd names a lease and the version this was decided from.
type LeaseEnd struct {
	Lease   string
	Version int64
}
