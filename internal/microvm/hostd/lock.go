package hostd

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// lockFile is held for the life of the daemon. The kernel lets go of it when
// the process dies, however it dies, so an old file means nothing.
const lockFile = "daemon.lock"

// lockStateDir makes the folder where there is none and takes it for this
// process alone. Two daemons over one folder would run every machine twice.
func (o *Options) lockStateDir() (*os.File, error) {
	if err := os.MkdirAll(o.StateDir, 0o700); err != nil {
		return nil, fmt.Errorf("make the state folder (%s): %w", o.flag("state-dir"), err)
	}
	path := filepath.Join(o.StateDir, lockFile)
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the lock of the state folder: %w", err)
	}
	err = syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		holder := readHolder(file)
		_ = file.Close() // nothing was written
		return nil, fmt.Errorf("%w: %s is used by %s; stop that one, or choose another folder with %s",
			ErrStateDirInUse, o.StateDir, holder, o.flag("state-dir"))
	}
	if err != nil {
		_ = file.Close()
		return nil, fmt.Errorf("lock the state folder %s: %w", o.StateDir, err)
	}
	if err := writeHolder(file); err != nil {
		_ = file.Close()
		return nil, fmt.Errorf("write the lock of the state folder %s: %w", o.StateDir, err)
	}
	return file, nil
}

// writeHolder leaves our process id for the error of whoever comes second.
func writeHolder(file *os.File) error {
	if err := file.Truncate(0); err != nil {
		return err
	}
	_, err := file.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	return err
}

func readHolder(file *os.File) string {
	text, err := io.ReadAll(io.NewSectionReader(file, 0, 32))
	pid := strings.TrimSpace(string(text))
	if _, notNumber := strconv.Atoi(pid); err != nil || notNumber != nil {
		return "another host daemon"
	}
	return "another host daemon, process " + pid
}
