package pool

// Phase is where a VM stands in its life. The words are those of the API's VMPhase.
type Phase string

// The phases, in the order in which a VM goes through them. Failed exists for readers of other managers' data and is
// never written.
const (
	Provisioning        Phase = "PROVISIONING"
	CreateHookRunning   Phase = "CREATE_HOOK_RUNNING"
	Available           Phase = "AVAILABLE"
	PreLeaseHookRunning Phase = "PRE_LEASE_HOOK_RUNNING"
	Leased              Phase = "LEASED"
	Deleting            Phase = "DELETING"
	Quarantined         Phase = "QUARANTINED"
	Failed              Phase = "FAILED"
)

// Phases lists every phase in display order.
var Phases = []Phase{Provisioning, CreateHookRunning, Available, PreLeaseHookRunning, Leased, Deleting, Quarantined, Failed}

// transitions is the whole table of legal changes of phase; the store enforces it inside the transaction, so no
// caller can skip it. A VM that was held never becomes available again, and nothing leaves DELETING but the row's end.
var transitions = map[Phase][]Phase{
	Provisioning:        {CreateHookRunning, Available, Deleting, Quarantined},
	CreateHookRunning:   {Available, Deleting, Quarantined},
	Available:           {PreLeaseHookRunning, Leased, Deleting},
	PreLeaseHookRunning: {Leased, Deleting, Quarantined},
	Leased:              {Deleting, Quarantined},
	Quarantined:         {Deleting},
	Failed:              {Deleting},
	Deleting:            nil,
}

// CanBecome reports whether the change from p to next is legal. Staying in a phase is not a transition.
func (p Phase) CanBecome(next Phase) bool {
	for _, to := range transitions[p] {
		if to == next {
			return true
		}
	}
	return false
}

// Warming reports whether the VM is on its way to being available: PROVISIONING or CREATE_HOOK_RUNNING.
func (p Phase) Warming() bool { return p == Provisioning || p == CreateHookRunning }

// Warm reports whether the VM fills a slot of the warm set: warming or AVAILABLE.
func (p Phase) Warm() bool { return p.Warming() || p == Available }

// Held reports whether a consumer has the VM or is about to: LEASED or PRE_LEASE_HOOK_RUNNING.
func (p Phase) Held() bool { return p == Leased || p == PreLeaseHookRunning }
