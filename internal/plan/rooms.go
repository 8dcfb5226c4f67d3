package plan

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"poolmgr/internal/pool"
)

// roomRecheck is how soon a pool that waits for room on a host looks again. The store wakes it when room is freed that
// it may be waiting for; this is for what the store does not think of.
const roomRecheck = 5 * time.Second

// unlimited stands for no limit; it is far from overflowing when one is added.
const unlimited = 1 << 30

// rooms tracks what the pool's hosts can still take while a plan is made. It counts what the plan already placed, so
// that a batch does not land on one host, and what DELETING rows still occupy.
type rooms struct {
	hosts    []*hostRoom   // those the pool may use, sorted by name
	memory   int           // MiB of one VM of the current template
	memories map[int64]int // of those of other revisions
	poolFree int           // VMs the pool may still have under max_vms
	alone    bool          // only one VM may exist at a time: the template fixes an address
}

// hostRoom is one host as the plan would leave it.
type hostRoom struct {
	pool.HostLoad
	maxStarts int
	mine      int  // live rows of this pool
	avoid     bool // the latest starts failed there
}

// vacancy is the room that a VM leaves for its successor. The zero value is none.
type vacancy struct {
	host   string
	memory int
}

func newRooms(w World) *rooms {
	r := &rooms{
		memory: int(w.Pool.Spec.Template.GetMemoryInMb()), memories: map[int64]int{},
		poolFree: unlimited, alone: w.Pool.Spec.HasFixedAddress(),
	}
	for _, x := range w.Revisions {
		r.memories[x.Number] = int(x.Template.GetMemoryInMb())
	}
	mine := map[string]int{}
	placed := 0
	for _, v := range w.VMs {
		if v.Host == "" {
			continue
		}
		placed++
		if v.Phase != pool.Deleting {
			mine[v.Host]++
		}
	}
	if limit := w.Pool.Spec.MaxVMs; limit > 0 {
		r.poolFree = limit - placed
	}
	if r.alone {
		r.poolFree = min(r.poolFree, 1-placed)
	}
	maxStarts := w.Limits.StartsPerHost
	if maxStarts <= 0 {
		maxStarts = unlimited
	}
	for _, h := range w.Hosts {
		if len(w.Pool.Spec.Hosts) == 0 || slices.Contains(w.Pool.Spec.Hosts, h.Name) {
			r.hosts = append(r.hosts, &hostRoom{HostLoad: h, maxStarts: maxStarts, mine: mine[h.Name], avoid: w.Avoid[h.Name]})
		}
	}
	slices.SortFunc(r.hosts, func(a, b *hostRoom) int { return strings.Compare(a.Name, b.Name) })
	return r
}

// needs is the memory of a row's VM, which is that of the template it is made from.
func (r *rooms) needs(v pool.VM) int {
	if memory, known := r.memories[v.Revision]; known {
		return memory
	}
	return r.memory
}

// refusal says why the host cannot start a VM of that much memory now, "" when it can.
func (h *hostRoom) refusal(memory int, left vacancy) string {
	switch {
	case h.Cordoned:
		return "cordoned"
	case !h.Reachable:
		return "unreachable"
	case h.full(memory, left):
		return h.fullness()
	case h.Starts >= h.maxStarts:
		return fmt.Sprintf("starting %d/%d", min(h.Starts, h.maxStarts), h.maxStarts) // rows that wait are in line for a start
	default:
		return ""
	}
}

func (h *hostRoom) full(memory int, left vacancy) bool {
	rows, used := h.Rows, h.HostLoad.MemoryMB
	if left.host == h.Name {
		rows, used = rows-1, used-left.memory
	}
	return h.MaxVMs > 0 && rows >= h.MaxVMs || h.Host.MemoryMB > 0 && used+memory > h.Host.MemoryMB
}

func (h *hostRoom) fullness() string {
	if h.MaxVMs > 0 && h.Rows >= h.MaxVMs {
		return fmt.Sprintf("full %d/%d", h.Rows, h.MaxVMs)
	}
	return fmt.Sprintf("memory %d/%d MiB", h.HostLoad.MemoryMB, h.Host.MemoryMB)
}

// take reserves a place to start one VM now, on the host with the fewest live VMs, then the fewest of this pool, then
// by name. left is what a VM of the pool leaves that goes for this one.
func (r *rooms) take(memory int, left vacancy) (string, bool) {
	leaving := 0
	if left.host != "" {
		leaving = 1
	}
	if r.poolFree+leaving <= 0 {
		return "", false
	}
	best := r.emptiest(func(h *hostRoom) bool { return h.refusal(memory, left) == "" })
	if best == nil {
		return "", false
	}
	r.poolFree -= 1 - leaving
	best.occupy(memory, left)
	best.Starts++
	return best.Name, true
}

// emptiest is the host that goes first of those that will do; nil when there is none.
func (r *rooms) emptiest(will func(*hostRoom) bool) *hostRoom {
	var best *hostRoom
	for _, h := range r.hosts {
		if will(h) && (best == nil || less(h, best)) {
			best = h
		}
	}
	return best
}

func less(a, b *hostRoom) bool {
	return cmp.Or(
		falseFirst(a.avoid, b.avoid),
		cmp.Compare(a.Live, b.Live), cmp.Compare(a.mine, b.mine), strings.Compare(a.Name, b.Name),
	) < 0
}

// occupy counts one more VM. Where the host has no room for both, the one that leaves is taken off.
func (h *hostRoom) occupy(memory int, left vacancy) {
	if h.full(memory, vacancy{}) && left.host == h.Name {
		h.HostLoad.MemoryMB += max(0, memory-left.memory)
	} else {
		h.Rows++
		h.HostLoad.MemoryMB += memory
	}
	h.Live++
	h.mine++
}

// reserve takes room for a row that is not placed yet. With start, it also takes the next free start, though there
// need not be one now.
func (r *rooms) reserve(memory int, start bool) bool {
	if r.poolFree <= 0 {
		return false
	}
	best := r.emptiest(func(h *hostRoom) bool { return !h.Cordoned && h.Reachable && !h.full(memory, vacancy{}) })
	if best == nil {
		return false
	}
	r.poolFree--
	best.occupy(memory, vacancy{})
	if start {
		best.Starts++
	}
	return true
}

// leave counts a VM that is condemned: it no longer counts for spread or as a start in flight, but takes room until
// it is confirmed gone.
func (r *rooms) leave(v pool.VM) {
	for _, h := range r.hosts {
		if v.Host == "" || h.Name != v.Host {
			continue
		}
		h.Live--
		h.mine--
		if v.Phase == pool.Provisioning {
			h.Starts--
		}
	}
}

// why says why no more VM of that much memory fits.
func (r *rooms) why(memory int) string {
	switch {
	case r.poolFree <= 0 && r.alone:
		return "its template fixes an address, so that only one VM may be on a host"
	case r.poolFree <= 0:
		return "max_vms of the pool is reached"
	case len(r.hosts) == 0:
		return "no host is registered for the pool"
	}
	parts := make([]string, 0, len(r.hosts))
	for _, h := range r.hosts {
		if reason := h.refusal(memory, vacancy{}); reason != "" {
			parts = append(parts, h.Name+" "+reason)
		}
	}
	return "no host fits: " + strings.Join(parts, ", ")
}
