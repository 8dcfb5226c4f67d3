package pool

import (
	"cmp"
	"fmt"
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

	Announced      RolloutState // the state that was last written down; empty = PROGRESSING
	LastSuccess    time.Time    // a VM of the current revision became available, or the clock began anew
	LastStaleDrop  time.Time    // a stale warm VM went
	BlockedSince   time.Time    // since when demand holds the pool at its floor, so that nothing stale goes; zero = it does not
	Failures       []Failure    // since the last success; at most MaxFailures are kept, the latest last
	RolledBackFrom int64
}

// State is where the rollout stands as far as that was written down: the planner judges it anew in every pass.
func (p Pool) State() RolloutState {
	switch {
	case p.Rollout.Completed:
		return RolloutCompleted
	case p.Spec.Rollout.Paused:
		return RolloutPaused
	default:
		return cmp.Or(p.Rollout.Announced, RolloutProgressing)
	}
}

// RolloutState is where a rollout stands, with the API's words.
type RolloutState string

// The states; the first of COMPLETED, PAUSED, STALLED, BLOCKED, PROGRESSING that fits.
const (
	RolloutProgressing RolloutState = "PROGRESSING"
	RolloutPaused      RolloutState = "PAUSED"    // by request, or by a budget and a surge of 0
	RolloutBlocked     RolloutState = "BLOCKED"   // it cannot move, and the template is not the reason
	RolloutStalled     RolloutState = "STALLED"   // no success for too long, or too many failures
	RolloutCompleted   RolloutState = "COMPLETED" // never announced: Completed tells
)

// RolloutStates lists every state in display order.
var RolloutStates = []RolloutState{RolloutProgressing, RolloutPaused, RolloutBlocked, RolloutStalled, RolloutCompleted}

// MaxFailures bounds the failures kept on a pool's row.
const MaxFailures = 16

// Failure is one VM of the current revision whose boot or create hook failed.
type Failure struct {
	VM      string
	Host    string
	Message string
	At      time.Time
}

// String tells of the failure in a line.
func (f Failure) String() string { return fmt.Sprintf("%s on %s: %s", f.VM, f.Host, f.Message) }

// Clone returns a copy that shares nothing that is ever written to.
func (p Pool) Clone() Pool {
	p.Rollout.Failures = slices.Clone(p.Rollout.Failures)
	return p
}
