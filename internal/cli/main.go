package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync"
	"syscall"
)

// Build says which build of the program this is.
type Build struct {
	Version, Commit string
}

// streams is what a run of the program is connected to.
type streams struct {
	in       io.Reader
	out, err io.Writer
	terminal bool // err is a terminal, so that lines may be drawn over
}

// Main runs poolmgrctl with the process's own arguments and streams, and returns its exit code.
func Main(build Build) int {
	ctx, stop := untilSignal(context.Background())
	defer stop()
	info, err := os.Stderr.Stat()
	terminal := err == nil && info.Mode()&os.ModeCharDevice != 0 && os.Getenv("TERM") != "dumb"
	s := streams{in: os.Stdin, out: os.Stdout, err: os.Stderr, terminal: terminal}
	return run(ctx, s, os.Getenv, build, os.Args[1:])
}

// run is one run of the program.
func run(ctx context.Context, s streams, getenv func(string) string, build Build, args []string) int {
	a := &app{streams: s, build: build}
	defer a.close()
	root := a.root(getenv)
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	if err != nil && !a.began {
		err = usageError{err} // cobra's own: flags, arguments, unknown commands
	}
	code, text := a.verdict(ctx, err)
	if text != "" {
		fmt.Fprintln(s.err, "poolmgrctl: "+text)
	}
	return code
}

// interrupted is the cause of a context that a signal ended.
type interrupted struct{ signal syscall.Signal }

func (i interrupted) Error() string { return "stopped by signal: " + i.signal.String() }

// untilSignal returns a context that the first SIGINT or SIGTERM ends, so that what was begun is put in order. The
// second one ends the process at once.
func untilSignal(parent context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(parent)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	var waiter sync.WaitGroup
	waiter.Go(func() {
		select {
		case got := <-signals:
			signal.Stop(signals)
			number, _ := got.(syscall.Signal)
			cancel(interrupted{number})
		case <-ctx.Done():
			signal.Stop(signals)
		}
	})
	return ctx, func() {
		cancel(nil)
		waiter.Wait()
	}
}
