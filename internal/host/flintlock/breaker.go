package flintlock

import (
	"fmt"
	"sync"
	"time"

	"poolmgr/internal/host"
)

// The breaker's numbers. Three failures in a row, since one may be a connection that was just lost. The pause begins
// short, as most hosts that do not answer are being restarted, and ends well below the time after which a host counts
// as lost.
const (
	tripAfter    = 3
	firstPause   = time.Second
	longestPause = 15 * time.Second
)

// verdict is what one call tells about its host.
type verdict int

const (
	neutral verdict = iota // nothing: the caller went away, or gave it no time
	reached                // the host answered, with whatever
	missed                 // no connection, or no answer in a reasonable time
)

// change is what a verdict did to the breaker.
type change int

const (
	unchanged change = iota
	tripped
	recovered
)

// pass is the permission for one call; the trial is the one call after a pause that decides how it goes on.
type pass struct{ trial bool }

// breaker makes calls to a host that does not answer fail at once, but for one trial after each pause. Its zero value
// is not usable.
type breaker struct {
	mu        sync.Mutex
	misses    int       // in a row
	openUntil time.Time // zero = closed
	pause     time.Duration
	onTrial   bool // a trial is in flight
}

func newBreaker() breaker { return breaker{pause: firstPause} }

// admit lets a call through or fails it with ErrUnreachable. Calls that may take long cannot be the trial: they pass
// once the pause is over, and nobody waits for them.
func (b *breaker) admit(now time.Time, mayTry bool) (pass, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.openUntil.IsZero():
		return pass{}, nil
	case now.Before(b.openUntil):
		return pass{}, fmt.Errorf("%w: its last %d calls failed; it is tried again in %v",
			host.ErrUnreachable, b.misses, b.openUntil.Sub(now).Round(time.Millisecond))
	case !mayTry:
		return pass{}, nil
	case b.onTrial:
		return pass{}, fmt.Errorf("%w: its last %d calls failed, and it is being tried", host.ErrUnreachable, b.misses)
	default:
		b.onTrial = true
		return pass{trial: true}, nil
	}
}

// record takes the verdict of a call that was let through.
func (b *breaker) record(now time.Time, p pass, v verdict) change {
	b.mu.Lock()
	defer b.mu.Unlock()
	if p.trial {
		b.onTrial = false
	}
	switch v {
	case reached:
		return b.closeLocked()
	case missed:
		b.misses++
		if p.trial || (b.openUntil.IsZero() && b.misses >= tripAfter) {
			return b.openLocked(now)
		}
		return unchanged // calls that began before it opened do not lengthen the pause
	case neutral:
	}
	return unchanged
}

func (b *breaker) closeLocked() change {
	was := b.openUntil
	b.misses, b.openUntil, b.pause = 0, time.Time{}, firstPause
	if was.IsZero() {
		return unchanged
	}
	return recovered
}

func (b *breaker) openLocked(now time.Time) change {
	was := b.openUntil
	b.openUntil = now.Add(b.pause)
	b.pause = min(2*b.pause, longestPause)
	if was.IsZero() {
		return tripped
	}
	return unchanged
}
