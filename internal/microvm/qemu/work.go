package qemu

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// Pauses between attempts to remove a machine.
const (
	removePause    = time.Second
	maxRemovePause = 30 * time.Second
)

// work is a machine's life, from wherever its record says it is.
func (b *Backend) work(m *machine) {
	defer b.workers.Done()
	defer m.cancel(nil)
	switch m.current().phase {
	case phasePending:
		b.boot(m)
	case phaseCreated:
		b.adopt(m)
	case phaseFailed, phaseDeleting:
		// It waits for its deletion, or has it asked for.
	}
	<-m.ctx.Done()
	if m.current().phase != phaseDeleting {
		return // the backend is closed; the machine lives on
	}
	b.removeUntilGone(m)
}

// fail makes it known that a machine will not run, or runs no more.
func (b *Backend) fail(m *machine, reason error) {
	b.log.Error("microvm failed", "uid", m.uid, "id", m.current().spec.GetId(), "error", reason)
	err := m.insist(func(r record) record {
		r.phase, r.message = phaseFailed, reason.Error()
		return r
	})
	if err != nil {
		b.log.Error("cannot record that a microvm failed", "uid", m.uid, "error", err)
	}
}

// adopt watches a machine that an earlier backend booted.
func (b *Backend) adopt(m *machine) {
	p, err := find(m.dir)
	if err != nil {
		b.fail(m, fmt.Errorf("look for its QEMU: %w", err))
		return
	}
	if p == nil {
		b.fail(m, fmt.Errorf("%w while no backend was watching (%s)", errDied, tail(m.dir)))
		return
	}
	b.log.Info("microvm found again", "uid", m.uid, "id", m.current().spec.GetId(), "pid", p.pid)
	b.watch(m, p)
}

// watch waits until a running machine ends, or is to end. It owns the handle.
func (b *Backend) watch(m *machine, p *process) {
	defer p.close()
	if err := p.wait(m.ctx); err == nil {
		b.fail(m, fmt.Errorf("%w: the guest stopped or its QEMU was killed (%s)", errDied, tail(m.dir)))
	} else if m.ctx.Err() == nil {
		b.fail(m, err)
	}
}

// removeUntilGone removes a machine however often it takes; only the backend's
// end stops it, and the next backend goes on.
func (b *Backend) removeUntilGone(m *machine) {
	for pause := removePause; ; pause = min(2*pause, maxRemovePause) {
		err := b.remove(m)
		if err == nil {
			b.forget(m)
			b.log.Info("microvm removed", "uid", m.uid, "id", m.current().spec.GetId())
			return
		}
		b.log.Error("cannot remove a microvm, trying again", "uid", m.uid, "error", err, "in", pause)
		select {
		case <-b.ctx.Done():
			return
		case <-time.After(pause):
		}
	}
}

func (b *Backend) remove(m *machine) error {
	m.agent.Close()
	if err := killIn(m.dir); err != nil {
		return err
	}
	if err := os.RemoveAll(m.dir); err != nil {
		return fmt.Errorf("remove the microvm's folder: %w", err)
	}
	return syncDir(filepath.Dir(m.dir))
}

// killIn kills the QEMU that runs in a folder, if any.
func killIn(dir string) error {
	p, err := find(dir)
	if p == nil || err != nil {
		return err
	}
	defer p.close()
	return p.kill()
}

// recover finds the machines of earlier backends and starts their workers.
func (b *Backend) recover() error {
	entries, err := os.ReadDir(b.machineDir(""))
	if err != nil {
		return fmt.Errorf("read the state directory: %w", err)
	}
	for _, e := range entries {
		dir := b.machineDir(e.Name())
		data, err := os.ReadFile(filepath.Join(dir, stateFile))
		if errors.Is(err, fs.ErrNotExist) {
			// Its create was never answered, or its removal was nearly done.
			b.log.Info("removing the rest of a microvm", "uid", e.Name())
			if err := errors.Join(killIn(dir), os.RemoveAll(dir)); err != nil {
				return fmt.Errorf("remove the rest of microvm %s: %w", e.Name(), err)
			}
			continue
		}
		if err != nil {
			return fmt.Errorf("read the state of microvm %s: %w", e.Name(), err)
		}
		r, err := parseRecord(data)
		if err == nil && r.uid != e.Name() {
			err = fmt.Errorf("it is the state of %q", r.uid)
		}
		if err != nil {
			return fmt.Errorf("understand %s: %w; remove that folder to give the microvm up", filepath.Join(dir, stateFile), err)
		}
		m := b.newMachine(r)
		if r.phase == phaseDeleting {
			m.cancel(errDeleted)
		}
		b.machines[r.uid] = m // not shared with anybody yet
		b.workers.Add(1)
		go b.work(m)
	}
	return nil
}
