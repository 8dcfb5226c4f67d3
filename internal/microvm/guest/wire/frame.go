package wire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"
)

// FrameType says what a frame's payload is.
type FrameType byte

// The frame types. A stream begins with one FrameRequest from the host, and
// ends with one FrameExit or FrameError from the guest.
const (
	FrameRequest  FrameType = 1 // JSON of Request
	FrameStdin    FrameType = 2 // bytes for standard input
	FrameStdinEOF FrameType = 3 // end of standard input, no payload
	FrameStdout   FrameType = 4 // bytes of standard output, or an op's JSON answer
	FrameStderr   FrameType = 5 // bytes of standard error
	FrameExit     FrameType = 6 // exit code, 4 bytes big-endian
	FrameError    FrameType = 7 // JSON of Failure
)

const (
	// MaxPayload bounds the payload of every frame, in bytes.
	MaxPayload = 16 << 20
	// ChunkSize is how much we put into one frame of a byte stream. Small
	// enough that other streams get their turn, large enough for throughput.
	ChunkSize = 64 << 10

	headerSize = 5
)

// FrameWriter writes frames, each by a single Write of the underlying writer,
// so that several goroutines can share one.
type FrameWriter struct {
	mu  sync.Mutex
	w   io.Writer
	buf []byte
}

// NewFrameWriter returns a FrameWriter on w.
func NewFrameWriter(w io.Writer) *FrameWriter { return &FrameWriter{w: w} }

// WriteFrame writes one frame. The payload is not kept.
func (f *FrameWriter) WriteFrame(t FrameType, payload []byte) error {
	if len(payload) > MaxPayload {
		return fmt.Errorf("write frame of type %d with %d bytes: %w", t, len(payload), ErrFrameTooLarge)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.buf = append(f.buf[:0], byte(t))
	f.buf = binary.BigEndian.AppendUint32(f.buf, uint32(len(payload)))
	f.buf = append(f.buf, payload...)
	if _, err := f.w.Write(f.buf); err != nil {
		return fmt.Errorf("write frame of type %d: %w", t, err)
	}
	if cap(f.buf) > 4*ChunkSize { // do not keep the memory of a rare large frame
		f.buf = nil
	}
	return nil
}

// WriteExit writes the frame that ends a stream with an exit code.
func (f *FrameWriter) WriteExit(code int) error {
	return f.WriteFrame(FrameExit, binary.BigEndian.AppendUint32(nil, uint32(int32(code))))
}

// Stream returns a writer that cuts what it is given into frames of type t.
func (f *FrameWriter) Stream(t FrameType) io.Writer { return &chunkWriter{f, t} }

type chunkWriter struct {
	frames *FrameWriter
	t      FrameType
}

func (c *chunkWriter) Write(p []byte) (int, error) {
	written := 0
	for len(p) > 0 {
		n := min(len(p), ChunkSize)
		if err := c.frames.WriteFrame(c.t, p[:n]); err != nil {
			return written, err
		}
		written += n
		p = p[n:]
	}
	return written, nil
}

// ReadFrame reads one frame with at most limit bytes of payload. It returns
// io.EOF at a clean end between frames, and io.ErrUnexpectedEOF inside one.
// Memory grows with the bytes that arrive, not with what a header announces.
func ReadFrame(r io.Reader, limit int) (FrameType, []byte, error) {
	var header [headerSize]byte
	if _, err := io.ReadFull(r, header[:]); err != nil {
		return 0, nil, err
	}
	t, size := FrameType(header[0]), binary.BigEndian.Uint32(header[1:])
	if t < FrameRequest || t > FrameError {
		return 0, nil, fmt.Errorf("frame of type %d: %w", t, ErrUnexpectedFrame)
	}
	if int64(size) > int64(min(limit, MaxPayload)) {
		return 0, nil, fmt.Errorf("frame of type %d with %d bytes: %w", t, size, ErrFrameTooLarge)
	}
	payload, err := readPayload(r, int(size))
	if err != nil {
		return 0, nil, err
	}
	return t, payload, nil
}

func readPayload(r io.Reader, size int) ([]byte, error) {
	if size <= 4*ChunkSize {
		payload := make([]byte, size)
		if _, err := io.ReadFull(r, payload); err != nil {
			return nil, noEOF(err)
		}
		return payload, nil
	}
	var buf bytes.Buffer
	if _, err := io.CopyN(&buf, r, int64(size)); err != nil {
		return nil, noEOF(err)
	}
	return buf.Bytes(), nil
}

func noEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// ExitCode decodes the payload of a FrameExit.
func ExitCode(payload []byte) (int, error) {
	if len(payload) != 4 {
		return 0, fmt.Errorf("exit frame of %d bytes instead of 4: %w", len(payload), ErrUnexpectedFrame)
	}
	return int(int32(binary.BigEndian.Uint32(payload))), nil
}
