package guest

import (
	"encoding/binary"
	"errors"
	"os"
	"os/exec"
	"os/signal"
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Reaper reaps the orphans that a first process inherits, and leaves alone the
// processes that were started through it: their exit codes belong to those who
// wait for them. It implements Processes.
type Reaper struct {
	// mu keeps the reaper away while a process is being started, since its
	// number is not known before.
	mu  sync.Mutex
	own map[int]chan struct{} // closed when the process has been waited for
}

// NewReaper returns a Reaper that reaps nothing until Run.
func NewReaper() *Reaper { return &Reaper{own: map[int]chan struct{}{}} }

// Start starts a process that only Wait reaps.
func (r *Reaper) Start(cmd *exec.Cmd) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := cmd.Start(); err != nil {
		return err
	}
	r.own[cmd.Process.Pid] = make(chan struct{})
	return nil
}

// Wait waits for a process that Start started.
func (r *Reaper) Wait(cmd *exec.Cmd) error {
	err := cmd.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	if done, ok := r.own[cmd.Process.Pid]; ok {
		close(done)
		delete(r.own, cmd.Process.Pid)
	}
	return err
}

// Run reaps for as long as the machine lives; it never returns.
func (r *Reaper) Run() {
	died := make(chan os.Signal, 1) // signals coalesce, and so does the work
	signal.Notify(died, syscall.SIGCHLD)
	for range died {
		r.reapAll()
	}
}

func (r *Reaper) reapAll() {
	for {
		pid, err := peekZombie()
		if err != nil || pid == 0 {
			return // no zombie, or no child at all
		}
		r.mu.Lock()
		done := r.own[pid]
		r.mu.Unlock()
		if done != nil {
			<-done // its owner is waiting for it this moment
			continue
		}
		var status syscall.WaitStatus
		_, _ = syscall.Wait4(pid, &status, syscall.WNOHANG, nil) // an error means that it is gone already
	}
}

// peekZombie returns the number of a child that has died, without reaping it,
// or 0. The library's Siginfo does not show si_pid: it is at byte 16 on every
// 64-bit Linux.
func peekZombie() (int, error) {
	for {
		var info [128]byte
		_, _, errno := syscall.Syscall6(unix.SYS_WAITID, unix.P_ALL, 0, uintptr(unsafe.Pointer(&info)),
			unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, 0, 0)
		if errors.Is(errno, syscall.EINTR) {
			continue
		}
		if errno != 0 {
			return 0, errno
		}
		return int(int32(binary.NativeEndian.Uint32(info[16:]))), nil
	}
}
