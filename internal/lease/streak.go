package lease

import (
	"time"

	"poolmgr/internal/host"
	"poolmgr/internal/pool"
)

// maxStreak is how many VMs of a pool may fail their pre-lease commands in a row before claims are held back: a hook
// that is broken would cost a VM for each claim, until the hosts are full of condemned ones.
const maxStreak = 3

// streakLife is how long a streak is remembered when nobody claims: pools come and go.
const streakLife = time.Hour

// streak is the failures in a row of one pool's pre-lease commands.
type streak struct {
	created    time.Time // of the pool: a new one of the same name starts anew
	generation int64     // of the pool: an update starts anew
	failures   int
	tail       string // of the last failure
	trying     bool   // one claim tries whether it works again
	at         time.Time
}

func (s *streak) of(p pool.Pool) bool {
	return s.created.Equal(p.CreatedAt) && s.generation == p.Generation
}

// admit holds claims back while the pool's hooks fail: one at a time tries (probe), the others get UNAVAILABLE.
func (m *Manager) admit(p pool.Pool) (probe bool, _ error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.streaks[p.Key()]
	switch {
	case s == nil || s.failures < maxStreak:
		return false, nil
	case !s.of(p):
		delete(m.streaks, p.Key())
		return false, nil
	case s.trying:
		return false, pool.Errorf(pool.CodeUnavailable,
			"the pre-lease commands of pool %s failed %d times in a row and are being tried on one VM; correct them with an update. Last: %s",
			p.Key(), s.failures, s.tail)
	default:
		s.trying = true
		return true, nil
	}
}

// settle records how a claim that admit let through ended: failure is nil when the hooks succeeded, and ran is false
// when they had no outcome of their own.
func (m *Manager) settle(p pool.Pool, probe, ran bool, failure *host.CommandFailure) {
	m.mu.Lock()
	defer m.mu.Unlock()
	key := p.Key()
	s := m.streaks[key]
	mine := s != nil && s.of(p)
	if mine && probe {
		s.trying = false
	}
	switch {
	case !ran:
	case failure == nil:
		if mine {
			delete(m.streaks, key)
		}
	case mine:
		s.failures++
		s.tail, s.at = failure.Error(), m.cfg.Now()
	case s == nil || s.generation < p.Generation || s.created.Before(p.CreatedAt):
		m.forgetOldLocked()
		m.streaks[key] = &streak{
			created: p.CreatedAt, generation: p.Generation, failures: 1, tail: failure.Error(), at: m.cfg.Now(),
		}
	}
}

// forgetOldLocked keeps the map from growing with the names of pools that are gone.
func (m *Manager) forgetOldLocked() {
	now := m.cfg.Now()
	for key, s := range m.streaks {
		if !s.trying && now.Sub(s.at) > streakLife {
			delete(m.streaks, key)
		}
	}
}
