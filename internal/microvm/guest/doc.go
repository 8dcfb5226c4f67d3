// Package guest is what runs inside a microVM: the first process (mounts,
// kernel modules, reaping of orphans) and the agent that answers the host over
// a virtio serial port.
//
// It becomes a small static binary, so it imports little. What the host tells
// a guest ends up in files that any program can read:
//
//	/run/poolmgr/metadata/<key>   one metadata value, decoded
//	/run/poolmgr/labels/<key>     one label
//	/run/poolmgr/metadata.json    all metadata, values in base64
//	/run/poolmgr/labels.json      all labels
//
// A key's characters that do not fit a file name are percent-encoded as in the
// path of a URL: "team/name" is the file "team%2Fname".
package guest

import "errors"

// Errors of the guest.
var (
	// ErrHostGone is returned by a Port's Read once per host that went away.
	ErrHostGone = errors.New("no host is connected to the port")
	// errSessionOver refuses writes of a session whose host is gone.
	errSessionOver = errors.New("session is over")
	// errNoPort: the machine has no port with the agent's name.
	errNoPort = errors.New("no virtio port of that name")
)
