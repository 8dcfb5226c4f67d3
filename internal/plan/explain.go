package plan

import (
	"cmp"
	"fmt"

	"poolmgr/internal/pool"
)

// maxExplained bounds the sentences about single slots: a pool of a thousand says the rest in one.
const maxExplained = 5

// explain writes one sentence for each shortfall, with its numbers. Commands, status and logs print these.
func (p *pass) explain() {
	p.minReadyWakes()
	missing := max(0, p.plan.Desired-p.plan.Slots)
	if missing > p.plan.Grow {
		p.say("%d of %d slots are not filled: %s", missing-p.plan.Grow, p.plan.Desired,
			cmp.Or(p.noRoom, "more rows follow in the next pass"))
	}
	if f := p.fallback; f.active() {
		p.say("the rollout of revision %d gets nowhere: %s; %s", p.pool.Revision, f.why, f.meanwhile(p.pool))
	}
	if n := p.staleAvailable(); n > 0 && p.pool.Spec.Rollout.Paused {
		p.say("stale VMs that stay: %d; the rollout is paused by request (rollout_policy.paused)", n)
	}
	if p.waiting > 0 {
		p.say("VMs due for replacement that wait: %d; %s", p.waiting, p.heldBack())
	}
	said := 0
	for _, s := range p.slots {
		if p.best(s) != nil {
			continue
		}
		if said++; said > maxExplained {
			continue
		}
		p.explainSlot(s)
	}
	if said > maxExplained {
		p.say("further slots that wait for their VMs: %d", said-maxExplained)
	}
}

// staleAvailable is the number of slots whose best available VM is stale.
func (p *pass) staleAvailable() int {
	n := 0
	for _, s := range p.slots {
		if r := p.best(s); r != nil && p.stale(r) {
			n++
		}
	}
	return n
}

// heldBack says what the due VMs wait for.
func (p *pass) heldBack() string {
	switch {
	case p.plan.MaxUnavailable == 0 && p.plan.MaxSurge == 0:
		return "max_unavailable and max_surge are both 0"
	case p.noRoom != "":
		return p.noRoom
	default:
		return fmt.Sprintf("budget %d/%d", max(0, p.plan.Desired-p.ready()), p.plan.MaxUnavailable)
	}
}

// explainSlot says what a slot without an available VM waits for.
func (p *pass) explainSlot(s *slot) {
	for _, r := range s.rows {
		if r.planned {
			continue // this plan makes it: the next pass can tell more
		}
		v := r.vm
		text := fmt.Sprintf("slot %s waits for vm %s, %s", s.id, v.ID, v.Phase)
		switch {
		case v.Phase == pool.Available && (v.Health == pool.HealthUnknown || !p.hosts[v.Host]):
			text += ", its host " + v.Host + " does not answer"
		case v.Phase == pool.Available && v.Health == pool.HealthGood:
			text += ", not yet for min_ready"
		case v.Phase == pool.Provisioning && v.Host == "" && p.now.Before(v.NotBefore):
			text += fmt.Sprintf(", not before %s", v.NotBefore.UTC().Format("15:04:05"))
		case v.Phase == pool.Provisioning && v.Host == "" && p.noRoom != "":
			text += ", " + p.noRoom
		}
		if v.Attempt > 0 {
			text += fmt.Sprintf(", attempt %d", v.Attempt+1)
		}
		if v.Message != "" {
			text += ", last error: " + v.Message
		}
		p.say("%s", text)
		return
	}
}

func (p *pass) say(format string, args ...any) {
	p.plan.Explain = append(p.plan.Explain, fmt.Sprintf(format, args...))
}
