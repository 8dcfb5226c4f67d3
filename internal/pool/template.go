package pool

import (
	"encoding/base64"
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"poolmgr/api/flintlock/vmtypes"
)

// Bounds of a template: what flintlock accepts, and what boots.
const (
	MinVCPU            = 1
	MaxVCPU            = 64
	MinMemoryMB        = 1024 // of a host that does not say otherwise
	MaxMemoryMB        = 32768
	MaxMetadataBytes   = 32 * 1024 // keys and values, as they are in the spec
	MaxMetadataEntries = 256
	MaxLabels          = 256
	MaxLabelBytes      = 1024 // of one key or value

	// MaxCmdlineBytes bounds the template's part of the kernel's command line. A kernel that is given more than 2047
	// bytes does not boot and says nothing; the rest is the host's own part.
	MaxCmdlineBytes = 1536
	MaxVolumes      = 16
	MaxInterfaces   = 8
	maxReference    = 1024
)

// OwnerKey is the metadata key by which poolmgr recognises its VMs on a host; templates must not set it.
const OwnerKey = "poolmgr.owner"

const templateField = "microvm_template"

var (
	keyPattern    = regexp.MustCompile(`^[A-Za-z0-9_]([-A-Za-z0-9_./]*[A-Za-z0-9_])?$`) // of labels
	fileKey       = regexp.MustCompile(`^[A-Za-z0-9_][-A-Za-z0-9_.]*$`)                 // of metadata: a file in the guest
	volumePattern = regexp.MustCompile(`^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$`)
	cmdlineKey    = regexp.MustCompile(`^[-A-Za-z0-9_.,:/]+$`)
)

// template finds what a host would refuse, or would accept and never boot.
func (c *checker) template() {
	t := c.spec.Template
	if t == nil {
		c.fault(templateField, "is required")
		return
	}
	c.plainName(templateField+".id", t.GetId())
	if t.GetNamespace() != "" {
		c.label(templateField+".namespace", t.GetNamespace(), MaxNamespaceLen)
	}
	c.labels(t.GetLabels())
	if n := t.GetVcpu(); n < MinVCPU || n > MaxVCPU {
		c.fault(templateField+".vcpu", "is %d, must be from %d to %d", n, MinVCPU, MaxVCPU)
	}
	if lowest, n := c.minMemory(), int(t.GetMemoryInMb()); n < lowest || n > MaxMemoryMB {
		c.fault(templateField+".memory_in_mb", "is %d, must be from %d to %d on the pool's hosts", n, lowest, MaxMemoryMB)
	}
	c.kernel(t)
	c.volumes(t)
	c.interfaces(t.GetInterfaces())
	c.metadata(t.GetMetadata())
	c.plainName(templateField+".provider", t.GetProvider())
}

// minMemory is the least memory that every host of the pool accepts: a VM may land on any of them.
func (c *checker) minMemory() int {
	lowest, found := 0, false
	for _, h := range c.hosts {
		if len(c.spec.Hosts) > 0 && !slices.Contains(c.spec.Hosts, h.Name) {
			continue
		}
		n := h.MinVMMemoryMB
		if n == 0 {
			n = MinMemoryMB
		}
		lowest, found = max(lowest, n), true
	}
	if !found {
		return MinMemoryMB
	}
	return lowest
}

// plainName is for optional names that hosts may use in paths.
func (c *checker) plainName(field, value string) {
	switch {
	case value == "":
	case len(value) > MaxNamespaceLen:
		c.fault(field, "has %d characters, at most %d are allowed", len(value), MaxNamespaceLen)
	case !volumePattern.MatchString(value):
		c.fault(field, "%s must be letters, digits, '-', '_' and '.', and begin and end with a letter or digit", quote(value))
	}
}

func (c *checker) labels(labels map[string]string) {
	const field = templateField + ".labels"
	if len(labels) > MaxLabels {
		c.fault(field, "has %d entries, at most %d are allowed", len(labels), MaxLabels)
		return
	}
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		at := fmt.Sprintf("%s[%s]", field, quote(key))
		switch value := labels[key]; {
		case len(key) > MaxLabelBytes || len(value) > MaxLabelBytes:
			c.fault(at, "key and value may have at most %d bytes each", MaxLabelBytes)
		case !keyPattern.MatchString(key) || strings.Contains(key, ".."):
			c.fault(at, "the key must be letters, digits, '-', '_', '.' and '/'")
		case hasControl(value):
			c.fault(at, "the value must not have control characters")
		}
	}
}

func (c *checker) kernel(t *vmtypes.MicroVMSpec) {
	k := t.GetKernel()
	c.reference(templateField+".kernel.image", k.GetImage(), true)
	c.imagePath(templateField+".kernel.filename", k.GetFilename())
	total := 0
	for _, key := range slices.Sorted(maps.Keys(k.GetCmdline())) {
		value := k.GetCmdline()[key]
		at := fmt.Sprintf("%s.kernel.cmdline[%s]", templateField, quote(key))
		total += len(key) + len(value) + 2 // '=' and a space
		switch {
		case !cmdlineKey.MatchString(key):
			c.fault(at, "the key must be a kernel parameter: letters, digits and - _ . , : /")
		case hasControl(value) || strings.ContainsRune(value, '"'):
			c.fault(at, "the value must not have control characters or double quotes")
		}
	}
	if total > MaxCmdlineBytes {
		c.fault(templateField+".kernel.cmdline", "has %d bytes, at most %d are allowed, or the kernel would not boot", total, MaxCmdlineBytes)
	}
	if t.GetInitrd() != nil {
		c.reference(templateField+".initrd.image", t.GetInitrd().GetImage(), true)
		c.imagePath(templateField+".initrd.filename", t.GetInitrd().GetFilename())
	}
}

// reference is the name of an image, as the host resolves it.
func (c *checker) reference(field, value string, required bool) {
	switch {
	case value == "":
		if required {
			c.fault(field, "is required")
		}
	case len(value) > maxReference:
		c.fault(field, "has %d characters, at most %d are allowed", len(value), maxReference)
	case hasControl(value) || strings.ContainsFunc(value, unicode.IsSpace):
		c.fault(field, "%s must not have spaces or control characters", quote(value))
	case slices.Contains(strings.Split(value, "/"), ".."):
		c.fault(field, "%s must not have '..' in its path", quote(value))
	}
}

// imagePath is a file inside an image: it must not leave it.
func (c *checker) imagePath(field, value string) {
	if value == "" {
		return
	}
	if len(value) > maxReference || hasControl(value) || slices.Contains(strings.Split(value, "/"), "..") {
		c.fault(field, "%s must be a path inside the image, without '..' and control characters", quote(value))
	}
}

func (c *checker) volumes(t *vmtypes.MicroVMSpec) {
	if root := t.GetRootVolume(); root != nil {
		c.volume(templateField+".root_volume", root, false)
		if root.GetSource().GetVirtiofsSource() != "" {
			c.fault(templateField+".root_volume.source.virtiofs_source", "a root volume cannot be shared with the host")
		}
	}
	more := t.GetAdditionalVolumes()
	if len(more) > MaxVolumes {
		c.fault(templateField+".additional_volumes", "has %d volumes, at most %d are allowed", len(more), MaxVolumes)
		return
	}
	ids := map[string]bool{t.GetRootVolume().GetId(): t.GetRootVolume().GetId() != ""}
	shared := 0
	for i, v := range more {
		at := fmt.Sprintf("%s.additional_volumes[%d]", templateField, i)
		c.volume(at, v, true)
		if ids[v.GetId()] && v.GetId() != "" {
			c.fault(at+".id", "%s names another volume already", quote(v.GetId()))
		}
		ids[v.GetId()] = true
		if v.GetSource().GetVirtiofsSource() != "" {
			shared++
		}
		if shared > 1 {
			c.fault(at+".source.virtiofs_source", "only one volume can be shared with the host")
		}
	}
}

func (c *checker) volume(at string, v *vmtypes.Volume, needsID bool) {
	if needsID && v.GetId() == "" {
		c.fault(at+".id", "is required")
	}
	c.plainName(at+".id", v.GetId())
	image, dir := v.GetSource().GetContainerSource(), v.GetSource().GetVirtiofsSource()
	switch {
	case image == "" && dir == "":
		c.fault(at+".source", "needs a container_source or a virtiofs_source")
	case image != "" && dir != "":
		c.fault(at+".source", "must have one source only")
	default:
		c.reference(at+".source.container_source", image, false)
		c.reference(at+".source.virtiofs_source", dir, false)
	}
	if p := v.GetMountPoint(); p != "" && (!path.IsAbs(p) || path.Clean(p) != p || hasControl(p)) {
		c.fault(at+".mount_point", "%s must be an absolute path without '..', '//' and control characters", quote(p))
	}
	c.plainName(at+".partition_id", v.GetPartitionId())
	if v.GetSizeInMb() < 0 {
		c.fault(at+".size_in_mb", "is %d, must not be negative", v.GetSizeInMb())
	}
}

func (c *checker) metadata(metadata map[string]string) {
	const field = templateField + ".metadata"
	if len(metadata) > MaxMetadataEntries {
		c.fault(field, "has %d entries, at most %d are allowed", len(metadata), MaxMetadataEntries)
		return
	}
	total := 0
	for _, key := range slices.Sorted(maps.Keys(metadata)) {
		value := metadata[key]
		total += len(key) + len(value)
		at := fmt.Sprintf("%s[%s]", field, quote(key))
		if key == OwnerKey {
			c.fault(at, "is poolmgr's own")
		} else if !fileKey.MatchString(key) || len(key) > 255 {
			c.fault(at, "the key must be letters, digits, '-', '_' and '.', at most 255 characters")
		}
		if _, err := base64.StdEncoding.DecodeString(value); err != nil {
			c.fault(at, "the value must be base64 (with padding)")
		}
	}
	if total > MaxMetadataBytes {
		c.fault(field, "has %d bytes of keys and base64 values, at most %d are allowed", total, MaxMetadataBytes)
	}
}

func hasControl(s string) bool {
	return strings.ContainsFunc(s, unicode.IsControl) || !utf8.ValidString(s)
}
