package server_test

import (
	"strings"
	"testing"
	"time"

	pb "poolmgr/api/poolmgr/v1alpha1"
	"poolmgr/internal/host"
	"poolmgr/internal/host/fake"
)

// TestAStalledRolloutIsShownWithItsReason in the status of the rollout, of the pool, in the events and in the metrics.
func TestAStalledRolloutIsShownWithItsReason(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		r.filled(spec(3))
		r.rolledOut()
		r.hosts[0].Inject(fake.Fault{Op: fake.Create, Err: host.ErrRefused})
		r.edit(3, "2")
		r.pass(5 * time.Minute)
		s := r.rollout()
		if s.GetState() != pb.RolloutState_ROLLOUT_STATE_STALLED || s.GetFailures() < 3 || s.GetLastError() == "" ||
			!strings.Contains(s.GetReason(), s.GetLastError()) || s.GetLastCompletedRevision() != 1 {
			t.Errorf("the rollout: %v", s)
		}
		list, err := r.pools.ListPools(r.ctx(), &pb.ListPoolsRequest{})
		r.must(err)
		if shown := list.GetPools()[0].GetStatus().GetRollout(); shown.GetState() != s.GetState() || shown.GetReason() == "" {
			t.Errorf("in the list: %v", shown)
		}
		if e := r.replay(pb.EventType_POOL_ROLLOUT_STALLED); len(e) != 1 {
			t.Errorf("%d POOL_ROLLOUT_STALLED, want 1", len(e))
		}
		families, err := r.registry.Gather()
		r.must(err)
		for _, f := range families {
			for _, m := range f.GetMetric() {
				if f.GetName() != "poolmgr_pool_rollout_state" || m.GetGauge().GetValue() == 0 {
					continue
				}
				for _, l := range m.GetLabel() {
					if l.GetName() == "state" && l.GetValue() != "STALLED" {
						t.Errorf("the metric shows %s", l.GetValue())
					}
				}
			}
		}
	})
}
