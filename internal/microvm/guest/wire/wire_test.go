package wire_test

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"poolmgr/internal/microvm/guest/wire"
)

// bytesWithEscapes returns random bytes that are rich in the bytes that matter.
func bytesWithEscapes(r *rand.Rand, n int) []byte {
	p := make([]byte, n)
	for i := range p {
		p[i] = []byte{0x00, 0x01, 0x10, 0x10, byte(r.Uint32())}[r.IntN(5)]
	}
	return p
}

// decodeAll decodes in pieces of random size.
func decodeAll(r *rand.Rand, d *wire.Decoder, in []byte) (data []byte, events []wire.Event, nonces []wire.Nonce) {
	for len(in) > 0 {
		n := 1 + r.IntN(len(in))
		piece := in[:n]
		in = in[n:]
		for len(piece) > 0 {
			var event wire.Event
			data, piece, event = d.Next(data, piece)
			if event == wire.EventNone {
				continue
			}
			events = append(events, event)
			if event == wire.EventReset {
				nonces = append(nonces, d.Nonce)
				data = data[:0] // what came before belongs to older sessions
			}
		}
	}
	return data, events, nonces
}

func TestStuffingRoundTrip(t *testing.T) {
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 1))
		want := bytesWithEscapes(r, r.IntN(200))
		var stuffed bytes.Buffer
		if n, err := wire.NewStuffWriter(&stuffed).Write(want); n != len(want) || err != nil {
			t.Fatalf("seed %d: Write = %d, %v", seed, n, err)
		}
		got, events, _ := decodeAll(r, &wire.Decoder{}, stuffed.Bytes())
		if !bytes.Equal(got, want) || len(events) != 0 {
			t.Fatalf("seed %d: got %x with events %v, want %x", seed, got, events, want)
		}
	}
}

// Whatever a dead host left, cut anywhere, half of a reset included: the next
// host's reset is found with its nonce, and its data is what follows.
func TestResetIsFoundAfterAnyPrefix(t *testing.T) {
	for seed := range uint64(2000) {
		r := rand.New(rand.NewPCG(seed, 2))
		dead := wire.Stuff(wire.Reset(wire.NewNonce()), bytesWithEscapes(r, 40))
		dead = dead[:r.IntN(len(dead)+1)]
		if r.IntN(3) == 0 {
			dead = bytesWithEscapes(r, r.IntN(60)) // not even our protocol
		}
		nonce, want := wire.NewNonce(), bytesWithEscapes(r, 50)
		in := append(bytes.Clone(dead), wire.Reset(nonce)...)
		in = wire.Stuff(in, want)
		got, _, nonces := decodeAll(r, &wire.Decoder{}, in)
		if len(nonces) == 0 || nonces[len(nonces)-1] != nonce {
			t.Fatalf("seed %d: nonces %x, want the last to be %x (after %x)", seed, nonces, nonce, dead)
		}
		if !bytes.Equal(got, want) {
			t.Fatalf("seed %d: data %x, want %x (after %x)", seed, got, want, dead)
		}
	}
}

func TestNonceHoldsNoEscape(t *testing.T) {
	for range 5000 {
		if n := wire.NewNonce(); bytes.IndexByte(n[:], 0x10) >= 0 {
			t.Fatalf("nonce %x holds an escape byte", n)
		}
	}
}

func TestSkipToAnswer(t *testing.T) {
	nonce := wire.NewNonce()
	old := bytes.Join([][]byte{
		[]byte("stale"), wire.Answer(wire.NewNonce()), wire.Magic, wire.Magic[:5], bytes.Repeat([]byte{7}, 1000),
	}, nil)
	in := bufio.NewReader(bytes.NewReader(bytes.Join([][]byte{old, wire.Answer(nonce), []byte("fresh")}, nil)))
	skipped, err := wire.SkipToAnswer(in, nonce)
	if err != nil || skipped != int64(len(old)) {
		t.Fatalf("SkipToAnswer = %d, %v; want %d", skipped, err, len(old))
	}
	if rest, _ := io.ReadAll(in); string(rest) != "fresh" {
		t.Errorf("rest %q, want what follows the answer", rest)
	}
	_, err = wire.SkipToAnswer(bufio.NewReader(bytes.NewReader(old)), nonce)
	if !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("without the answer: %v, want io.ErrUnexpectedEOF", err)
	}
}

func TestFrames(t *testing.T) {
	big := bytes.Repeat([]byte("0123456789"), 50_000)
	var buf bytes.Buffer
	w := wire.NewFrameWriter(&buf)
	for _, p := range [][]byte{nil, []byte("x"), big} {
		if err := w.WriteFrame(wire.FrameStdout, p); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.WriteExit(-1); err != nil {
		t.Fatal(err)
	}
	for _, want := range [][]byte{{}, []byte("x"), big} {
		frame, got, err := wire.ReadFrame(&buf, wire.MaxPayload)
		if frame != wire.FrameStdout || err != nil || !bytes.Equal(got, want) {
			t.Fatalf("frame %d of %d bytes, %v; want %d bytes", frame, len(got), err, len(want))
		}
	}
	_, payload, err := wire.ReadFrame(&buf, 4)
	if code, codeErr := wire.ExitCode(payload); err != nil || codeErr != nil || code != -1 {
		t.Errorf("exit frame: %d, %v, %v; want -1", code, err, codeErr)
	}
	if _, _, err := wire.ReadFrame(&buf, 4); !errors.Is(err, io.EOF) {
		t.Errorf("after the last frame: %v, want io.EOF", err)
	}
}

func TestReadFrameRefuses(t *testing.T) {
	for _, tc := range []struct {
		name  string
		in    string
		limit int
		want  error
	}{
		{"header cut", "\x04\x00\x00", 10, io.ErrUnexpectedEOF},
		{"payload cut", "\x04\x00\x00\x00\x05abc", 10, io.ErrUnexpectedEOF},
		{"payload missing", "\x04\x00\x00\x00\x05", 10, io.ErrUnexpectedEOF},
		{"large payload cut", "\x04\x00\x8f\xff\xffabc", wire.MaxPayload, io.ErrUnexpectedEOF},
		{"over the caller's limit", "\x04\x00\x00\x00\x0b", 10, wire.ErrFrameTooLarge},
		{"over every limit", "\x04\xff\xff\xff\xff", 1 << 40, wire.ErrFrameTooLarge},
		{"unknown type", "\x09\x00\x00\x00\x00", 10, wire.ErrUnexpectedFrame},
		{"type zero", "\x00\x00\x00\x00\x00", 10, wire.ErrUnexpectedFrame},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if _, _, err := wire.ReadFrame(strings.NewReader(tc.in), tc.limit); !errors.Is(err, tc.want) {
				t.Errorf("got %v, want %v", err, tc.want)
			}
		})
	}
	w := wire.NewFrameWriter(io.Discard)
	if err := w.WriteFrame(wire.FrameStdin, make([]byte, wire.MaxPayload+1)); !errors.Is(err, wire.ErrFrameTooLarge) {
		t.Errorf("writing too much: %v", err)
	}
}

func TestStreamCutsIntoFrames(t *testing.T) {
	var buf bytes.Buffer
	want := bytes.Repeat([]byte{1, 2, 3}, wire.ChunkSize)
	if n, err := wire.NewFrameWriter(&buf).Stream(wire.FrameStderr).Write(want); n != len(want) || err != nil {
		t.Fatalf("Write = %d, %v", n, err)
	}
	var got []byte
	for buf.Len() > 0 {
		frame, payload, err := wire.ReadFrame(&buf, wire.ChunkSize)
		if err != nil || frame != wire.FrameStderr {
			t.Fatalf("frame %d, %v", frame, err)
		}
		got = append(got, payload...)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%d bytes came out, want %d", len(got), len(want))
	}
}

func TestDecodeRequest(t *testing.T) {
	for _, tc := range []struct {
		name, in string
		want     wire.Op
		bad      bool
	}{
		{"exec", `{"version":1,"op":"exec","exec":{"cmd":"true","timeout_sec":0.5}}`, wire.OpExec, false},
		{"ping", `{"version":1,"op":"ping"}`, wire.OpPing, false},
		{"unknown op is for the agent to answer", `{"version":1,"op":"later"}`, "later", false},
		{"no json", `}`, "", true},
		{"other version", `{"version":2,"op":"ping"}`, "", true},
		{"exec without exec", `{"version":1,"op":"exec"}`, "", true},
		{"exec without cmd", `{"version":1,"op":"exec","exec":{}}`, "", true},
		{"configure without configure", `{"version":1,"op":"configure"}`, "", true},
		{"kill without kill", `{"version":1,"op":"kill"}`, "", true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			req, err := wire.DecodeRequest([]byte(tc.in))
			if errors.Is(err, wire.ErrBadRequest) != tc.bad || req.Op != tc.want {
				t.Errorf("got %q, %v", req.Op, err)
			}
		})
	}
	if got := (&wire.Exec{TimeoutSec: 0.5}).Timeout(); got != 500*time.Millisecond {
		t.Errorf("Timeout = %v", got)
	}
}

func TestDecodeFailureKeepsWhatTheGuestWrote(t *testing.T) {
	got := wire.DecodeFailure([]byte("boom"))
	want := &wire.Failure{Code: wire.FailureUnavailable, Message: `"boom"`}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func FuzzDecoder(f *testing.F) {
	f.Add([]byte{0x00, 0x10, 0x01, 0x10, 0x10})
	f.Fuzz(func(t *testing.T, junk []byte) {
		nonce := wire.NewNonce()
		r := rand.New(rand.NewPCG(1, uint64(len(junk))))
		in := wire.Stuff(append(bytes.Clone(junk), wire.Reset(nonce)...), []byte("data\x10"))
		got, _, nonces := decodeAll(r, &wire.Decoder{}, in)
		if len(nonces) == 0 || nonces[len(nonces)-1] != nonce || string(got) != "data\x10" {
			t.Fatalf("after %x: nonces %x, data %x", junk, nonces, got)
		}
	})
}
