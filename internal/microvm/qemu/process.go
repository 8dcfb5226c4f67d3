package qemu

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	pidFile = "pid"
	logFile = "qemu.log"

	// killWait bounds the wait for a killed process; it takes milliseconds
	// unless the host's disk hangs.
	killWait = 30 * time.Second
	// logTail is how much of QEMU's own words goes into an error, in bytes.
	logTail = 400
)

// process is a QEMU process, whoever started it, held by a handle that no
// reuse of its number can mislead.
type process struct {
	pid    int
	handle *os.File // a pidfd in the poller
}

// start starts a program in a session of its own, so that it outlives us.
func start(program string, args []string, dir string) (*process, error) {
	log, err := os.OpenFile(filepath.Join(dir, logFile), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open QEMU's log: %w", err)
	}
	defer log.Close()
	cmd := exec.Command(program, args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, log, log
	cmd.Env = []string{"LC_ALL=C", "PATH=" + os.Getenv("PATH")} // no secrets of the daemon
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start QEMU: %w", err)
	}
	// Nobody has reaped it yet, so its number is still its own.
	p, err := openProcess(cmd.Process.Pid)
	if err != nil {
		return nil, errors.Join(err, cmd.Process.Kill(), cmd.Wait())
	}
	_ = cmd.Process.Release() // p is the handle from here on
	return p, nil
}

func openProcess(pid int) (*process, error) {
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("open a handle of process %d: %w", pid, err)
	}
	return &process{pid: pid, handle: os.NewFile(uintptr(fd), "pidfd")}, nil
}

// find returns the QEMU that runs in a machine's folder, or nil. QEMU holds a
// lock on its pid file for as long as it lives, and the kernel tells by whom a
// lock is held: unlike the number in the file, that is always true.
func find(dir string) (*process, error) {
	pid, err := lockHolder(filepath.Join(dir, pidFile))
	if pid == 0 || err != nil {
		return nil, err
	}
	p, err := openProcess(pid)
	if errors.Is(err, unix.ESRCH) {
		return nil, nil // it died this moment
	}
	if err != nil {
		return nil, err
	}
	if again, err := lockHolder(filepath.Join(dir, pidFile)); err != nil || again != pid {
		p.close() // it died, and the number may have been another's already
		return nil, err
	}
	return p, nil
}

// lockHolder returns the process that holds a lock on the file, or 0.
func lockHolder(file string) (int, error) {
	f, err := os.Open(file)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("open the pid file: %w", err)
	}
	defer f.Close()
	lock := unix.Flock_t{Type: unix.F_WRLCK, Whence: io.SeekStart}
	if err := unix.FcntlFlock(f.Fd(), unix.F_GETLK, &lock); err != nil {
		return 0, fmt.Errorf("ask who holds %s: %w", file, err)
	}
	if lock.Type == unix.F_UNLCK {
		return 0, nil
	}
	if lock.Pid <= 0 {
		return 0, fmt.Errorf("%s is held by a process that this one cannot see: run both in one pid namespace", file)
	}
	return int(lock.Pid), nil
}

// wait returns nil when the process has ended, or ctx's cause. A process that
// is our child is reaped. One wait at a time.
func (p *process) wait(ctx context.Context) error {
	raw, err := p.handle.SyscallConn()
	if err != nil {
		return fmt.Errorf("wait for process %d: %w", p.pid, err)
	}
	stop := context.AfterFunc(ctx, func() { p.handle.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	for {
		var ended bool
		err := raw.Read(func(fd uintptr) bool {
			ended = reap(int(fd))
			return ended
		})
		switch {
		case ended:
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case !errors.Is(err, os.ErrDeadlineExceeded):
			return fmt.Errorf("wait for process %d: %w", p.pid, err)
		}
		p.handle.SetReadDeadline(time.Time{}) // left by an earlier wait
		if ctx.Err() != nil {
			return context.Cause(ctx) // its deadline may have been the one just removed
		}
	}
}

// reap says whether the process of a handle has ended, and reaps it if it is
// our child and nobody has done so.
func reap(fd int) bool {
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if n > 0 {
			_ = unix.Waitid(unix.P_PIDFD, fd, nil, unix.WEXITED|unix.WNOHANG, nil) // ECHILD where it is not ours
		}
		return n > 0
	}
}

// kill kills the process and waits until it is gone.
func (p *process) kill() error {
	raw, err := p.handle.SyscallConn()
	if err != nil {
		return fmt.Errorf("kill process %d: %w", p.pid, err)
	}
	var signalErr error
	if err := raw.Control(func(fd uintptr) { signalErr = unix.PidfdSendSignal(int(fd), unix.SIGKILL, nil, 0) }); err != nil {
		return fmt.Errorf("kill process %d: %w", p.pid, err)
	}
	if signalErr != nil && !errors.Is(signalErr, unix.ESRCH) {
		return fmt.Errorf("kill process %d: %w", p.pid, signalErr)
	}
	ctx, cancel := context.WithTimeout(context.Background(), killWait)
	defer cancel()
	if err := p.wait(ctx); err != nil {
		return fmt.Errorf("process %d does not die: %w", p.pid, err)
	}
	return nil
}

func (p *process) close() { p.handle.Close() }

// tail returns the end of QEMU's log as one line.
func tail(dir string) string {
	f, err := os.Open(filepath.Join(dir, logFile))
	if err != nil {
		return "no log"
	}
	defer f.Close()
	from := int64(0)
	if info, err := f.Stat(); err == nil {
		from = max(0, info.Size()-logTail)
	}
	text, err := io.ReadAll(io.NewSectionReader(f, from, logTail))
	if err != nil || len(text) == 0 {
		return "QEMU said nothing"
	}
	return fmt.Sprintf("QEMU said %q", text)
}
