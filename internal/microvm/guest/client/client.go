package client

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/hashicorp/yamux"

	"poolmgr/internal/microvm/guest/wire"
)

const (
	// helloTimeout bounds one attempt to begin a session. A loaded host stalls
	// its guests for seconds; the next attempt begins with a new connection.
	helloTimeout = 15 * time.Second
	// dialPause is the pause between attempts while a machine starts.
	dialPause = 20 * time.Millisecond
	// killTimeout bounds the attempt to kill a command that nobody waits for.
	killTimeout = 10 * time.Second
	// answerLimit bounds the answers of short operations, in bytes.
	answerLimit = 64 << 10
)

// Client talks to the agent of one machine. Its methods may be called
// concurrently.
type Client struct {
	dial func(context.Context) (net.Conn, error)
	log  *slog.Logger

	connecting chan struct{}  // holds a token while a session is being made
	kills      sync.WaitGroup // attempts to kill abandoned commands

	mu      sync.Mutex
	session *yamux.Session
	closed  bool
}

// New returns a Client that connects by dial when it needs to.
func New(dial func(context.Context) (net.Conn, error), log *slog.Logger) *Client {
	return &Client{dial: dial, log: log, connecting: make(chan struct{}, 1)}
}

// Close ends the session, and with it every command that it started.
func (c *Client) Close() error {
	c.mu.Lock()
	c.closed = true
	session := c.session
	c.session = nil
	c.mu.Unlock()
	var err error
	if session != nil {
		err = session.Close()
	}
	c.kills.Wait()
	return err
}

// WaitReady waits until a guest that is booting answers. Only ctx ends it.
func (c *Client) WaitReady(ctx context.Context) error {
	for {
		err := c.Ping(ctx)
		if err == nil || errors.Is(err, ErrClosed) {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for the guest agent: %w (last: %w)", context.Cause(ctx), err)
		case <-time.After(dialPause):
		}
	}
}

// Ping asks the agent for a sign of life.
func (c *Client) Ping(ctx context.Context) error {
	_, err := c.ask(ctx, wire.Request{Op: wire.OpPing})
	return err
}

// Configure tells the guest what it has to know before it is used.
func (c *Client) Configure(ctx context.Context, configure wire.Configure) error {
	_, err := c.ask(ctx, wire.Request{Op: wire.OpConfigure, Configure: &configure})
	return err
}

// Info asks the guest about itself.
func (c *Client) Info(ctx context.Context) (wire.Info, error) {
	answer, err := c.ask(ctx, wire.Request{Op: wire.OpInfo})
	if err != nil {
		return wire.Info{}, err
	}
	var info wire.Info
	if err := json.Unmarshal(answer, &info); err != nil {
		return wire.Info{}, fmt.Errorf("decode the guest's info: %w", err)
	}
	return info, nil
}

// ask carries out an operation whose answer is short.
func (c *Client) ask(ctx context.Context, req wire.Request) ([]byte, error) {
	stream, err := c.open(ctx)
	if err != nil {
		return nil, err
	}
	defer stream.Close()
	defer expireWith(ctx, stream)()
	if err := wire.NewFrameWriter(stream).WriteRequest(req); err != nil {
		return nil, broken(ctx, string(req.Op), err)
	}
	var answer []byte
	for {
		frame, payload, err := wire.ReadFrame(stream, answerLimit)
		if err != nil {
			return nil, broken(ctx, string(req.Op), err)
		}
		switch frame {
		case wire.FrameStdout:
			answer = payload
		case wire.FrameExit:
			return answer, nil
		case wire.FrameError:
			return nil, fmt.Errorf("guest op %s: %w", req.Op, wire.DecodeFailure(payload))
		default:
			return nil, fmt.Errorf("guest op %s answers frame %d: %w", req.Op, frame, wire.ErrUnexpectedFrame)
		}
	}
}

// expireWith makes a stream's reads and writes end when ctx does.
func expireWith(ctx context.Context, stream *yamux.Stream) (stop func() bool) {
	return context.AfterFunc(ctx, func() { stream.SetDeadline(time.Unix(1, 0)) })
}

// broken explains the failure of a stream: ctx is over, or the session broke.
func broken(ctx context.Context, op string, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("guest op %s: %w", op, context.Cause(ctx))
	}
	return fmt.Errorf("guest op %s: %w: %w", op, ErrUnreachable, err)
}

// open opens a stream on the present session, or on a new one.
func (c *Client) open(ctx context.Context) (*yamux.Stream, error) {
	session, err := c.acquire(ctx)
	if err != nil {
		return nil, err
	}
	stream, err := session.OpenStream()
	if err == nil {
		return stream, nil
	}
	// The session broke between two uses; nothing was sent yet.
	session.Close()
	if session, err = c.acquire(ctx); err != nil {
		return nil, err
	}
	if stream, err = session.OpenStream(); err != nil {
		return nil, fmt.Errorf("open a stream to the guest: %w: %w", ErrUnreachable, err)
	}
	return stream, nil
}

// acquire returns the live session; one caller at a time makes a new one.
func (c *Client) acquire(ctx context.Context) (*yamux.Session, error) {
	if session, err := c.present(); session != nil || err != nil {
		return session, err
	}
	select {
	case c.connecting <- struct{}{}:
		defer func() { <-c.connecting }()
	case <-ctx.Done():
		return nil, fmt.Errorf("wait for a session with the guest: %w", context.Cause(ctx))
	}
	if session, err := c.present(); session != nil || err != nil {
		return session, err
	}
	session, err := c.connect(ctx)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		session.Close()
		return nil, ErrClosed
	}
	c.session = session
	return session, nil
}

func (c *Client) present() (*yamux.Session, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, ErrClosed
	}
	if c.session != nil && c.session.IsClosed() {
		c.session = nil
	}
	return c.session, nil
}

// connect begins a session. That the socket accepts a connection proves
// nothing; only the guest's answer to our nonce does.
func (c *Client) connect(ctx context.Context) (*yamux.Session, error) {
	for {
		session, err := c.hello(ctx)
		if err == nil || ctx.Err() != nil || !isTimeout(err) {
			return session, err
		}
		c.log.Info("guest agent did not answer the hello, connecting anew", "after", helloTimeout)
	}
}

func isTimeout(err error) bool {
	var netErr net.Error
	return errors.As(err, &netErr) && netErr.Timeout()
}

func (c *Client) hello(ctx context.Context) (*yamux.Session, error) {
	conn, err := c.dial(ctx)
	if err != nil {
		return nil, fmt.Errorf("connect to the guest: %w: %w", ErrUnreachable, err)
	}
	stop := context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	conn.SetDeadline(time.Now().Add(helloTimeout))
	nonce := wire.NewNonce()
	in := bufio.NewReaderSize(conn, 64<<10)
	var skipped int64
	_, err = conn.Write(wire.Reset(nonce))
	if err == nil {
		skipped, err = wire.SkipToAnswer(in, nonce)
	}
	if err == nil && !stop() { // ctx ended just now, and has set the deadline
		err = context.Cause(ctx)
	}
	if err != nil {
		conn.Close()
		return nil, broken(ctx, "hello", err)
	}
	conn.SetDeadline(time.Time{})
	if skipped > 0 {
		c.log.Debug("dropped bytes of an earlier session", "bytes", skipped)
	}
	session, err := yamux.Client(&stuffedConn{Conn: conn, in: in, out: wire.NewStuffWriter(conn)}, wire.YamuxConfig(c.log))
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("begin a session with the guest: %w", err)
	}
	return session, nil
}

// stuffedConn is the connection below the session: stuffed towards the guest.
type stuffedConn struct {
	net.Conn
	in  *bufio.Reader
	out *wire.StuffWriter
}

func (s *stuffedConn) Read(p []byte) (int, error)  { return s.in.Read(p) }
func (s *stuffedConn) Write(p []byte) (int, error) { return s.out.Write(p) }
