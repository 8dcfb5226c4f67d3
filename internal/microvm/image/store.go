package image

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// lockPoll is how often a builder asks whether another one has finished.
const lockPoll = 50 * time.Millisecond

// Config says where a Store finds and keeps things.
type Config struct {
	// Dir caches what is built; several processes may share it.
	Dir string
	// Root is the folder that file: references point into; empty refuses them.
	Root string
	// GuestBinary is the static binary that becomes /init, see LocateGuestBinary.
	GuestBinary string
	Logger      *slog.Logger
}

// Store resolves image references. Its methods may be called concurrently.
type Store struct {
	dir      string
	root     *os.Root // nil without a root folder
	guest    string
	guestSum string
	packages packageSource
	log      *slog.Logger

	mu   sync.Mutex
	base Boot // what local:base was prepared as, zero before that
}

// Boot is what a machine boots from: paths of files that do not change.
type Boot struct {
	Kernel string
	Initrd string
}

// Refs are the references of one machine.
type Refs struct {
	Kernel, KernelFile string
	Root               string
	// Initrd replaces the root's own initramfs where it is set.
	Initrd, InitrdFile string
}

// Open returns a Store. It builds nothing yet.
func Open(config Config) (*Store, error) {
	sum, err := hashFile(config.GuestBinary)
	if err != nil {
		return nil, fmt.Errorf("read the guest's binary: %w", err)
	}
	if err := os.MkdirAll(config.Dir, 0o755); err != nil {
		return nil, fmt.Errorf("make the image folder: %w", err)
	}
	dir, err := filepath.Abs(config.Dir)
	if err != nil {
		return nil, fmt.Errorf("image folder %s: %w", config.Dir, err)
	}
	s := &Store{dir: dir, guest: config.GuestBinary, guestSum: sum, packages: apt{log: config.Logger}, log: config.Logger}
	if config.Root != "" {
		if s.root, err = os.OpenRoot(config.Root); err != nil {
			return nil, fmt.Errorf("open the image root: %w", err)
		}
	}
	return s, nil
}

// Close lets go of the image root.
func (s *Store) Close() error {
	if s.root == nil {
		return nil
	}
	return s.root.Close()
}

// Check says whether references can be resolved, without building anything.
func (s *Store) Check(refs Refs) error {
	_, _, err := s.parse(refs)
	return err
}

// Prepare resolves references; what is not in the cache is built, which may
// download packages. It is safe to run twice at once, in several processes too.
func (s *Store) Prepare(ctx context.Context, refs Refs) (Boot, error) {
	kernel, root, err := s.parse(refs)
	if err != nil {
		return Boot{}, err
	}
	allBase := kernel.kind == kindLocal && root.kind == kindLocal
	if boot, ok := s.knownBase(); ok && allBase {
		return boot, nil
	}
	unlock, err := s.lock(ctx)
	if err != nil {
		return Boot{}, err
	}
	defer unlock()
	boot, err := s.build(ctx, kernel, root)
	if err == nil && allBase {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.base = boot
	}
	return boot, err
}

// knownBase returns what local:base was prepared as, if its files are there
// still: every boot asks for it.
func (s *Store) knownBase() (Boot, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, kernelErr := os.Stat(s.base.Kernel)
	_, initrdErr := os.Stat(s.base.Initrd)
	return s.base, kernelErr == nil && initrdErr == nil
}

// build makes what is not in the cache. The lock is held.
func (s *Store) build(ctx context.Context, kernel, root ref) (Boot, error) {
	var err error
	var boot Boot
	var modules string // another kernel has what it needs built in, or in its own initramfs
	if kernel.kind == kindFile {
		boot.Kernel, _, err = s.copyIn(kernel.path)
	} else {
		var base baseKernel
		base, err = s.baseKernel(ctx)
		boot.Kernel, modules = base.image, base.moduleDir
	}
	if err != nil {
		return Boot{}, err
	}
	boot.Initrd, err = s.initrd(ctx, root, modules)
	return boot, err
}

func (s *Store) parse(refs Refs) (kernel, root ref, err error) {
	if kernel, err = s.checkRef(refs.Kernel, refs.KernelFile); err != nil {
		return ref{}, ref{}, fmt.Errorf("kernel: %w", err)
	}
	if refs.Initrd != "" {
		if root, err = s.checkRef(refs.Initrd, refs.InitrdFile); err != nil {
			return ref{}, ref{}, fmt.Errorf("initrd: %w", err)
		}
		return kernel, root, nil
	}
	if root, err = s.checkRef(refs.Root, ""); err != nil {
		return ref{}, ref{}, fmt.Errorf("root volume: %w", err)
	}
	return kernel, root, nil
}

func (s *Store) checkRef(text, filename string) (ref, error) {
	r, err := parse(text, filename)
	if err != nil || r.kind != kindFile {
		return r, err
	}
	if s.root == nil {
		return ref{}, fmt.Errorf("image %q: %w: this host has no image root configured", text, ErrUnsupported)
	}
	info, err := s.root.Stat(r.path)
	if err != nil {
		return ref{}, fmt.Errorf("image %q: %w: %w", text, ErrNotFound, err)
	}
	if !info.Mode().IsRegular() {
		return ref{}, fmt.Errorf("image %q: %w: it is not a regular file", text, ErrUnsupported)
	}
	return r, nil
}

// lock makes one process at a time build. The kernel lets go of the lock of a
// process that dies.
func (s *Store) lock(ctx context.Context) (unlock func(), err error) {
	file, err := os.OpenFile(filepath.Join(s.dir, "lock"), os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o644)
	if err != nil {
		return nil, fmt.Errorf("open the lock of the image folder: %w", err)
	}
	told := false
	for {
		err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { file.Close() }, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			file.Close()
			return nil, fmt.Errorf("lock the image folder: %w", err)
		}
		if !told {
			told = true
			s.log.Debug("waiting for another builder of images")
		}
		select {
		case <-ctx.Done():
			file.Close()
			return nil, fmt.Errorf("wait for another builder of images: %w", context.Cause(ctx))
		case <-time.After(lockPoll):
		}
	}
}
