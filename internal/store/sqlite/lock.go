package sqlite

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"syscall"

	"poolmgr/internal/store"
)

// lockFile keeps other daemons from a database. The kernel drops the lock with the process, however it ends; the file
// stays, since removing it would let two daemons lock two files of one name.
type lockFile struct{ file *os.File }

// lock takes the lock of the database at path, or says who has it.
func lock(path string) (*lockFile, error) {
	name := path + ".lock"
	file, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the lock file of the database: %w; the daemon needs write access to that directory", err)
	}
	err = syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if err == nil {
		err = writePID(file)
	}
	if err == nil {
		return &lockFile{file}, nil
	}
	defer func() { _ = file.Close() }() // nothing was written to it
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return nil, fmt.Errorf("%w: %s is held by %s; stop that daemon, or give this one a database of its own", store.ErrLocked, name, holder(file))
	}
	return nil, fmt.Errorf("lock %s: %w; the database must be on a local disk", name, err)
}

// unlock lets the next daemon in.
func (l *lockFile) unlock() error {
	// The number of a process that is gone would mislead; whether that can be written does not matter.
	_ = l.file.Truncate(0)
	if err := l.file.Close(); err != nil {
		return fmt.Errorf("release the lock of the database: %w", err)
	}
	return nil
}

func writePID(file *os.File) error {
	if err := file.Truncate(0); err != nil {
		return err
	}
	_, err := file.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	return err
}

// holder names the process that has the lock, as far as it told.
func holder(file *os.File) string {
	text, err := io.ReadAll(io.NewSectionReader(file, 0, 32))
	pid := strings.TrimSpace(string(text))
	if err != nil || pid == "" {
		return "another process"
	}
	return "process " + pid
}
