package flintlock

import (
	"math"
	"strconv"

	"google.golang.org/grpc/metadata"

	"poolmgr/internal/host"
)

// readLimits reads what the header of a listing tells of the host's limits. microvmd tells them
// (internal/microvm/flintlockapi has its side of the names); what is missing or makes no sense counts as not told.
func readLimits(header metadata.MD) host.Limits {
	return host.Limits{
		MaxVMs:        readLimit(header, "microvmd-max-vms"),
		MemoryMB:      readLimit(header, "microvmd-memory-mb"),
		MinVMMemoryMB: readLimit(header, "microvmd-min-vm-memory-mb"),
	}
}

func readLimit(header metadata.MD, key string) int {
	values := header.Get(key)
	if len(values) == 0 {
		return 0
	}
	n, err := strconv.Atoi(values[0])
	if err != nil || n < 0 || n > math.MaxInt32 {
		return 0
	}
	return n
}
