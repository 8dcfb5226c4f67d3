package server

import (
	"context"
	"net"
	"strconv"
	"time"

	"google.golang.org/protobuf/types/known/emptypb"

	pb "poolmgr/api/poolmgr/v1alpha1"
	"poolmgr/internal/host"
	"poolmgr/internal/pool"
)

// validationLimit bounds the call that checks a host before it is registered.
const validationLimit = 10 * time.Second

type hostAdmin struct {
	pb.UnimplementedHostAdminServer
	*Server
}

func (s *hostAdmin) AddHost(ctx context.Context, req *pb.AddHostRequest) (*pb.Host, error) {
	h, err := readHost(req.GetHost())
	if err != nil {
		return nil, err
	}
	// A name that is taken is told before the host is asked: the answer must not depend on whether it is there.
	if _, err := s.cfg.Store.GetHost(ctx, h.Name); err == nil {
		return nil, pool.Errorf(pool.CodeAlreadyExists, "there is a host %q already; update it, or choose another name", h.Name)
	}
	if !req.GetSkipValidation() {
		limits, err := s.validate(ctx, h)
		if err != nil {
			return nil, err
		}
		h.MaxVMs, h.MemoryMB, h.MinVMMemoryMB = limits.MaxVMs, limits.MemoryMB, limits.MinVMMemoryMB
	}
	added, err := s.cfg.Store.AddHost(ctx, h, s.cfg.Now())
	if err != nil {
		return nil, err
	}
	return encodeHost(added), nil
}

func (s *hostAdmin) UpdateHost(ctx context.Context, req *pb.UpdateHostRequest) (*pb.Host, error) {
	h, err := readHost(req.GetHost())
	if err != nil {
		return nil, err
	}
	old, err := s.cfg.Store.GetHost(ctx, h.Name)
	if err != nil {
		return nil, err
	}
	limits := host.Limits{MaxVMs: old.MaxVMs, MemoryMB: old.Host.MemoryMB, MinVMMemoryMB: old.MinVMMemoryMB}
	if !req.GetSkipValidation() {
		if limits, err = s.validate(ctx, h); err != nil {
			return nil, err
		}
	}
	h.MaxVMs, h.MemoryMB, h.MinVMMemoryMB = limits.MaxVMs, limits.MemoryMB, limits.MinVMMemoryMB
	updated, err := s.cfg.Store.UpdateHost(ctx, h, s.cfg.Now())
	if err != nil {
		return nil, err
	}
	return encodeHost(updated), nil
}

// readHost reads a host from a request, all faults at once.
func readHost(in *pb.Host) (pool.Host, error) {
	var f faults
	h := decodeHost(in)
	switch {
	case h.Name == "":
		f.add("host.name", "is required")
	case !pool.ValidHostName(h.Name):
		f.add("host.name", "%q is not a name: use up to 63 of a-z, 0-9 and '-', not at either end", clip(h.Name, maxName))
	}
	f.address("host.address", h.Address)
	f.short("host.cordoned_reason", h.CordonedReason, maxReason)
	f.short("host.tls.ca_file", h.TLS.CAFile, maxPath)
	f.short("host.tls.cert_file", h.TLS.CertFile, maxPath)
	f.short("host.tls.key_file", h.TLS.KeyFile, maxPath)
	switch t := h.TLS; {
	case t.Insecure && (t.CAFile != "" || t.CertFile != "" || t.KeyFile != ""):
		f.add("host.tls", "insecure and certificate files exclude each other: leave one of them out")
	case (t.CertFile == "") != (t.KeyFile == ""):
		f.add("host.tls", "cert_file and key_file go together: give both or none")
	}
	return h, invalid(f.Faults)
}

func (f *faults) address(field, value string) {
	if value == "" {
		f.add(field, "is required")
		return
	}
	name, port, err := net.SplitHostPort(value)
	n, notNumber := strconv.ParseUint(port, 10, 16)
	if err != nil || name == "" || notNumber != nil || n == 0 || len(value) > maxName {
		f.add(field, "%q is not host:port", clip(value, maxName))
	}
}

// validate asks a host whether it is there and runs commands in its VMs, and returns the limits that it tells.
func (s *hostAdmin) validate(ctx context.Context, h pool.Host) (host.Limits, error) {
	call, cancel := context.WithTimeout(ctx, validationLimit)
	defer cancel()
	info, err := s.cfg.CheckHost(call, h)
	switch {
	case err != nil && ctx.Err() != nil:
		return host.Limits{}, ctx.Err()
	case err != nil && pool.CodeOf(err) == pool.CodeInvalid:
		return host.Limits{}, err
	case err != nil:
		return host.Limits{}, pool.Errorf(pool.CodeFailedPrecondition,
			"host %s at %s is not reachable: %v; start it, or skip the validation", h.Name, h.Address, err)
	case !info.ExecEnabled:
		return host.Limits{}, pool.Errorf(pool.CodeFailedPrecondition,
			"exec is not enabled on host %s at %s, so VMs there could not be probed; enable it, or skip the validation", h.Name, h.Address)
	}
	return info.Limits, nil
}

func (s *hostAdmin) RemoveHost(ctx context.Context, req *pb.RemoveHostRequest) (*emptypb.Empty, error) {
	if err := oneName("name", req.GetName()); err != nil {
		return nil, err
	}
	if req.GetForce() {
		return nil, later("HostAdmin.RemoveHost with force", "remove the host when its VMs are gone")
	}
	if err := s.cfg.Store.RemoveHost(ctx, req.GetName()); err != nil {
		return nil, err
	}
	s.cfg.Fleet.Forget(req.GetName())
	return &emptypb.Empty{}, nil
}

func (s *hostAdmin) GetHost(ctx context.Context, req *pb.GetHostRequest) (*pb.HostStatus, error) {
	if err := oneName("name", req.GetName()); err != nil {
		return nil, err
	}
	h, err := s.cfg.Store.GetHost(ctx, req.GetName())
	if err != nil {
		return nil, err
	}
	return encodeHostStatus(h), nil
}

func (s *hostAdmin) ListHosts(ctx context.Context, _ *pb.ListHostsRequest) (*pb.ListHostsResponse, error) {
	hosts, err := s.cfg.Store.ListHosts(ctx)
	if err != nil {
		return nil, err
	}
	out := &pb.ListHostsResponse{}
	for _, h := range hosts {
		out.Hosts = append(out.Hosts, encodeHostStatus(h))
	}
	return out, nil
}

func (s *hostAdmin) CordonHost(ctx context.Context, req *pb.CordonHostRequest) (*pb.Host, error) {
	return s.cordon(ctx, req.GetName(), true, req.GetReason())
}

func (s *hostAdmin) UncordonHost(ctx context.Context, req *pb.UncordonHostRequest) (*pb.Host, error) {
	return s.cordon(ctx, req.GetName(), false, "")
}

func (s *hostAdmin) cordon(ctx context.Context, name string, cordoned bool, reason string) (*pb.Host, error) {
	var f faults
	f.name("name", name)
	f.short("reason", reason, maxReason)
	if len(f.Faults) > 0 {
		return nil, invalid(f.Faults)
	}
	h, err := s.cfg.Store.CordonHost(ctx, name, cordoned, reason, s.cfg.Now())
	if err != nil {
		return nil, err
	}
	return encodeHost(h), nil
}
