package main

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	pb "poolmgr/api/poolmgr/v1alpha1"
	"poolmgr/internal/host/fake"
	"poolmgr/internal/lease"
	"poolmgr/internal/server"
	"poolmgr/internal/store/memory"
)

// stubborn serves commands that end when they want to.
type stubborn struct {
	pb.UnimplementedGuestServer
	began chan struct{}
	end   chan struct{}
}

func (s *stubborn) Exec(pb.Guest_ExecServer) error {
	close(s.began)
	<-s.end
	return nil
}

// Whatever a call does, the daemon stops in bounded time.
func TestADrainIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st, fleet, log := memory.New(), fake.NewFleet(), slog.New(slog.DiscardHandler)
		defer st.Close()
		p := &parts{
			log: log, leases: lease.New(lease.Config{Store: st, Fleet: fleet}), rpc: grpc.NewServer(server.Options(log, func() {})...),
			stopping: make(chan struct{}), cutoff: make(chan struct{}),
		}
		p.services = server.New(server.Config{Store: st, Leases: p.leases, Fleet: fleet, Logger: log})
		calls := &stubborn{began: make(chan struct{}), end: make(chan struct{})}
		pb.RegisterGuestServer(p.rpc, calls)
		ln := bufconn.Listen(1 << 16)
		served := make(chan error, 1)
		go func() { served <- p.serveRPC(ln) }()
		conn, err := grpc.NewClient("passthrough:///test", grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return ln.DialContext(ctx) }))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if _, err := pb.NewGuestClient(conn).Exec(t.Context()); err != nil {
			t.Fatal(err)
		}
		<-calls.began

		began := time.Now()
		if err := p.drain(3 * time.Second); !errors.Is(err, errStuck) {
			t.Errorf("want errStuck, got %v", err)
		}
		if took, want := time.Since(began), 3*time.Second+2*cutLimit; took != want {
			t.Errorf("it took %s, want %s", took, want)
		}
		close(calls.end)
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
}

// A server that is stopped before it began is no failure.
func TestServingAfterTheStop(t *testing.T) {
	p := &parts{rpc: grpc.NewServer()}
	p.rpc.Stop()
	ln := bufconn.Listen(1)
	if err := p.serveRPC(ln); err != nil {
		t.Error(err)
	}
}
