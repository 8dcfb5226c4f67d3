package wire

import (
	"encoding/json"
	"fmt"
	"time"
)

// Version is the version of the requests; a guest refuses any other.
const Version = 1

// PortName is the name of the virtio serial port that the agent listens on.
const PortName = "agent"

// Exit codes that the agent gives itself, as a shell does.
const (
	ExitSetupFailed = 126 // working directory, user or pipes could not be had
	ExitNotStarted  = 127 // the program was not found or could not be executed
	ExitSignalBase  = 128 // plus the number of the signal that killed it
)

// Op names what a request asks for.
type Op string

// The operations of the agent.
const (
	OpPing      Op = "ping"      // answers exit 0
	OpInfo      Op = "info"      // answers Info as FrameStdout, then exit 0
	OpConfigure Op = "configure" // applies Configure, answers exit 0
	OpExec      Op = "exec"      // runs a command
	OpKill      Op = "kill"      // kills a running command by its id
)

// Request is the first frame of every stream.
type Request struct {
	Version   int        `json:"version"`
	Op        Op         `json:"op"`
	Exec      *Exec      `json:"exec,omitempty"`
	Configure *Configure `json:"configure,omitempty"`
	Kill      *Kill      `json:"kill,omitempty"`
}

// Exec is a command to run.
type Exec struct {
	// ID names the command for OpKill; unique within a session.
	ID    string            `json:"id,omitempty"`
	Cmd   string            `json:"cmd"`
	Args  []string          `json:"args,omitempty"`
	Cwd   string            `json:"cwd,omitempty"`
	Env   map[string]string `json:"env,omitempty"`
	Shell bool              `json:"shell,omitempty"`
	User  string            `json:"user,omitempty"`
	// TimeoutSec is the limit in seconds, fractions allowed; 0 means none.
	TimeoutSec float64 `json:"timeout_sec,omitempty"`
	HasStdin   bool    `json:"has_stdin,omitempty"`
}

// Timeout returns the limit as a duration; 0 means none.
func (e *Exec) Timeout() time.Duration {
	return max(0, time.Duration(e.TimeoutSec*float64(time.Second)))
}

// Kill names a running command of the same session.
type Kill struct {
	ID string `json:"id"`
}

// Configure is what the host tells a guest at first contact, before the guest
// is offered to anybody. Applying it again is harmless.
type Configure struct {
	// Entropy is credited to the kernel's random generator, which is then
	// reseeded: machines that begin from one state would draw the same numbers.
	Entropy []byte `json:"entropy,omitempty"`
	// UnixNano is the host's wall clock; 0 leaves the guest's alone.
	UnixNano int64  `json:"unix_nano,omitempty"`
	Hostname string `json:"hostname,omitempty"`
	// Metadata and Labels become files, see the guest package.
	Metadata   map[string][]byte `json:"metadata,omitempty"`
	Labels     map[string]string `json:"labels,omitempty"`
	Interfaces []Interface       `json:"interfaces,omitempty"`
}

// Interface is a network interface that the guest finds by its MAC address,
// names, addresses and brings up.
type Interface struct {
	MAC  string `json:"mac"`
	Name string `json:"name,omitempty"`
	// Address is in CIDR form; empty leaves the interface without one.
	Address     string   `json:"address,omitempty"`
	Gateway     string   `json:"gateway,omitempty"`
	Nameservers []string `json:"nameservers,omitempty"`
}

// Info describes a running guest.
type Info struct {
	// BootID changes with every boot of the guest's kernel.
	BootID   string  `json:"boot_id"`
	Kernel   string  `json:"kernel"`
	Hostname string  `json:"hostname"`
	UptimeS  float64 `json:"uptime_s"`
}

// FailureCode tells the host's program, rather than its reader, what failed.
type FailureCode string

// The codes of a Failure.
const (
	FailureTimeout     FailureCode = "timeout"     // the command's limit passed; it was killed
	FailureKilled      FailureCode = "killed"      // killed by OpKill
	FailureBadRequest  FailureCode = "bad_request" // the request was not understood
	FailureBusy        FailureCode = "busy"        // too many commands at once
	FailureUnavailable FailureCode = "unavailable" // the operation could not be carried out
)

// Failure is the payload of a FrameError.
type Failure struct {
	Code    FailureCode `json:"code"`
	Message string      `json:"message"`
}

// Error makes a Failure an error.
func (f *Failure) Error() string { return fmt.Sprintf("guest agent: %s: %s", f.Code, f.Message) }

// WriteRequest writes the frame that opens a stream.
func (f *FrameWriter) WriteRequest(req Request) error {
	req.Version = Version
	payload, err := json.Marshal(req)
	if err != nil {
		return fmt.Errorf("encode %s request: %w", req.Op, err)
	}
	return f.WriteFrame(FrameRequest, payload)
}

// WriteFailure writes the frame that ends a stream with an error.
func (f *FrameWriter) WriteFailure(code FailureCode, message string) error {
	payload, err := json.Marshal(Failure{Code: code, Message: message})
	if err != nil {
		return fmt.Errorf("encode failure: %w", err)
	}
	return f.WriteFrame(FrameError, payload)
}

// DecodeRequest decodes and checks the payload of a FrameRequest.
func DecodeRequest(payload []byte) (Request, error) {
	var req Request
	if err := json.Unmarshal(payload, &req); err != nil {
		return Request{}, fmt.Errorf("decode request: %w: %w", ErrBadRequest, err)
	}
	if req.Version != Version {
		return Request{}, fmt.Errorf("request version %d, this agent speaks %d: %w", req.Version, Version, ErrBadRequest)
	}
	missing := (req.Op == OpExec && req.Exec == nil) || (req.Op == OpConfigure && req.Configure == nil) ||
		(req.Op == OpKill && req.Kill == nil)
	if missing {
		return Request{}, fmt.Errorf("request %q without its part: %w", req.Op, ErrBadRequest)
	}
	if req.Op == OpExec && req.Exec.Cmd == "" {
		return Request{}, fmt.Errorf("exec without a command: %w", ErrBadRequest)
	}
	return req, nil
}

// DecodeFailure decodes the payload of a FrameError; it never fails, so that
// whatever a guest wrote reaches the reader.
func DecodeFailure(payload []byte) *Failure {
	var f Failure
	if err := json.Unmarshal(payload, &f); err != nil || f.Code == "" {
		return &Failure{Code: FailureUnavailable, Message: fmt.Sprintf("%.200q", payload)}
	}
	return &f
}
