// Package guesttest helps tests that need a guest: it builds the guest's
// binary, and imitates the virtio serial port between a host and an agent.
package guesttest

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"poolmgr/internal/microvm/guest"
)

// Build builds the guest's binary as the Makefile does and returns its path.
func Build(t testing.TB) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "poolmgr-guest")
	cmd := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w",
		"-o", file, "poolmgr/cmd/poolmgr-guest")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build the guest's binary: %v\n%s", err, out)
	}
	return file
}

// Port imitates a virtio serial port behind QEMU's socket: one host at a time,
// further ones wait in the backlog; writes wait for a host; bytes written for
// a host that left are lost.
type Port struct {
	listener net.Listener
	missEnds bool

	mu     sync.Mutex
	change *sync.Cond
	conn   net.Conn
	closed bool
}

// NewPort returns a Port that serves the listener's connections. With missEnds
// the guest never learns that a host left, as happens when the next is quick.
func NewPort(listener net.Listener, missEnds bool) *Port {
	p := &Port{listener: listener, missEnds: missEnds}
	p.change = sync.NewCond(&p.mu)
	return p
}

var errClosed = errors.New("port closed")

// Close makes reads and writes fail.
func (p *Port) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	p.change.Broadcast()
	if p.conn != nil {
		p.conn.Close()
	}
	return p.listener.Close()
}

// Read implements guest.Port.
func (p *Port) Read(b []byte) (int, error) {
	for {
		conn, err := p.host()
		if err != nil {
			return 0, err
		}
		if n, err := conn.Read(b); n > 0 || err == nil {
			return n, nil
		}
		p.drop(conn)
		if !p.missEnds {
			return 0, guest.ErrHostGone
		}
	}
}

// host returns the connected host, or waits for one.
func (p *Port) host() (net.Conn, error) {
	p.mu.Lock()
	conn, closed := p.conn, p.closed
	p.mu.Unlock()
	if closed {
		return nil, errClosed
	}
	if conn != nil {
		return conn, nil
	}
	conn, err := p.listener.Accept()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errClosed, err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.conn = conn
	p.change.Broadcast()
	return conn, nil
}

func (p *Port) drop(conn net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	conn.Close()
	if p.conn == conn {
		p.conn = nil
	}
}

// Write implements guest.Port.
func (p *Port) Write(b []byte) (int, error) {
	p.mu.Lock()
	for p.conn == nil && !p.closed {
		p.change.Wait()
	}
	conn, closed := p.conn, p.closed
	p.mu.Unlock()
	if closed {
		return 0, errClosed
	}
	_, _ = conn.Write(b) // what a host that left does not read is lost
	return len(b), nil
}
