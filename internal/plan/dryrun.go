package plan

import (
	"fmt"
	"slices"
	"time"

	"poolmgr/internal/pool"
)

// nominalBoot is how long a boot takes in a dry run of a pool that has none to judge by. Only times that are counted
// from then on depend on it: min_ready, backoffs and ages.
const nominalBoot = 10 * time.Second

// maxWork bounds a dry run by passes times rows, some seconds of work: a pool of thousands with a budget of one would
// take minutes.
const maxWork = 8_000_000

// dryRun plays a pool's future in a copy of its world. Unlike the store it knows of no other pool's changes: what these
// have on the hosts stays, except that their starts in flight end as ours do.
type dryRun struct {
	world     World
	now       time.Time
	boot      time.Duration
	rooms     *rooms          // for what a VM of each revision takes
	hosts     map[string]int  // where each host is in the world
	own       map[string]bool // the rows there are today
	made      int             // rows that the dry run made
	passes    int
	maxPasses int
	waves     int // rounds in which replacements began
	forecast  Forecast
}

func newDryRun(w World, next pool.Pool, now time.Time) *dryRun {
	w.Pool = next.Clone()
	// In a dry run every VM comes up, so that no rollout has failed or stalls.
	w.Pool.Rollout.Announced, w.Pool.Rollout.LastSuccess, w.Pool.Rollout.Failures = "", time.Time{}, nil
	w.VMs, w.Hosts = slices.Clone(w.VMs), slices.Clone(w.Hosts)
	d := &dryRun{world: w, now: now, boot: nominalBoot, rooms: newRooms(w), hosts: map[string]int{}, own: map[string]bool{}}
	for i, h := range w.Hosts {
		d.hosts[h.Name] = i
	}
	if boot, known := meanBoot(w.VMs); known {
		d.boot = boot
	}
	for _, v := range w.VMs {
		d.own[v.ID] = true
	}
	// A VM takes six passes at most: it waits for room, is condemned and is succeeded, each with a pass that finds
	// nothing more to do.
	rows := len(w.VMs) + next.Spec.Size
	d.maxPasses = min(100+6*rows, 1+maxWork/(1+rows))
	d.forecast.LowestReady = newPass(w, now).ready()
	return d
}

// round lets the planner decide, and carries out what it says, until it has no more to do at this instant.
func (d *dryRun) round() {
	took, boots := false, false
	for d.passes < d.maxPasses {
		d.passes++
		p := Compute(d.world, d.now)
		d.forecast.Explain = p.Explain
		d.forecast.LowestReady = min(d.forecast.LowestReady, p.Ready)
		if len(p.Condemn)+len(p.Place)+len(p.Surge)+p.Grow == 0 {
			break
		}
		for _, c := range p.Condemn {
			forChange := d.own[c.VM] && c.Slot != "" && !c.KeepPeer && c.Reason != pool.ReasonUnhealthy
			took = took || forChange
			boots = boots || forChange && c.Successor
		}
		for _, s := range p.Surge {
			took, boots = took || d.own[s.VM], boots || d.own[s.VM]
		}
		d.carryOut(p)
	}
	if took {
		d.forecast.Batches++
	}
	if boots {
		d.waves++
	}
}

// carryOut does to the copy what the executor and the store would do.
func (d *dryRun) carryOut(p Plan) {
	at := make(map[string]int, len(d.world.VMs))
	for i, v := range d.world.VMs {
		at[v.ID] = i
	}
	for _, c := range p.Condemn {
		d.condemn(at[c.VM], c)
	}
	for _, x := range p.Place {
		v := &d.world.VMs[at[x.VM]]
		v.Host, v.SentAt = x.Host, d.now
		if h := d.host(x.Host); h != nil {
			h.Rows++
			h.Live++
			h.Starts++
			h.MemoryMB += d.rooms.needs(*v)
		}
	}
	for _, x := range p.Surge {
		d.add(x.Slot, x.Revision, 0, true)
	}
	first := d.world.Pool.NextSlot == 0
	for range p.Grow {
		d.add(fmt.Sprintf("s%d", d.world.Pool.NextSlot), p.Revision, 0, first)
		d.world.Pool.NextSlot++
	}
}

func (d *dryRun) condemn(i int, c Condemn) {
	v := &d.world.VMs[i]
	if d.own[v.ID] && v.Phase.Warm() {
		d.forecast.Order = append(d.forecast.Order, v.ID)
	}
	if h := d.host(v.Host); h != nil {
		h.Live--
		if v.Phase == pool.Provisioning {
			h.Starts--
		}
	}
	forRollout := c.Reason == pool.ReasonRollout || v.Phase.Warming() && v.ForRollout
	v.Phase, v.Slot, v.Reason = pool.Deleting, "", c.Reason
	if c.Successor {
		d.add(c.Slot, c.Revision, c.Attempt, forRollout) // v points into the old rows from here on
	}
}

// add makes a row with an id that no real one can have: those end in eight hexadecimal digits.
func (d *dryRun) add(slot string, revision int64, attempt int, forRollout bool) {
	d.made++
	v := pool.VM{
		ID: fmt.Sprintf("%s-new-%04d", d.world.Pool.Spec.Name, d.made), Pool: d.world.Pool.Key(), Slot: slot,
		Phase: pool.Provisioning, Revision: revision, TemplateHash: d.world.Pool.TemplateHash, Restart: d.world.Pool.Restart,
		ForRollout: forRollout, Attempt: attempt, CreatedAt: d.now, Health: pool.HealthGood, Version: 1,
	}
	if attempt > 0 {
		v.NotBefore = d.now.Add(pool.Backoff(attempt, 0.5))
	}
	d.world.VMs = append(d.world.VMs, v)
}

func (d *dryRun) host(name string) *pool.HostLoad {
	i, known := d.hosts[name]
	if !known {
		return nil
	}
	return &d.world.Hosts[i]
}

// answers reports whether a VM can come up or go where it is: a host that does not answer does neither.
func (d *dryRun) answers(v pool.VM) bool {
	h := d.host(v.Host)
	return h != nil && h.Reachable
}

// advance lets time pass until something has happened by itself: everything under way is over after the time of one
// boot; with nothing under way, until a backoff or a min_ready is over. False when there is nothing to wait for.
func (d *dryRun) advance() bool {
	starting := func(h pool.HostLoad) bool { return h.Reachable && h.Starts > 0 } // of other pools, too
	if slices.ContainsFunc(d.world.VMs, d.moves) || slices.ContainsFunc(d.world.Hosts, starting) {
		d.now = d.now.Add(d.boot)
		d.finish()
		return true
	}
	var next time.Time
	for _, v := range d.world.VMs {
		if at := d.ripens(v); !at.IsZero() && (next.IsZero() || at.Before(next)) {
			next = at
		}
	}
	if next.IsZero() {
		return false
	}
	d.now = next
	return true
}

// moves reports whether a VM is on its way up or out.
func (d *dryRun) moves(v pool.VM) bool {
	switch {
	case v.Phase == pool.Deleting:
		return v.Host == "" || d.answers(v)
	case v.Phase.Warming():
		return v.Host != "" && d.answers(v)
	default:
		return false
	}
}

// ripens is when a VM's backoff ends, or when it begins to count as available; zero when it waits for neither.
func (d *dryRun) ripens(v pool.VM) time.Time {
	switch {
	case v.Phase == pool.Provisioning && v.Host == "" && v.NotBefore.After(d.now):
		return v.NotBefore
	case v.Ready() && !v.CountsReady(d.world.Pool, d.now) && d.answers(v):
		return v.AvailableAt.Add(d.world.Pool.Spec.Rollout.MinReady)
	default:
		return time.Time{}
	}
}

// finish brings up what is on its way up, removes what is on its way out, and hands out what was being claimed.
func (d *dryRun) finish() {
	left := d.world.VMs[:0]
	for _, v := range d.world.VMs {
		moved := d.moves(v)
		switch {
		case moved && v.Phase == pool.Deleting:
			if h := d.host(v.Host); h != nil {
				h.Rows--
				h.MemoryMB -= d.rooms.needs(v)
			}
			continue
		case moved:
			v.Phase, v.AvailableAt, v.Health = pool.Available, d.now, pool.HealthGood
		case v.Phase == pool.PreLeaseHookRunning:
			v.Phase = pool.Leased
		}
		left = append(left, v)
	}
	d.world.VMs = left
	for i := range d.world.Hosts {
		if d.world.Hosts[i].Reachable {
			d.world.Hosts[i].Starts = 0
		}
	}
}

func (d *dryRun) staleHeld() int {
	n := 0
	for _, v := range d.world.VMs {
		if v.Phase.Held() && v.Stale(d.world.Pool) {
			n++
		}
	}
	return n
}
