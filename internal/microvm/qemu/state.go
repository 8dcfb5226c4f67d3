package qemu

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"poolmgr/api/flintlock/vmtypes"
)

// stateVersion is the version of state files; a backend refuses newer ones.
const stateVersion = 1

const stateFile = "state.json"

// phase is how far a machine is. It only goes forward.
type phase string

const (
	phasePending  phase = "pending"  // to be booted, or booting
	phaseCreated  phase = "created"  // its guest has answered
	phaseFailed   phase = "failed"   // it did not boot, or has stopped since
	phaseDeleting phase = "deleting" // to be removed
)

var wireState = map[phase]vmtypes.MicroVMStatus_MicroVMState{
	phasePending:  vmtypes.MicroVMStatus_PENDING,
	phaseCreated:  vmtypes.MicroVMStatus_CREATED,
	phaseFailed:   vmtypes.MicroVMStatus_FAILED,
	phaseDeleting: vmtypes.MicroVMStatus_DELETING,
}

// record is what is remembered of a machine. It is replaced, never changed.
type record struct {
	uid      string
	spec     *vmtypes.MicroVMSpec
	phase    phase
	message  string // why it failed
	attempts int    // boots that were begun
}

// recordJSON is a record's form in its file.
type recordJSON struct {
	Version  int             `json:"version"`
	UID      string          `json:"uid"`
	Phase    phase           `json:"phase"`
	Message  string          `json:"message,omitempty"`
	Attempts int             `json:"attempts,omitempty"`
	Spec     json.RawMessage `json:"spec"`
}

func (r record) marshal() ([]byte, error) {
	spec, err := protojson.Marshal(r.spec)
	if err != nil {
		return nil, err
	}
	return json.MarshalIndent(recordJSON{stateVersion, r.uid, r.phase, r.message, r.attempts, spec}, "", "  ")
}

func parseRecord(data []byte) (record, error) {
	var j recordJSON
	if err := json.Unmarshal(data, &j); err != nil {
		return record{}, err
	}
	if j.Version != stateVersion {
		return record{}, fmt.Errorf("it has version %d, this backend knows %d", j.Version, stateVersion)
	}
	if _, ok := wireState[j.Phase]; !ok || j.UID == "" {
		return record{}, fmt.Errorf("uid %q with phase %q makes no sense", j.UID, j.Phase)
	}
	spec := &vmtypes.MicroVMSpec{}
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(j.Spec, spec); err != nil {
		return record{}, err
	}
	return record{uid: j.UID, spec: spec, phase: j.Phase, message: j.Message, attempts: j.Attempts}, nil
}

// message is the API's form of a record, a copy.
func (r record) toAPI() *vmtypes.MicroVM {
	status := &vmtypes.MicroVMStatus{
		State: wireState[r.phase],
		Retry: int32(max(0, r.attempts-1)),
	}
	for i, nic := range r.spec.GetInterfaces() {
		if status.NetworkInterfaces == nil {
			status.NetworkInterfaces = map[string]*vmtypes.NetworkInterfaceStatus{}
		}
		status.NetworkInterfaces[nic.GetDeviceId()] = &vmtypes.NetworkInterfaceStatus{
			HostDeviceName: fmt.Sprintf("user%d", i), // QEMU's user network has no device on the host
			Index:          int32(i),
			MacAddress:     macOf(r.uid, nic),
		}
	}
	return &vmtypes.MicroVM{Version: 1, Spec: proto.CloneOf(r.spec), Status: status}
}

// writeFile writes a file that is whole or absent, also after a power failure.
func writeFile(path string, data []byte) error {
	dir := filepath.Dir(path)
	tmp, err := os.CreateTemp(dir, ".new-*")
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	_, err = tmp.Write(data)
	err = errors.Join(err, tmp.Sync(), tmp.Close())
	if err == nil {
		err = os.Rename(tmp.Name(), path)
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", path, errors.Join(err, os.Remove(tmp.Name())))
	}
	return syncDir(dir)
}

// syncDir makes the names in a folder durable.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("sync %s: %w", dir, err)
	}
	defer d.Close()
	if err := d.Sync(); err != nil {
		return fmt.Errorf("sync %s: %w", dir, err)
	}
	return nil
}
