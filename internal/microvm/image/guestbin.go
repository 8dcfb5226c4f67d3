package image

import (
	"fmt"
	"os"
	"path/filepath"
)

// GuestBinaryEnv overrides where the guest's binary is looked for.
const GuestBinaryEnv = "POOLMGR_GUEST_BINARY"

// LocateGuestBinary finds the guest's binary: the explicit path, else that of
// the environment, else poolmgr-guest beside the running program.
func LocateGuestBinary(explicit string) (string, error) {
	candidate := explicit
	if candidate == "" {
		candidate = os.Getenv(GuestBinaryEnv)
	}
	if candidate == "" {
		self, err := os.Executable()
		if err != nil {
			return "", fmt.Errorf("find the running program: %w", err)
		}
		candidate = filepath.Join(filepath.Dir(self), "poolmgr-guest")
	}
	info, err := os.Stat(candidate)
	if err != nil || !info.Mode().IsRegular() {
		return "", fmt.Errorf("%w: there is no file %s: run `make build`, or name it with %s", ErrNoGuestBinary, candidate, GuestBinaryEnv)
	}
	return candidate, nil
}
