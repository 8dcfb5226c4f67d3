// Command poolmgrd is the daemon: it keeps pools of booted microVMs on a fleet of hosts and hands them out on leases.
// This package is wiring: flags and configuration, the parts, their start and their end.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

// version and commit are set by the linker.
var (
	version = "dev"
	commit  = "unknown"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	os.Exit(program{environ: os.LookupEnv, stdout: os.Stdout, stderr: os.Stderr, run: runDaemon}.main(ctx, os.Args[1:]))
}
