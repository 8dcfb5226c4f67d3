package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"

	"github.com/spf13/cobra"

	"poolmgr/internal/microvm/hostd"
)

// program is the command line with everything that it touches.
type program struct {
	environ func(string) (string, bool)
	stdout  io.Writer
	stderr  io.Writer
	run     func(context.Context, Config, *slog.Logger) error
}

func runDaemon(ctx context.Context, cfg Config, log *slog.Logger) error {
	return (&Daemon{Config: cfg, Logger: log}).Run(ctx)
}

// errUsage marks faults of flags and configuration: exit code 2.
type errUsage struct{ error }

func (e errUsage) Unwrap() error { return e.error }

// main runs the program and returns its exit code: 0, 1 for failures, 2 for faults of flags and configuration. Each fault
// is one line.
func (p program) main(ctx context.Context, args []string) int {
	cmd := p.command()
	cmd.SetArgs(args)
	err := cmd.ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	for line := range strings.Lines(err.Error()) {
		fmt.Fprintln(p.stderr, "poolmgrd: "+strings.TrimRight(line, "\n"))
	}
	if errors.As(err, new(errUsage)) || errors.Is(err, hostd.ErrOptions) {
		return 2
	}
	return 1
}

func (p program) command() *cobra.Command {
	var cfg Config
	cmd := &cobra.Command{
		Use:   "poolmgrd",
		Short: "Keep pools of booted microVMs and hand them out on leases",
		Long: "Keeps pools of booted microVMs and hands them out on leases.\n\n" +
			"Every flag is also an environment variable (named beside it) and a key of the YAML file, with underscores\n" +
			"(embedded_host: simulated). A flag beats the environment, which beats the file.",
		Version:           version + " (commit " + commit + ")",
		SilenceUsage:      true,
		SilenceErrors:     true,
		CompletionOptions: cobra.CompletionOptions{DisableDefaultCmd: true},
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return errUsage{fmt.Errorf("unexpected argument %q; see poolmgrd --help", args[0])}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := errors.Join(fill(cmd.Flags(), p.environ), cfg.check()); err != nil {
				return errUsage{err}
			}
			return p.run(cmd.Context(), cfg, cfg.logger(p.stderr))
		},
	}
	cmd.SetOut(p.stdout)
	cmd.SetErr(p.stderr)
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error {
		return errUsage{fmt.Errorf("%w; see poolmgrd --help", err)}
	})
	cfg.flags(cmd.Flags())
	return cmd
}
