package server

import (
	"encoding/json"
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"poolmgr/api/flintlock/vmtypes"
	pb "poolmgr/api/poolmgr/v1alpha1"
	"poolmgr/internal/pool"
	"poolmgr/internal/store"
)

// stamp leaves the zero time unset.
func stamp(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}

func encodeVM(v pool.VM) *pb.VMRecord {
	out := &pb.VMRecord{
		Uid: v.UID, PoolName: v.Pool.Name, PoolNamespace: v.Pool.Namespace, FlintlockHost: v.Host,
		Phase:     pb.VMPhase(pb.VMPhase_value[string(v.Phase)]),
		CreatedAt: stamp(v.CreatedAt), UpdatedAt: stamp(v.UpdatedAt), AvailableAt: stamp(v.AvailableAt),
		TemplateHash: v.TemplateHash, Id: v.ID, Name: v.ID, Slot: v.Slot, Revision: v.Revision, Reason: string(v.Reason),
		Message: v.Message, Attempt: int32(v.Attempt), Health: string(v.Health),
	}
	if v.LeaseID != "" {
		out.LeaseId = &v.LeaseID
	}
	return out
}

func encodeLease(l store.LeaseView) *pb.LeaseRecord {
	return &pb.LeaseRecord{
		LeaseId: l.Lease.ID, VmUid: l.UID, PoolName: l.Lease.Pool.Name, PoolNamespace: l.Lease.Pool.Namespace,
		ClaimedAt: stamp(l.Lease.ClaimedAt), LastHeartbeatAt: stamp(l.Lease.LastHeartbeatAt),
		ExpiresAt: stamp(l.Lease.ExpiresAt), RequestId: l.Lease.RequestID, Consumer: l.Lease.Consumer, VmId: l.Lease.VM,
	}
}

func encodeEvent(e pool.Event) (*pb.Event, error) {
	payload := []byte("{}")
	if len(e.Payload) > 0 {
		var err error
		if payload, err = json.Marshal(e.Payload); err != nil {
			return nil, fmt.Errorf("encode the payload of event %d: %w", e.ID, err)
		}
	}
	return &pb.Event{
		Id: e.ID, PoolName: e.Pool.Name, PoolNamespace: e.Pool.Namespace, VmUid: e.UID,
		Type: pb.EventType(pb.EventType_value[string(e.Type)]), CreatedAt: stamp(e.At), PayloadJson: string(payload),
	}, nil
}

func encodeInterfaces(in map[string]pool.Interface) map[string]*vmtypes.NetworkInterfaceStatus {
	out := make(map[string]*vmtypes.NetworkInterfaceStatus, len(in))
	for id, i := range in {
		out[id] = &vmtypes.NetworkInterfaceStatus{HostDeviceName: i.HostDevice, Index: i.Index, MacAddress: i.MAC}
	}
	return out
}

func encodeHost(h pool.Host) *pb.Host {
	return &pb.Host{
		Name: h.Name, Address: h.Address, Cordoned: h.Cordoned, CordonedReason: h.CordonedReason,
		CordonedAt: stamp(h.CordonedAt), UpdatedAt: stamp(h.UpdatedAt),
		Tls: &pb.HostTLS{
			Insecure: h.TLS.Insecure, CaFile: h.TLS.CAFile, CertFile: h.TLS.CertFile, KeyFile: h.TLS.KeyFile,
		},
	}
}

func encodeHostStatus(h pool.HostLoad) *pb.HostStatus {
	return &pb.HostStatus{
		Host: encodeHost(h.Host), VmCount: int32(h.Rows), Reachable: h.Reachable, Message: h.Message,
		MaxVms: int32(h.MaxVMs), MemoryMb: int32(h.Host.MemoryMB), StartsInFlight: int32(h.Starts),
	}
}

func decodeHost(in *pb.Host) pool.Host {
	return pool.Host{
		Name: in.GetName(), Address: in.GetAddress(), Cordoned: in.GetCordoned(), CordonedReason: in.GetCordonedReason(),
		TLS: pool.HostTLS{
			Insecure: in.GetTls().GetInsecure(), CAFile: in.GetTls().GetCaFile(),
			CertFile: in.GetTls().GetCertFile(), KeyFile: in.GetTls().GetKeyFile(),
		},
	}
}
