package simulated

import (
	"context"
	"crypto/sha256"
	"fmt"
	"net"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"poolmgr/api/flintlock/vmtypes"
)

// fate is how a machine's boot ends; it is decided at create and stored.
type fate string

const (
	fateUp   fate = "up"   // the guest answers
	fateFail fate = "fail" // the host itself sees that the boot failed
	fateDead fate = "dead" // CREATED by the host's word, but the guest never answers
)

// record is what is known of a machine for good. All that will happen to it by
// itself is written down as instants when it is decided, so the machine's
// state is a function of the record and the time: a restart has nothing to
// resume, and a daemon that was away misses nothing.
type record struct {
	UID       string
	Attempt   int // how often the machine's name was created before, on this host
	Fate      fate
	CreatedAt time.Time
	BootAt    time.Time // when the boot ends, one way or the other
	VanishAt  time.Time // zero: never
	DeletedAt time.Time // when the deletion was asked for; zero: not
	GoneAt    time.Time // when that deletion ends
	Spec      *vmtypes.MicroVMSpec
}

// subject names the machine in random decisions: by the caller's own ids.
func (r record) subject() string { return subjectOf(r.Spec) }

// life names this one life of a machine's name, for decisions that are made
// again and again during it.
func (r record) life() string { return fmt.Sprintf("%s#%d", r.subject(), r.Attempt) }

func subjectOf(spec *vmtypes.MicroVMSpec) string {
	return spec.GetNamespace() + "/" + spec.GetId()
}

// end is the first instant at which the machine is not there any more, or zero.
func (r record) end() time.Time {
	if r.VanishAt.IsZero() || (!r.GoneAt.IsZero() && r.GoneAt.Before(r.VanishAt)) {
		return r.GoneAt
	}
	return r.VanishAt
}

// gone is the one rule for absence: at its end a machine is gone.
func (r record) gone(now time.Time) bool {
	end := r.end()
	return !end.IsZero() && !now.Before(end)
}

func (r record) state(now time.Time) vmtypes.MicroVMStatus_MicroVMState {
	switch {
	case !r.DeletedAt.IsZero():
		return vmtypes.MicroVMStatus_DELETING
	case now.Before(r.BootAt):
		return vmtypes.MicroVMStatus_PENDING
	case r.Fate == fateFail:
		return vmtypes.MicroVMStatus_FAILED
	default:
		return vmtypes.MicroVMStatus_CREATED
	}
}

// answers says whether commands can be run in the guest.
func (r record) answers(now time.Time) bool {
	return r.Fate == fateUp && r.state(now) == vmtypes.MicroVMStatus_CREATED
}

// describe is the machine as the API shows it; the message is the caller's own.
func (r record) describe(now time.Time) *vmtypes.MicroVM {
	spec := proto.CloneOf(r.Spec)
	spec.Uid = &r.UID
	spec.CreatedAt = timestamppb.New(r.CreatedAt)
	spec.UpdatedAt = timestamppb.New(r.CreatedAt)
	if !now.Before(r.BootAt) {
		spec.UpdatedAt = timestamppb.New(r.BootAt)
	}
	if !r.DeletedAt.IsZero() {
		spec.DeletedAt = timestamppb.New(r.DeletedAt)
		spec.UpdatedAt = timestamppb.New(r.DeletedAt)
	}
	status := &vmtypes.MicroVMStatus{State: r.state(now)}
	if status.State == vmtypes.MicroVMStatus_CREATED {
		status.NetworkInterfaces = r.interfaces()
	}
	return &vmtypes.MicroVM{Version: 1, Spec: spec, Status: status}
}

// interfaces gives every interface the address its template asks for, or one
// of its own: guests of one template must not share an address on a bridge.
func (r record) interfaces() map[string]*vmtypes.NetworkInterfaceStatus {
	found := make(map[string]*vmtypes.NetworkInterfaceStatus, len(r.Spec.GetInterfaces()))
	for i, nic := range r.Spec.GetInterfaces() {
		id := sha256.Sum256([]byte(r.UID + "/" + nic.GetDeviceId()))
		mac := nic.GetGuestMac()
		if mac == "" {
			// 02: locally administered, unicast.
			mac = net.HardwareAddr{0x02, id[0], id[1], id[2], id[3], id[4]}.String()
		}
		found[nic.GetDeviceId()] = &vmtypes.NetworkInterfaceStatus{
			HostDeviceName: fmt.Sprintf("sim%x", id[5:10]),
			Index:          int32(i + 1),
			MacAddress:     mac,
		}
	}
	return found
}

// bootID is the guest kernel's, in the form of a UUID. A simulated machine boots
// once, so it belongs to the uid.
func (r record) bootID() string {
	id := sha256.Sum256([]byte(r.UID + "/boot"))
	return fmt.Sprintf("%x-%x-%x-%x-%x", id[0:4], id[4:6], id[6:8], id[8:10], id[10:16])
}

// machine is a record with what only this process needs.
type machine struct {
	// file orders the writes of the machine's state file. It is held across
	// them, and never taken while the backend's mutex is held.
	file sync.Mutex

	// The backend's mutex guards what follows; the record is written with file
	// held as well, so that either of the two is enough to read it.
	record
	deletes int            // how often its deletion was asked for here
	execs   map[string]int // how often each command line was run here

	// alive ends, with the reason as its cause, when the guest stops answering.
	alive context.Context
	kill  context.CancelCauseFunc
}

// maxCountedLines bounds the command lines that a machine counts apart.
const maxCountedLines = 1024

// countExecLocked is the number of earlier runs of this command line.
func (m *machine) countExecLocked(line string) int {
	if _, known := m.execs[line]; !known && len(m.execs) >= maxCountedLines {
		clear(m.execs)
	}
	n := m.execs[line]
	m.execs[line] = n + 1
	return n
}
