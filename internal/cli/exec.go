package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"

	"poolmgr/client"
)

// releaseTimeout bounds giving a VM back when its command has ended.
const releaseTimeout = 15 * time.Second

// oneBeforeDash demands one argument, then -- and a command: without the dash, a flag of the command would be taken
// for one of ours.
func oneBeforeDash(name string) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if c.ArgsLenAtDash() == 1 && len(args) > 1 {
			return nil
		}
		return fmt.Errorf("%s takes %s, then -- and the command: %s %s -- uname -a", c.CommandPath(), name, c.CommandPath(), name)
	}
}

// command is what to run inside a VM, on this process's own streams.
func (a *app) command(words []string) client.Command {
	return client.Command{Name: words[0], Args: words[1:], Stdin: a.in, Stdout: a.out, Stderr: a.err}
}

func (a *app) leaseExec() *cobra.Command {
	return &cobra.Command{
		Use: "exec LEASE -- CMD ARGS...", Short: "Run a command inside a leased VM", Args: oneBeforeDash("LEASE"),
		Long: "Stdin, stdout, stderr and the exit code pass through. The lease is not extended meanwhile.\n" +
			"The command is no shell's: for pipes and variables write -- sh -c '...'.",
		RunE: func(c *cobra.Command, args []string) error {
			conn, err := a.client()
			if err != nil {
				return err
			}
			code, err := conn.Exec(c.Context(), args[0], a.command(args[1:]))
			return ended(code, err)
		},
	}
}

// ended turns the end of a command inside a VM into that of this process.
func ended(code int, err error) error {
	if err == nil && code != 0 {
		return exitError{code}
	}
	return err
}

func (a *app) leaseRun() *cobra.Command {
	c := &cobra.Command{
		Use: "run POOL -- CMD ARGS...", Short: "Claim a VM, run a command inside it, give it back", Args: oneBeforeDash("POOL"),
		Long: "The lease is extended while the command runs, and released at its end, also after SIGINT or SIGTERM.\n" +
			"The exit code is the command's.",
		ValidArgsFunction: a.completePools,
	}
	var flags claimFlags
	flags.add(c)
	c.RunE = func(c *cobra.Command, args []string) error {
		lease, err := a.claim(c.Context(), flags.options(a, args[0]))
		if err != nil {
			return err
		}
		code, err := lease.Exec(c.Context(), a.command(args[1:]))
		if errors.Is(err, client.ErrLost) {
			return failf(codes.Aborted, "%w while the command ran", client.ErrLost)
		}
		if given := a.giveBack(c.Context(), lease); given != nil {
			a.note("poolmgrctl: the VM could not be given back and goes when its lease expires: %v", given)
			if err == nil && code == 0 {
				return given
			}
		}
		return ended(code, err)
	}
	return c
}

// giveBack releases a lease, also when a signal has ended ctx.
func (a *app) giveBack(ctx context.Context, lease *client.Lease) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTimeout)
	defer cancel()
	err := lease.Release(ctx)
	if errors.Is(err, client.ErrLost) {
		return nil // the VM is gone already
	}
	return err
}
