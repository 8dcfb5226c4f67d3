package flintlockapi

import (
	"strconv"

	"google.golang.org/grpc/metadata"
)

// The header of a listing tells what the host takes. flintlock's API has no
// call for that, and a client that does not know the header loses nothing. The
// client's side of these names is in internal/host/flintlock.
const (
	headerMinVMMemoryMB = "microvmd-min-vm-memory-mb"
	headerMaxVMs        = "microvmd-max-vms"
	headerMemoryMB      = "microvmd-memory-mb"
)

// limits is the host's limits as a header; 0 stands for none.
func (o Options) limits() metadata.MD {
	return metadata.Pairs(
		headerMinVMMemoryMB, strconv.Itoa(o.MinMemoryMB),
		headerMaxVMs, strconv.Itoa(o.HostMaxVMs),
		headerMemoryMB, strconv.Itoa(o.HostMemoryMB),
	)
}
