package pool

import "time"

// EventType is what happened, with the API's words.
type EventType string

// The events that are written.
const (
	EventVMProvisioned       EventType = "VM_PROVISIONED"
	EventVMAvailable         EventType = "VM_AVAILABLE"
	EventVMClaimed           EventType = "VM_CLAIMED"
	EventVMReleased          EventType = "VM_RELEASED"
	EventVMExpiringSoon      EventType = "VM_EXPIRING_SOON"
	EventVMDeletedExpiry     EventType = "VM_DELETED_DUE_TO_EXPIRY"
	EventVMDeletedRelease    EventType = "VM_DELETED_ON_RELEASE"
	EventVMHookFailed        EventType = "VM_HOOK_FAILED"
	EventPoolReplenishing    EventType = "POOL_REPLENISHING"
	EventPoolBelowTarget     EventType = "POOL_SIZE_BELOW_TARGET"
	EventVMDeletedRollout    EventType = "VM_DELETED_FOR_ROLLOUT"
	EventRolloutStarted      EventType = "POOL_ROLLOUT_STARTED"
	EventRolloutCompleted    EventType = "POOL_ROLLOUT_COMPLETED"
	EventRolloutStalled      EventType = "POOL_ROLLOUT_STALLED"
	EventRolloutRolledBack   EventType = "POOL_ROLLOUT_ROLLED_BACK"
	EventRolloutPaused       EventType = "POOL_ROLLOUT_PAUSED"
	EventRolloutResumed      EventType = "POOL_ROLLOUT_RESUMED"
	EventVMDeletedPoolDelete EventType = "VM_DELETED_ON_POOL_DELETE"
	EventVMDeletedScaleDown  EventType = "VM_DELETED_ON_SCALE_DOWN"
	EventVMDeletedUnhealthy  EventType = "VM_DELETED_UNHEALTHY"
	EventVMDeletedAdmin      EventType = "VM_DELETED_BY_ADMIN"
	EventVMDeletedFailure    EventType = "VM_DELETED_AFTER_FAILURE"
	EventVMDeletedMaxAge     EventType = "VM_DELETED_MAX_AGE"
	EventVMDeletedDrain      EventType = "VM_DELETED_FOR_DRAIN"
	EventVMDeletedExcess     EventType = "VM_DELETED_EXCESS"
)

// deletedEvents maps the reason on a row to the event of its end.
var deletedEvents = map[Reason]EventType{
	ReasonReleased:    EventVMDeletedRelease,
	ReasonExpired:     EventVMDeletedExpiry,
	ReasonRollout:     EventVMDeletedRollout,
	ReasonPoolDeleted: EventVMDeletedPoolDelete,
	ReasonScaleDown:   EventVMDeletedScaleDown,
	ReasonUnhealthy:   EventVMDeletedUnhealthy,
	ReasonAdmin:       EventVMDeletedAdmin,
	ReasonFailed:      EventVMDeletedFailure,
	ReasonMaxAge:      EventVMDeletedMaxAge,
	ReasonDrain:       EventVMDeletedDrain,
	ReasonExcess:      EventVMDeletedExcess,
}

// DeletedEvent is the event that reports the end of a VM condemned for r; a row without a known reason reports
// VM_DELETED_AFTER_FAILURE, since nothing else is certain.
func (r Reason) DeletedEvent() EventType {
	if e, ok := deletedEvents[r]; ok {
		return e
	}
	return EventVMDeletedFailure
}

// Event reports one change; it is written in the transaction of that change.
type Event struct {
	ID      int64 // grows by one with every event of the installation
	Pool    Key
	VM      string // row id of the VM; empty for events about the pool
	UID     string // the host's id of the VM, where it is known
	Type    EventType
	At      time.Time
	Payload map[string]any // written as a JSON object: reason, revision and the numbers
}
