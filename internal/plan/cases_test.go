package plan

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"poolmgr/internal/pool"
)

// caseFile is one worked example: a pool, its VMs and the right plan for one pass. Drop further files of this form
// into testdata/cases and they are tests.
type caseFile struct {
	Name string `json:"name"`
	Why  string `json:"why"`
	Pool struct {
		Size          int           `json:"size"`
		Strategy      pool.Strategy `json:"strategy"`
		MinSize       int           `json:"min_size"`
		TemplateHash  string        `json:"template_hash"`
		RolloutPolicy *struct {
			caseLimit
			MaxSurge *caseLimit `json:"max_surge"`
			Paused   bool       `json:"paused"`
		} `json:"rollout_policy"`
	} `json:"pool"`
	VMs []struct {
		ID      string     `json:"id"`
		Slot    string     `json:"slot"`
		Phase   pool.Phase `json:"phase"`
		Hash    string     `json:"hash"`
		Age     float64    `json:"age"`
		Broken  bool       `json:"broken"`
		OverAge bool       `json:"over_age"`
	} `json:"vms"`
	Plan casePlan `json:"plan"`
}

type caseLimit struct {
	Count   *int `json:"count"`
	Percent *int `json:"percent"`
}

func (l *caseLimit) limit() pool.Limit {
	switch {
	case l == nil:
		return pool.Limit{}
	case l.Count != nil:
		return pool.Limit{Kind: pool.LimitCount, Value: *l.Count}
	case l.Percent != nil:
		return pool.Limit{Kind: pool.LimitPercent, Value: *l.Percent}
	default:
		return pool.Limit{}
	}
}

type caseCondemn struct {
	ID        string      `json:"id"`
	Reason    pool.Reason `json:"reason"`
	Successor bool        `json:"successor"`
}

type casePlan struct {
	Grow           int           `json:"grow"`
	Surge          []string      `json:"surge"`
	Condemn        []caseCondemn `json:"condemn"`
	MaxUnavailable int           `json:"max_unavailable"`
	MaxSurge       int           `json:"max_surge"`
	DesiredSlots   int           `json:"desired_slots"`
}

// overAge is the pool's max age in a case that has VMs over age.
const overAge = 1000 * time.Hour

// age is how old the i-th VM is. Those over age, and everything that is older than the youngest of them, are put past
// the pool's max age, so that the order of ages stays that of the file.
func (c caseFile) age(i int) time.Duration {
	v := c.VMs[i]
	age := time.Duration(v.Age * float64(time.Second))
	past := v.OverAge
	for _, o := range c.VMs {
		// A paused rollout must not find a stale VM over age that the file does not call so.
		past = past || o.OverAge && v.Age >= o.Age && v.Hash != c.Pool.TemplateHash && !c.paused()
	}
	if past {
		age += overAge
	}
	return age
}

func (c caseFile) paused() bool { return c.Pool.RolloutPolicy != nil && c.Pool.RolloutPolicy.Paused }

func (c caseFile) world(now time.Time) World {
	p := pool.Pool{
		Spec: pool.Spec{
			Key:  pool.Key{Namespace: "default", Name: "case"},
			Size: c.Pool.Size, Strategy: c.Pool.Strategy, MinSize: c.Pool.MinSize,
		},
		TemplateHash: c.Pool.TemplateHash, Revision: 2,
	}
	if r := c.Pool.RolloutPolicy; r != nil {
		p.Spec.Rollout.MaxUnavailable = r.limit()
		p.Spec.Rollout.MaxSurge = r.MaxSurge.limit()
		p.Spec.Rollout.Paused = r.Paused
	}
	w := World{Pool: p, Hosts: []pool.HostLoad{{Host: pool.Host{Name: "host", Reachable: true}}}}
	for i, v := range c.VMs {
		age := c.age(i)
		if v.OverAge {
			w.Pool.Spec.MaxWarmAge = overAge
		}
		row := pool.VM{
			ID: v.ID, Pool: p.Key(), Slot: v.Slot, Phase: v.Phase, TemplateHash: v.Hash, Host: "host",
			CreatedAt: now.Add(-age), Health: pool.HealthGood, Version: 1,
		}
		if v.Phase == pool.Available {
			row.AvailableAt = now.Add(-age)
		}
		if v.Broken {
			row.Health = pool.HealthBroken
		}
		w.VMs = append(w.VMs, row)
	}
	return w
}

func summary(p Plan) casePlan {
	s := casePlan{
		Grow: p.Grow, Surge: []string{}, Condemn: []caseCondemn{},
		MaxUnavailable: p.MaxUnavailable, MaxSurge: p.MaxSurge, DesiredSlots: p.Desired,
	}
	for _, x := range p.Surge {
		s.Surge = append(s.Surge, x.Slot)
	}
	for _, x := range p.Condemn {
		s.Condemn = append(s.Condemn, caseCondemn{x.VM, x.Reason, x.Successor})
	}
	return s
}

func TestCases(t *testing.T) {
	files, err := filepath.Glob("testdata/cases/*.json")
	if err != nil || len(files) == 0 {
		t.Fatalf("no cases found: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".json"), func(t *testing.T) {
			raw, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			var c caseFile
			if err := json.Unmarshal(raw, &c); err != nil {
				t.Fatal(err)
			}
			now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
			w := c.world(now)
			if diff := cmp.Diff(c.Plan, summary(Compute(w, now)), cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("%s\n(-want +got)\n%s", c.Why, diff)
			}
			slices.Reverse(w.VMs)
			if diff := cmp.Diff(c.Plan, summary(Compute(w, now)), cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("with the rows in reverse order (-want +got)\n%s", diff)
			}
		})
	}
}
