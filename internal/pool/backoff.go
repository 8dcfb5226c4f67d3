package pool

import "time"

// Backoff bounds of a slot whose VMs fail: 1 s, doubling, at most 60 s, with up to 20 % jitter either way.
const (
	BackoffBase   = time.Second
	BackoffCap    = 60 * time.Second
	backoffJitter = 0.2
)

// Backoff is how long the next try waits after the attempt-th failure (from 1). jitter is a random number in [0, 1)
// that the caller brings: 0.5 means no jitter.
//
//	Backoff(1, 0.5) = 1 s, Backoff(3, 0.5) = 4 s, Backoff(10, 0.5) = 60 s, Backoff(1, 0) = 0.8 s
func Backoff(attempt int, jitter float64) time.Duration {
	d := BackoffCap
	if attempt < 7 { // 2^6 s is over the cap already, and a large shift would overflow
		d = min(BackoffBase<<max(0, attempt-1), BackoffCap)
	}
	return time.Duration(float64(d) * (1 + backoffJitter*(2*jitter-1)))
}
