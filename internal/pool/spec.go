package pool

import (
	"time"

	"poolmgr/api/flintlock/vmtypes"
)

// Strategy says when the warm set is refilled; see plan for the arithmetic.
type Strategy string

// The strategies, with the API's words.
const (
	ImmediateOnLease Strategy = "IMMEDIATE_ON_LEASE" // leased VMs are extra to the size
	MinSizeThreshold Strategy = "MIN_SIZE_THRESHOLD" // refill to size when fewer than min_size slots are left
	ReplaceOnDelete  Strategy = "REPLACE_ON_DELETE"  // leased VMs are part of the size
)

// HookFailurePolicy says what becomes of a VM whose hook failed.
type HookFailurePolicy string

// The policies, with the API's words.
const (
	DeleteAndReplace HookFailurePolicy = "DELETE_AND_REPLACE"
	Quarantine       HookFailurePolicy = "QUARANTINE"
)

// ClaimPreference says which of the claimable VMs a claim takes.
type ClaimPreference string

// The preferences, with the API's words.
const (
	CurrentFirst ClaimPreference = "CURRENT_FIRST" // current revision first, then stale ones
	CurrentOnly  ClaimPreference = "CURRENT_ONLY"  // never a stale one
	OldestFirst  ClaimPreference = "OLDEST_FIRST"  // longest available first, whatever the revision
)

// Defaults that CreatePool fills in and echoes.
const (
	DefaultHeartbeatInterval = 30 * time.Second
	DefaultHeartbeatExpiry   = 5 * time.Minute
	DefaultBootTimeout       = 2 * time.Minute
	DefaultCommandTimeout    = 5 * time.Minute
	DefaultProgressDeadline  = 10 * time.Minute
)

// Spec is what a user asks of a pool. Unset and explicit zero are different values where the API makes them so.
type Spec struct {
	Key
	Template *vmtypes.MicroVMSpec // shared between values: never written to after it is set
	Size     int                  // target of the warm set, >= 0
	Hosts    []string             // names of the hosts to use; empty = every registered host

	Strategy Strategy
	MinSize  int // MIN_SIZE_THRESHOLD only: 1..Size

	CreateCommands    []string // run once in a new VM, in order, before it is available
	PreLeaseCommands  []string // run in a VM at hand-out, before the claim is answered
	HookFailurePolicy HookFailurePolicy

	HeartbeatInterval time.Duration // how often a consumer is expected to call
	HeartbeatExpiry   time.Duration // how long a lease lives after its last heartbeat
	MaxLeaseDuration  time.Duration // total life of a lease; 0 = not limited

	Rollout         RolloutPolicy
	ClaimPreference ClaimPreference

	MaxVMs         int           // rows of any phase; 0 = not limited
	MaxWarmAge     time.Duration // available VMs older than this are refreshed; 0 = never
	MaxQuarantined *int          // nil = Size
	BootTimeout    time.Duration // from create sent to the first answer from inside
	CommandTimeout time.Duration // of each create or pre-lease command
}

// RolloutPolicy bounds how a pool's idle VMs are replaced.
type RolloutPolicy struct {
	MaxUnavailable   Limit // unset = 1; explicit 0 with no surge pauses the refresh
	MaxSurge         Limit // unset = 0
	Paused           bool
	MinReady         time.Duration // a new VM counts as available for the budget only after this long
	ProgressDeadline time.Duration // 0 = DefaultProgressDeadline
	AutoRollback     bool
}

// Deadline is how long a rollout may go without a success: the progress deadline, and the time that a success takes to
// count.
func (p RolloutPolicy) Deadline() time.Duration {
	if p.ProgressDeadline <= 0 {
		return DefaultProgressDeadline + p.MinReady
	}
	return p.ProgressDeadline + p.MinReady
}

// Revision is one stored template of a pool.
type Revision struct {
	Pool           Key
	Number         int64 // only grows
	TemplateHash   string
	Template       *vmtypes.MicroVMSpec
	CreateCommands []string
	CreatedAt      time.Time
}
