package guest

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"poolmgr/internal/microvm/guest/wire"
)

const (
	// ModuleDir holds the kernel modules and, per set, a list in load order.
	ModuleDir = "/lib/poolmgr/modules"

	portWait = 30 * time.Second // under load, devices take their time
	portPoll = 2 * time.Millisecond
)

// machine is the guest as its first process sees it.
type machine struct {
	log *slog.Logger
}

// Main runs the first process of a machine, and powers it off when it cannot
// go on. It returns an exit code only where it is not the first process.
func Main() int {
	if os.Getpid() != 1 {
		fmt.Fprintln(os.Stderr, "poolmgr-guest: this is the first process of a microVM; it does nothing elsewhere")
		return 2
	}
	mountErr := mountAll()
	m := &machine{log: kernelLog()}
	err := mountErr
	if err == nil {
		err = m.run()
	}
	m.log.Error("the guest agent cannot go on, powering off", "error", err)
	syscall.Sync()
	err = syscall.Reboot(syscall.LINUX_REBOOT_CMD_POWER_OFF)
	m.log.Error("cannot power off", "error", err)
	return 1 // the kernel panics, and QEMU ends too
}

func (m *machine) run() error {
	if err := os.Setenv("PATH", defaultPath); err != nil {
		return fmt.Errorf("set PATH: %w", err)
	}
	reaper := NewReaper()
	go reaper.Run() // lives as long as the machine
	if err := upLoopback(); err != nil {
		m.log.Warn("no loopback interface", "error", err)
	}
	if err := m.loadModules("boot"); err != nil {
		return err
	}
	port, err := openPort(wire.PortName)
	if err != nil {
		return err
	}
	defer port.Close()
	agent := &Agent{Configure: m.configure, Info: info, Processes: reaper, Log: m.log}
	return agent.Serve(port)
}

// kernelLog logs to the kernel's ring buffer: there is no console.
func kernelLog() *slog.Logger {
	kmsg, err := os.OpenFile("/dev/kmsg", os.O_WRONLY, 0)
	if err != nil {
		return slog.New(slog.DiscardHandler)
	}
	return slog.New(slog.NewTextHandler(kmsg, &slog.HandlerOptions{Level: slog.LevelInfo}))
}

func mountAll() error {
	for _, m := range []struct {
		kind, dir string
		flags     uintptr
		data      string
	}{
		{"devtmpfs", "/dev", unix.MS_NOSUID, "mode=0755"},
		{"proc", "/proc", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC, ""},
		{"sysfs", "/sys", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC, ""},
		{"tmpfs", "/run", unix.MS_NOSUID | unix.MS_NODEV, "mode=0755"},
		{"tmpfs", "/tmp", unix.MS_NOSUID | unix.MS_NODEV, "mode=1777"},
		{"devpts", "/dev/pts", unix.MS_NOSUID | unix.MS_NOEXEC, "mode=0620,ptmxmode=0666"},
		{"tmpfs", "/dev/shm", unix.MS_NOSUID | unix.MS_NODEV, "mode=1777"},
	} {
		if err := os.MkdirAll(m.dir, 0o755); err != nil {
			return fmt.Errorf("make %s: %w", m.dir, err)
		}
		if err := unix.Mount(m.kind, m.dir, m.kind, m.flags, m.data); err != nil {
			return fmt.Errorf("mount %s on %s: %w", m.kind, m.dir, err)
		}
	}
	for name, target := range map[string]string{
		"/dev/fd": "/proc/self/fd", "/dev/stdin": "/proc/self/fd/0",
		"/dev/stdout": "/proc/self/fd/1", "/dev/stderr": "/proc/self/fd/2",
	} {
		if err := os.Symlink(target, name); err != nil && !errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("link %s: %w", name, err)
		}
	}
	return nil
}

// loadModules loads a set of kernel modules in the order of its list. Modules
// that are loaded or built in already are fine, and so is a missing list: the
// kernel of another image may have everything built in.
func (m *machine) loadModules(set string) error {
	list, err := os.ReadFile(filepath.Join(ModuleDir, set+".list"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read the list of %s modules: %w", set, err)
	}
	for _, name := range strings.Fields(string(list)) {
		if err := loadModule(filepath.Join(ModuleDir, name)); err != nil {
			return err
		}
	}
	return nil
}

func loadModule(file string) error {
	f, err := os.Open(file)
	if err != nil {
		return fmt.Errorf("open module: %w", err)
	}
	defer f.Close()
	if err := unix.FinitModule(int(f.Fd()), "", 0); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("load module %s: %w", filepath.Base(file), err)
	}
	return nil
}
