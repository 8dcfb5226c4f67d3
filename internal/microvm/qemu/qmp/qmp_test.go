package qmp_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"poolmgr/internal/microvm/qemu/qmp"
)

const greeting = `{"QMP": {"version": {"qemu": {"major": 7}}, "capabilities": []}}`

// qemu plays QEMU's part: it answers each command by answer, which may send
// what it likes.
func qemu(t *testing.T, hello string, answer func(id, command string, send func(string))) net.Conn {
	t.Helper()
	ours, theirs := net.Pipe()
	var served sync.WaitGroup
	served.Go(func() {
		defer theirs.Close()
		send := func(line string) { fmt.Fprintln(theirs, line) }
		if hello != "" {
			send(hello)
		}
		for in := bufio.NewScanner(theirs); in.Scan(); {
			var request struct{ Execute, ID string }
			if err := json.Unmarshal(in.Bytes(), &request); err != nil {
				t.Errorf("request %q: %v", in.Text(), err)
			}
			if request.Execute == "qmp_capabilities" {
				send(`{"return": {}, "id": "` + request.ID + `"}`)
				continue
			}
			answer(request.ID, request.Execute, send)
		}
	})
	t.Cleanup(func() {
		ours.Close()
		served.Wait()
	})
	return ours
}

func dial(t *testing.T, conn net.Conn) *qmp.Client {
	t.Helper()
	c, err := qmp.New(limited(t), conn, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func limited(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func TestRepliesAreMatchedByID(t *testing.T) {
	var held []string
	c := dial(t, qemu(t, greeting, func(id, command string, send func(string)) {
		held = append(held, fmt.Sprintf(`{"return": {"name": %q}, "id": %q}`, command, id))
		if len(held) < 3 {
			return
		}
		send(`{"return": {"name": "nobody asked"}, "id": "999"}`)
		send(`not json`)
		for i := len(held) - 1; i >= 0; i-- { // the other way round
			send(held[i])
		}
	}))
	var calls sync.WaitGroup
	for _, name := range []string{"a", "b", "c"} {
		calls.Go(func() {
			var out struct{ Name string }
			if err := c.Execute(limited(t), name, map[string]int{"x": 1}, &out); err != nil || out.Name != name {
				t.Errorf("%s got %q, %v", name, out.Name, err)
			}
		})
	}
	calls.Wait()
}

func TestRefusal(t *testing.T) {
	c := dial(t, qemu(t, greeting, func(id, _ string, send func(string)) {
		send(`{"error": {"class": "CommandNotFound", "desc": "no such command"}, "id": "` + id + `"}`)
	}))
	var refusal *qmp.Error
	if err := c.Execute(limited(t), "x", nil, nil); !errors.As(err, &refusal) || refusal.Class != "CommandNotFound" {
		t.Errorf("got %v", err)
	}
}

// Nobody reads the events, far more than fit, and commands are still answered;
// the newest events are the ones that are kept.
func TestEventsNeverBlock(t *testing.T) {
	c := dial(t, qemu(t, greeting, func(id, _ string, send func(string)) {
		for i := range 500 {
			send(fmt.Sprintf(`{"event": "E%d", "data": {}}`, i))
		}
		send(`{"return": {}, "id": "` + id + `"}`)
	}))
	for range 2 {
		if err := c.Execute(limited(t), "x", nil, nil); err != nil {
			t.Fatal(err)
		}
	}
	c.Close()
	last, n := "", 0
	for e := range c.Events() {
		last, n = e.Name, n+1
	}
	if last != "E499" || n == 0 || n > 500 {
		t.Errorf("%d events, the last is %s", n, last)
	}
}

func TestConnectionLost(t *testing.T) {
	conn := qemu(t, greeting, func(string, string, func(string)) {})
	c := dial(t, conn)
	result := make(chan error, 1)
	go func() { result <- c.Execute(context.Background(), "never-answered", nil, nil) }()
	conn.Close()
	if err := <-result; err == nil {
		t.Error("a command on a dead connection succeeded")
	}
	<-c.Done()
	if err := c.Execute(limited(t), "x", nil, nil); err == nil {
		t.Error("a command after the end succeeded")
	}
}

func TestDeadlines(t *testing.T) {
	expired, cancel := context.WithCancelCause(t.Context())
	reason := errors.New("enough waited")
	cancel(reason)
	c := dial(t, qemu(t, greeting, func(string, string, func(string)) {}))
	if err := c.Execute(expired, "never-answered", nil, nil); !errors.Is(err, reason) {
		t.Errorf("Execute: %v", err)
	}
	if _, err := qmp.New(expired, qemu(t, "", nil), slog.New(slog.DiscardHandler)); !errors.Is(err, reason) {
		t.Errorf("New without a greeting: %v", err)
	}
}

func TestBadGreeting(t *testing.T) {
	for _, hello := range []string{"{}", "HTTP/1.1 400", strings.Repeat("x", 2<<20)} {
		if _, err := qmp.New(limited(t), qemu(t, hello, nil), slog.New(slog.DiscardHandler)); err == nil {
			t.Errorf("%.20q was taken for a greeting", hello)
		}
	}
}
