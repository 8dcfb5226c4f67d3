package pool

import (
	"slices"
	"time"
)

// Pool is one row: what the user asked for, and the few facts about it that cannot be derived from the VMs.
type Pool struct {
	Spec         Spec
	Generation   int64  // grows with every update of the spec; the first is 1
	Revision     int64  // number of the current revision; only grows
	TemplateHash string // hash of the current revision
	Restart      int64  // grows with every `rollout restart`; rows of a lower number are stale
	Rollout      Rollout

	NextSlot int64 // number of slots ever made: the next one is "s<NextSlot>"
	Short    bool  // POOL_SIZE_BELOW_TARGET was written and the pool has not been whole since
	Closing  bool  // being deleted: no claims, no updates; the row goes with its last VM

	Owner     string // identity that created it; empty until identities exist
	CreatedAt time.Time
	UpdatedAt time.Time
	Version   int64
}

// Key is the pool's name and namespace.
func (p Pool) Key() Key { return p.Spec.Key }

// Rollout holds the stored facts of the current rollout. An edit of the template starts a new one and resets them,
// except LastCompleted. Everything else about a rollout is derived from rows.
type Rollout struct {
	LastCompleted int64 // revision that last completed a rollout; 0 = none yet
	Started       bool  // POOL_ROLLOUT_STARTED was written for this rollout
	Completed     bool  // the rollout is over; kept until the revision or the restart number changes
	Proven        bool  // a VM of this revision was AVAILABLE: it boots
	Total         int   // warm stale VMs when it began
	StartedAt     time.Time
	CompletedAt   time.Time

	LastSuccess    time.Time // a VM of the current revision became available
	LastStaleDrop  time.Time // a stale warm VM went
	BlockedSince   time.Time
	Failures       []Failure // since the last success; at most MaxFailures are kept, the latest last
	RolledBackFrom int64
}

// MaxFailures bounds the failures kept on a pool's row.
const MaxFailures = 16

// Failure is one VM of the current revision whose boot or create hook failed.
type Failure struct {
	VM      string
	Host    string
	Message string
	At      time.Time
}

// Clone returns a copy that shares nothing that is ever written to.
func (p Pool) Clone() Pool {
	p.Rollout.Failures = slices.Clone(p.Rollout.Failures)
	return p
}
