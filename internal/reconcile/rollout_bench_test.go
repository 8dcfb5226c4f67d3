package reconcile_test

import (
	"testing"
	"time"

	"poolmgr/internal/host/fake"
	"poolmgr/internal/pool"
)

// TestRolloutPace reports how long a rollout of 200 VMs takes over what it would take if a new boot began in the instant
// in which another one ended: ceil(VMs / budget) boots in a row. It is a test and not a benchmark because only a test
// may run in a bubble, where the figure is of waiting alone and the same on every machine. The goal is at most 1.3; only
// the floor is a condition.
func TestRolloutPace(t *testing.T) {
	const vms, hosts, percent = 200, 10, 10
	const budget = vms * percent / 100
	for _, boot := range []time.Duration{time.Second, 3 * time.Second, 10 * time.Second} {
		t.Run(boot.String(), func(t *testing.T) {
			inBubble(t, hosts, func(o *fake.Options) { o.BootDelay, o.GuestDelay = boot/2, boot/2 }, func(r *rig) {
				paced := func(version string) pool.Spec {
					s := spec(vms, version)
					s.Rollout.MaxUnavailable = pool.Limit{Kind: pool.LimitPercent, Value: percent}
					return s
				}
				r.create(paced("1"))
				r.eventually("the pool is full", 30*time.Minute, r.full(vms))
				began := time.Now()
				r.update(paced("2"))
				r.watchFloor(vms-budget, 30*time.Minute, 2)
				took, ideal := time.Since(began), (vms+budget-1)/budget*boot
				t.Logf("%d VMs on %d hosts, budget %d, boots of %s: %s, x_ideal %.2f (goal 1.30)",
					vms, hosts, budget, boot, took.Round(10*time.Millisecond), took.Seconds()/ideal.Seconds())
			})
		})
	}
}
