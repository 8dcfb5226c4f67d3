package qemu

import (
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"

	"poolmgr/api/flintlock/vmtypes"
	"poolmgr/internal/microvm"
	"poolmgr/internal/microvm/guest"
	"poolmgr/internal/microvm/guest/wire"
	"poolmgr/internal/microvm/image"
)

const (
	// maxInterfaces is what is left of the machine type's eight device slots.
	maxInterfaces = 7
	// maxKeyBytes bounds a metadata key or label as a file name in the guest.
	maxKeyBytes = 255
	// maxMetadata bounds metadata and labels together, in bytes.
	maxMetadata = 256 << 10
	// userNetAddress is where QEMU's user network expects its only guest.
	userNetAddress = "10.0.2.15/24"
)

// checkSpec names everything in a spec that this backend cannot run.
func (b *Backend) checkSpec(spec *vmtypes.MicroVMSpec) error {
	var faults []error
	fault := func(format string, args ...any) {
		faults = append(faults, fmt.Errorf(format, args...))
	}
	if spec.GetId() == "" {
		fault("id is required")
	}
	if mb := spec.GetMemoryInMb(); mb < MinMemoryMB {
		fault("memory_in_mb %d is less than %d", mb, MinMemoryMB)
	}
	if spec.GetVcpu() < 1 {
		fault("vcpu %d is less than 1", spec.GetVcpu())
	}
	if len(spec.GetAdditionalVolumes()) > 0 {
		fault("additional_volumes: this backend has no volumes yet; the root is an initramfs")
	}
	if spec.GetRootVolume().GetSource().GetVirtiofsSource() != "" {
		fault("root_volume.source.virtiofs_source: this backend takes container_source only")
	}
	if err := b.images.Check(refsOf(spec)); err != nil {
		faults = append(faults, err)
	}
	if _, err := kernelCmdline(spec.GetKernel().GetCmdline(), b.tscKHz); err != nil {
		faults = append(faults, err)
	}
	faults = append(faults, checkInterfaces(spec.GetInterfaces())...)
	faults = append(faults, checkFacts(spec)...)
	if err := errors.Join(faults...); err != nil {
		return fmt.Errorf("create microvm %q: %w: %s", spec.GetId(), microvm.ErrRefused, strings.ReplaceAll(err.Error(), "\n", "; "))
	}
	return nil
}

// refsOf returns the image references of a spec.
func refsOf(spec *vmtypes.MicroVMSpec) image.Refs {
	return image.Refs{
		Kernel:     spec.GetKernel().GetImage(),
		KernelFile: spec.GetKernel().GetFilename(),
		Root:       spec.GetRootVolume().GetSource().GetContainerSource(),
		Initrd:     spec.GetInitrd().GetImage(),
		InitrdFile: spec.GetInitrd().GetFilename(),
	}
}

func checkInterfaces(nics []*vmtypes.NetworkInterface) (faults []error) {
	if len(nics) > maxInterfaces {
		faults = append(faults, fmt.Errorf("interfaces: %d are more than %d", len(nics), maxInterfaces))
	}
	for i, nic := range nics {
		if mac := nic.GetGuestMac(); mac != "" {
			if hw, err := net.ParseMAC(mac); err != nil || len(hw) != 6 {
				faults = append(faults, fmt.Errorf("interfaces[%d].guest_mac %q is not a hardware address", i, mac))
			}
		}
		if text := nic.GetAddress().GetAddress(); text != "" {
			if prefix, err := netip.ParsePrefix(text); err != nil || !prefix.Addr().Is4() {
				faults = append(faults, fmt.Errorf("interfaces[%d].address.address %q is not an IPv4 address with a prefix length", i, text))
			}
		}
		if text := nic.GetAddress().GetGateway(); text != "" {
			if addr, err := netip.ParseAddr(text); err != nil || !addr.Is4() {
				faults = append(faults, fmt.Errorf("interfaces[%d].address.gateway %q is not an IPv4 address", i, text))
			}
		}
	}
	return faults
}

func checkFacts(spec *vmtypes.MicroVMSpec) (faults []error) {
	total := 0
	key := func(field, key string) {
		if len(guest.FileName(key)) > maxKeyBytes || strings.ContainsRune(key, 0) {
			faults = append(faults, fmt.Errorf("%s[%.40q]: the key does not make a file name of at most %d bytes", field, key, maxKeyBytes))
		}
	}
	for k, v := range spec.GetMetadata() {
		key("metadata", k)
		total += len(k) + len(v)
		if _, err := base64.StdEncoding.DecodeString(v); err != nil {
			faults = append(faults, fmt.Errorf("metadata[%.40q] is not base64", k))
		}
	}
	for k, v := range spec.GetLabels() {
		key("labels", k)
		total += len(k) + len(v)
	}
	if total > maxMetadata {
		faults = append(faults, fmt.Errorf("metadata and labels have %d bytes, more than %d", total, maxMetadata))
	}
	return faults
}

// macOf returns the address of an interface: the template's, else one that is
// locally administered and the machine's own. Machines of one template must
// not share one.
func macOf(uid string, nic *vmtypes.NetworkInterface) string {
	if mac := nic.GetGuestMac(); mac != "" {
		return mac
	}
	sum := sha256.Sum256([]byte(uid + "/" + nic.GetDeviceId()))
	hw := net.HardwareAddr(sum[:6])
	hw[0] = hw[0]&^0x01 | 0x02
	return hw.String()
}

// configureOf is what a machine's guest is told at first contact, but for the
// entropy and the time, which are drawn when it is told.
func configureOf(uid string, spec *vmtypes.MicroVMSpec) (wire.Configure, error) {
	c := wire.Configure{
		Hostname: hostname(spec.GetId()),
		Metadata: make(map[string][]byte, len(spec.GetMetadata())),
		Labels:   spec.GetLabels(),
	}
	for key, value := range spec.GetMetadata() {
		data, err := base64.StdEncoding.DecodeString(value)
		if err != nil {
			return wire.Configure{}, fmt.Errorf("metadata[%.40q]: %w", key, err)
		}
		c.Metadata[key] = data
	}
	for _, nic := range spec.GetInterfaces() {
		i := wire.Interface{
			MAC:         macOf(uid, nic),
			Name:        linkName(nic.GetDeviceId()),
			Address:     nic.GetAddress().GetAddress(),
			Gateway:     nic.GetAddress().GetGateway(),
			Nameservers: nic.GetAddress().GetNameservers(),
		}
		if i.Address == "" {
			i.Address = userNetAddress
		}
		c.Interfaces = append(c.Interfaces, i)
	}
	return c, nil
}

// linkName is the device id where it can be an interface's name.
func linkName(id string) string {
	if len(id) > 15 || strings.ContainsFunc(id, func(r rune) bool { return r <= ' ' || r > '~' || r == '/' || r == ':' }) {
		return ""
	}
	return id
}

// hostname makes a host name of a machine's id.
func hostname(id string) string {
	name := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '-', r == '.':
			return r
		}
		return '-'
	}, id)
	return name[:min(len(name), 63)]
}
