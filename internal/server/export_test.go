package server

// Known is how many pools have counters.
func (m *Metrics) Known() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.seen)
}
