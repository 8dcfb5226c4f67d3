// Package qmp is a small client of QEMU's machine protocol: a greeting,
// capabilities, commands whose replies are matched by id, and events that never
// hold up anything. It knows no command; callers do.
package qmp

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"sync"
	"time"
)

const (
	// maxMessage bounds one message of QEMU in bytes.
	maxMessage = 1 << 20
	// eventBacklog is how many events wait for a reader; newer ones push out
	// the oldest, for an event is news and not a record.
	eventBacklog = 64
	// writeTimeout bounds the sending of one command.
	writeTimeout = 10 * time.Second
)

// ErrClosed: the connection is closed, by either side.
var ErrClosed = errors.New("qmp connection is closed")

// Event is something that QEMU tells on its own.
type Event struct {
	Name string          `json:"event"`
	Data json.RawMessage `json:"data"`
}

// Error is QEMU's refusal of a command.
type Error struct {
	Class string `json:"class"`
	Desc  string `json:"desc"`
}

func (e *Error) Error() string { return fmt.Sprintf("qemu: %s (%s)", e.Desc, e.Class) }

// Client is one connection. Its methods may be called concurrently.
type Client struct {
	conn   net.Conn
	events chan Event
	done   chan struct{} // closed when the reader has ended

	writeMu sync.Mutex

	mu      sync.Mutex
	lastID  uint64
	waiting map[string]chan message // each with room for one
	err     error                   // why the connection is closed
}

// message is anything that QEMU sends.
type message struct {
	Greeting json.RawMessage `json:"QMP"`
	ID       string          `json:"id"`
	Return   json.RawMessage `json:"return"`
	Error    *Error          `json:"error"`
	Event
}

// New speaks on a connection that was just made; ctx bounds the negotiation.
// It owns the connection from here on, also when it fails.
func New(ctx context.Context, conn net.Conn, log *slog.Logger) (*Client, error) {
	c := &Client{
		conn:    conn,
		events:  make(chan Event, eventBacklog),
		done:    make(chan struct{}),
		waiting: map[string]chan message{},
	}
	in := bufio.NewScanner(conn)
	in.Buffer(make([]byte, 0, 4096), maxMessage)
	stop := context.AfterFunc(ctx, func() { conn.SetReadDeadline(time.Unix(1, 0)) })
	err := readGreeting(in)
	if !stop() || err != nil {
		conn.Close()
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return nil, fmt.Errorf("read qemu's greeting: %w", err)
	}
	go c.read(in, log) // ends with the connection; Close waits for it
	if err := c.Execute(ctx, "qmp_capabilities", nil, nil); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

func readGreeting(in *bufio.Scanner) error {
	if !in.Scan() {
		if in.Err() != nil {
			return in.Err()
		}
		return ErrClosed
	}
	var m message
	if err := json.Unmarshal(in.Bytes(), &m); err != nil {
		return err
	}
	if m.Greeting == nil {
		return fmt.Errorf("%.100q is no greeting", in.Bytes())
	}
	return nil
}

// Events delivers events until the connection ends, and is closed then.
func (c *Client) Events() <-chan Event { return c.events }

// Done is closed when the connection has ended.
func (c *Client) Done() <-chan struct{} { return c.done }

// Execute runs a command; out, where it is not nil, takes the result.
func (c *Client) Execute(ctx context.Context, command string, arguments, out any) error {
	id, reply := c.expect()
	defer c.forget(id)
	if err := c.send(id, command, arguments); err != nil {
		return fmt.Errorf("qmp %s: %w", command, err)
	}
	var m message
	select {
	case m = <-reply:
	case <-ctx.Done():
		return fmt.Errorf("qmp %s: %w", command, context.Cause(ctx))
	case <-c.done:
		select {
		case m = <-reply: // it came just before the end
		default:
			return fmt.Errorf("qmp %s: %w", command, c.reason())
		}
	}
	if m.Error != nil {
		return fmt.Errorf("qmp %s: %w", command, m.Error)
	}
	if out == nil {
		return nil
	}
	if err := json.Unmarshal(m.Return, out); err != nil {
		return fmt.Errorf("qmp %s: decode result: %w", command, err)
	}
	return nil
}

func (c *Client) send(id, command string, arguments any) error {
	data, err := json.Marshal(struct {
		Execute   string `json:"execute"`
		Arguments any    `json:"arguments,omitempty"`
		ID        string `json:"id"`
	}{command, arguments, id})
	if err != nil {
		return err
	}
	c.writeMu.Lock()
	defer c.writeMu.Unlock()
	c.conn.SetWriteDeadline(time.Now().Add(writeTimeout))
	_, err = c.conn.Write(append(data, '\n'))
	return err
}

func (c *Client) expect() (string, chan message) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lastID++
	id, reply := strconv.FormatUint(c.lastID, 10), make(chan message, 1)
	c.waiting[id] = reply
	return id, reply
}

func (c *Client) forget(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.waiting, id)
}

func (c *Client) reason() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// read takes messages apart until the connection ends.
func (c *Client) read(in *bufio.Scanner, log *slog.Logger) {
	defer close(c.done)
	defer close(c.events)
	for in.Scan() {
		var m message
		if err := json.Unmarshal(in.Bytes(), &m); err != nil {
			log.Warn("qemu sent what is no message", "error", err)
			continue
		}
		switch {
		case m.Name != "":
			c.publish(m.Event)
		case m.ID != "":
			c.deliver(m)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.err = ErrClosed
	if err := in.Err(); err != nil && !errors.Is(err, net.ErrClosed) {
		c.err = fmt.Errorf("%w: %w", ErrClosed, err)
	}
}

func (c *Client) deliver(m message) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if reply, ok := c.waiting[m.ID]; ok {
		delete(c.waiting, m.ID) // so a second reply of one id finds nobody
		reply <- m
	}
}

// publish never blocks: when nobody reads, the oldest event makes room.
func (c *Client) publish(e Event) {
	for {
		select {
		case c.events <- e:
			return
		default:
		}
		select {
		case <-c.events:
		default:
		}
	}
}

// Close ends the connection and waits for its goroutine.
func (c *Client) Close() error {
	err := c.conn.Close()
	<-c.done
	return err
}
