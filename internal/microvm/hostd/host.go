package hostd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"

	"google.golang.org/grpc"

	"poolmgr/internal/microvm"
	"poolmgr/internal/microvm/flintlockapi"
	"poolmgr/internal/microvm/simulated"
)

// Host is an open host: a backend, its lock, and what it allows.
type Host struct {
	backend microvm.Backend
	lock    *os.File // nil without a state folder
	opts    Options
	log     *slog.Logger
}

// Open takes the state folder, starts the backend and finds its machines again.
// The context bounds the opening only (the qemu backend may have to build its
// image first); Close ends the host, and leaves its machines alive.
func Open(ctx context.Context, opts Options, logger *slog.Logger) (*Host, error) {
	if err := opts.check(); err != nil {
		return nil, err
	}
	h := &Host{opts: opts, log: logger}
	if opts.StateDir != "" {
		lock, err := opts.lockStateDir()
		if err != nil {
			return nil, err
		}
		h.lock = lock
	}
	backend, err := openBackend(ctx, opts, logger)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open the %s backend: %w", opts.Backend, err), h.unlock())
	}
	h.backend = backend
	return h, nil
}

func openBackend(ctx context.Context, opts Options, logger *slog.Logger) (microvm.Backend, error) {
	if opts.Backend == BackendQEMU {
		return openQEMU(ctx, opts, logger)
	}
	return simulated.New(simulated.Config{
		HostName:    opts.Name,
		Seed:        opts.Seed,
		StateDir:    opts.StateDir,
		MaxVMs:      opts.MaxVMs,
		MaxMemoryMB: opts.MaxMemoryMB,
		Behaviour:   opts.Simulated,
		Logger:      logger,
	})
}

// Register serves the host on a gRPC server that has not started yet.
func (h *Host) Register(registrar grpc.ServiceRegistrar) {
	flintlockapi.Register(registrar, h.backend, flintlockapi.Options{
		MinMemoryMB:  h.MinVMMemoryMB(),
		HostMaxVMs:   h.MaxVMs(),
		HostMemoryMB: h.MemoryMB(),
		Logger:       h.log,
	})
}

// MinVMMemoryMB is the memory of the smallest machine that the host takes, in MiB.
func (h *Host) MinVMMemoryMB() int { return flintlockapi.DefaultMinMemoryMB }

// MaxVMs is the limit of machines on the host; 0 = none.
func (h *Host) MaxVMs() int { return h.opts.MaxVMs }

// MemoryMB is the limit of the machines' memory, in MiB; 0 = none.
func (h *Host) MemoryMB() int { return h.opts.MaxMemoryMB }

// Close stops the backend and gives the state folder free. Stop the servers that
// the host is registered on first.
func (h *Host) Close() error {
	err := h.backend.Close()
	return errors.Join(err, h.unlock())
}

// unlock closes the lock's file, which ends the lock. The file stays: removing
// it would let two daemons lock two files of one name.
func (h *Host) unlock() error {
	if h.lock == nil {
		return nil
	}
	if err := h.lock.Close(); err != nil {
		return fmt.Errorf("give the state folder %s free: %w", h.opts.StateDir, err)
	}
	return nil
}
