package hostd

import (
	"context"
	"log/slog"

	"poolmgr/internal/microvm"
	"poolmgr/internal/microvm/qemu"
)

// openQEMU starts the backend of real machines; the first time it builds their image.
func openQEMU(ctx context.Context, opts Options, logger *slog.Logger) (microvm.Backend, error) {
	backend, err := qemu.New(ctx, qemu.Config{
		StateDir:    opts.StateDir,
		ImageDir:    opts.QEMU.ImageDir,
		ImageRoot:   opts.QEMU.ImageRoot,
		GuestBinary: opts.QEMU.GuestBinary,
		Accel:       opts.QEMU.Accel,
		MaxVMs:      opts.MaxVMs,
		MaxMemoryMB: opts.MaxMemoryMB,
		MaxBoots:    opts.QEMU.MaxBoots,
		BootTimeout: opts.QEMU.BootTimeout,
		Logger:      logger,
	})
	if err != nil {
		return nil, err // not backend: a nil pointer in an interface is not nil
	}
	return backend, nil
}
