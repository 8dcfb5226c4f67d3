package client

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func TestExecPassesEverythingThrough(t *testing.T) {
	c := connect(t, newDaemon())
	in := strings.Repeat("0123456789abcdef", 20_000) // several messages
	var out, errs bytes.Buffer
	code, err := c.Exec(t.Context(), "lease", Command{Name: "cat", Stdin: strings.NewReader(in), Stdout: &out, Stderr: &errs})
	if err != nil || code != 0 || out.String() != in || errs.String() != "done" {
		t.Errorf("code %d, error %v, %d bytes of %d out, %q on stderr", code, err, out.Len(), len(in), errs.String())
	}
	if code, err := c.Exec(t.Context(), "lease", Command{Name: "cat"}); code != 0 || err != nil {
		t.Errorf("without input: code %d, error %v", code, err)
	}
	if code, err := c.Exec(t.Context(), "lease", Command{Name: "exit"}); code != 3 || err != nil {
		t.Errorf("code %d, error %v, want 3", code, err)
	}
}

type broken struct{}

func (broken) Read([]byte) (int, error)  { return 0, errors.New("disk on fire") }
func (broken) Write([]byte) (int, error) { return 0, errors.New("disk full") }

func TestExecFailures(t *testing.T) {
	c := connect(t, newDaemon())
	for _, tc := range []struct {
		name    string
		command Command
		want    string
	}{
		{"refused", Command{Name: "refuse"}, "no agent in this VM"},
		{"lost", Command{Name: "vanish"}, "not known"},
		{"input", Command{Name: "cat", Stdin: broken{}}, "disk on fire"},
		{"output", Command{Name: "cat", Stdin: strings.NewReader("x"), Stdout: broken{}}, "disk full"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := c.Exec(t.Context(), "lease", tc.command)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
		})
	}
}

func TestExecEndsWithItsContextAndItsLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDaemon()
		c := connect(t, d)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := c.Exec(ctx, "lease", Command{Name: "hang"}); status.Code(err) != codes.DeadlineExceeded && !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v, want the deadline", err)
		}
		l := claim(t, c)
		d.expire()
		if _, err := l.Exec(t.Context(), Command{Name: "hang"}); !errors.Is(err, ErrLost) {
			t.Errorf("got %v, want ErrLost", err)
		}
	})
}
