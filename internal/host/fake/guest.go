package fake

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"poolmgr/internal/host"
)

// Reply is a scripted outcome of a command.
type Reply struct {
	Code   int
	Stdout string
	Stderr string
	Delay  time.Duration // before it ends
	Hang   bool          // it has no end of its own
	Err    error         // the call fails, and the code is not known
}

// Script makes a command line (with its arguments, separated by spaces) end with these replies in turn, in any VM;
// the last one repeats. Without replies the line's script is removed.
func (h *Host) Script(line string, replies ...Reply) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(replies) == 0 {
		delete(h.scripts, line)
		return
	}
	h.scripts[line] = slices.Clone(replies)
}

func (h *Host) exec(ctx context.Context, req host.ExecRequest, streams host.ExecStreams) (int, error) {
	if h.opts.NoExec {
		return 0, fmt.Errorf("%w: unknown service microvmexec.services.api.v1alpha1.MicroVMExec", host.ErrExecDisabled)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	vm, leave, err := h.enterGuest(req.UID, cancel)
	if err != nil {
		return 0, err
	}
	defer leave()
	defer context.AfterFunc(ctx, func() { closeInput(streams.Stdin) })()
	if !vm.GuestUp { // enterGuest let it through: a dead guest
		<-ctx.Done()
		return 0, context.Cause(ctx)
	}
	code, err := h.limited(ctx, vm, req, streams)
	if cause := context.Cause(ctx); cause != nil {
		return 0, cause
	}
	return code, err
}

// limited runs the command under the guest's own time limit.
func (h *Host) limited(ctx context.Context, vm VM, req host.ExecRequest, streams host.ExecStreams) (int, error) {
	inner, cancel := ctx, context.CancelFunc(func() {})
	if req.Timeout > 0 {
		seconds := (req.Timeout + time.Second - 1).Truncate(time.Second)
		inner, cancel = context.WithTimeout(ctx, seconds)
	}
	defer cancel()
	code, err := h.run(inner, vm, req, streams)
	if inner.Err() != nil && ctx.Err() == nil {
		return 0, fmt.Errorf("%w: %v: command timed out", host.ErrExecTimeout, req.Timeout)
	}
	return code, err
}

// enterGuest admits an exec as flintlockd does, and remembers how to cut it off until leave is called.
func (h *Host) enterGuest(uid string, cut func(error)) (vm VM, leave func(), err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	m, err := h.findLocked(uid)
	if err != nil {
		return VM{}, nil, err
	}
	now := time.Now()
	vm = m.report(now)
	switch {
	case !m.spec.GetAllowGuestAgent():
		return VM{}, nil, errors.New("microvm was not created with guest agent access enabled")
	case vm.State != host.Created:
		return VM{}, nil, fmt.Errorf("microvm is not ready (state: %s)", vm.State)
	case !vm.GuestUp && !m.deadGuest:
		return VM{}, nil, errors.New("starting guest-agent exec session: connection refused")
	}
	if h.running[m] == nil {
		h.running[m] = make(map[*func(error)]bool)
	}
	h.running[m][&cut] = true
	return vm, func() { h.leaveGuest(m, &cut) }, nil
}

func (h *Host) leaveGuest(m *machine, cut *func(error)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.running[m], cut)
	if len(h.running[m]) == 0 {
		delete(h.running, m)
	}
}

// cutLocked ends the execs in a VM.
func (h *Host) cutLocked(m *machine, err error) {
	for cut := range h.running[m] {
		(*cut)(err)
	}
}

func (h *Host) cutAllLocked(err error) {
	for m := range h.running {
		h.cutLocked(m, err)
	}
}

func (h *Host) run(ctx context.Context, vm VM, req host.ExecRequest, streams host.ExecStreams) (int, error) {
	if h.opts.Guest != nil {
		if code, handled, err := h.opts.Guest(ctx, vm, req, streams); handled || err != nil {
			return code, err
		}
	}
	if reply, ok := h.nextReply(line(req)); ok {
		return reply.play(ctx, streams)
	}
	if !req.Shell {
		return builtin(ctx, vm, append([]string{req.Cmd}, req.Args...), streams)
	}
	return shell(ctx, vm, req.Cmd, streams)
}

func (h *Host) nextReply(line string) (Reply, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	replies := h.scripts[line]
	if len(replies) == 0 {
		return Reply{}, false
	}
	if len(replies) > 1 {
		h.scripts[line] = replies[1:]
	}
	return replies[0], true
}

func (r Reply) play(ctx context.Context, streams host.ExecStreams) (int, error) {
	if r.Hang {
		<-ctx.Done()
		return 0, ctx.Err()
	}
	if err := pause(ctx, r.Delay); err != nil {
		return 0, err
	}
	if _, err := io.WriteString(streams.Stdout, r.Stdout); err != nil {
		return 0, fmt.Errorf("write stdout: %w", err)
	}
	if _, err := io.WriteString(streams.Stderr, r.Stderr); err != nil {
		return 0, fmt.Errorf("write stderr: %w", err)
	}
	return r.Code, r.Err
}

// shell runs a line of built-in commands joined by "&&" and ";".
func shell(ctx context.Context, vm VM, text string, streams host.ExecStreams) (code int, err error) {
	for sequence := range strings.SplitSeq(text, ";") {
		for command := range strings.SplitSeq(sequence, "&&") {
			words := strings.Fields(command)
			if len(words) == 0 {
				continue
			}
			code, err = builtin(ctx, vm, words, streams)
			if err != nil || words[0] == "exit" {
				return code, err
			}
			if code != 0 {
				break
			}
		}
	}
	return code, nil
}

// builtin runs one of the commands that every simulated guest understands; any other succeeds and prints nothing.
func builtin(ctx context.Context, vm VM, words []string, streams host.ExecStreams) (int, error) {
	args := words[1:]
	switch words[0] {
	case "false":
		return 1, nil
	case "exit":
		code, _ := strconv.Atoi(strings.Join(args, "")) // a bare exit is 0
		return code, nil
	case "sleep":
		seconds, _ := strconv.ParseFloat(strings.Join(args, ""), 64)
		return 0, pause(ctx, time.Duration(seconds*float64(time.Second)))
	case "hang":
		<-ctx.Done()
		return 0, ctx.Err()
	case "echo":
		return echo(args, streams)
	case "cat":
		return cat(vm, args, streams)
	default:
		return 0, nil
	}
}

func echo(args []string, streams host.ExecStreams) (int, error) {
	out := streams.Stdout
	if n := len(args); n > 0 && args[n-1] == ">&2" {
		out, args = streams.Stderr, args[:n-1]
	}
	if _, err := fmt.Fprintln(out, strings.Join(args, " ")); err != nil {
		return 0, fmt.Errorf("write the output: %w", err)
	}
	return 0, nil
}

func cat(vm VM, args []string, streams host.ExecStreams) (int, error) {
	var text string
	switch path := strings.Join(args, " "); {
	case path == "" && streams.Stdin != nil:
		if _, err := io.Copy(streams.Stdout, streams.Stdin); err != nil {
			return 0, fmt.Errorf("copy stdin: %w", err)
		}
	case path == "/proc/cmdline":
		text = cmdline(vm.Spec.GetKernel().GetCmdline()) + "\n"
	case path == "/proc/sys/kernel/random/boot_id":
		text = vm.BootID + "\n"
	case strings.HasPrefix(path, "/run/poolmgr/metadata/"):
		value, err := base64.StdEncoding.DecodeString(vm.Spec.GetMetadata()[strings.TrimPrefix(path, "/run/poolmgr/metadata/")])
		if err != nil {
			return 1, nil // the guest has no such file, as the command's exit code says
		}
		text = string(value)
	}
	if _, err := io.WriteString(streams.Stdout, text); err != nil {
		return 0, fmt.Errorf("write the output: %w", err)
	}
	return 0, nil
}

func cmdline(entries map[string]string) string {
	words := make([]string, 0, len(entries))
	for _, key := range slices.Sorted(maps.Keys(entries)) {
		if value := entries[key]; value != "" {
			key += "=" + value
		}
		words = append(words, key)
	}
	return strings.Join(words, " ")
}
