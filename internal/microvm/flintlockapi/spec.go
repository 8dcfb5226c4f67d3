package flintlockapi

import (
	"encoding/base64"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"poolmgr/api/flintlock/vmtypes"
	"poolmgr/internal/microvm"
)

// What a spec may ask for, on flintlock's hosts and on ours.
const (
	maxNameBytes = 63
	maxVCPU      = 64
	// maxMetadataBytes is what a template may bring, and some room for what a
	// manager of machines adds to it.
	maxMetadataBytes = 33 << 10
	// maxCmdlineBytes is the longest command line that Linux on x86 boots with;
	// beyond it the guest stays silent for ever, so it is refused here.
	maxCmdlineBytes = 2047
)

// checker collects the faults of one spec, each with its field's path.
type checker struct{ faults []string }

func (c *checker) fault(format string, args ...any) {
	c.faults = append(c.faults, fmt.Sprintf(format, args...))
}

// checkSpec names all faults at once, as microvm.ErrRefused.
func (o Options) checkSpec(spec *vmtypes.MicroVMSpec) error {
	c := &checker{}
	c.name("id", spec.GetId())
	c.name("namespace", spec.GetNamespace())
	if n := spec.GetVcpu(); n < 1 || n > maxVCPU {
		c.fault("vcpu %d is not within 1 to %d", n, maxVCPU)
	}
	if mb := int(spec.GetMemoryInMb()); mb < o.MinMemoryMB || mb > o.MaxMemoryMB {
		c.fault("memory_in_mb %d is not within %d to %d", mb, o.MinMemoryMB, o.MaxMemoryMB)
	}
	if spec.GetKernel().GetImage() == "" {
		c.fault("kernel.image is required")
	}
	c.cmdline(spec.GetKernel().GetCmdline())
	if spec.Initrd != nil && spec.GetInitrd().GetImage() == "" {
		c.fault("initrd.image is required")
	}
	c.interfaces(spec.GetInterfaces())
	c.metadata(spec.GetMetadata())
	if len(c.faults) == 0 {
		return nil
	}
	return fmt.Errorf("create microvm %q: %w: %s", spec.GetId(), microvm.ErrRefused, strings.Join(c.faults, "; "))
}

// name holds for everything that may become part of a path or a log line.
func (c *checker) name(field, value string) {
	switch {
	case value == "":
		c.fault("%s is required", field)
	case len(value) > maxNameBytes:
		c.fault("%s has %d bytes, more than %d", field, len(value), maxNameBytes)
	case strings.ContainsRune(value, '/') || !printable(value) || value == "." || value == "..":
		c.fault("%s %q may not contain \"/\" or control characters", field, value)
	}
}

func printable(text string) bool {
	return utf8.ValidString(text) && !strings.ContainsFunc(text, unicode.IsControl)
}

// cmdline refuses what would break the kernel's command line apart or make it
// too long: entries are joined with blanks, unquoted.
func (c *checker) cmdline(entries map[string]string) {
	total := 0
	for _, key := range slices.Sorted(maps.Keys(entries)) {
		value := entries[key]
		total += len(key) + len("=") + len(value) + len(" ")
		if key == "" || strings.ContainsRune(key, '=') || strings.ContainsFunc(key, unicode.IsSpace) || !unquoted(key) {
			c.fault("kernel.cmdline[%q]: the key is not one plain word", key)
		}
		if !unquoted(value) {
			c.fault("kernel.cmdline[%q]: the value may not contain double quotes or control characters", key)
		}
	}
	if total > maxCmdlineBytes {
		c.fault("kernel.cmdline has %d bytes, more than %d", total, maxCmdlineBytes)
	}
}

func unquoted(text string) bool { return printable(text) && !strings.ContainsRune(text, '"') }

func (c *checker) interfaces(nics []*vmtypes.NetworkInterface) {
	seen := map[string]bool{}
	for i, nic := range nics {
		field := fmt.Sprintf("interfaces[%d]", i)
		id := nic.GetDeviceId()
		c.name(field+".device_id", id)
		if id == "eth0" {
			c.fault("%s.device_id eth0 is the host's own", field)
		}
		if seen[id] {
			c.fault("%s.device_id %q is used twice", field, id)
		}
		seen[id] = true
		if _, known := vmtypes.NetworkInterface_IfaceType_name[int32(nic.GetType())]; !known {
			c.fault("%s.type %d is unknown", field, nic.GetType())
		}
		if mac := nic.GetGuestMac(); mac != "" {
			if hw, err := net.ParseMAC(mac); err != nil || len(hw) != 6 {
				c.fault("%s.guest_mac %q is not a hardware address", field, mac)
			}
		}
		if a := nic.GetAddress(); a != nil {
			if _, err := netip.ParsePrefix(a.GetAddress()); err != nil {
				c.fault("%s.address.address %q is not an address with a prefix length", field, a.GetAddress())
			}
		}
		if nic.Overrides != nil && nic.GetOverrides().GetBridgeName() == "" {
			c.fault("%s.overrides has no bridge_name", field)
		}
	}
}

func (c *checker) metadata(entries map[string]string) {
	total := 0
	for _, key := range slices.Sorted(maps.Keys(entries)) {
		value := entries[key]
		total += len(key) + len(value)
		if key == "" || !printable(key) {
			c.fault("metadata[%q]: a key may not be empty or contain control characters", key)
		}
		if _, err := base64.StdEncoding.DecodeString(value); err != nil {
			c.fault("metadata[%q] is not base64", key)
		}
	}
	if total > maxMetadataBytes {
		c.fault("metadata has %d bytes, more than %d", total, maxMetadataBytes)
	}
}
