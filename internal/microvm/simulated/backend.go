// Package simulated is a microVM backend without machines: it keeps the same
// books as a real one, takes its time, and fails or lies as often as it is told
// to, always the same way for the same seed. Its guests understand a handful of
// commands. It is for tests, demonstrations and machines that cannot boot VMs;
// nothing that happens in it uses memory, CPU or network worth the name.
package simulated

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"poolmgr/api/flintlock/vmtypes"
	"poolmgr/internal/microvm"
)

// maxCountedNames bounds the names whose creates are counted. Beyond it the
// counts start again, which makes an old name's next attempt look like its first.
const maxCountedNames = 1 << 16

// Backend is one simulated host.
type Backend struct {
	cfg   Config
	log   *slog.Logger
	dice  dice
	files stateFiles

	ctx   context.Context // ends, with microvm.ErrClosed as its cause, at Close
	stop  context.CancelCauseFunc
	wake  chan struct{} // one slot: the sweeper has to look again
	swept chan struct{} // closed when the sweeper has ended

	mu struct {
		sync.Mutex
		machines map[string]*machine // by uid
		attempts map[string]int      // creates so far, by namespace and id
		// vms and memoryMB are what stands here, and what is being made.
		vms, memoryMB int
		// nextEnd is the earliest end of a machine; zero: none will end by itself.
		nextEnd time.Time
		// ended are machines that are gone and whose files are still there.
		ended []*machine
	}
}

var _ microvm.Backend = (*Backend)(nil)

// New opens a simulated host and finds again what stands in cfg.StateDir.
// Close ends it.
func New(cfg Config) (*Backend, error) {
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("configure the simulated host: %w", err)
	}
	b := &Backend{
		cfg:   cfg,
		log:   cfg.Logger,
		dice:  dice{seed: cfg.Seed, host: cfg.HostName},
		wake:  make(chan struct{}, 1),
		swept: make(chan struct{}),
	}
	if cfg.StateDir != "" {
		b.files.dir = filepath.Join(cfg.StateDir, "simulated")
	}
	b.ctx, b.stop = context.WithCancelCause(context.Background())
	b.mu.machines = map[string]*machine{}
	b.mu.attempts = map[string]int{}

	records, err := b.files.load()
	if err != nil {
		b.stop(err)
		return nil, fmt.Errorf("open the simulated host: %w", err)
	}
	for _, r := range records {
		b.insertLocked(r) // nobody else knows the backend yet
		b.mu.vms++
		b.mu.memoryMB += int(r.Spec.GetMemoryInMb())
		b.mu.attempts[r.subject()] = max(b.mu.attempts[r.subject()], r.Attempt+1)
	}
	if len(records) > 0 {
		b.log.Info("found simulated microvms again", "count", len(records), "dir", b.files.dir)
	}
	go b.sweep()
	return b, nil
}

// Close ends the commands that run and waits for the backend's goroutine. The
// machines stay: in their files, or nowhere without a state folder.
func (b *Backend) Close() error {
	b.stop(microvm.ErrClosed)
	<-b.swept
	return nil
}

// Create makes a machine and decides, then and there, all that will happen to it.
func (b *Backend) Create(ctx context.Context, spec *vmtypes.MicroVMSpec) (*vmtypes.MicroVM, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if spec.GetId() == "" {
		return nil, fmt.Errorf("create simulated microvm: %w: it has no id", microvm.ErrRefused)
	}
	subject := subjectOf(spec)
	memory := int(spec.GetMemoryInMb())
	attempt, err := b.reserve(subject, memory)
	if err != nil {
		return nil, fmt.Errorf("create simulated microvm %s: %w", subject, err)
	}
	if b.dice.happens(b.cfg.FailCreate, "fail-create", subject, attempt) {
		b.unreserve(memory)
		return nil, fmt.Errorf("create simulated microvm %s: %w", subject, errCreateFails)
	}

	now := time.Now()
	r := b.decide(proto.CloneOf(spec), attempt, now)
	if err := b.files.save(r); err != nil {
		b.unreserve(memory)
		return nil, fmt.Errorf("create simulated microvm %s: %w", subject, err)
	}
	b.mu.Lock()
	b.insertLocked(r)
	b.mu.Unlock()
	b.log.Info("simulated microvm created", "vm", subject, "uid", r.UID, "attempt", attempt)

	if b.dice.happens(b.cfg.LoseReply, "lose-create-reply", subject, attempt) {
		return nil, fmt.Errorf("create simulated microvm %s: %w", subject, lostReply{"create"})
	}
	// The first answer is PENDING even where the boot takes no time at all, as
	// on a host whose work is asynchronous.
	made := r.describe(now)
	made.Status = &vmtypes.MicroVMStatus{State: vmtypes.MicroVMStatus_PENDING}
	return made, nil
}

// reserve counts the attempt and the room of a machine before it is written.
// A create that finds no room is no attempt: whether there is room depends on
// the other machines, and the decisions about this one must not.
func (b *Backend) reserve(subject string, memoryMB int) (attempt int, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ctx.Err() != nil {
		return 0, microvm.ErrClosed
	}
	b.dropEndedLocked(time.Now())
	if b.cfg.MaxVMs > 0 && b.mu.vms >= b.cfg.MaxVMs {
		return 0, fmt.Errorf("%w: %d of %d microvms stand here", microvm.ErrNoCapacity, b.mu.vms, b.cfg.MaxVMs)
	}
	if b.cfg.MaxMemoryMB > 0 && b.mu.memoryMB+memoryMB > b.cfg.MaxMemoryMB {
		return 0, fmt.Errorf("%w: %d of %d MB are in use, and it asks for %d MB",
			microvm.ErrNoCapacity, b.mu.memoryMB, b.cfg.MaxMemoryMB, memoryMB)
	}
	attempt, known := b.mu.attempts[subject]
	if !known && len(b.mu.attempts) >= maxCountedNames {
		clear(b.mu.attempts)
	}
	b.mu.attempts[subject] = attempt + 1
	b.mu.vms++
	b.mu.memoryMB += memoryMB
	return attempt, nil
}

func (b *Backend) unreserve(memoryMB int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.mu.vms = max(0, b.mu.vms-1)
	b.mu.memoryMB = max(0, b.mu.memoryMB-memoryMB)
}

// decide rolls the dice of a new machine's life.
func (b *Backend) decide(spec *vmtypes.MicroVMSpec, attempt int, now time.Time) record {
	r := record{UID: rand.Text(), Attempt: attempt, Fate: fateUp, CreatedAt: now, Spec: spec}
	subject := r.subject()
	jitter := b.dice.roll("boot-jitter", subject, attempt) * float64(b.cfg.BootJitter)
	r.BootAt = now.Add(b.cfg.BootDelay + time.Duration(jitter))
	if b.dice.happens(b.cfg.FailBoot, "fail-boot", subject, attempt) {
		r.Fate = fateDead
		if b.dice.happens(0.5, "boot-failure-is-seen", subject, attempt) {
			r.Fate = fateFail
		}
	}
	if b.dice.happens(b.cfg.Vanish, "vanish", subject, attempt) {
		after := b.dice.roll("vanish-after", subject, attempt) * float64(vanishWithin)
		r.VanishAt = r.BootAt.Add(time.Duration(after))
	}
	return r
}

// Get shows one machine.
func (b *Backend) Get(_ context.Context, uid string) (*vmtypes.MicroVM, error) {
	now := time.Now()
	r, err := b.lookUp(uid, now)
	if err != nil {
		return nil, fmt.Errorf("get simulated microvm: %w", err)
	}
	return r.describe(now), nil
}

// List shows the machines of a namespace and name, either of which may be empty for any.
func (b *Backend) List(_ context.Context, namespace, name string) ([]*vmtypes.MicroVM, error) {
	now := time.Now()
	var found []record
	b.mu.Lock()
	if b.ctx.Err() != nil {
		b.mu.Unlock()
		return nil, fmt.Errorf("list simulated microvms: %w", microvm.ErrClosed)
	}
	b.dropEndedLocked(now)
	for _, m := range b.mu.machines {
		if (namespace == "" || m.Spec.GetNamespace() == namespace) && (name == "" || m.Spec.GetId() == name) {
			found = append(found, m.record)
		}
	}
	b.mu.Unlock()
	slices.SortFunc(found, func(x, y record) int {
		return cmp.Or(
			strings.Compare(x.Spec.GetNamespace(), y.Spec.GetNamespace()),
			strings.Compare(x.Spec.GetId(), y.Spec.GetId()),
			strings.Compare(x.UID, y.UID),
		)
	})
	shown := make([]*vmtypes.MicroVM, len(found))
	for i, r := range found {
		shown[i] = r.describe(now)
	}
	return shown, nil
}
