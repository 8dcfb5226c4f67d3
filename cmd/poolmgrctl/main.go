// Command poolmgrctl is the command line of poolmgr. Its commands are in internal/cli; here is only its start.
package main

import (
	"os"

	"poolmgr/internal/cli"
)

// Set by the linker.
var (
	version = "dev"
	commit  = "unknown"
)

func main() { os.Exit(cli.Main(cli.Build{Version: version, Commit: commit})) }
