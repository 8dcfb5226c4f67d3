package fake

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"poolmgr/api/flintlock/vmtypes"
	"poolmgr/internal/host"
)

// Fault scripts what goes wrong with calls. Faults are looked at in the order they were injected; the first that
// matches spoils the call. The zero value matches every call and changes nothing.
type Fault struct {
	Op    Op              // calls of this kind; empty = of any
	Match func(Call) bool // a further condition; nil = none
	Times int             // how many calls it spoils; 0 = all until it is removed

	Delay time.Duration             // the call takes this much longer
	Hang  bool                      // the call has no end before its context's
	Err   error                     // what the call ends with (one of host's sentinels, or anything)
	Late  bool                      // the host does what was asked, and then the call hangs or fails: a lost answer
	List  func([]host.VM) []host.VM // what List answers instead of the truth
}

// fault is an injected Fault with how often it struck.
type fault struct {
	Fault
	struck int
}

// Inject adds a fault and returns what removes it again.
func (h *Host) Inject(f Fault) (remove func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	injected := &fault{Fault: f}
	h.faults = append(h.faults, injected)
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.faults = slices.DeleteFunc(slices.Clone(h.faults), func(f *fault) bool { return f == injected })
	}
}

// LoseReplies makes the host do the next n calls of a kind and lose the answers.
func (h *Host) LoseReplies(op Op, n int) {
	h.Inject(Fault{Op: op, Times: n, Late: true, Err: host.ErrUnreachable})
}

// FailNext makes the next n calls of a kind fail with err, without doing anything.
func (h *Host) FailNext(op Op, n int, err error) { h.Inject(Fault{Op: op, Times: n, Err: err}) }

// Hide is a List lie: the VMs of these uids are left out.
func Hide(uids ...string) func([]host.VM) []host.VM {
	return func(vms []host.VM) []host.VM {
		return slices.DeleteFunc(slices.Clone(vms), func(vm host.VM) bool { return slices.Contains(uids, vm.UID) })
	}
}

// FreezeLists makes every List answer from what is there now; the returned function ends it.
func (h *Host) FreezeLists() (thaw func()) {
	frozen := h.list("", "")
	h.mu.Lock()
	defer h.mu.Unlock()
	h.frozen = append([]host.VM{}, frozen...)
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.frozen = nil
	}
}

// mode is how the host's network behaves.
type mode int

const (
	up     mode = iota
	down        // connections are refused: calls fail at once
	silent      // packets are dropped: calls end with their deadline
)

// Up makes the host answer again.
func (h *Host) Up() { h.setMode(up) }

// Down makes every call fail at once, execs under way too; the VMs live on.
func (h *Host) Down() { h.setMode(down) }

// Silence makes every call hang until its deadline; the VMs live on.
func (h *Host) Silence() { h.setMode(silent) }

func (h *Host) setMode(m mode) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.mode = m
	if m == down {
		h.cutAllLocked(fmt.Errorf("%w: connection reset", host.ErrUnreachable))
	}
}

// Image is what was on a host that was wiped.
type Image struct{ vms map[string]*machine }

// Wipe makes the host come back empty, as after a reinstall. Restore brings the VMs back as zombies.
func (h *Host) Wipe() Image {
	h.mu.Lock()
	defer h.mu.Unlock()
	image := Image{vms: h.vms}
	h.vms = make(map[string]*machine)
	h.cutAllLocked(errors.New("the host was reset"))
	return image
}

// Restore puts the VMs of an image on the host again, beside what is there.
func (h *Host) Restore(image Image) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for uid, m := range image.vms {
		h.vms[uid] = m
	}
}

// Plant puts a VM on the host behind the manager's back, past all limits, and returns its uid.
func (h *Host) Plant(spec *vmtypes.MicroVMSpec) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.addLocked(spec, time.Now()).uid
}

// Vanish makes the host forget a VM; it reports whether it knew it.
func (h *Host) Vanish(uid string) bool {
	return h.change(uid, func(m *machine) {
		delete(h.vms, uid)
		h.cutLocked(m, errors.New("the VM is gone"))
	})
}

// Fail makes a VM FAILED; it reports whether the host knows it.
func (h *Host) Fail(uid string) bool {
	return h.change(uid, func(m *machine) {
		m.failed = true
		h.cutLocked(m, errors.New("the VM failed"))
	})
}

// KillGuest makes a VM's guest silent: it stays CREATED and every exec hangs. It reports whether the host knows it.
func (h *Host) KillGuest(uid string) bool {
	return h.change(uid, func(m *machine) { m.deadGuest = true })
}

// Recreate starts a VM's guest again under the same uid: another boot id, a fresh disk. It reports whether the host
// knows the VM.
func (h *Host) Recreate(uid string) bool {
	return h.change(uid, func(m *machine) {
		m.bootCount++
		m.deadGuest, m.failed = false, false
		m.sentAt = time.Now()
		h.cutLocked(m, errors.New("the VM was restarted"))
	})
}

func (h *Host) change(uid string, act func(*machine)) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	m, err := h.findLocked(uid)
	if err != nil {
		return false
	}
	act(m)
	return true
}

// serve runs one call: it is counted and shown to OnCall, takes its time, and meets the host's mode and the first
// fault that matches before and after act.
func (h *Host) serve(ctx context.Context, call Call, limit time.Duration, act func(context.Context, *fault) error) error {
	if limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, limit)
		defer cancel()
	}
	if h.opts.OnCall != nil {
		h.opts.OnCall(call)
	}
	f := h.arrive(call)
	if err := pause(ctx, h.opts.CallDelay+f.Delay); err != nil {
		return noAnswer(call, err)
	}
	if err := h.network(ctx, call); err != nil {
		return err
	}
	if f.spoils() && !f.Late {
		return f.end(ctx, call)
	}
	if err := act(ctx, f); err != nil {
		return timedOut(ctx, call, err)
	}
	if f.Late {
		return f.end(ctx, call)
	}
	return h.network(ctx, call) // the answer travels too
}

// arrive counts a call and picks the fault that spoils it.
func (h *Host) arrive(call Call) *fault {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.counts[call.Op]++
	for _, f := range h.faults {
		switch {
		case f.Op != "" && f.Op != call.Op,
			f.Times > 0 && f.struck >= f.Times,
			f.Match != nil && !f.Match(call):
			continue
		}
		f.struck++
		return f
	}
	return &fault{}
}

func (f *fault) spoils() bool { return f.Hang || f.Err != nil }

// end is how a spoilt call ends.
func (f *fault) end(ctx context.Context, call Call) error {
	if f.Hang {
		<-ctx.Done()
		return noAnswer(call, ctx.Err())
	}
	if f.Err == nil {
		return fmt.Errorf("%w: connection reset", host.ErrUnreachable)
	}
	return f.Err
}

// network is what the host's mode does to a call.
func (h *Host) network(ctx context.Context, call Call) error {
	h.mu.Lock()
	mode := h.mode
	h.mu.Unlock()
	switch mode {
	case down:
		return fmt.Errorf("%w: connection refused", host.ErrUnreachable)
	case silent:
		<-ctx.Done()
		return noAnswer(call, ctx.Err())
	default:
		return nil
	}
}

// timedOut makes an exec that was ended by its context what the real client makes of it.
func timedOut(ctx context.Context, call Call, err error) error {
	if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		return noAnswer(call, ctx.Err())
	}
	return err
}

// noAnswer is what a caller learns when its context ended first.
func noAnswer(call Call, err error) error {
	switch {
	case !errors.Is(err, context.DeadlineExceeded):
		return err
	case call.Op == Exec:
		return fmt.Errorf("%w: %w", host.ErrExecTimeout, err)
	default:
		return fmt.Errorf("%w: %w", host.ErrUnreachable, err)
	}
}

func pause(ctx context.Context, d time.Duration) error {
	if d <= 0 || ctx.Err() != nil {
		return ctx.Err()
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// line is a command as one line.
func line(req host.ExecRequest) string {
	return strings.Join(append([]string{req.Cmd}, req.Args...), " ")
}
