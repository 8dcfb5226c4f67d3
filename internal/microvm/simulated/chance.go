package simulated

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
)

// dice answers random questions by what they are about, never by the order in
// which they are asked: the same seed and the same ids give the same answers
// on every run, however the callers' goroutines interleave.
type dice struct {
	seed uint64
	host string
}

// roll is a number in [0, 1) that belongs to this question, this subject (a
// machine's namespace and id) and the number of the attempt.
func (d dice) roll(question, subject string, attempt int) float64 {
	// Quoted, so that no two different questions make the same text.
	text := fmt.Sprintf("%d %q %q %q %d", d.seed, d.host, question, subject, attempt)
	sum := sha256.Sum256([]byte(text))
	// A float64 holds 53 bits exactly, so the quotient is below 1.
	return float64(binary.BigEndian.Uint64(sum[:8])>>11) / (1 << 53)
}

// happens says whether something of this probability happens.
func (d dice) happens(probability float64, question, subject string, attempt int) bool {
	return d.roll(question, subject, attempt) < probability
}
