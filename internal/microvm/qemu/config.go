package qemu

import (
	"cmp"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"time"
)

// Limits and defaults.
const (
	// MinMemoryMB is the smallest machine that local:base boots in, in MiB.
	MinMemoryMB = 128

	defaultBootTimeout = time.Minute
	qemuProgram        = "qemu-system-x86_64"
)

// Config says how to run machines. Zero values take the defaults given.
type Config struct {
	// StateDir holds the machines; required.
	StateDir string
	// ImageDir caches images; default: poolmgr/images in the user's cache
	// folder, or images in StateDir where there is none.
	ImageDir string
	// ImageRoot is what file: references point into; default: none.
	ImageRoot string
	// GuestBinary is the guest's static binary; default: see
	// image.LocateGuestBinary.
	GuestBinary string
	// Accel is auto, kvm or tcg; default auto: KVM where it proves to work.
	Accel string
	// MaxVMs and MaxMemoryMB limit what stands on the host, machines that are
	// being deleted included; 0 = no limit.
	MaxVMs, MaxMemoryMB int
	// MaxBoots is how many machines boot at one time; default: one per CPU.
	MaxBoots int
	// BootTimeout is how long one attempt may take from the start of QEMU until
	// the guest answers; default 60 s: with 15 busy processes on two cores 17 s were
	// seen. A machine gets two attempts.
	BootTimeout time.Duration
	// Logger is required.
	Logger *slog.Logger
}

// withDefaults fills in what is not set and finds the programs.
func (c Config) withDefaults() (Config, string, error) {
	if c.StateDir == "" || c.Logger == nil {
		return c, "", fmt.Errorf("open the qemu backend: a state directory and a logger are required")
	}
	dir, err := filepath.Abs(c.StateDir)
	if err != nil {
		return c, "", fmt.Errorf("state directory %s: %w", c.StateDir, err)
	}
	c.StateDir = dir
	c.Accel = cmp.Or(c.Accel, AccelAuto)
	c.MaxBoots = cmp.Or(c.MaxBoots, runtime.NumCPU())
	c.BootTimeout = cmp.Or(c.BootTimeout, defaultBootTimeout)
	if c.ImageDir == "" {
		c.ImageDir = filepath.Join(c.StateDir, "images")
		if cache, err := os.UserCacheDir(); err == nil {
			c.ImageDir = filepath.Join(cache, "poolmgr", "images")
		}
	}
	program, err := exec.LookPath(qemuProgram)
	if err != nil {
		return c, "", fmt.Errorf("%w: there is no %s: install it with: apt-get install qemu-system-x86", ErrNoQEMU, qemuProgram)
	}
	return c, program, nil
}
