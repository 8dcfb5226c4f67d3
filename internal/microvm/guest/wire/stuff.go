package wire

import (
	"bytes"
	"crypto/rand"
	"fmt"
	"io"
	"slices"
)

// A port that was closed and opened again within a moment looks to the guest
// as if nothing had happened: the new host's bytes follow the old host's, who
// may have died in the middle of anything. So host->guest bytes are stuffed,
// which leaves one sequence that no stream contains and that begins a session:
//
//	data byte 10      -> 10 10
//	reset             -> 00 10 01, then a nonce of 16 bytes without a 10
//
// The 00 in front ends a dangling 10 of a dead host, and since a nonce has no
// 10, a reset is found even right after half of another. The guest answers
// Magic and the nonce, not stuffed; the host throws everything away until it
// has seen exactly that answer.
const (
	escape    = 0x10
	resetMark = 0x01

	// NonceSize is the length of a session's nonce in bytes.
	NonceSize = 16
)

// Magic begins the guest's answer to a reset.
var Magic = []byte("PMGRAGT1")

// Nonce names one session.
type Nonce [NonceSize]byte

// NewNonce draws a nonce that contains no escape byte.
func NewNonce() Nonce {
	var n Nonce
	rand.Read(n[:]) // never fails (crypto/rand)
	for i := range n {
		if n[i] == escape {
			n[i] = 0xef // one value a bit likelier: 127 bits are left of 128
		}
	}
	return n
}

// Reset returns the bytes that begin a session.
func Reset(n Nonce) []byte { return append([]byte{0x00, escape, resetMark}, n[:]...) }

// Answer returns the guest's answer to a reset.
func Answer(n Nonce) []byte { return slices.Concat(Magic, n[:]) }

// Stuff appends p to dst with every escape byte doubled.
func Stuff(dst, p []byte) []byte {
	for {
		i := bytes.IndexByte(p, escape)
		if i < 0 {
			return append(dst, p...)
		}
		dst = append(dst, p[:i]...)
		dst = append(dst, escape, escape)
		p = p[i+1:]
	}
}

// StuffWriter stuffs what is written through it. It is not safe for
// concurrent use; yamux has one writer.
type StuffWriter struct {
	w   io.Writer
	buf []byte
}

// NewStuffWriter returns a StuffWriter on w.
func NewStuffWriter(w io.Writer) *StuffWriter { return &StuffWriter{w: w} }

// Write writes p stuffed; on an error none of p counts as written.
func (s *StuffWriter) Write(p []byte) (int, error) {
	s.buf = Stuff(s.buf[:0], p)
	if _, err := s.w.Write(s.buf); err != nil {
		return 0, err
	}
	return len(p), nil
}

// Event is something that Unstuff found after the data it returned.
type Event int

// The events of a decoder.
const (
	EventNone    Event = iota // the input is used up
	EventReset                // a reset; the nonce is in Decoder.Nonce
	EventGarbage              // an escape that means nothing: the stream is broken until the next reset
)

// Decoder takes the guest's incoming bytes apart. The zero value is ready.
type Decoder struct {
	// Nonce is that of the last reset.
	Nonce Nonce

	escaped bool
	inNonce bool
	partial []byte
}

// Next decodes from in up to the next event. It appends data bytes to dst and
// returns it, what of in is left, and the event.
func (d *Decoder) Next(dst, in []byte) (data, rest []byte, event Event) {
	for i, b := range in {
		switch {
		case d.escaped:
			d.escaped = false
			switch b {
			case resetMark:
				d.inNonce, d.partial = true, d.partial[:0]
			case escape:
				if d.inNonce { // no nonce holds an escape
					d.inNonce = false
					return dst, in[i+1:], EventGarbage
				}
				dst = append(dst, b)
			default:
				d.inNonce = false
				return dst, in[i+1:], EventGarbage
			}
		case b == escape:
			d.escaped = true
		case d.inNonce:
			d.partial = append(d.partial, b)
			if len(d.partial) == NonceSize {
				d.inNonce = false
				copy(d.Nonce[:], d.partial)
				return dst, in[i+1:], EventReset
			}
		default:
			dst = append(dst, b)
		}
	}
	return dst, nil, EventNone
}

// SkipToAnswer reads r until the answer to the nonce has passed, and not a
// byte further. It returns how many bytes of older sessions it threw away.
func SkipToAnswer(r io.ByteReader, n Nonce) (skipped int64, err error) {
	want := Answer(n)
	window := make([]byte, 0, 2*len(want))
	for {
		b, err := r.ReadByte()
		if err != nil {
			return skipped, fmt.Errorf("wait for the guest's answer: %w", noEOF(err))
		}
		if len(window) == cap(window) {
			window = append(window[:0], window[len(window)-len(want)+1:]...)
		}
		window = append(window, b)
		skipped++
		if bytes.HasSuffix(window, want) {
			return skipped - int64(len(want)), nil
		}
	}
}
