package store

import (
	"time"

	"poolmgr/internal/pool"
)

// Step is what one pass, or the work on one VM, asks of the store. It is conditional on the pool's generation (unless
// 0) and on the worker's epoch; each action is conditional on the version of the row it was computed from.
type Step struct {
	Pool       pool.Key
	Generation int64 // of the pool when this was decided; 0 = whatever it is now (work on a VM that is under way)
	Epoch      int64
	Now        time.Time
	Actions    []Action
}

// Action is one atomic change. The types below are all there are.
type Action interface{ action() }

// Grow makes new slots, each with a PROVISIONING row of the named revision. Writes POOL_REPLENISHING.
// ErrConflict when the warm slots would then be more than MaxSlots.
type Grow struct {
	IDs      []string // new row ids, one per slot
	Revision int64
	MaxSlots int
}

// Surge puts a second, PROVISIONING row beside the available one of a slot, for a rollout. ErrConflict when the
// available row's version moved or the slot has a second row already.
type Surge struct {
	ID       string // new row id
	Beside   string // row id of the available VM
	Version  int64  // its version
	Revision int64
}

// Condemn sets a warm or quarantined VM DELETING with the reason on the row; with Successor, a PROVISIONING row takes
// its slot in the same transaction. It is never applied to a held VM unless the pool is closing, or the VM's claim is
// pending and stale (an older epoch, or past its deadline), or it is Lost; its lease ends with it.
type Condemn struct {
	VM        string
	Version   int64
	Reason    pool.Reason
	Successor *Successor
	// KeepReady and KeepSlots are recounted in the transaction: ErrConflict when fewer slots with a ready VM
	// (available, healthy), or fewer warm slots, would be left. Negative = not counted.
	KeepReady int
	KeepSlots int
	// KeepPeer: ErrConflict unless the slot keeps another ready VM.
	KeepPeer bool
	// Lost: the VM is confirmed missing from its host (or the host is dead for ever), so that nothing is taken away
	// from a consumer who holds it.
	Lost bool
}

// Successor is the row that takes over a slot.
type Successor struct {
	ID         string
	Revision   int64
	Attempt    int       // failures of this slot and revision so far
	NotBefore  time.Time // backoff
	ForRollout bool
	Message    string // why the one before it failed, for people; empty = it did not
}

// Place names the host of a PROVISIONING row and starts its boot clock. ErrConflict when the row moved, the host is
// cordoned, unreachable or gone, or its rows, memory or starts in flight are at their limits.
type Place struct {
	VM        string
	Version   int64
	Host      string
	MaxStarts int
}

// Unplace takes back a placement that the host refused for want of room: the row waits again. Only for rows
// without a UID.
type Unplace struct {
	VM        string
	Version   int64
	NotBefore time.Time
	Message   string
}

// Accepted stores the host's id of a VM, with VM_PROVISIONED; also of one that was condemned meanwhile, since its
// deletion needs the id.
type Accepted struct {
	VM      string
	Version int64
	UID     string
}

// Booted records the first answer from inside: the VM becomes CREATE_HOOK_RUNNING, or AVAILABLE (with VM_AVAILABLE)
// when its revision has no create commands.
type Booted struct {
	VM         string
	Version    int64
	Interfaces map[string]pool.Interface
}

// HooksDone records that every create command succeeded: AVAILABLE, with VM_AVAILABLE.
type HooksDone struct {
	VM      string
	Version int64
}

// Fail ends a warming VM whose boot or create hook failed: it is QUARANTINED when the pool's policy says so and
// max_quarantined allows it, and DELETING (FAILED) otherwise; the successor takes its slot in the same transaction.
// Writes VM_HOOK_FAILED with Payload (nil = no such event), and counts against the rollout unless Innocent. An innocent
// VM, or one that its host never accepted, is not quarantined; in a closing pool there is no successor.
type Fail struct {
	VM        string
	Version   int64
	Message   string
	Payload   map[string]any
	Innocent  bool // not the template's fault: its host was lost
	Successor Successor
}

// Probed stores what a probe of an available VM told. No event.
type Probed struct {
	VM           string
	Version      int64
	Health       pool.Health
	FailedProbes int
	At           time.Time // of the last good answer; zero = unchanged
}

// Gone removes the row of a DELETING VM that its host confirmed gone, with the event of its reason.
type Gone struct {
	VM      string
	Version int64
}

// ExpireLease ends a lease: its VM becomes DELETING (EXPIRED). ErrConflict when a heartbeat came first.
type ExpireLease struct {
	Lease   string
	Version int64
}

// WarnLease writes VM_EXPIRING_SOON, once per lease period.
type WarnLease struct {
	Lease   string
	Version int64
}

// Announce records what the planner found out about the pool as a whole; each change writes its event.
type Announce struct {
	Short             *bool  // true: POOL_SIZE_BELOW_TARGET; false: whole again, no event
	CompletedRevision int64  // > 0: this rollout is over; POOL_ROLLOUT_COMPLETED if it was STARTED. ErrConflict when it is not the current revision
	Ready, Desired    int    // for the payloads
	Why               string // for the payloads
}

// AnnounceState writes down where the planner found the rollout to stand. STALLED has its event; so has PAUSED when it
// begins and ends without a request, which has its own. The clock of the rollout begins anew when it is no longer PAUSED
// or BLOCKED. From and To may be the same where demand begins or ceases to be the cause. ErrConflict when the rollout is
// over, is another one, had a success meanwhile, or stands announced as something else than From.
type AnnounceState struct {
	Revision       int64
	LastSuccess    time.Time // as it was when this was decided
	From, To       pool.RolloutState
	Reason         string
	Demand         bool // demand holds the pool at its floor: noted with the time since when
	Ready, Desired int  // for the payloads
}

// RemovePool ends a closing pool without rows.
type RemovePool struct{}

func (Grow) action()          {}
func (Surge) action()         {}
func (Condemn) action()       {}
func (Place) action()         {}
func (Unplace) action()       {}
func (Accepted) action()      {}
func (Booted) action()        {}
func (HooksDone) action()     {}
func (Fail) action()          {}
func (Probed) action()        {}
func (Gone) action()          {}
func (ExpireLease) action()   {}
func (WarnLease) action()     {}
func (Announce) action()      {}
func (AnnounceState) action() {}
func (RemovePool) action()    {}
