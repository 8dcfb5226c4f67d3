package guest

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// devicePort is a virtio serial port. The kernel answers a read with 0 bytes
// while no host is connected, which os.File takes for the end of the file.
type devicePort struct {
	file      *os.File
	raw       syscall.RawConn
	connected bool // touched by Read only
}

// openPort waits for the port of that name and opens it.
func openPort(name string) (*devicePort, error) {
	device, err := waitForPort("/sys/class/virtio-ports", name)
	if err != nil {
		return nil, err
	}
	file, err := os.OpenFile(filepath.Join("/dev", device), os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("open the agent's port: %w", err)
	}
	raw, err := file.SyscallConn()
	if err != nil {
		file.Close()
		return nil, fmt.Errorf("open the agent's port: %w", err)
	}
	return &devicePort{file: file, raw: raw}, nil
}

// waitForPort returns the device of the port. Devices appear shortly after
// their modules are loaded; nothing announces them to a process without netlink.
func waitForPort(dir, name string) (string, error) {
	for deadline := time.Now().Add(portWait); ; time.Sleep(portPoll) {
		names, err := filepath.Glob(filepath.Join(dir, "*", "name"))
		if err != nil {
			return "", fmt.Errorf("look for ports: %w", err)
		}
		for _, file := range names {
			text, err := os.ReadFile(file)
			if err == nil && strings.TrimSpace(string(text)) == name {
				return filepath.Base(filepath.Dir(file)), nil
			}
		}
		if time.Now().After(deadline) {
			return "", fmt.Errorf("port %q in %s: %w", name, dir, errNoPort)
		}
	}
}

// Read implements Port.
func (p *devicePort) Read(b []byte) (int, error) {
	var n int
	var err error
	rawErr := p.raw.Read(func(fd uintptr) bool {
		for {
			n, err = syscall.Read(int(fd), b)
			if !errors.Is(err, syscall.EINTR) {
				break
			}
		}
		switch {
		case errors.Is(err, syscall.EAGAIN):
			p.connected = true // a port without a host does not say "again"
			return false
		case err == nil && n == 0 && p.connected:
			p.connected = false
			err = ErrHostGone
			return true
		case err == nil && n == 0:
			return false
		}
		p.connected = true
		return true
	})
	if rawErr != nil {
		return 0, rawErr
	}
	return max(0, n), err
}

// Write implements Port; it waits for a host.
func (p *devicePort) Write(b []byte) (int, error) { return p.file.Write(b) }

// Close closes the port.
func (p *devicePort) Close() error { return p.file.Close() }
