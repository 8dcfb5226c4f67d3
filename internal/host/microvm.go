package host

import (
	"encoding/base64"
	"maps"

	"google.golang.org/protobuf/proto"

	"poolmgr/api/flintlock/vmtypes"
	"poolmgr/internal/pool"
)

// SpecFor is the spec to create a VM from: a copy of the template with the VM's id and namespace, the owner mark in
// its metadata, and the guest agent switched on, without which a host answers no exec. The template is not changed.
func SpecFor(template *vmtypes.MicroVMSpec, id, namespace, owner string) *vmtypes.MicroVMSpec {
	spec := proto.CloneOf(template)
	spec.Id, spec.Namespace, spec.Uid = id, namespace, nil
	spec.AllowGuestAgent = true
	if spec.Metadata == nil {
		spec.Metadata = make(map[string]string, 1)
	}
	spec.Metadata[OwnerKey] = base64.StdEncoding.EncodeToString([]byte(owner))
	return spec
}

// VMOf reads what a host tells about a VM. An owner mark that is not base64 is not ours, and is read as none.
func VMOf(m *vmtypes.MicroVM) VM {
	spec, status := m.GetSpec(), m.GetStatus()
	vm := VM{
		UID:       spec.GetUid(),
		Namespace: spec.GetNamespace(),
		Name:      spec.GetId(),
		State:     State(status.GetState().String()),
	}
	if owner, err := base64.StdEncoding.DecodeString(spec.GetMetadata()[OwnerKey]); err == nil {
		vm.Owner = string(owner)
	}
	if reported := status.GetNetworkInterfaces(); len(reported) > 0 {
		vm.Interfaces = make(map[string]pool.Interface, len(reported))
		for device, nic := range reported {
			vm.Interfaces[device] = pool.Interface{
				HostDevice: nic.GetHostDeviceName(),
				Index:      nic.GetIndex(),
				MAC:        nic.GetMacAddress(),
			}
		}
	}
	return vm
}

// Clone returns a copy that shares nothing with v.
func (v VM) Clone() VM {
	v.Interfaces = maps.Clone(v.Interfaces)
	return v
}
