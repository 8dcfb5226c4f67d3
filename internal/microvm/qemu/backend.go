package qemu

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"poolmgr/api/flintlock/vmtypes"
	"poolmgr/internal/microvm"
	"poolmgr/internal/microvm/guest/client"
	"poolmgr/internal/microvm/guest/wire"
	"poolmgr/internal/microvm/image"
)

// Backend runs real microVMs. It implements microvm.Backend.
type Backend struct {
	config  Config
	program string
	images  *image.Store
	accel   *acceleration
	tscKHz  int
	log     *slog.Logger

	boots   chan struct{} // holds a token per boot under way
	workers sync.WaitGroup
	ctx     context.Context
	stop    context.CancelCauseFunc

	mu       sync.Mutex
	machines map[string]*machine
	closed   bool
}

// New opens the backend on its state directory, builds local:base where the
// cache lacks it, and goes on with the machines that it finds. The context
// bounds the opening only.
func New(ctx context.Context, config Config) (*Backend, error) {
	config, program, err := config.withDefaults()
	if err != nil {
		return nil, err
	}
	guestBinary, err := image.LocateGuestBinary(config.GuestBinary)
	if err != nil {
		return nil, err
	}
	b := &Backend{
		config: config, program: program, log: config.Logger,
		boots:    make(chan struct{}, config.MaxBoots),
		machines: map[string]*machine{},
	}
	b.ctx, b.stop = context.WithCancelCause(context.Background())
	if err := os.MkdirAll(b.machineDir(""), 0o700); err != nil {
		return nil, fmt.Errorf("make the state directory: %w", err)
	}
	if b.accel, err = newAcceleration(ctx, thisHost, config.Accel, filepath.Join(config.StateDir, "accel.json"), b.log); err != nil {
		return nil, err
	}
	if cpuinfo, err := os.ReadFile(thisHost.cpuinfo); err == nil {
		b.tscKHz = tscKHz(string(cpuinfo))
	}
	b.images, err = image.Open(image.Config{Dir: config.ImageDir, Root: config.ImageRoot, GuestBinary: guestBinary, Logger: b.log})
	if err != nil {
		return nil, err
	}
	if _, err := b.images.Prepare(ctx, image.Refs{Kernel: image.Base, Root: image.Base}); err != nil {
		return nil, errors.Join(err, b.images.Close())
	}
	if err := b.recover(); err != nil {
		return nil, errors.Join(err, b.Close())
	}
	return b, nil
}

func (b *Backend) machineDir(uid string) string {
	return filepath.Join(b.config.StateDir, "vms", uid)
}

// Create implements microvm.Backend.
func (b *Backend) Create(_ context.Context, spec *vmtypes.MicroVMSpec) (*vmtypes.MicroVM, error) {
	if err := b.checkSpec(spec); err != nil {
		return nil, err
	}
	now := timestamppb.New(time.Now())
	uid := strings.ToLower(rand.Text())
	own := proto.CloneOf(spec)
	own.Uid, own.CreatedAt, own.UpdatedAt, own.DeletedAt = &uid, now, now, nil
	m := b.newMachine(record{uid: uid, spec: own, phase: phasePending})
	if err := b.admit(m); err != nil {
		m.cancel(nil)
		return nil, fmt.Errorf("create microvm %q: %w", spec.GetId(), err)
	}
	if err := m.establish(); err != nil {
		b.forget(m)
		m.cancel(nil)
		b.workers.Done()
		return nil, fmt.Errorf("create microvm %q: %w", spec.GetId(), err)
	}
	answer := m.current().toAPI()
	b.log.Info("microvm accepted", "uid", uid, "id", own.GetId(), "namespace", own.GetNamespace())
	go b.work(m) // counted by admit; Close waits for it
	return answer, nil
}

// establish makes the machine's folder and its intent durable.
func (m *machine) establish() error {
	if err := os.Mkdir(m.dir, 0o700); err != nil {
		return fmt.Errorf("make the microvm's folder: %w", err)
	}
	err := m.save(m.current())
	if err == nil {
		err = syncDir(filepath.Dir(m.dir))
	}
	if err != nil {
		return errors.Join(err, os.RemoveAll(m.dir))
	}
	return nil
}

// admit takes a machine in when there is room, and counts its worker.
func (b *Backend) admit(m *machine) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return microvm.ErrClosed
	}
	memory := int(m.record.spec.GetMemoryInMb())
	for _, other := range b.machines {
		memory += int(other.current().spec.GetMemoryInMb())
	}
	if limit := b.config.MaxVMs; limit > 0 && len(b.machines) >= limit {
		return fmt.Errorf("%w: it has %d microvms of at most %d", microvm.ErrNoCapacity, len(b.machines), limit)
	}
	if limit := b.config.MaxMemoryMB; limit > 0 && memory > limit {
		return fmt.Errorf("%w: its microvms would have %d MiB of at most %d", microvm.ErrNoCapacity, memory, limit)
	}
	b.machines[m.uid] = m
	b.workers.Add(1)
	return nil
}

func (b *Backend) forget(m *machine) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.machines, m.uid)
}

func (b *Backend) find(uid string) (*machine, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return nil, microvm.ErrClosed
	}
	m, ok := b.machines[uid]
	if !ok {
		return nil, fmt.Errorf("microvm %q: %w", uid, microvm.ErrNotFound)
	}
	return m, nil
}

// Get implements microvm.Backend.
func (b *Backend) Get(_ context.Context, uid string) (*vmtypes.MicroVM, error) {
	m, err := b.find(uid)
	if err != nil {
		return nil, err
	}
	return m.current().toAPI(), nil
}

// List implements microvm.Backend.
func (b *Backend) List(_ context.Context, namespace, name string) ([]*vmtypes.MicroVM, error) {
	b.mu.Lock()
	if b.closed {
		b.mu.Unlock()
		return nil, microvm.ErrClosed
	}
	var found []*vmtypes.MicroVM
	for _, m := range b.machines {
		r := m.current()
		if (namespace == "" || r.spec.GetNamespace() == namespace) && (name == "" || r.spec.GetId() == name) {
			found = append(found, r.toAPI())
		}
	}
	b.mu.Unlock()
	slices.SortFunc(found, func(x, y *vmtypes.MicroVM) int {
		return cmp.Or(
			cmp.Compare(x.Spec.GetNamespace(), y.Spec.GetNamespace()),
			cmp.Compare(x.Spec.GetId(), y.Spec.GetId()),
			cmp.Compare(x.Spec.GetUid(), y.Spec.GetUid()))
	})
	return found, nil
}

// Delete implements microvm.Backend.
func (b *Backend) Delete(_ context.Context, uid string) error {
	m, err := b.find(uid)
	if err != nil {
		return err
	}
	if m.current().phase == phaseDeleting {
		return nil
	}
	err = m.insist(func(r record) record {
		if r.phase == phaseDeleting {
			return r
		}
		spec := proto.CloneOf(r.spec)
		spec.DeletedAt = timestamppb.New(time.Now())
		r.spec, r.phase = spec, phaseDeleting
		return r
	})
	if err != nil {
		b.log.Error("a deletion is not on disk, and goes on", "uid", uid, "error", err)
	}
	m.cancel(errDeleted)
	return nil
}

// Exec implements microvm.Backend.
func (b *Backend) Exec(ctx context.Context, req microvm.ExecRequest, streams microvm.ExecStreams) (int, error) {
	m, err := b.find(req.UID)
	if err != nil {
		return 0, err
	}
	if r := m.current(); r.phase != phaseCreated {
		return 0, fmt.Errorf("exec in microvm %s: %w: it is %s", req.UID, microvm.ErrNotRunning, r.phase)
	}
	if !req.HasStdin {
		streams.Stdin = nil
	}
	code, err := m.agent.Exec(ctx, wire.Exec{
		Cmd: req.Cmd, Args: req.Args, Cwd: req.Cwd, Env: req.Env, Shell: req.Shell, User: req.User,
		TimeoutSec: req.Timeout.Seconds(),
	}, client.Streams(streams))
	switch {
	case err == nil:
		return code, nil
	case errors.Is(err, client.ErrTimeout):
		return 0, fmt.Errorf("exec in microvm %s: %w: after %v", req.UID, microvm.ErrExecTimeout, req.Timeout)
	case errors.Is(err, client.ErrUnreachable), errors.Is(err, client.ErrClosed):
		return 0, fmt.Errorf("exec in microvm %s: %w: %w", req.UID, microvm.ErrNotRunning, err)
	}
	return 0, fmt.Errorf("exec in microvm %s: %w", req.UID, err)
}

// Close implements microvm.Backend. Boots under way are given up; the next
// backend begins them anew.
func (b *Backend) Close() error {
	b.mu.Lock()
	b.closed = true
	machines := slices.Collect(maps.Values(b.machines))
	b.mu.Unlock()
	b.stop(microvm.ErrClosed)
	b.workers.Wait()
	for _, m := range machines {
		m.agent.Close() // the session's own end is of no interest
	}
	return b.images.Close()
}
