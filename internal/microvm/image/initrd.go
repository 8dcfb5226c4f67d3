package image

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/u-root/u-root/pkg/cpio"

	"poolmgr/internal/microvm/guest"
)

// layoutVersion is part of every initramfs's name; raise it when the code
// below makes something else from the same parts.
const layoutVersion = "1"

// initrd returns the initramfs of a root: the root's own archive, and behind
// it one with the guest's agent and modules, which the kernel unpacks over it.
func (s *Store) initrd(ctx context.Context, root ref, moduleDir string) (string, error) {
	var rootSum string
	var writeRoot func(io.Writer) error
	if root.kind == kindFile {
		file, sum, err := s.copyIn(root.path)
		if err != nil {
			return "", err
		}
		rootSum, writeRoot = "file "+sum, copyFile(file)
	} else {
		busybox, err := s.busybox(ctx)
		if err != nil {
			return "", err
		}
		sum, err := hashFile(busybox)
		if err != nil {
			return "", fmt.Errorf("read busybox: %w", err)
		}
		rootSum, writeRoot = "busybox "+sum, func(w io.Writer) error { return writeBaseRoot(ctx, w, busybox) }
	}
	modules, err := moduleRecords(moduleDir)
	if err != nil {
		return "", err
	}
	key := hashStrings(layoutVersion, rootSum, s.guestSum, hashRecords(modules))
	return s.cached("initrd", key+".cpio", func(w io.Writer) error {
		s.log.Info("building an initramfs", "root", rootSum)
		counted := &countingWriter{w: w}
		if err := writeRoot(counted); err != nil {
			return fmt.Errorf("build the root of an initramfs: %w", err)
		}
		// Archives are concatenated on a boundary that every cpio accepts.
		if _, err := counted.Write(make([]byte, (512-counted.n%512)%512)); err != nil {
			return fmt.Errorf("build an initramfs: %w", err)
		}
		return s.writeAgent(counted, modules)
	})
}

type countingWriter struct {
	w io.Writer
	n int64
}

func (c *countingWriter) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	c.n += int64(n)
	return n, err
}

func copyFile(path string) func(io.Writer) error {
	return func(w io.Writer) error {
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		defer f.Close()
		_, err = io.Copy(w, f)
		return err
	}
}

// busybox returns the static busybox of the cache. The lock is held.
func (s *Store) busybox(ctx context.Context) (string, error) {
	dir := filepath.Join(s.dir, "busybox")
	file := filepath.Join(dir, "busybox")
	if _, err := os.Stat(file); err == nil {
		return file, nil
	}
	err := s.unpacked(dir, func(tmp string) error {
		s.log.Info("fetching busybox for " + Base)
		tree := filepath.Join(tmp, "tree")
		if err := s.packages.unpack(ctx, "busybox-static", tree); err != nil {
			return err
		}
		for _, place := range []string{"bin/busybox", "usr/bin/busybox"} {
			if err := os.Rename(filepath.Join(tree, place), filepath.Join(tmp, "busybox")); err == nil {
				return nil
			}
		}
		return fmt.Errorf("%w: the package busybox-static holds no busybox", ErrNotBuildable)
	})
	if err != nil {
		return "", fmt.Errorf("build the root of %s: %w", Base, err)
	}
	return file, nil
}

// writeBaseRoot writes the archive of local:base's root file system.
func writeBaseRoot(ctx context.Context, w io.Writer, busybox string) error {
	program, err := os.ReadFile(busybox)
	if err != nil {
		return fmt.Errorf("read busybox: %w", err)
	}
	applets, err := command(ctx, "", busybox, "--list-full")
	if err != nil {
		return fmt.Errorf("list busybox's applets: %w", err)
	}
	records := []cpio.Record{
		cpio.CharDev("dev/console", 0o600, 5, 1), // the kernel opens it before anything is mounted
		cpio.CharDev("dev/null", 0o666, 1, 3),
		cpio.Directory("root", 0o700),
		cpio.Directory("home", 0o755),
		cpio.Directory("mnt", 0o755),
		cpio.Directory("var/tmp", 0o1777),
		cpio.StaticFile("etc/passwd", "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n", 0o644),
		cpio.StaticFile("etc/group", "root:x:0:\nnogroup:x:65534:\n", 0o644),
		cpio.StaticFile("etc/hosts", "127.0.0.1 localhost\n", 0o644),
		cpio.StaticFile("etc/os-release", "ID=poolmgr-base\nPRETTY_NAME=\"poolmgr "+Base+"\"\n", 0o644),
		cpio.StaticFile("bin/busybox", string(program), 0o755),
	}
	for applet := range strings.FieldsSeq(applets) {
		name := filepath.Base(applet)
		if name == "busybox" || name == "linuxrc" || name == "init" || strings.Contains(applet, "..") {
			continue // the agent is this machine's init
		}
		records = append(records, cpio.Symlink(strings.TrimPrefix(applet, "/"), "/bin/busybox"))
	}
	return writeArchive(w, records)
}

// writeAgent writes the archive with what every guest needs.
func (s *Store) writeAgent(w io.Writer, modules []cpio.Record) error {
	program, err := os.ReadFile(s.guest)
	if err != nil {
		return fmt.Errorf("read the guest's binary: %w", err)
	}
	records := []cpio.Record{cpio.StaticFile("init", string(program), 0o755)}
	for _, dir := range []string{"proc", "sys", "dev", "run", "tmp"} {
		records = append(records, cpio.Directory(dir, 0o755))
	}
	return writeArchive(w, append(records, modules...))
}

// moduleRecords are the modules of the kernel and the lists that name them.
func moduleRecords(dir string) ([]cpio.Record, error) {
	if dir == "" {
		return nil, nil
	}
	in := strings.TrimPrefix(guest.ModuleDir, "/")
	var records []cpio.Record
	for _, set := range []string{"boot", "net"} {
		var list strings.Builder
		for _, module := range moduleSets[set] {
			data, err := os.ReadFile(filepath.Join(dir, module+".ko"))
			if err != nil {
				return nil, fmt.Errorf("read a kernel module: %w", err)
			}
			records = append(records, cpio.StaticFile(in+"/"+module+".ko", string(data), 0o644))
			fmt.Fprintln(&list, module+".ko")
		}
		records = append(records, cpio.StaticFile(in+"/"+set+".list", list.String(), 0o644))
	}
	return records, nil
}

func hashRecords(records []cpio.Record) string {
	var parts []string
	for _, r := range records {
		var data bytes.Buffer
		_, _ = io.Copy(&data, io.NewSectionReader(r, 0, int64(r.FileSize))) // from memory to memory
		parts = append(parts, r.Name, data.String())
	}
	return hashStrings(parts...)
}

// writeArchive writes records, with the folders that they need, so that the
// same records always make the same bytes.
func writeArchive(w io.Writer, records []cpio.Record) error {
	have := map[string]bool{}
	var all []cpio.Record
	for _, r := range records {
		for _, dir := range parents(r.Name) {
			if !have[dir] {
				have[dir] = true
				all = append(all, cpio.Directory(dir, 0o755))
			}
		}
		if !have[r.Name] {
			have[r.Name] = true
			all = append(all, r)
		}
	}
	cpio.MakeAllReproducible(all)
	archive := cpio.Newc.Writer(w)
	for _, r := range all {
		if err := archive.WriteRecord(r); err != nil {
			return fmt.Errorf("write %s into the archive: %w", r.Name, err)
		}
	}
	if err := cpio.WriteTrailer(archive); err != nil {
		return fmt.Errorf("end the archive: %w", err)
	}
	return nil
}

// parents returns the folders that a path lies in, outermost first.
func parents(name string) []string {
	var dirs []string
	for dir := filepath.Dir(name); dir != "."; dir = filepath.Dir(dir) {
		dirs = append(dirs, dir)
	}
	slices.Reverse(dirs)
	return dirs
}
