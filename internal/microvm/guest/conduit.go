package guest

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"time"

	"poolmgr/internal/microvm/guest/wire"
)

// conduits are the pipes between a command and its stream.
type conduits struct {
	stdin          *os.File // our end
	stdout, stderr *output
	child          []*os.File // the command's ends, ours only until it is started
}

func newConduits(cmd *exec.Cmd, out *wire.FrameWriter) (*conduits, error) {
	c := &conduits{}
	inR, inW, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("make the pipe of standard input: %w", err)
	}
	c.stdin, c.child = inW, append(c.child, inR)
	cmd.Stdin = inR
	for _, o := range []struct {
		frame wire.FrameType
		end   *io.Writer
		own   **output
	}{{wire.FrameStdout, &cmd.Stdout, &c.stdout}, {wire.FrameStderr, &cmd.Stderr, &c.stderr}} {
		r, w, err := os.Pipe()
		if err != nil {
			c.close()
			return nil, fmt.Errorf("make an output pipe: %w", err)
		}
		c.child = append(c.child, w)
		*o.end = w
		*o.own = &output{r: r, w: out.Stream(o.frame)}
	}
	return c, nil
}

func (c *conduits) closeChildEnds() {
	for _, f := range c.child {
		f.Close()
	}
	c.child = nil
}

func (c *conduits) close() {
	c.closeChildEnds()
	c.stdin.Close()
	for _, o := range []*output{c.stdout, c.stderr} {
		if o != nil {
			o.r.Close()
		}
	}
}

// output carries one output stream of a command to the host.
type output struct {
	r *os.File
	w io.Writer
}

// run carries bytes until every writer of the pipe is gone, or, after finish,
// until the pipe is empty. Closing the reading end then tells a process that
// was left in the background that nobody listens.
func (o *output) run() {
	defer o.r.Close()
	buf := make([]byte, wire.ChunkSize)
	for {
		n, err := o.r.Read(buf)
		if n > 0 {
			if _, err := o.w.Write(buf[:n]); err != nil {
				return // the host is gone; the command dies with the session
			}
		}
		if errors.Is(err, os.ErrDeadlineExceeded) {
			o.drain(buf)
			return
		}
		if err != nil {
			return
		}
	}
}

// finish says that the command has ended: what it wrote is in the pipe by now,
// and children that it left behind may keep the pipe open for ever.
func (o *output) finish() { o.r.SetReadDeadline(time.Now()) }

// drain carries what is in the pipe without waiting for more. It is bounded by
// what a pipe holds, so that a child that goes on writing cannot keep it busy.
func (o *output) drain(buf []byte) {
	o.r.SetReadDeadline(time.Time{})
	raw, err := o.r.SyscallConn()
	if err != nil {
		return
	}
	for left := maxPipe; left > 0; {
		n := 0
		readErr := raw.Read(func(fd uintptr) bool {
			n, err = syscall.Read(int(fd), buf)
			return true
		})
		if errors.Is(err, syscall.EINTR) {
			continue
		}
		if readErr != nil || err != nil || n <= 0 {
			return
		}
		if _, err := o.w.Write(buf[:n]); err != nil {
			return
		}
		left -= n
	}
}

// maxPipe is the most that an unprivileged process can make a pipe hold.
const maxPipe = 1 << 20
