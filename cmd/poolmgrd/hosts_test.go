package main

import (
	"log/slog"
	"net"
	"testing"

	pb "poolmgr/api/poolmgr/v1alpha1"
	"poolmgr/internal/microvm/hostd"
)

// A microvmd tells poolmgrd what it takes, so that a pool of small VMs can use it and no more VMs are placed there than
// it has room for.
func TestAMicrovmdTellsItsLimits(t *testing.T) {
	opts := hostd.DefaultOptions()
	opts.Backend, opts.StateDir, opts.Name, opts.MaxVMs = "simulated", t.TempDir(), "other", 5
	opts.Simulated.BootDelay, opts.Simulated.BootJitter = 0, 0
	log := slog.New(slog.DiscardHandler)
	other, err := hostd.Open(t.Context(), opts, log)
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	rpc := hostd.NewServer(other, log)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { served <- rpc.Serve(ln) }()
	defer func() {
		rpc.StopGently()
		if err := <-served; err != nil {
			t.Error(err)
		}
		if err := other.Close(); err != nil {
			t.Error(err)
		}
	}()

	c := config(t.TempDir())
	c.EmbeddedHost = ""
	r := begin(t, c)
	defer r.end()
	hosts := pb.NewHostAdminClient(r.conn)
	_, err = hosts.AddHost(r.ctx(), &pb.AddHostRequest{
		Host: &pb.Host{Name: "other", Address: ln.Addr().String(), Tls: &pb.HostTLS{Insecure: true}},
	})
	r.must(err)
	status, err := hosts.GetHost(r.ctx(), &pb.GetHostRequest{Name: "other"})
	r.must(err)
	if status.GetMaxVms() != 5 {
		t.Errorf("max_vms is %d, want 5", status.GetMaxVms())
	}
	r.pool("small", 1) // of 128 MiB
}
