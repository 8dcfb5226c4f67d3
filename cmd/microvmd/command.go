package main

import (
	"errors"
	"fmt"
	"io"
	"log/slog"

	"github.com/spf13/cobra"

	"poolmgr/internal/microvm/hostd"
)

// errUsage: the command line itself is wrong.
var errUsage = errors.New("wrong usage")

const longHelp = `microvmd runs microVMs on this machine and serves flintlock's gRPC API for them.

The VMs outlive it: started again on the same --state-dir it finds them, and goes
on with boots and deletions that were under way. SIGTERM stops it gently.`

// newCommand makes the command line; logs go to the writer.
func newCommand(logs io.Writer) *cobra.Command {
	d := Daemon{Options: hostd.DefaultOptions()}
	level := "info"
	cmd := &cobra.Command{
		Use:           "microvmd --backend qemu|simulated [flags]",
		Short:         "Run microVMs and serve flintlock's API for them",
		Long:          longHelp,
		Version:       fmt.Sprintf("%s (%s)", version, commit),
		SilenceUsage:  true,
		SilenceErrors: true,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return fmt.Errorf("%w: microvmd takes flags only, not %q", errUsage, args[0])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			logger, err := newLogger(logs, level)
			if err != nil {
				return err
			}
			d.Logger = logger
			return d.Run(cmd.Context())
		},
	}
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error {
		return fmt.Errorf("%w: %w (see microvmd --help)", errUsage, err)
	})
	cmd.CompletionOptions.DisableDefaultCmd = true
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVar(&d.Listen, "listen", "127.0.0.1:9090", "address to serve on")
	flags.BoolVar(&d.Insecure, "insecure", false, "serve on an address that other machines reach, without TLS")
	flags.StringVar(&level, "log-level", level, "debug, info, warn or error")
	d.Options.AddFlags(flags, "")
	return cmd
}

func newLogger(to io.Writer, level string) (*slog.Logger, error) {
	var l slog.Level
	if err := l.UnmarshalText([]byte(level)); err != nil {
		return nil, fmt.Errorf("%w: --log-level is %q; it must be debug, info, warn or error", errUsage, level)
	}
	return slog.New(slog.NewTextHandler(to, &slog.HandlerOptions{Level: l})), nil
}
