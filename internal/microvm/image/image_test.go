package image

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/pierrec/lz4/v4"
	"github.com/u-root/u-root/pkg/cpio"
)

// fakePackages unpacks small stand-ins for the distribution's packages.
type fakePackages struct {
	kernel   []byte
	unpacked atomic.Int32
	err      error
}

func (f *fakePackages) dependency(context.Context, string, string) (string, error) {
	return "linux-image-6.1-test", f.err
}

func (f *fakePackages) unpack(_ context.Context, name, dir string) error {
	f.unpacked.Add(1)
	files := map[string][]byte{"bin/busybox": []byte("#!/bin/sh\necho bin/sh; echo usr/bin/env; echo linuxrc\n")}
	if strings.HasPrefix(name, "linux-image-") {
		files = map[string][]byte{"boot/vmlinuz-6.1-test": f.kernel}
		for i, set := range [][]string{moduleSets["boot"], moduleSets["net"]} {
			for _, module := range set {
				files[fmt.Sprintf("lib/modules/6.1-test/kernel%s/%s.ko", strings.Repeat("/sub", i+1), module)] = []byte("module " + module)
			}
		}
	}
	for file, data := range files {
		path := filepath.Join(dir, file)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, data, 0o755); err != nil {
			return err
		}
	}
	return f.err
}

// bzImage packs an image as the kernel's build does.
func bzImage(t *testing.T, image []byte) []byte {
	t.Helper()
	const setup, offset = 4, 100
	payload := binary.LittleEndian.AppendUint32(nil, 0x184C2102)
	for rest := image; len(rest) > 0; {
		block := rest[:min(len(rest), 8<<20)]
		rest = rest[len(block):]
		packed := make([]byte, lz4.CompressBlockBound(len(block)))
		n, err := lz4.CompressBlock(block, packed, nil)
		if err != nil || n == 0 {
			t.Fatalf("pack: %d, %v", n, err)
		}
		payload = binary.LittleEndian.AppendUint32(payload, uint32(n))
		payload = append(payload, packed[:n]...)
	}
	payload = binary.LittleEndian.AppendUint32(payload, uint32(len(image)))
	out := make([]byte, (setup+1)*512+offset)
	out[0x1f1] = setup
	copy(out[0x202:], "HdrS")
	binary.LittleEndian.PutUint32(out[0x248:], offset)
	binary.LittleEndian.PutUint32(out[0x24c:], uint32(len(payload)))
	return append(append(out, payload...), "trailing signature"...)
}

func elf(size int) []byte {
	return append([]byte("\x7fELF"), bytes.Repeat([]byte("kernel code "), size/12)...)
}

func TestUnpackKernel(t *testing.T) {
	good := elf(20 << 20)
	packed := bzImage(t, good)
	got, err := unpackKernel(packed)
	if err != nil || !bytes.Equal(got, good) {
		t.Fatalf("%d bytes, %v; want %d", len(got), err, len(good))
	}
	wrongTotal := bytes.Clone(packed)
	length := binary.LittleEndian.Uint32(packed[0x24c:])
	binary.LittleEndian.PutUint32(wrongTotal[5*512+100+int(length)-4:], 77)
	for name, bad := range map[string][]byte{
		"empty":          nil,
		"no header":      make([]byte, 4096),
		"cut":            packed[:len(packed)/2],
		"wrong total":    wrongTotal,
		"not an ELF":     bzImage(t, bytes.Repeat([]byte("text"), 1000)),
		"other packing":  bytes.Replace(packed, []byte{0x02, 0x21, 0x4c, 0x18}, []byte{0x28, 0xb5, 0x2f, 0xfd}, 1),
		"broken payload": bytes.Replace(packed, []byte("kernel code"), []byte("\xff\xff\xff\xff\xff\xff"), 1),
	} {
		if got, err := unpackKernel(bad); err == nil {
			t.Errorf("%s: unpacked %d bytes", name, len(got))
		}
	}
}

func newStore(t *testing.T, dir, root string, packages packageSource) *Store {
	t.Helper()
	binary := filepath.Join(t.TempDir(), "guest")
	if err := os.WriteFile(binary, []byte("guest binary"), 0o755); err != nil {
		t.Fatal(err)
	}
	s, err := Open(Config{Dir: dir, Root: root, GuestBinary: binary, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	s.packages = packages
	return s
}

var baseRefs = Refs{Kernel: Base, Root: Base}

// readArchives reads concatenated archives into a map; later entries win, as
// in the kernel.
func readArchives(t *testing.T, file string) map[string]cpio.Record {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]cpio.Record{}
	for len(data) > 0 {
		records, err := cpio.ReadAllRecords(cpio.Newc.Reader(bytes.NewReader(data)))
		if err != nil {
			t.Fatalf("read archive: %v", err)
		}
		for _, r := range records {
			out[r.Name] = r
		}
		end := bytes.Index(data, []byte(cpio.Trailer))
		data = bytes.TrimLeft(data[end+len(cpio.Trailer):], "\x00")
	}
	return out
}

func content(t *testing.T, r cpio.Record) string {
	t.Helper()
	data := make([]byte, r.FileSize)
	if _, err := r.ReadAt(data, 0); err != nil && len(data) > 0 {
		t.Fatal(err)
	}
	return string(data)
}

func TestPrepareBuildsTheBaseImage(t *testing.T) {
	packages := &fakePackages{kernel: bzImage(t, elf(1<<20))}
	s := newStore(t, t.TempDir(), "", packages)
	boot, err := s.Prepare(t.Context(), baseRefs)
	if err != nil {
		t.Fatal(err)
	}
	if kernel, err := os.ReadFile(boot.Kernel); err != nil || !bytes.Equal(kernel, elf(1<<20)) {
		t.Errorf("kernel of %d bytes, %v", len(kernel), err)
	}
	files := readArchives(t, boot.Initrd)
	for name, want := range map[string]string{
		"init":                                "guest binary",
		"bin/sh":                              "/bin/busybox",
		"usr/bin/env":                         "/bin/busybox",
		"lib/poolmgr/modules/boot.list":       "virtio_ring.ko\nvirtio.ko\nvirtio_mmio.ko\nvirtio_console.ko\n",
		"lib/poolmgr/modules/virtio_net.ko":   "module virtio_net",
		"lib/poolmgr/modules/net_failover.ko": "module net_failover",
	} {
		if got := content(t, files[name]); got != want {
			t.Errorf("%s holds %q, want %q", name, got, want)
		}
	}
	for _, name := range []string{"dev/console", "usr/bin", "proc", "etc/passwd"} {
		if _, ok := files[name]; !ok {
			t.Errorf("the archive lacks %s", name)
		}
	}
	if _, ok := files["linuxrc"]; ok {
		t.Error("linuxrc is in the archive")
	}
	again, err := s.Prepare(t.Context(), baseRefs)
	if err != nil || again != boot {
		t.Errorf("the second time: %+v, %v; want the same files", again, err)
	}
	if n := packages.unpacked.Load(); n != 2 {
		t.Errorf("%d packages were fetched, want 2", n)
	}
}

func TestPrepareFallsBackToThePackedKernel(t *testing.T) {
	s := newStore(t, t.TempDir(), "", &fakePackages{kernel: []byte("some other bzImage")})
	boot, err := s.Prepare(t.Context(), baseRefs)
	if err != nil || filepath.Base(boot.Kernel) != "vmlinuz" {
		t.Errorf("got %+v, %v", boot, err)
	}
}

// Two builders at once, as two daemons are, make one image and leave no litter.
func TestTwoBuildersAtOnce(t *testing.T) {
	dir := t.TempDir()
	packages := &fakePackages{kernel: bzImage(t, elf(1<<20))}
	var builders sync.WaitGroup
	boots := make([]Boot, 6)
	for i := range boots {
		s := newStore(t, dir, "", packages)
		builders.Go(func() {
			boot, err := s.Prepare(t.Context(), baseRefs)
			if err != nil {
				t.Error(err)
			}
			boots[i] = boot
		})
	}
	builders.Wait()
	for _, b := range boots {
		if b != boots[0] {
			t.Errorf("%+v and %+v differ", b, boots[0])
		}
	}
	if n := packages.unpacked.Load(); n != 2 {
		t.Errorf("%d packages were fetched, want 2", n)
	}
	var names []string
	filepath.WalkDir(dir, func(path string, _ os.DirEntry, _ error) error {
		if strings.HasPrefix(filepath.Base(path), ".") {
			names = append(names, path)
		}
		return nil
	})
	if len(names) > 0 {
		t.Errorf("litter: %v", names)
	}
}

func TestAFailedBuildLeavesNothingAndCanBeRepeated(t *testing.T) {
	dir := t.TempDir()
	packages := &fakePackages{kernel: bzImage(t, elf(1<<20)), err: fmt.Errorf("%w: no network", ErrNotBuildable)}
	s := newStore(t, dir, "", packages)
	if _, err := s.Prepare(t.Context(), baseRefs); !errors.Is(err, ErrNotBuildable) {
		t.Fatalf("got %v", err)
	}
	left, err := filepath.Glob(filepath.Join(dir, ".*"))
	if err != nil || len(left) > 0 {
		t.Errorf("litter: %v, %v", left, err)
	}
	packages.err = nil
	if _, err := s.Prepare(t.Context(), baseRefs); err != nil {
		t.Errorf("the second time: %v", err)
	}
}

func TestPrepareWaitsForTheLockNoLongerThanItsContext(t *testing.T) {
	dir := t.TempDir()
	unlock, err := newStore(t, dir, "", nil).lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := newStore(t, dir, "", nil).Prepare(ctx, baseRefs); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

func TestFileImages(t *testing.T) {
	root := t.TempDir()
	outside := filepath.Join(t.TempDir(), "secret")
	for file, text := range map[string]string{"kernels/vmlinux": "my kernel", "root.cpio": "my root", "../x": ""} {
		if strings.HasPrefix(file, "..") {
			continue
		}
		os.MkdirAll(filepath.Dir(filepath.Join(root, file)), 0o755)
		if err := os.WriteFile(filepath.Join(root, file), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	os.WriteFile(outside, []byte("secret"), 0o644)
	os.Symlink(outside, filepath.Join(root, "link-out"))
	os.Symlink("root.cpio", filepath.Join(root, "link-in"))
	s := newStore(t, t.TempDir(), root, &fakePackages{kernel: bzImage(t, elf(1<<16))})

	boot, err := s.Prepare(t.Context(), Refs{Kernel: "file:kernels", KernelFile: "vmlinux", Root: "file:link-in"})
	if err != nil {
		t.Fatal(err)
	}
	if got, _ := os.ReadFile(boot.Kernel); string(got) != "my kernel" {
		t.Errorf("kernel %q", got)
	}
	got, err := os.ReadFile(boot.Initrd)
	if err != nil || !bytes.HasPrefix(got, []byte("my root\x00")) || !bytes.Contains(got, []byte("guest binary")) {
		t.Errorf("initramfs %.60q, %v; want the file and the agent behind it", got, err)
	}
	if err := s.Check(Refs{Kernel: Base, Root: Base, Initrd: "file:root.cpio"}); err != nil {
		t.Errorf("initrd: %v", err)
	}

	for _, tc := range []struct {
		ref  string
		want error
	}{
		{"file:link-out", ErrNotFound},
		{"file:../x", ErrUnsupported},
		{"file:a/../../x", ErrUnsupported},
		{"file:/etc/passwd", ErrUnsupported},
		{"file:", ErrUnsupported},
		{"file:.", ErrUnsupported},
		{"file:kernels", ErrUnsupported},
		{"file:no-such", ErrNotFound},
		{"local:other", ErrNotFound},
		{"local:", ErrNotFound},
		{"", ErrUnsupported},
		{"docker.io/library/debian:12", ErrUnsupported},
	} {
		if err := s.Check(Refs{Kernel: Base, Root: tc.ref}); !errors.Is(err, tc.want) {
			t.Errorf("root %q: %v, want %v", tc.ref, err, tc.want)
		}
	}
	if err := newStore(t, t.TempDir(), "", nil).Check(Refs{Kernel: Base, Root: "file:root.cpio"}); !errors.Is(err, ErrUnsupported) {
		t.Errorf("without an image root: %v", err)
	}
}

func TestLocateGuestBinary(t *testing.T) {
	t.Setenv(GuestBinaryEnv, "")
	if _, err := LocateGuestBinary(""); !errors.Is(err, ErrNoGuestBinary) || !strings.Contains(err.Error(), "make build") {
		t.Errorf("got %v, want an error that says what to do", err)
	}
	file := filepath.Join(t.TempDir(), "guest")
	os.WriteFile(file, nil, 0o755)
	t.Setenv(GuestBinaryEnv, file)
	if got, err := LocateGuestBinary(""); got != file || err != nil {
		t.Errorf("by environment: %q, %v", got, err)
	}
	if _, err := LocateGuestBinary(filepath.Dir(file)); !errors.Is(err, ErrNoGuestBinary) {
		t.Errorf("a folder: %v", err)
	}
}

func TestCommandErrorsAreOneLineThatSaysWhatToDo(t *testing.T) {
	for _, tc := range []struct {
		name string
		args []string
		want string
	}{
		{"sh", []string{"-c", "echo first >&2; echo E: last word >&2; exit 100"}, "E: last word"},
		{"no-such-program-here", nil, "there is no no-such-program-here"},
	} {
		_, err := command(t.Context(), "", tc.name, tc.args...)
		if !errors.Is(err, ErrNotBuildable) || !strings.Contains(err.Error(), tc.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", tc.name, err)
		}
	}
}
