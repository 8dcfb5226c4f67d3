package guest_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"poolmgr/internal/microvm/guest/client"
	"poolmgr/internal/microvm/guest/wire"
)

// Hosts come and go abruptly, in the middle of traffic both ways, with half a
// frame written and with half a reset: each next one is served correctly.
func TestAbruptReconnects(t *testing.T) {
	for _, missEnds := range []bool{false, true} {
		t.Run(fmt.Sprintf("missEnds=%v", missEnds), func(t *testing.T) {
			dial := startAgent(t, missEnds, nil)
			r := rand.New(rand.NewPCG(7, 7))
			for round := range 60 {
				host := &cutHost{dial: dial, after: r.IntN(200_000)}
				if r.IntN(4) == 0 {
					host.after = r.IntN(30) // inside the reset, or of yamux's first header
				}
				host.traffic(limited(t))
				checkServed(t, dial, round)
			}
		})
	}
}

func checkServed(t *testing.T, dial func(context.Context) (net.Conn, error), round int) {
	t.Helper()
	ctx := limited(t)
	c := client.New(dial, slog.New(slog.DiscardHandler))
	defer c.Close()
	want := fmt.Sprintf("round %d \x10\x01\n", round)
	stdout, stderr, code, err := run(ctx, c, wire.Exec{Cmd: "cat; echo err >&2; exit 3", Shell: true}, strings.NewReader(want))
	if err != nil || stdout != want || stderr != "err\n" || code != 3 {
		t.Fatalf("round %d: stdout %q stderr %q code %d error %v", round, stdout, stderr, code, err)
	}
}

// cutHost is a host that dies after it has sent a number of bytes.
type cutHost struct {
	dial  func(context.Context) (net.Conn, error)
	after int
}

func (h *cutHost) traffic(ctx context.Context) {
	c := client.New(func(ctx context.Context) (net.Conn, error) {
		conn, err := h.dial(ctx)
		if err != nil {
			return nil, err
		}
		return &cutConn{Conn: conn, left: h.after}, nil
	}, slog.New(slog.DiscardHandler))
	defer c.Close()
	var streams sync.WaitGroup
	for range 3 {
		streams.Go(func() {
			c.Exec(ctx, wire.Exec{Cmd: "cat"}, client.Streams{Stdin: io.LimitReader(zeros{}, 300_000)})
		})
	}
	streams.Wait()
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = 0x10
	}
	return len(p), nil
}

// cutConn closes itself in the middle of the write that exhausts its bytes.
type cutConn struct {
	net.Conn
	mu   sync.Mutex
	left int
}

var errCut = errors.New("the host died")

func (c *cutConn) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := min(c.left, len(p))
	c.left -= n
	if n, err := c.Conn.Write(p[:n]); err != nil {
		return n, err
	}
	if c.left == 0 {
		c.Conn.Close()
		return n, errCut
	}
	return n, nil
}

// pidFD is a handle of a process, which may be another's child.
type pidFD int

func openPid(pid int) (pidFD, error) {
	fd, err := unix.PidfdOpen(pid, 0)
	return pidFD(fd), os.NewSyscallError("pidfd_open", err)
}

func (p pidFD) wait(limit time.Duration) error {
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(p), Events: unix.POLLIN}}, int(limit.Milliseconds()))
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err == nil && n == 0 {
			return context.DeadlineExceeded
		}
		return err
	}
}

func (p pidFD) Close() error { return unix.Close(int(p)) }
