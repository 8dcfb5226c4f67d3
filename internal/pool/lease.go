package pool

import "time"

// Lease is the right to a VM until ExpiresAt, extended by heartbeats.
type Lease struct {
	ID        string // 128 or more random bits; a credential, never logged
	Pool      Key
	VM        string // the VM's row id
	RequestID string // makes a repeated claim find its lease; scoped to the pool; empty = none
	Consumer  string // free text for people
	Owner     string // identity that claimed; empty until identities exist

	// Pending is true while the pool's pre-lease commands run: the VM is PRE_LEASE_HOOK_RUNNING, the consumer has not
	// been answered, and ExpiresAt is the deadline of the hooks.
	Pending bool
	Epoch   int64 // the daemon run that claims; a pending lease of an older run is condemned at the next pass

	ClaimedAt       time.Time
	LastHeartbeatAt time.Time
	ExpiresAt       time.Time
	Warned          bool // VM_EXPIRING_SOON was written in this lease period

	Version int64
}
