package qemu

import (
	"context"
	"fmt"
	"path/filepath"
	"sync"

	"poolmgr/internal/microvm/guest/client"
)

// machine is one microVM. Its goroutine alone boots, watches and removes it;
// others read its record, use its client, and ask for its deletion.
type machine struct {
	uid   string
	dir   string
	agent *client.Client

	// ctx ends when the machine is to be deleted (errDeleted), or the backend
	// is closed; then its goroutine stops waiting for anything else.
	ctx    context.Context
	cancel context.CancelCauseFunc

	// saving is held while the state file is written, so that the file and the
	// record go the same way.
	saving sync.Mutex

	mu     sync.Mutex
	record record
}

func (b *Backend) newMachine(r record) *machine {
	m := &machine{uid: r.uid, dir: b.machineDir(r.uid), record: r}
	m.ctx, m.cancel = context.WithCancelCause(b.ctx)
	m.agent = client.New(dialer(m.dir, agentSocket), b.log.With("uid", r.uid))
	return m
}

func (m *machine) current() record {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.record
}

// update writes a changed record to the state file, then shows it. Once a
// machine is to be deleted, only changes that keep it so count.
func (m *machine) update(change func(record) record) error {
	return m.change(change, false)
}

// insist is an update that is shown even where it cannot be written: on a full
// disk, a machine that failed must not look alive, and one that is deleted
// makes room. The next backend then finds the older record, and finds out anew.
func (m *machine) insist(change func(record) record) error {
	return m.change(change, true)
}

func (m *machine) change(change func(record) record, regardless bool) error {
	m.saving.Lock()
	defer m.saving.Unlock()
	before := m.current()
	after := change(before)
	if before.phase == phaseDeleting && after.phase != phaseDeleting {
		return nil // a deletion is never taken back
	}
	err := m.save(after)
	if err == nil || regardless {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.record = after
	}
	return err
}

func (m *machine) save(r record) error {
	data, err := r.marshal()
	if err != nil {
		return fmt.Errorf("encode the state of microvm %s: %w", m.uid, err)
	}
	return writeFile(filepath.Join(m.dir, stateFile), data)
}
