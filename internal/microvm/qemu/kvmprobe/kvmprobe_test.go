package kvmprobe_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"poolmgr/internal/microvm/qemu/kvmprobe"
)

func TestRunWithoutKVM(t *testing.T) {
	plain := filepath.Join(t.TempDir(), "kvm")
	if err := os.WriteFile(plain, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, device := range []string{filepath.Join(t.TempDir(), "none"), plain} {
		if _, err := kvmprobe.Run(t.Context(), device); !errors.Is(err, kvmprobe.ErrUnusable) {
			t.Errorf("%s: %v, want ErrUnusable", device, err)
		}
	}
}

// On any machine the probe comes to one of its three answers, within its bound.
func TestRunOnThisMachine(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	per, err := kvmprobe.Run(ctx, "/dev/kvm")
	t.Logf("per instruction: %v, error: %v", per, err)
	switch {
	case err == nil && (per <= 0 || per > kvmprobe.MaxPerInstruction):
		t.Errorf("usable at %v per instruction", per)
	case errors.Is(err, kvmprobe.ErrTooSlow) && per <= kvmprobe.MaxPerInstruction:
		t.Errorf("too slow at %v per instruction", per)
	case err != nil && !errors.Is(err, kvmprobe.ErrTooSlow) && !errors.Is(err, kvmprobe.ErrUnusable):
		t.Errorf("an error of no kind: %v", err)
	}
}

func TestRunEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	start := time.Now()
	if _, err := kvmprobe.Run(ctx, "/dev/kvm"); !errors.Is(err, kvmprobe.ErrUnusable) {
		t.Errorf("got %v", err)
	}
	if took := time.Since(start); took > 10*time.Second {
		t.Errorf("it took %v", took)
	}
}
