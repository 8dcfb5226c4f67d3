package qemu

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
	"time"

	"poolmgr/internal/microvm/guest/wire"
	"poolmgr/internal/microvm/image"
	"poolmgr/internal/microvm/qemu/qmp"
)

const (
	// attempts is how often a machine is booted before it counts as failed.
	attempts = 2
	// entropyBytes is what a guest gets from the host's random generator.
	entropyBytes = 32
	// dialPause is the pause between attempts to reach a QEMU that starts.
	dialPause = 10 * time.Millisecond
)

// boot boots a machine and watches it. The limit of boots at one time is what
// lets twenty creates on a loaded host all come up: the clock of a boot runs
// from its own start, not from when it was asked for.
func (b *Backend) boot(m *machine) {
	p, err := b.bootInTurn(m)
	switch {
	case err == nil:
		b.watch(m, p)
	case m.ctx.Err() != nil: // deleted meanwhile, or the backend is closed
	default:
		b.fail(m, err)
	}
}

// bootInTurn waits for a turn and boots; it leaves no process behind when it
// fails.
func (b *Backend) bootInTurn(m *machine) (*process, error) {
	select {
	case b.boots <- struct{}{}:
		defer func() { <-b.boots }()
	case <-m.ctx.Done():
		return nil, context.Cause(m.ctx)
	}
	files, err := b.images.Prepare(m.ctx, refsOf(m.current().spec))
	if err != nil {
		return nil, err
	}
	for attempt := 1; ; attempt++ {
		accel := b.accel.current()
		began := time.Now()
		p, err := b.bootOnce(m, files, accel)
		if err == nil {
			b.accel.booted(accel)
			b.log.Info("microvm is up", "uid", m.uid, "id", m.current().spec.GetId(), "pid", p.pid,
				"accel", accel, "attempt", attempt, "took", time.Since(began).Round(time.Millisecond))
			return p, nil
		}
		if m.ctx.Err() != nil {
			return nil, err
		}
		last := attempt >= attempts
		if last && b.accel.failed(accel) {
			attempt, last = 0, false // the other acceleration gets its own attempts
		}
		if last {
			return nil, fmt.Errorf("boot failed %d times, the last time: %w", attempt, err)
		}
		b.log.Warn("boot failed, trying again", "uid", m.uid, "attempt", attempt, "accel", accel, "error", err)
	}
}

// bootOnce starts QEMU, waits until its guest answers, and tells the guest
// what it has to know.
func (b *Backend) bootOnce(m *machine, files image.Boot, accel string) (_ *process, err error) {
	err = m.update(func(r record) record { r.attempts++; return r })
	if err != nil {
		return nil, err
	}
	r := m.current()
	khz := b.tscKHz
	if accel == AccelKVM {
		khz = 0 // there the guest has a clock of its own
	}
	cmdline, err := kernelCmdline(r.spec.GetKernel().GetCmdline(), khz)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(killIn(m.dir), clean(m.dir)); err != nil {
		return nil, err
	}
	p, err := start(b.program, arguments(r, files, accel, cmdline), m.dir)
	if err != nil {
		return nil, err
	}
	if err := b.settle(m, p, r); err != nil {
		err = fmt.Errorf("%w (%s)", err, tail(m.dir))
		killErr := p.kill()
		p.close()
		return nil, errors.Join(err, killErr)
	}
	return p, nil
}

// settle brings a QEMU that was just started to a guest that can be used. The
// watchdog's clock runs from here.
func (b *Backend) settle(m *machine, p *process, r record) error {
	ctx, cancel := context.WithCancelCause(m.ctx)
	limited, stop := context.WithTimeoutCause(ctx, b.config.BootTimeout, errBootTimeout)
	var watchers sync.WaitGroup
	defer watchers.Wait()
	defer stop()
	defer cancel(nil)
	watchers.Go(func() {
		if p.wait(limited) == nil {
			cancel(errDied)
		}
	})
	monitor, err := b.monitor(limited, m)
	if err != nil {
		return err
	}
	watchers.Go(func() { b.follow(monitor, m, cancel) })
	defer monitor.Close()

	if err := m.agent.WaitReady(limited); err != nil {
		return err
	}
	configure, err := configureOf(m.uid, r.spec)
	if err != nil {
		return err
	}
	configure.Entropy = make([]byte, entropyBytes)
	rand.Read(configure.Entropy) // never fails (crypto/rand)
	configure.UnixNano = time.Now().UnixNano()
	if err := m.agent.Configure(limited, configure); err != nil {
		return err
	}
	return m.update(func(r record) record { r.phase, r.message = phaseCreated, ""; return r })
}

// monitor connects to QEMU's monitor, which is there some 30 ms after its start.
func (b *Backend) monitor(ctx context.Context, m *machine) (*qmp.Client, error) {
	dial := dialer(m.dir, qmpSocket)
	for {
		conn, err := dial(ctx)
		if err == nil {
			return qmp.New(ctx, conn, b.log.With("uid", m.uid))
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("connect to QEMU: %w (last: %w)", context.Cause(ctx), err)
		case <-time.After(dialPause):
		}
	}
}

// follow listens to what QEMU tells while a machine boots. A guest that ends
// need not be waited for.
func (b *Backend) follow(monitor *qmp.Client, m *machine, giveUp context.CancelCauseFunc) {
	for e := range monitor.Events() {
		switch e.Name {
		case "VSERPORT_CHANGE":
			b.log.Debug("the guest opened or closed a port", "uid", m.uid, "port", wire.PortName, "data", string(e.Data))
		case "SHUTDOWN", "GUEST_PANICKED":
			giveUp(fmt.Errorf("%w: %s %s", errDied, e.Name, e.Data))
		}
	}
}
