package guest

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os/exec"
	"sync"
	"time"

	"github.com/hashicorp/yamux"

	"poolmgr/internal/microvm/guest/wire"
)

const (
	// maxCommands bounds the commands that run at once in one session.
	maxCommands = 64
	// maxRequest bounds a request in bytes: metadata is at most 32 KiB, and the
	// kernel takes about 2 MiB of arguments and environment.
	maxRequest = 4 << 20
	// requestTimeout is how long an opened stream may take to say what it wants.
	requestTimeout = 30 * time.Second
	// answerTimeout bounds the writing of a last frame that nobody reads.
	answerTimeout = 10 * time.Second
)

// Agent answers the host. Its methods are called by Serve.
type Agent struct {
	// Configure applies what the host says at first contact.
	Configure func(wire.Configure) error
	// Info describes this guest.
	Info func() (wire.Info, error)
	// Processes starts commands and waits for them.
	Processes Processes
	Log       *slog.Logger
}

// Processes starts and awaits processes. The first process of a machine reaps
// orphans, and must not reap these.
type Processes interface {
	Start(*exec.Cmd) error
	Wait(*exec.Cmd) error
}

// Serve answers on the port until reading it fails.
func (a *Agent) Serve(port Port) error {
	l := &link{port: port, serve: a.serveSession, log: a.Log}
	return l.run()
}

// session is what the streams of one host connection share.
type session struct {
	agent *Agent
	slots chan struct{} // one per running command

	mu       sync.Mutex
	commands map[string]context.CancelCauseFunc // running commands by their id
}

// serveSession serves the streams of one session; when it is over, the
// commands that it started die with it.
func (a *Agent) serveSession(mux *yamux.Session) {
	ctx, cancel := context.WithCancel(context.Background())
	s := &session{agent: a, slots: make(chan struct{}, maxCommands), commands: map[string]context.CancelCauseFunc{}}
	var streams sync.WaitGroup
	for {
		stream, err := mux.AcceptStream()
		if err != nil { // the session is over; that is how each of them ends
			break
		}
		streams.Go(func() {
			defer stream.Close()
			if err := s.serveStream(ctx, stream); err != nil {
				a.Log.Debug("stream ended", "error", err)
			}
		})
	}
	cancel()
	streams.Wait()
}

func (s *session) serveStream(ctx context.Context, stream *yamux.Stream) error {
	out := wire.NewFrameWriter(stream)
	stream.SetReadDeadline(time.Now().Add(requestTimeout))
	frame, payload, err := wire.ReadFrame(stream, maxRequest)
	if err != nil {
		return fmt.Errorf("read request: %w", err)
	}
	stream.SetReadDeadline(time.Time{})
	if frame != wire.FrameRequest {
		return out.WriteFailure(wire.FailureBadRequest, "a stream begins with a request")
	}
	req, err := wire.DecodeRequest(payload)
	if err != nil {
		return out.WriteFailure(wire.FailureBadRequest, err.Error())
	}
	switch req.Op {
	case wire.OpPing:
		return out.WriteExit(0)
	case wire.OpInfo:
		return s.answerInfo(out)
	case wire.OpConfigure:
		return answer(out, s.agent.Configure(*req.Configure))
	case wire.OpKill:
		s.kill(req.Kill.ID)
		return out.WriteExit(0)
	case wire.OpExec:
		return s.exec(ctx, stream, out, *req.Exec)
	default:
		return out.WriteFailure(wire.FailureBadRequest, fmt.Sprintf("unknown op %q", req.Op))
	}
}

func answer(out *wire.FrameWriter, err error) error {
	if err != nil {
		return out.WriteFailure(wire.FailureUnavailable, err.Error())
	}
	return out.WriteExit(0)
}

func (s *session) answerInfo(out *wire.FrameWriter) error {
	info, err := s.agent.Info()
	if err != nil {
		return answer(out, err)
	}
	payload, err := json.Marshal(info)
	if err != nil {
		return answer(out, err)
	}
	if err := out.WriteFrame(wire.FrameStdout, payload); err != nil {
		return err
	}
	return out.WriteExit(0)
}

// register makes a command killable by its id, until the returned function is
// called. A command without an id is not registered.
func (s *session) register(id string, cancel context.CancelCauseFunc) (unregister func()) {
	if id == "" {
		return func() {}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.commands[id] = cancel
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.commands, id)
	}
}

func (s *session) kill(id string) {
	s.mu.Lock()
	cancel := s.commands[id]
	s.mu.Unlock()
	if cancel != nil {
		cancel(errKilled)
	}
}
