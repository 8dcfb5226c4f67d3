package image

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"

	"github.com/pierrec/lz4/v4"
)

// Modules that a guest loads, each set in the order in which they depend on
// each other. The package has no list of dependencies, and needs none for these.
var moduleSets = map[string][]string{
	"boot": {"virtio_ring", "virtio", "virtio_mmio", "virtio_console"},
	"net":  {"failover", "net_failover", "virtio_net"},
}

// kernelMeta names the package that depends on the newest small kernel.
const kernelMeta = "linux-image-cloud-amd64"

// baseKernel is an unpacked kernel in the cache.
type baseKernel struct {
	image     string // vmlinux where it could be unpacked: 0.2 s faster to boot than vmlinuz
	moduleDir string
}

// baseKernel returns the kernel of local:base. It is fetched once; removing
// the folder "kernel" of the cache fetches a newer one. The lock is held.
func (s *Store) baseKernel(ctx context.Context) (baseKernel, error) {
	dir := filepath.Join(s.dir, "kernel")
	if k, err := readKernel(dir); err == nil {
		return k, nil
	}
	if runtime.GOARCH != "amd64" {
		return baseKernel{}, fmt.Errorf("build %s: %w: it exists for amd64 only, this is %s; use file: images", Base, ErrNotBuildable, runtime.GOARCH)
	}
	err := s.unpacked(dir, func(tmp string) error {
		name, err := s.packages.dependency(ctx, kernelMeta, "linux-image-")
		if err != nil {
			return err
		}
		s.log.Info("fetching the distribution's kernel for "+Base, "package", name)
		tree := filepath.Join(tmp, "tree")
		if err := s.packages.unpack(ctx, name, tree); err != nil {
			return err
		}
		return arrangeKernel(tree, tmp)
	})
	if err != nil {
		return baseKernel{}, fmt.Errorf("build the kernel of %s: %w", Base, err)
	}
	return readKernel(dir)
}

// unpacked makes dir by filling a folder beside it, which then takes its name.
func (s *Store) unpacked(dir string, fill func(tmp string) error) error {
	tmp, err := os.MkdirTemp(s.dir, ".unpack-*")
	if err != nil {
		return fmt.Errorf("make a folder to unpack into: %w", err)
	}
	defer discard(tmp)
	if err := fill(tmp); err != nil {
		return err
	}
	if err := errors.Join(os.RemoveAll(filepath.Join(tmp, "tree")), os.RemoveAll(dir), os.Chmod(tmp, 0o755)); err != nil {
		return fmt.Errorf("tidy up after unpacking: %w", err)
	}
	if err := os.Rename(tmp, dir); err != nil {
		return fmt.Errorf("put an unpacked package in place: %w", err)
	}
	return nil
}

func readKernel(dir string) (baseKernel, error) {
	k := baseKernel{image: filepath.Join(dir, "vmlinux"), moduleDir: filepath.Join(dir, "modules")}
	if _, err := os.Stat(k.image); err != nil {
		k.image = filepath.Join(dir, "vmlinuz")
		if _, err := os.Stat(k.image); err != nil {
			return baseKernel{}, fmt.Errorf("look for the kernel: %w", err)
		}
	}
	return k, nil
}

// arrangeKernel takes what a machine needs out of an unpacked kernel package.
func arrangeKernel(tree, dir string) error {
	found, err := filepath.Glob(filepath.Join(tree, "boot", "vmlinuz-*"))
	if err != nil || len(found) != 1 {
		return fmt.Errorf("%w: the kernel package holds %d kernels instead of one", ErrNotBuildable, len(found))
	}
	packed, err := os.ReadFile(found[0])
	if err != nil {
		return fmt.Errorf("read the kernel: %w", err)
	}
	name := "vmlinux"
	image, err := unpackKernel(packed)
	if err != nil {
		name, image = "vmlinuz", packed // packed otherwise; slower to boot, and good
	}
	moduleDir := filepath.Join(dir, "modules")
	if err := os.MkdirAll(moduleDir, 0o755); err != nil {
		return fmt.Errorf("make the folder of modules: %w", err)
	}
	for _, set := range moduleSets {
		for _, module := range set {
			if err := takeModule(tree, module, moduleDir); err != nil {
				return err
			}
		}
	}
	return writeFile(filepath.Join(dir, name), writeBytes(image))
}

func takeModule(tree, module, dir string) error {
	var found []string
	for depth := "*"; len(depth) < 20 && len(found) == 0; depth += "/*" {
		matches, err := filepath.Glob(filepath.Join(tree, "lib/modules/*/kernel", depth, module+".ko"))
		if err != nil {
			return fmt.Errorf("look for module %s: %w", module, err)
		}
		found = matches
	}
	if len(found) == 0 {
		return fmt.Errorf("%w: the kernel package has no uncompressed module %s", ErrNotBuildable, module)
	}
	if err := os.Rename(found[0], filepath.Join(dir, module+".ko")); err != nil {
		return fmt.Errorf("take module %s: %w", module, err)
	}
	return nil
}

var errPackedOtherwise = errors.New("kernel is not packed with LZ4")

// unpackKernel returns the ELF image inside a bzImage that is packed with LZ4's
// legacy frame, as Debian's are. The header of the boot protocol says where.
func unpackKernel(vmlinuz []byte) ([]byte, error) {
	if len(vmlinuz) < 0x250 || string(vmlinuz[0x202:0x206]) != "HdrS" {
		return nil, fmt.Errorf("read the boot header: %w", errPackedOtherwise)
	}
	setup := (int64(vmlinuz[0x1f1]) + 1) * 512
	offset := setup + int64(binary.LittleEndian.Uint32(vmlinuz[0x248:]))
	length := int64(binary.LittleEndian.Uint32(vmlinuz[0x24c:]))
	if offset+length > int64(len(vmlinuz)) {
		return nil, fmt.Errorf("find the packed kernel: %w", errPackedOtherwise)
	}
	image, err := unpackLZ4Legacy(vmlinuz[offset : offset+length])
	if err != nil {
		return nil, err
	}
	if !bytes.HasPrefix(image, []byte("\x7fELF")) {
		return nil, fmt.Errorf("unpacked kernel is no ELF image: %w", errPackedOtherwise)
	}
	return image, nil
}

// unpackLZ4Legacy unpacks blocks of 8 MiB, each behind its packed size. Behind
// the last one the kernel's build puts the unpacked size.
func unpackLZ4Legacy(in []byte) ([]byte, error) {
	const blockSize = 8 << 20
	if len(in) < 8 || binary.LittleEndian.Uint32(in) != 0x184C2102 {
		return nil, errPackedOtherwise
	}
	total := int(binary.LittleEndian.Uint32(in[len(in)-4:]))
	in = in[4 : len(in)-4]
	if total > 1<<30 {
		return nil, fmt.Errorf("unpacked kernel of %d bytes: %w", total, errPackedOtherwise)
	}
	out := make([]byte, 0, total+blockSize)
	for len(in) > 4 {
		size := int(binary.LittleEndian.Uint32(in))
		if size > len(in)-4 || len(out) > total {
			return nil, fmt.Errorf("block of %d bytes: %w", size, errPackedOtherwise)
		}
		n, err := lz4.UncompressBlock(in[4:4+size], out[len(out):min(len(out)+blockSize, cap(out))])
		if err != nil {
			return nil, fmt.Errorf("unpack the kernel: %w", err)
		}
		out = out[:len(out)+n]
		in = in[4+size:]
	}
	if len(out) != total {
		return nil, fmt.Errorf("unpacked kernel has %d bytes instead of %d: %w", len(out), total, errPackedOtherwise)
	}
	return out, nil
}
