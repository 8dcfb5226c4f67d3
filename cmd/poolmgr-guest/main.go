// Command poolmgr-guest is the first process of a microVM and the agent in it.
// It is built static and goes into the initramfs; on a host it does nothing.
package main

import (
	"os"

	"poolmgr/internal/microvm/guest"
)

func main() { os.Exit(guest.Main()) }
