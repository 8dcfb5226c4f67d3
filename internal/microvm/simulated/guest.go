package simulated

import (
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"maps"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"poolmgr/internal/microvm"
)

// process is one command on its way through a pretended guest. An error of its
// methods means that the exit code will never be known: the time is over, the
// guest is dead, or nobody takes the output.
type process struct {
	ctx            context.Context
	machine        record
	stdin          io.Reader // nil: empty
	stdout, stderr io.Writer
}

func newProcess(ctx context.Context, machine record, req microvm.ExecRequest, streams microvm.ExecStreams) *process {
	p := &process{ctx: ctx, machine: machine, stdout: io.Discard, stderr: io.Discard}
	if req.HasStdin {
		p.stdin = streams.Stdin
	}
	if streams.Stdout != nil {
		p.stdout = streams.Stdout
	}
	if streams.Stderr != nil {
		p.stderr = streams.Stderr
	}
	return p
}

// run does the request's command, given as a shell line or as words.
func (p *process) run(req microvm.ExecRequest) (int, error) {
	if req.Shell {
		return p.script(req.Cmd)
	}
	return p.command(append([]string{req.Cmd}, req.Args...))
}

// script runs a shell line as far as it is understood.
func (p *process) script(line string) (int, error) {
	code := 0
	for _, step := range parseScript(line) {
		if (step.when == onSuccess && code != 0) || (step.when == onFailure && code == 0) {
			continue
		}
		if step.opaque {
			code = 0 // not understood: succeeds and prints nothing
			continue
		}
		if len(step.words) > 0 && step.words[0] == "exit" {
			return exitCode(step.words[1:], code), nil
		}
		inner := *p
		inner.stdout, inner.stderr = step.redirect(p.stdout, p.stderr)
		var err error
		if code, err = inner.command(step.words); err != nil {
			return 0, err
		}
	}
	return code, nil
}

// command runs one command given as words. It knows it by the last part of its
// path; what it does not know succeeds and prints nothing.
func (p *process) command(words []string) (int, error) {
	if err := context.Cause(p.ctx); err != nil {
		return 0, err
	}
	if len(words) == 0 {
		return 0, nil
	}
	args := words[1:]
	switch path.Base(words[0]) {
	case "false":
		return 1, nil
	case "exit":
		return exitCode(args, 0), nil
	case "sleep":
		return p.sleep(args)
	case "echo":
		return p.echo(args)
	case "cat":
		return p.cat(args)
	case "hang":
		<-p.ctx.Done()
		return 0, context.Cause(p.ctx)
	case "sh", "ash", "bash":
		if len(args) >= 2 && args[0] == "-c" {
			return p.script(args[1])
		}
	}
	return 0, nil
}

// exitCode is what `exit` with these arguments ends a shell with.
func exitCode(args []string, last int) int {
	if len(args) == 0 {
		return last
	}
	n, err := strconv.Atoi(args[0])
	if err != nil {
		return 2 // a shell's own code for wrong usage
	}
	return n & 0xff
}

// maxSleepSeconds stands for "for ever", also in `sleep inf`, and a few of them
// still fit a Duration.
const maxSleepSeconds = 1e8

func (p *process) sleep(args []string) (int, error) {
	var total time.Duration
	if len(args) > 8 {
		return p.complain("sleep: too many arguments\n")
	}
	for _, arg := range args {
		seconds, err := strconv.ParseFloat(strings.TrimSuffix(arg, "s"), 64)
		if err != nil || !(seconds >= 0) { // written so that NaN is refused too
			return p.complain("sleep: invalid number '%s'\n", arg)
		}
		total += time.Duration(min(seconds, maxSleepSeconds) * float64(time.Second))
	}
	timer := time.NewTimer(total)
	defer timer.Stop()
	select {
	case <-timer.C:
		return 0, nil
	case <-p.ctx.Done():
		return 0, context.Cause(p.ctx)
	}
}

func (p *process) echo(args []string) (int, error) {
	end := "\n"
	if len(args) > 0 && args[0] == "-n" {
		args, end = args[1:], ""
	}
	return 0, p.print(p.stdout, strings.Join(args, " ")+end)
}

// cat prints the files it is given, or its standard input.
func (p *process) cat(args []string) (int, error) {
	if len(args) == 0 {
		args = []string{"-"}
	}
	code := 0
	for _, name := range args {
		if name == "-" {
			if err := p.copyStdin(); err != nil {
				return 0, err
			}
			continue
		}
		text, found := readGuestFile(p.machine, name)
		if !found {
			var err error
			if code, err = p.complain("cat: can't open '%s': No such file or directory\n", name); err != nil {
				return 0, err
			}
			continue
		}
		if err := p.print(p.stdout, text); err != nil {
			return 0, err
		}
	}
	return code, nil
}

// copyStdin copies until the input or the command ends. A read cannot be called
// off, so it runs beside the command, and an input that can be closed is closed
// with it; whoever gives another kind must not let it block for ever.
func (p *process) copyStdin() error {
	if p.stdin == nil {
		return nil
	}
	var failed error
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, failed = io.Copy(p.stdout, p.stdin)
	}()
	select {
	case <-done:
		if cause := context.Cause(p.ctx); cause != nil {
			return cause
		}
		if failed != nil {
			return fmt.Errorf("copy the standard input: %w", failed)
		}
		return nil
	case <-p.ctx.Done():
		if c, ok := p.stdin.(io.Closer); ok {
			c.Close() // it only unblocks the reader; the command is over anyway
			<-done    // so that nothing reads or writes the streams after us
		}
		return context.Cause(p.ctx)
	}
}

// complain prints to standard error and fails with exit code 1.
func (p *process) complain(format string, args ...any) (int, error) {
	return 1, p.print(p.stderr, fmt.Sprintf(format, args...))
}

func (p *process) print(to io.Writer, text string) error {
	if _, err := io.WriteString(to, text); err != nil {
		if cause := context.Cause(p.ctx); cause != nil {
			return cause
		}
		return fmt.Errorf("write the output: %w", err)
	}
	return nil
}

// The files by which a machine and its template can be told from inside, as in
// a real guest.
const (
	cmdlineFile    = "/proc/cmdline"
	bootIDFile     = "/proc/sys/kernel/random/boot_id"
	metadataFolder = "/run/poolmgr/metadata/"
	labelsFolder   = "/run/poolmgr/labels/"
)

// readGuestFile finds a file's content. Of the real guest's other files nothing
// is known: they are there, and empty.
func readGuestFile(machine record, name string) (text string, found bool) {
	switch name {
	case cmdlineFile:
		return cmdline(machine.Spec.GetKernel().GetCmdline()), true
	case bootIDFile:
		return machine.bootID() + "\n", true
	}
	if file, ok := strings.CutPrefix(name, metadataFolder); ok {
		value, known := fact(machine.Spec.GetMetadata(), file)
		decoded, err := base64.StdEncoding.DecodeString(value)
		return string(decoded), known && err == nil
	}
	if file, ok := strings.CutPrefix(name, labelsFolder); ok {
		return fact(machine.Spec.GetLabels(), file)
	}
	return "", true
}

// fact finds the value whose key has this file name: percent-encoded where a
// character does not fit a file's name, as the real guest does it.
func fact(facts map[string]string, file string) (value string, known bool) {
	for key, value := range facts {
		if url.PathEscape(key) == file {
			return value, true // no two keys have one file name
		}
	}
	return "", false
}

// cmdline joins a template's kernel arguments, sorted by key; an empty value
// gives a word without "=".
func cmdline(entries map[string]string) string {
	words := make([]string, 0, len(entries))
	for _, key := range slices.Sorted(maps.Keys(entries)) {
		if value := entries[key]; value != "" {
			key += "=" + value
		}
		words = append(words, key)
	}
	return strings.Join(words, " ") + "\n"
}
