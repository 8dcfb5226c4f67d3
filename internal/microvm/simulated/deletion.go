package simulated

import (
	"context"
	"fmt"
	"time"

	"poolmgr/internal/microvm"
)

// Delete writes down that the machine has to go; its guest is dead at once, and
// it is gone after the configured delay.
func (b *Backend) Delete(ctx context.Context, uid string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	m, err := b.machine(uid)
	if err != nil {
		return fmt.Errorf("delete simulated microvm: %w", err)
	}
	r, nth, err := b.beginDeletion(m)
	if err != nil {
		return fmt.Errorf("delete simulated microvm %s: %w", uid, err)
	}
	if b.dice.happens(b.cfg.LoseReply, "lose-delete-reply", r.life(), nth) {
		return fmt.Errorf("delete simulated microvm %s: %w", uid, lostReply{"delete"})
	}
	return nil
}

// beginDeletion marks the machine, in its file first. It returns how often the
// deletion was asked for before.
func (b *Backend) beginDeletion(m *machine) (r record, nth int, err error) {
	m.file.Lock()
	defer m.file.Unlock()

	now := time.Now()
	r, err = b.lookUp(m.UID, now) // again: it may have ended while we waited for the file
	if err != nil {
		return record{}, 0, err
	}
	marked := r.DeletedAt.IsZero()
	if marked {
		r.DeletedAt = now
		r.GoneAt = now.Add(b.cfg.DeleteDelay)
		if err := b.files.save(r); err != nil {
			return record{}, 0, err
		}
		b.log.Info("simulated microvm is being deleted", "vm", r.subject(), "uid", r.UID)
	}

	b.mu.Lock()
	defer b.mu.Unlock()
	nth = m.deletes
	m.deletes++
	if marked {
		m.record = r
		m.kill(fmt.Errorf("%w: it is being deleted", microvm.ErrNotRunning))
		b.expectEndLocked(r.end())
	}
	return r, nth, nil
}

// machine finds a machine that stands here now.
func (b *Backend) machine(uid string) (*machine, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ctx.Err() != nil {
		return nil, microvm.ErrClosed
	}
	b.dropEndedLocked(time.Now())
	m, ok := b.mu.machines[uid]
	if !ok {
		return nil, fmt.Errorf("%w: %q", microvm.ErrNotFound, uid)
	}
	return m, nil
}

// lookUp is a machine's record as it is now.
func (b *Backend) lookUp(uid string, now time.Time) (record, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ctx.Err() != nil {
		return record{}, microvm.ErrClosed
	}
	b.dropEndedLocked(now)
	m, ok := b.mu.machines[uid]
	if !ok {
		return record{}, fmt.Errorf("%w: %q", microvm.ErrNotFound, uid)
	}
	return m.record, nil
}

// insertLocked lets a machine be found. Its room is counted by the caller.
func (b *Backend) insertLocked(r record) {
	m := &machine{record: r, execs: map[string]int{}}
	m.alive, m.kill = context.WithCancelCause(b.ctx)
	if !r.DeletedAt.IsZero() {
		m.kill(fmt.Errorf("%w: it is being deleted", microvm.ErrNotRunning))
	}
	b.mu.machines[r.UID] = m
	b.expectEndLocked(r.end())
}

// expectEndLocked makes the sweeper wake for this end if it is the earliest.
func (b *Backend) expectEndLocked(end time.Time) {
	if end.IsZero() || (!b.mu.nextEnd.IsZero() && !end.Before(b.mu.nextEnd)) {
		return
	}
	b.mu.nextEnd = end
	b.nudge()
}

func (b *Backend) nudge() {
	select {
	case b.wake <- struct{}{}:
	default: // it has not taken the last nudge yet, and will look at everything
	}
}

// dropEndedLocked takes out the machines whose end has come. Every reader calls
// it first, so nobody sees a machine after its end, however late the sweeper.
func (b *Backend) dropEndedLocked(now time.Time) {
	if b.mu.nextEnd.IsZero() || now.Before(b.mu.nextEnd) {
		return
	}
	b.mu.nextEnd = time.Time{}
	for uid, m := range b.mu.machines {
		if !m.gone(now) {
			if end := m.end(); !end.IsZero() && (b.mu.nextEnd.IsZero() || end.Before(b.mu.nextEnd)) {
				b.mu.nextEnd = end
			}
			continue
		}
		delete(b.mu.machines, uid)
		b.mu.vms = max(0, b.mu.vms-1)
		b.mu.memoryMB = max(0, b.mu.memoryMB-int(m.Spec.GetMemoryInMb()))
		m.kill(fmt.Errorf("%w: it is gone", microvm.ErrNotRunning))
		b.mu.ended = append(b.mu.ended, m)
	}
	b.nudge()
}

// sweep is the backend's goroutine: it removes the files of machines that are
// gone, and ends the commands that run in machines that vanish.
func (b *Backend) sweep() {
	defer close(b.swept)
	for {
		timer := time.NewTimer(b.untilNextEnd(time.Now()))
		select {
		case <-b.ctx.Done():
			timer.Stop()
			return
		case <-b.wake:
		case <-timer.C:
		}
		timer.Stop()
	}
}

// idleWait is how long the sweeper rests when nothing is due; it is woken.
const idleWait = time.Hour

// untilNextEnd clears what has ended and says how long there is nothing to do.
func (b *Backend) untilNextEnd(now time.Time) time.Duration {
	b.mu.Lock()
	b.dropEndedLocked(now)
	ended := b.mu.ended
	b.mu.ended = nil
	wait := idleWait
	if !b.mu.nextEnd.IsZero() {
		wait = b.mu.nextEnd.Sub(now)
	}
	b.mu.Unlock()

	for _, m := range ended {
		b.forget(m)
	}
	return wait
}

// forget removes the file of a machine that is gone. One that cannot be removed
// does no harm while we run, and is tried again at the next start.
func (b *Backend) forget(m *machine) {
	m.file.Lock() // a deletion may be writing it
	defer m.file.Unlock()
	if err := b.files.remove(m.UID); err != nil {
		b.log.Error("the file of a simulated microvm that is gone stays; remove it by hand", "uid", m.UID, "err", err)
		return
	}
	b.log.Info("simulated microvm is gone", "vm", m.subject(), "uid", m.UID, "vanished", m.GoneAt.IsZero())
}
