package plan

import (
	"fmt"
	"time"

	"poolmgr/internal/pool"
)

// Forecast is what an update of a pool would do, as far as that can be known beforehand: if nobody claims a VM
// meanwhile, everything boots, and no host changes.
type Forecast struct {
	FromHash    string // of the current template; empty for a pool that does not exist yet
	ToHash      string
	HashChanges bool

	Order       []string      // warm VMs of today that would go, in that order
	Batches     int           // rounds that would take VMs away or surge for the change
	LowestReady int           // fewest slots with a ready VM on the way
	Estimate    time.Duration // by the boots seen so far; 0 = there are none to judge by, or nothing would boot
	Explain     []string      // what would still wait in the end and why, one sentence each
}

// Preview is a dry run: it plays what Compute decides for the pool as it would be after an update, in a fleet where
// every placed VM comes up and every condemned one goes, until nothing is left to do. next is the pool with the new
// spec, and with the hash and the revision that the update would give it. A world whose pool is the zero value stands
// for a pool that does not exist yet. Neither argument is written to.
func Preview(w World, next pool.Pool, now time.Time) Forecast {
	from := w.Pool.TemplateHash
	d := newDryRun(w, next, now)
	rested := false
	for !rested && d.passes < d.maxPasses {
		d.round()
		rested = !d.advance()
	}
	f := d.forecast
	f.FromHash, f.ToHash, f.HashChanges = from, next.TemplateHash, from != next.TemplateHash
	if n := d.staleHeld(); n > 0 {
		f.Explain = append(f.Explain, fmt.Sprintf("leased VMs of an earlier template that stay until they are released: %d", n))
	}
	if !rested {
		f.Explain = append(f.Explain, fmt.Sprintf("the dry run was ended after %d passes; what would come after that is not shown", d.passes))
	} else if boot, known := meanBoot(w.VMs); known {
		f.Estimate = time.Duration(d.waves) * (boot + next.Spec.Rollout.MinReady)
	}
	return f
}

// meanBoot is how long the VMs took from the create to the first answer from inside; false when none has answered.
func meanBoot(vms []pool.VM) (time.Duration, bool) {
	var sum time.Duration
	n := 0
	for _, v := range vms {
		if !v.SentAt.IsZero() && v.AvailableAt.After(v.SentAt) {
			sum += v.AvailableAt.Sub(v.SentAt)
			n++
		}
	}
	if n == 0 {
		return 0, false
	}
	return sum / time.Duration(n), true
}
