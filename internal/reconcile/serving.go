package reconcile

import (
	"sync"
	"time"
)

// maxGaps bounds the gaps that are remembered; more than a few within one lease period means that the machine hardly
// runs at all, and then the latest ones are what matters.
const maxGaps = 16

// gap is a time in which the loop did not turn: the process was stopped, or the machine suspended.
type gap struct {
	length time.Duration
	end    time.Time
}

// serving knows since when the daemon has served without a gap. It starts anew with the process, which only ever
// gives leases more time.
type serving struct {
	mu    sync.Mutex
	began time.Time
	last  time.Time
	gaps  []gap
}

// start is when this run of the daemon began.
func (s *serving) start() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.began
}

// turn notes that the daemon runs: every turn of the loop tells, and every pass, since a pass that was held up together
// with the loop may be the first to go on. Wall clock times are compared, since the monotonic clock stands still while a
// machine is suspended.
func (s *serving) turn(now time.Time) {
	now = now.Round(0)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.began.IsZero() {
		s.began = now
	} else if length := now.Sub(s.last); length > 2*tick {
		s.gaps = append(s.gaps, gap{length, now})
		s.gaps = s.gaps[max(0, len(s.gaps)-maxGaps):]
	}
	s.last = now
}

// since is when the daemon began to serve, as a lease with this threshold sees it: after the last gap that was longer
// than half of it.
func (s *serving) since(threshold time.Duration) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	since := s.began
	for _, g := range s.gaps {
		if g.length > threshold/2 {
			since = g.end
		}
	}
	return since
}
