package qemu

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"poolmgr/internal/microvm"
)

// maxCmdline is the longest command line that a kernel boots with, in bytes;
// with a longer one it stays silent for ever.
const maxCmdline = 2047

// Options that make a guest boot fast and end when it breaks. The self tests
// of the crypto code and the listed initialisers take a third of a boot.
const (
	baseCmdline = "reboot=t panic=-1 quiet cryptomgr.notests " +
		"initcall_blacklist=init_kprobe_trace,load_system_certificate_list,crypto_kdf108_init,init_encrypted"
)

// kernelCmdline returns the command line: ours first, so that the template's
// entries win where the kernel takes the last one. tscKHz is 0 where the guest
// finds its clock's rate itself.
//
// Without tsc_early_khz a guest under TCG hangs at random, and always on a
// loaded host: it measures its clock against a timer that the host's
// scheduling disturbs.
func kernelCmdline(entries map[string]string, tscKHz int) (string, error) {
	line := baseCmdline
	if tscKHz > 0 {
		line += fmt.Sprintf(" tsc_early_khz=%d", tscKHz)
	}
	for _, key := range slices.Sorted(maps.Keys(entries)) {
		value := entries[key]
		if err := checkCmdlineEntry(key, value); err != nil {
			return "", err
		}
		line += " " + key
		if value != "" {
			line += "=" + value
		}
	}
	if len(line) > maxCmdline {
		return "", fmt.Errorf("kernel.cmdline: %w: with our own %d bytes it has %d, more than the kernel's %d",
			microvm.ErrRefused, len(baseCmdline), len(line), maxCmdline)
	}
	return line, nil
}

func checkCmdlineEntry(key, value string) error {
	bad := func(r rune) bool { return r <= ' ' || r > '~' || r == '"' || r == '\'' }
	switch {
	case key == "" || strings.ContainsFunc(key, bad) || strings.ContainsRune(key, '='):
		return fmt.Errorf("kernel.cmdline[%q]: %w: a key is printable ASCII without blanks, quotes and =", key, microvm.ErrRefused)
	case strings.ContainsFunc(value, bad):
		return fmt.Errorf("kernel.cmdline[%q]: %w: a value is printable ASCII without blanks and quotes", key, microvm.ErrRefused)
	case key == "rdinit":
		return fmt.Errorf("kernel.cmdline[%q]: %w: it would replace the guest agent", key, microvm.ErrRefused)
	}
	return nil
}
