package arch

// room is one line of the table of rooms in docs/architecture.md. Patterns are paths under the module; one that ends
// in "/..." means the package and everything below it. The longest pattern that matches a package is its room.
type room struct {
	pattern  string
	may      []string // packages of this module it may import, its own subtree not included
	external []string // prefixes of packages outside the standard library; nil = any, none = {}
	why      string
}

var none = []string{}

var rpc = []string{"google.golang.org/grpc", "google.golang.org/protobuf"}

// rooms: arrows only point down, cmd -> server, web, cli -> reconcile, lease -> plan, store, host -> pool -> api.
var rooms = []room{
	{"api/...", none, rpc, "the public contract depends on nothing of ours, or clients would"},
	{"client/...", []string{"api/..."}, nil, "users import the SDK: it must not pull the daemon in"},
	{"cmd/poolmgrd/...", []string{"api/...", "client/...", "internal/..."}, nil, "the daemon wires everything"},
	{"cmd/poolmgrctl/...", []string{"internal/cli", "client/...", "api/..."}, nil, "the CLI sees only what any client sees"},
	{"cmd/microvmd/...", []string{"internal/microvm/...", "api/..."}, nil, "a host knows nothing of pools"},
	{"cmd/poolmgr-guest/...", []string{"internal/microvm/guest/..."}, nil, "it is copied into every VM and must stay small"},

	{"internal/pool", []string{"api/..."}, []string{"google.golang.org/protobuf"}, "the nouns and rules stand below everything"},
	{"internal/plan", []string{"internal/pool"}, none, "the planner is a pure function of values"},

	{"internal/store", []string{"internal/pool"}, none, "the contract names no database"},
	{"internal/store/engine", []string{"internal/pool", "internal/store"}, none, "the verbs are the same whatever keeps the rows"},
	{"internal/store/memory", []string{"internal/pool", "internal/store", "internal/store/engine"}, none, "tests use it everywhere"},
	{"internal/store/sqlite", []string{"api/...", "internal/pool", "internal/store", "internal/store/engine"}, nil, "rows in and out; api for the stored template"},
	{"internal/store/storetest", []string{"api/...", "internal/pool", "internal/store"}, nil, "the suite sees only the contract"},

	{"internal/host", []string{"api/...", "internal/pool"}, []string{"google.golang.org/protobuf"}, "the contract names no transport"},
	{"internal/host/...", []string{"api/...", "internal/pool", "internal/host"}, nil, "drivers know hosts, not what is decided about them"},

	{"internal/reconcile", []string{"internal/pool", "internal/plan", "internal/store", "internal/host", "api/flintlock/vmtypes"}, nil, "the active part acts on contracts, never on one database or host"},
	{"internal/lease", []string{"internal/pool", "internal/store", "internal/host"}, none, "claims neither plan nor wait for a pass"},

	{"internal/server", []string{"api/...", "internal/pool", "internal/plan", "internal/store", "internal/host", "internal/lease", "internal/reconcile"}, nil, "decode, authorise, call, encode"},
	{"internal/web", []string{"api/..."}, nil, "the dashboard shows what the API tells"},
	{"internal/cli", []string{"client/...", "api/..."}, nil, "the CLI sees only what any client sees"},

	{"internal/microvm/...", []string{"api/...", "internal/microvm/..."}, nil, "a host daemon runs without poolmgr, and never knows pools"},
	{"internal/microvm/guest/...", none, nil, "it runs inside the VM and must stay small"},

	{"internal/sim", []string{"api/...", "internal/pool", "internal/plan", "internal/store/...", "internal/host/...", "internal/reconcile", "internal/lease"}, nil, "all but server, web and cli"},
	{"internal/arch", none, none, "rules depend on nothing they judge"},
	{"test/...", []string{"client/...", "api/..."}, nil, "end to end means from outside"},
}

// goroutines says where goroutines may start: who starts one owns it and waits for it.
var goroutines = []struct{ pattern, why string }{
	{"cmd/...", "daemons run their parts"},
	{"internal/reconcile", "workers of passes and VMs"},
	{"internal/server", "listeners and streams"},
	{"internal/microvm/...", "a host daemon serves, boots and watches machines"},
	{"internal/host/flintlock", "both directions of an exec stream"},
	{"internal/host/fake", "plays the part of a machine with a life of its own"},
	{"client/...", "heartbeats of a lease, both directions of an exec stream"},
	{"internal/cli", "a command that heartbeats while another runs"},
	{"internal/sim", "clients of the simulated world"},
	{"internal/store/sqlite", "checkpoints while nobody commits"},
	{"internal/store/storetest", "a test suite that races callers"},
	{"internal/host/hosttest", "a test suite that races callers"},
	{"test/...", "tests"},
}

// pure lists what packages of pure functions may not touch, so that the same values always give the same answer.
var pure = []struct {
	pattern string
	imports []string // forbidden packages
	why     string
}{
	{"internal/plan", []string{"context", "crypto/rand", "io", "log", "log/slog", "math/rand", "math/rand/v2", "net", "os", "sync", "sync/atomic"}, "what is decided must depend on the world and the instant alone"},
	{"internal/pool", []string{"context", "crypto/rand", "log", "log/slog", "math/rand", "math/rand/v2", "os", "sync", "sync/atomic"}, "rules are functions of values; instants and ids are given to them"},
}

// clocks are the functions of package time that read the clock or wait for it.
var clocks = []string{"After", "AfterFunc", "NewTicker", "NewTimer", "Now", "Since", "Sleep", "Tick", "Until"}

// vagueNames say nothing about what is inside a package.
var vagueNames = []string{"base", "common", "helper", "helpers", "lib", "manager", "misc", "shared", "types", "util", "utils"}

// Lengths beyond these have usually swallowed a policy that deserves a place of its own.
const (
	maxFunctionLines = 70
	maxFileLines     = 400
	maxTestFileLines = 600
)
