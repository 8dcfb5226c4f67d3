package server_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"

	pb "poolmgr/api/poolmgr/v1alpha1"
	"poolmgr/internal/host/fake"
)

func newHost(name string) *pb.Host {
	return &pb.Host{Name: name, Address: name + ".example:9090", Tls: &pb.HostTLS{Insecure: true}}
}

func TestAddHost(t *testing.T) {
	inBubble(t, 0, func(r *rig) {
		_, err := r.hostsAPI.AddHost(r.ctx(), &pb.AddHostRequest{Host: newHost("away")})
		r.refused(err, codes.FailedPrecondition, "away.example:9090", "not reachable", "skip the validation")
		r.fleet.Add(fake.New(fake.Options{Name: "mute", NoExec: true}))
		_, err = r.hostsAPI.AddHost(r.ctx(), &pb.AddHostRequest{Host: newHost("mute")})
		r.refused(err, codes.FailedPrecondition, "exec is not enabled")
		r.fleet.Add(fake.New(fake.Options{Name: "silent"}))
		r.fleet.Host("silent").Silence()
		_, err = r.hostsAPI.AddHost(r.ctx(), &pb.AddHostRequest{Host: newHost("silent")})
		r.refused(err, codes.FailedPrecondition, "not reachable")
		list, err := r.hostsAPI.ListHosts(r.ctx(), &pb.ListHostsRequest{})
		r.must(err)
		if len(list.GetHosts()) != 0 {
			t.Errorf("refused hosts are there: %v", list)
		}

		r.fleet.Add(fake.New(fake.Options{Name: "good"}))
		good := newHost("good")
		good.Cordoned, good.CordonedReason = true, "not yet"
		added, err := r.hostsAPI.AddHost(r.ctx(), &pb.AddHostRequest{Host: good})
		r.must(err)
		if !added.GetCordoned() || added.GetCordonedReason() != "not yet" || !added.GetTls().GetInsecure() || added.GetUpdatedAt() == nil {
			t.Errorf("added: %v", added)
		}
		added, err = r.hostsAPI.AddHost(r.ctx(), &pb.AddHostRequest{Host: newHost("away"), SkipValidation: true})
		r.must(err)
		if added.GetName() != "away" {
			t.Errorf("added: %v", added)
		}
		// Taken is taken, whether or not the host answers; the host is not even asked.
		calls := r.fleet.Host("good").Count(fake.Info)
		r.fleet.Host("good").Down()
		for _, skip := range []bool{false, true} {
			_, err = r.hostsAPI.AddHost(r.ctx(), &pb.AddHostRequest{Host: newHost("good"), SkipValidation: skip})
			r.refused(err, codes.AlreadyExists, "good")
		}
		if now := r.fleet.Host("good").Count(fake.Info); now > calls+1 { // the reconciler's probe may have asked
			t.Errorf("%d calls more", now-calls)
		}
		same := newHost("same")
		same.Address = "away.example:9090"
		_, err = r.hostsAPI.AddHost(r.ctx(), &pb.AddHostRequest{Host: same, SkipValidation: true})
		r.refused(err, codes.FailedPrecondition, "away")
	})
}

// A host that tells its limits is held to them; one that was not asked keeps those it had.
func TestHostsTellTheirLimits(t *testing.T) {
	inBubble(t, 0, func(r *rig) {
		r.fleet.Add(fake.New(fake.Options{Name: "small", MaxVMs: 3, MaxMemoryMB: 4096, MinMemoryMB: 128}))
		_, err := r.hostsAPI.AddHost(r.ctx(), &pb.AddHostRequest{Host: newHost("small")})
		r.must(err)
		_, err = r.hostsAPI.UpdateHost(r.ctx(), &pb.UpdateHostRequest{Host: newHost("small"), SkipValidation: true})
		r.must(err)
		status, err := r.hostsAPI.GetHost(r.ctx(), &pb.GetHostRequest{Name: "small"})
		r.must(err)
		if status.GetMaxVms() != 3 || status.GetMemoryMb() != 4096 {
			t.Errorf("status: %v", status)
		}
		s := spec(1)
		s.MicrovmTemplate.MemoryInMb = 128
		_, err = r.pools.CreatePool(r.ctx(), &pb.CreatePoolRequest{Spec: s})
		r.must(err)
		r.fleet.Add(fake.New(fake.Options{Name: "silent"}))
		_, err = r.hostsAPI.AddHost(r.ctx(), &pb.AddHostRequest{Host: newHost("silent")})
		r.must(err)
		_, err = r.pools.UpdatePool(r.ctx(), &pb.UpdatePoolRequest{Spec: s})
		r.refused(err, codes.InvalidArgument, "microvm_template.memory_in_mb")
	})
}

func TestHostsThatAreNoHosts(t *testing.T) {
	inBubble(t, 0, func(r *rig) {
		bad := &pb.Host{
			Name: "Not/a/name", Address: "nowhere", CordonedReason: strings.Repeat("x", 5000),
			Tls: &pb.HostTLS{Insecure: true, CaFile: "ca.pem"},
		}
		want := []string{"host.address", "host.cordoned_reason", "host.name", "host.tls"}
		_, err := r.hostsAPI.AddHost(r.ctx(), &pb.AddHostRequest{Host: bad, SkipValidation: true})
		if diff := cmp.Diff(want, fields(r.refused(err, codes.InvalidArgument))); diff != "" {
			t.Error(diff)
		}
		_, err = r.hostsAPI.UpdateHost(r.ctx(), &pb.UpdateHostRequest{Host: bad})
		if diff := cmp.Diff(want, fields(r.refused(err, codes.InvalidArgument))); diff != "" {
			t.Error(diff)
		}
		_, err = r.hostsAPI.AddHost(r.ctx(), &pb.AddHostRequest{})
		r.refused(err, codes.InvalidArgument, "host.name", "host.address")
		for _, address := range []string{":9090", "h:0", "h:65536", "h:http", "h", "[::1]"} {
			h := newHost("h")
			h.Address = address
			_, err = r.hostsAPI.AddHost(r.ctx(), &pb.AddHostRequest{Host: h, SkipValidation: true})
			r.refused(err, codes.InvalidArgument, "host.address")
		}
	})
}

func TestUnknownHosts(t *testing.T) {
	inBubble(t, 0, func(r *rig) {
		_, err := r.hostsAPI.GetHost(r.ctx(), &pb.GetHostRequest{Name: "nosuch"})
		r.refused(err, codes.NotFound, "nosuch")
		_, err = r.hostsAPI.UpdateHost(r.ctx(), &pb.UpdateHostRequest{Host: newHost("nosuch")})
		r.refused(err, codes.NotFound, "nosuch")
		_, err = r.hostsAPI.RemoveHost(r.ctx(), &pb.RemoveHostRequest{Name: "nosuch"})
		r.refused(err, codes.NotFound, "nosuch")
		_, err = r.hostsAPI.CordonHost(r.ctx(), &pb.CordonHostRequest{Name: "nosuch"})
		r.refused(err, codes.NotFound, "nosuch")
		_, err = r.hostsAPI.UncordonHost(r.ctx(), &pb.UncordonHostRequest{Name: "nosuch"})
		r.refused(err, codes.NotFound, "nosuch")
		_, err = r.hostsAPI.CordonHost(r.ctx(), &pb.CordonHostRequest{Reason: strings.Repeat("x", 5000)})
		r.refused(err, codes.InvalidArgument, "name", "reason")
	})
}

func TestCordonUpdateAndRemove(t *testing.T) {
	inBubble(t, 2, func(r *rig) {
		cordoned, err := r.hostsAPI.CordonHost(r.ctx(), &pb.CordonHostRequest{Name: "host-1", Reason: "new disk"})
		r.must(err)
		if !cordoned.GetCordoned() || cordoned.GetCordonedReason() != "new disk" || cordoned.GetCordonedAt() == nil {
			t.Errorf("cordoned: %v", cordoned)
		}
		s := spec(2)
		s.FlintlockHosts = []string{"host-0", "host-1"}
		r.filled(s)
		status, err := r.hostsAPI.GetHost(r.ctx(), &pb.GetHostRequest{Name: "host-0"})
		r.must(err)
		if status.GetVmCount() != 2 || !status.GetReachable() || status.GetStartsInFlight() != 0 {
			t.Errorf("no VM may be placed on the cordoned host: %v", status)
		}
		// The address of a host with VMs stays, and a change that is refused leaves the connection alone.
		moved := newHost("host-0")
		_, err = r.hostsAPI.UpdateHost(r.ctx(), &pb.UpdateHostRequest{Host: moved})
		r.refused(err, codes.FailedPrecondition, "2 VMs")
		moved = newHost("host-1")
		updated, err := r.hostsAPI.UpdateHost(r.ctx(), &pb.UpdateHostRequest{Host: moved})
		r.must(err)
		if updated.GetAddress() != moved.GetAddress() || !updated.GetCordoned() {
			t.Errorf("updated: %v", updated)
		}
		r.hosts[1].Down()
		_, err = r.hostsAPI.UpdateHost(r.ctx(), &pb.UpdateHostRequest{Host: moved})
		r.refused(err, codes.FailedPrecondition, "not reachable")

		_, err = r.hostsAPI.RemoveHost(r.ctx(), &pb.RemoveHostRequest{Name: "host-0"})
		r.refused(err, codes.FailedPrecondition, "2 VMs", "default/web")
		_, err = r.hostsAPI.RemoveHost(r.ctx(), &pb.RemoveHostRequest{Name: "host-0", Force: true})
		r.refused(err, codes.Unimplemented, "force")
		lifted, err := r.hostsAPI.UncordonHost(r.ctx(), &pb.UncordonHostRequest{Name: "host-1"})
		r.must(err)
		if lifted.GetCordoned() || lifted.GetCordonedReason() != "" || lifted.GetCordonedAt() != nil {
			t.Errorf("lifted: %v", lifted)
		}
		only := spec(2)
		only.FlintlockHosts = []string{"host-0"}
		_, err = r.pools.UpdatePool(r.ctx(), &pb.UpdatePoolRequest{Spec: only})
		r.must(err)
		_, err = r.hostsAPI.RemoveHost(r.ctx(), &pb.RemoveHostRequest{Name: "host-1"})
		r.must(err)
		list, err := r.hostsAPI.ListHosts(r.ctx(), &pb.ListHostsRequest{})
		r.must(err)
		if got := list.GetHosts(); len(got) != 1 || got[0].GetHost().GetName() != "host-0" {
			t.Errorf("hosts: %v", got)
		}
	})
}
