package pool

import "time"

// Host is a machine that runs microVMs and speaks flintlock's API.
type Host struct {
	Name    string
	Address string // host:port of its gRPC API
	TLS     HostTLS

	Cordoned       bool // no new VMs are placed here
	CordonedReason string
	CordonedAt     time.Time

	MaxVMs        int // rows of any phase it may carry; 0 = not limited by us
	MemoryMB      int // memory for VMs; 0 = not limited by us
	MinVMMemoryMB int // smallest VM the host accepts; 0 = flintlock's 1024

	// Reachable and Message are what the last calls to the host told. A new host counts as reachable.
	Reachable bool
	Message   string
	ChangedAt time.Time // when Reachable last changed

	UpdatedAt time.Time
	Version   int64
}

// HostTLS says how to talk to a host's API. The zero value means TLS with the system's roots.
type HostTLS struct {
	Insecure bool
	CAFile   string
	CertFile string
	KeyFile  string
}

// HostLoad is a host with what stands on it, over all pools: what placement decides from.
type HostLoad struct {
	Host
	Rows     int // rows of any phase, DELETING included: they take capacity until they are confirmed gone
	Live     int // the same without DELETING rows: what spread is judged by
	MemoryMB int // memory of all rows
	Starts   int // starts in flight: placed and not yet answered from inside
}

// ValidHostName reports whether a host may be called so: up to 63 lower-case letters, digits and '-', beginning and
// ending with a letter or digit.
func ValidHostName(name string) bool {
	return len(name) <= MaxNamespaceLen && labelPattern.MatchString(name)
}
