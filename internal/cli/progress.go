package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"poolmgr/client"
)

// pollInterval is how often a command that waits looks again.
const pollInterval = 250 * time.Millisecond

// liveWidth is the most characters of a line that is drawn over: a line that wraps could not be.
const liveWidth = 78

// progress tells people on stderr what is waited for: on a terminal in one line that changes, else in a line for every
// change.
type progress struct {
	w     io.Writer
	live  bool
	begin time.Time
	last  string
}

func (a *app) progress() *progress {
	return &progress{w: a.err, live: a.terminal, begin: time.Now()}
}

// say shows the present state of what is waited for.
func (p *progress) say(text string) {
	text = line(text)
	if p.live {
		full := []rune(fmt.Sprintf("%s (%ds)", text, int(time.Since(p.begin).Seconds())))
		if len(full) > liveWidth {
			full = append(full[:liveWidth-1], '…')
		}
		fmt.Fprintf(p.w, "\r\x1b[K%s", string(full))
	} else if text != p.last {
		fmt.Fprintln(p.w, text)
	}
	p.last = text
}

// barWidth is the number of characters inside a bar.
const barWidth = 16

// bar draws how much of a total is done; it is full only when everything is, and empty text without a total.
func bar(done, total int) string {
	if total <= 0 {
		return ""
	}
	n := min(max(done, 0), total) * barWidth / total
	return "[" + strings.Repeat("#", n) + strings.Repeat(".", barWidth-n) + "] "
}

// done takes the changing line away.
func (p *progress) done() {
	if p.live && p.last != "" {
		fmt.Fprint(p.w, "\r\x1b[K")
	}
}

// look reads the present state: whether it is what is waited for, and how to tell it to people.
type look func(ctx context.Context) (done bool, state string, err error)

// await looks until it is done, at most for limit. A daemon that goes away in the meantime is waited for; one that is
// not there from the beginning is an error.
func (a *app) await(ctx context.Context, limit time.Duration, what string, look look) error {
	bounded, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	show := a.progress()
	defer show.done()
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	state := "nothing is known yet"
	for first := true; ; first = false {
		ends, _ := bounded.Deadline()
		lastLook := time.Until(ends) <= a.timeout // it ends with the wait, on both sides, and not with the call's own limit
		done, now, err := look(bounded)
		switch {
		case err == nil && done:
			return nil
		case err == nil:
			state = now
			show.say(state)
		case ctx.Err() == nil && (bounded.Err() != nil || lastLook && status.Code(err) == codes.DeadlineExceeded):
			return waitError{fmt.Sprintf("waited %v for %s: %s", limit, what, state)}
		case first || !passing(err):
			return err
		default:
			show.say("poolmgrd does not answer, trying again")
		}
		select {
		case <-ticker.C:
		case <-bounded.Done():
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			return waitError{fmt.Sprintf("waited %v for %s: %s", limit, what, state)}
		}
	}
}

// passing tells whether an error may be gone at the next look.
func passing(err error) bool {
	code := status.Code(err)
	return code == codes.Unavailable || code == codes.DeadlineExceeded && !errors.Is(err, context.Canceled)
}

// teller passes on to people what the client does behind their back, such as heartbeats that failed, in a plain line.
type teller struct{ app *app }

func (teller) Enabled(_ context.Context, level slog.Level) bool { return level >= slog.LevelInfo }

func (t teller) Handle(_ context.Context, r slog.Record) error {
	text := r.Message
	r.Attrs(func(attr slog.Attr) bool {
		if err, is := attr.Value.Any().(error); is && client.Unreached(err) {
			text += ": " + reason(err)
		} else if is {
			text += ": " + sentence(err)
		}
		return true
	})
	t.app.note("poolmgrctl: %s", text)
	return nil
}

func (t teller) WithAttrs([]slog.Attr) slog.Handler { return t }

func (t teller) WithGroup(string) slog.Handler { return t }
