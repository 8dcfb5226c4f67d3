package guest

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"

	"github.com/hashicorp/yamux"

	"poolmgr/internal/microvm/guest/wire"
)

// Port is the byte channel to the host.
type Port interface {
	// Read blocks until bytes are there. It returns ErrHostGone when it sees
	// that the host left; it may miss that when a new host is quick.
	io.Reader
	// Write blocks while no host is connected.
	io.Writer
}

// link turns the bytes of a port into sessions, one at a time: a reset from
// the host ends the session that was and begins the next.
type link struct {
	port  Port
	serve func(*yamux.Session) // runs until the session is over
	log   *slog.Logger

	sessions sync.WaitGroup

	// writeMu is held while writing to the port. No byte of an old session may
	// follow the answer that begins a new one, so both happen under it. The
	// reader takes it only for that answer: a write may wait for an absent
	// host, and then there is nothing to read either.
	writeMu sync.Mutex
}

// run reads the port until it fails, then ends the last session and waits for
// all of them.
func (l *link) run() error {
	defer l.sessions.Wait()
	var (
		decoder wire.Decoder
		buf     = make([]byte, 32<<10)
		data    []byte
		live    *sessionConn // nil drops what comes, until the next reset
	)
	defer func() { live.end() }()
	for {
		n, err := l.port.Read(buf)
		if errors.Is(err, ErrHostGone) {
			live.end()
			live = nil
			continue
		}
		if err != nil {
			return fmt.Errorf("read the agent's port: %w", err)
		}
		for in := buf[:n]; len(in) > 0; {
			var event wire.Event
			data, in, event = decoder.Next(data[:0], in)
			live.deliver(data)
			if event == wire.EventNone {
				continue
			}
			live.end()
			live = nil
			if event == wire.EventReset {
				if live, err = l.begin(decoder.Nonce); err != nil {
					return err
				}
			}
		}
	}
}

// begin answers a reset and starts its session.
func (l *link) begin(nonce wire.Nonce) (*sessionConn, error) {
	l.writeMu.Lock()
	_, err := l.port.Write(wire.Answer(nonce))
	l.writeMu.Unlock()
	if err != nil {
		return nil, fmt.Errorf("answer the host's reset: %w", err)
	}
	conn := newSessionConn(l)
	session, err := yamux.Server(conn, wire.YamuxConfig(l.log))
	if err != nil {
		return nil, fmt.Errorf("start a session: %w", err)
	}
	l.sessions.Go(func() {
		l.serve(session)
		session.Close() // waits for the session's own goroutines; its error says nothing new
	})
	return conn, nil
}

// sessionConn is the connection that one yamux session runs on.
type sessionConn struct {
	link *link
	over atomic.Bool
	in   *io.PipeReader
	feed *io.PipeWriter
}

func newSessionConn(l *link) *sessionConn {
	in, feed := io.Pipe()
	return &sessionConn{link: l, in: in, feed: feed}
}

// deliver hands bytes from the host to the session. The session's receiver
// reads all the time, so this does not wait for anything outside.
func (c *sessionConn) deliver(data []byte) {
	if c != nil && len(data) > 0 {
		_, _ = c.feed.Write(data) // fails only when the session is over
	}
}

// end makes the session see the end of its stream. A write that is under way
// may still finish, and none begins.
func (c *sessionConn) end() {
	if c != nil {
		c.over.Store(true)
		c.feed.Close()
	}
}

// Read implements net.Conn's part that yamux needs.
func (c *sessionConn) Read(p []byte) (int, error) { return c.in.Read(p) }

// Write writes to the port unless the session is over.
func (c *sessionConn) Write(p []byte) (int, error) {
	c.link.writeMu.Lock()
	defer c.link.writeMu.Unlock()
	if c.over.Load() {
		return 0, errSessionOver
	}
	return c.link.port.Write(p)
}

// Close ends the session from the guest's side.
func (c *sessionConn) Close() error {
	c.over.Store(true)
	return c.in.Close()
}
