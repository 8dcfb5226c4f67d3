package reconcile

import (
	"sync"
	"time"
)

// How long a host is tried after the others when its latest start failed; doubled for each further failure.
const (
	avoidFirst = 10 * time.Second
	avoidLast  = 5 * time.Minute
)

// trouble remembers on which hosts the latest starts failed. Such a host is the emptiest one, and without this it would
// get every VM. It is advice and owes nobody anything: a host comes last for a while, not never, so that it is tried
// again, and losing what is remembered costs no more than one more failed start.
type trouble struct {
	mu    sync.Mutex
	hosts map[string]spell // only hosts whose latest start failed
}

// spell is a row of failed starts.
type spell struct {
	failures int
	until    time.Time
}

// failed notes a start that the host did not bring up.
func (t *trouble) failed(host string, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.hosts == nil {
		t.hosts = map[string]spell{}
	}
	s := t.hosts[host]
	s.until = now.Add(min(avoidFirst<<min(s.failures, 10), avoidLast))
	s.failures++
	t.hosts[host] = s
}

// worked notes a start that the host brought up; also that the host is registered no more.
func (t *trouble) worked(host string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.hosts, host)
}

// avoid names the hosts that are to be tried last.
func (t *trouble) avoid(now time.Time) map[string]bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	hosts := map[string]bool{}
	for host, s := range t.hosts {
		if now.Before(s.until) {
			hosts[host] = true
		}
	}
	return hosts
}
