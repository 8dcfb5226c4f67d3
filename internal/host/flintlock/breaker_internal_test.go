package flintlock

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"poolmgr/internal/host"
)

// call lets one call through the breaker, if it does, and records its verdict.
func call(b *breaker, now time.Time, v verdict) (admitted bool, c change) {
	p, err := b.admit(now, true)
	if err != nil {
		return false, unchanged
	}
	return true, b.record(now, p, v)
}

func TestBreakerTripsAndRecovers(t *testing.T) {
	b := newBreaker()
	now := time.Unix(0, 0)
	for i, want := range []change{unchanged, unchanged, tripped} {
		if ok, got := call(&b, now, missed); !ok || got != want {
			t.Fatalf("miss %d: admitted %v, change %d", i, ok, got)
		}
	}
	pause := firstPause
	for range 8 { // 1, 2, 4, 8, 15, 15, ... seconds
		if ok, _ := call(&b, now.Add(pause-1), reached); ok {
			t.Fatalf("a call passed before the pause of %v was over", pause)
		}
		now = now.Add(pause)
		if ok, got := call(&b, now, missed); !ok || got != unchanged {
			t.Fatalf("trial after %v: admitted %v, change %d", pause, ok, got)
		}
		pause = min(2*pause, longestPause)
	}
	now = now.Add(pause)
	if ok, got := call(&b, now, reached); !ok || got != recovered {
		t.Fatalf("a good trial: admitted %v, change %d, want recovered", ok, got)
	}
	for i, want := range []change{unchanged, unchanged, tripped} { // from the beginning again
		if ok, got := call(&b, now, missed); !ok || got != want {
			t.Fatalf("miss %d after recovery: admitted %v, change %d", i, ok, got)
		}
	}
	if ok, _ := call(&b, now.Add(firstPause), reached); !ok {
		t.Error("the pause did not begin short again")
	}
}

func TestBreakerHasOneTrial(t *testing.T) {
	b := newBreaker()
	now := time.Unix(0, 0)
	for range tripAfter {
		call(&b, now, missed)
	}
	now = now.Add(firstPause)
	trial, err := b.admit(now, true)
	if err != nil || !trial.trial {
		t.Fatalf("the trial: %v, %v", trial, err)
	}
	if _, err := b.admit(now, true); !errors.Is(err, host.ErrUnreachable) {
		t.Errorf("a second call during the trial: %v, want ErrUnreachable", err)
	}
	if p, err := b.admit(now, false); err != nil || p.trial {
		t.Errorf("a long call during the trial: %v, %v; it passes, and is no trial", p, err)
	}
	b.record(now, trial, neutral) // its caller went away
	if next, err := b.admit(now, true); err != nil || !next.trial {
		t.Errorf("after a trial without a verdict: %v, %v, want another trial", next, err)
	}
}

func TestBreakerMisses(t *testing.T) {
	b := newBreaker()
	now := time.Unix(0, 0)
	for range 10 { // never three in a row
		call(&b, now, missed)
		call(&b, now, missed)
		if _, got := call(&b, now, reached); got != unchanged {
			t.Fatalf("change %d", got)
		}
	}
	// Calls that began before it opened fail later; they must not lengthen the pause.
	for range tripAfter + 5 {
		b.record(now, pass{}, missed)
	}
	if _, err := b.admit(now.Add(firstPause), true); err != nil {
		t.Errorf("after the first pause: %v", err)
	}
}

// TestHungCommandsLeaveRoom: execs that hang take no slot of calls, nor long ones a slot of short ones.
func TestHungCommandsLeaveRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLanes(Limits{Calls: 1, ShortExecs: 1, LongExecs: 1})
		long, cancelLong := context.WithTimeout(t.Context(), time.Hour)
		defer cancelLong()
		short, cancelShort := context.WithTimeout(t.Context(), shortExec)
		defer cancelShort()
		for _, full := range []struct {
			lane lane
			ctx  context.Context
		}{{l.forExec(t.Context()), long}, {l.forExec(short), short}, {l.calls, short}} {
			release, err := full.lane.enter(full.ctx)
			if err != nil {
				t.Fatalf("the first in its lane: %v", err)
			}
			defer release()
		}
		if l.forExec(long) != l.long || l.forExec(short) != l.short {
			t.Error("commands are in the wrong lanes")
		}
		if _, err := l.calls.enter(short); !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, host.ErrUnreachable) {
			t.Errorf("a full lane: %v; want the deadline, and no word against the host", err)
		}
	})
}
