package pool

import (
	"maps"
	"time"
)

// Health is what is known of an available VM from inside.
type Health string

// Good VMs answered their last probe (or were never probed since the daemon started). Unknown ones are on a host
// that does not answer: not claimable, not ready, but not condemned either. Broken ones failed their probes while
// the host answered, or are confirmed missing: they are replaced.
const (
	HealthGood    Health = "GOOD"
	HealthUnknown Health = "UNKNOWN"
	HealthBroken  Health = "BROKEN"
)

// Reason says why a VM was condemned or quarantined. It is stored on the row when that is decided, so that the
// event which reports the end tells the truth however late the deletion finishes.
type Reason string

// The reasons, each with the event of the VM's end (see Reason.DeletedEvent).
const (
	ReasonReleased    Reason = "RELEASED"     // its lease was released
	ReasonExpired     Reason = "EXPIRED"      // its lease ended without heartbeats
	ReasonRollout     Reason = "ROLLOUT"      // another revision, or an older restart number
	ReasonPoolDeleted Reason = "POOL_DELETED" // its pool is being deleted
	ReasonScaleDown   Reason = "SCALE_DOWN"   // the warm set became smaller
	ReasonUnhealthy   Reason = "UNHEALTHY"    // it failed its probes, or vanished from its host
	ReasonAdmin       Reason = "ADMIN"        // somebody asked for it
	ReasonFailed      Reason = "FAILED"       // its boot or one of its hooks failed
	ReasonMaxAge      Reason = "MAX_AGE"      // it was warm for longer than the pool allows
	ReasonDrain       Reason = "DRAIN"        // its host is being drained, or no longer one of the pool's
	ReasonExcess      Reason = "EXCESS"       // another current VM fills its slot
)

// VM is one row: a VM that exists on a host, is about to, or is being removed from it. Rows are values; changing a
// copy changes nothing else, except that Interfaces must be cloned before it is written to.
type VM struct {
	ID        string // ours, "<pool>-<8 hex>"; also the VM's name on its host
	Pool      Key
	Slot      string // the place in the warm set it fills; empty once the VM is held, deleting or quarantined
	Phase     Phase
	Host      string // empty until the row is placed
	UID       string // the host's own id, empty until the host accepted the VM
	Namespace string // the namespace on the host

	Revision     int64  // number of the revision it is made from
	TemplateHash string // hash of the template it was really made from, copied when the row was written
	Restart      int64  // the pool's restart number when the row was written
	ForRollout   bool   // made to replace a VM in a rollout, or by the first fill; COMPLETED waits for it

	LeaseID string // set while held
	Reason  Reason // why it is DELETING or QUARANTINED
	Message string // last error or hook output tail, for people
	Attempt int    // how many VMs of this slot and revision failed before this one

	NotBefore   time.Time // not placed before this instant (backoff); zero = at once
	SentAt      time.Time // when it was placed and the create was sent: the boot deadline counts from here
	CreatedAt   time.Time // when the row was written
	AvailableAt time.Time // when it became AVAILABLE; age counts from here
	UpdatedAt   time.Time

	Health       Health
	FailedProbes int
	ProbedAt     time.Time // last good answer from inside

	Interfaces map[string]Interface // by device id, cached at provisioning so that a claim needs no call to a host

	Version int64 // grows with every write of the row; every conditional write names the one it read
}

// Interface is one network interface of a VM as its host reported it.
type Interface struct {
	HostDevice string // name of the device on the host
	Index      int32  // the device's index on the host
	MAC        string
}

// Clone returns a copy that shares nothing with v.
func (v VM) Clone() VM {
	v.Interfaces = maps.Clone(v.Interfaces)
	return v
}

// Stale reports whether the VM is of another template or an older restart number than its pool's current one.
func (v VM) Stale(p Pool) bool {
	return v.TemplateHash != p.TemplateHash || v.Restart < p.Restart
}

// Ready reports whether the VM is AVAILABLE and healthy: what the budget counts as availability.
func (v VM) Ready() bool {
	return v.Phase == Available && v.Health != HealthUnknown && v.Health != HealthBroken
}

// Claimable is the one definition of what may be handed out: AVAILABLE, last probe good, host reachable.
// VMs on cordoned hosts stay claimable and are taken last.
func Claimable(v VM, h Host) bool { return v.Ready() && h.Reachable }

// CountsReady is Ready under the pool's rollout policy: a VM of the current revision that has been available for less
// than min_ready does not count for the budget yet, though claims may take it.
func (v VM) CountsReady(p Pool, now time.Time) bool {
	if !v.Ready() {
		return false
	}
	young := p.Spec.Rollout.MinReady > 0 && now.Sub(v.AvailableAt) < p.Spec.Rollout.MinReady
	return !young || v.Stale(p)
}
