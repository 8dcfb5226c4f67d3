package simulated

import (
	"errors"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// errCreateFails is the answer of a create that was chosen to fail. It is a
// plain error: real hosts give no code for their inner troubles either.
var errCreateFails = errors.New("simulated failure of create: nothing was made")

// lostReply is the answer of a call that was done and whose reply got lost. It
// brings its gRPC status along, since the caller must see what a broken
// connection looks like, not an answer of the host.
type lostReply struct{ call string }

func (e lostReply) Error() string { return "simulated loss of the reply to " + e.call }

// GRPCStatus is looked for by the served API.
func (e lostReply) GRPCStatus() *status.Status { return status.New(codes.Unavailable, e.Error()) }
