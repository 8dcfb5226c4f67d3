package flintlock_test

import (
	"context"
	"log/slog"
	"net"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	"poolmgr/internal/host"
	"poolmgr/internal/host/fake"
	"poolmgr/internal/host/flintlock"
	"poolmgr/internal/host/hosttest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// serve serves something over an in-memory listener until the test ends, and connects to it.
func serve(t *testing.T, register func(grpc.ServiceRegistrar), opts ...grpc.ServerOption) *grpc.ClientConn {
	t.Helper()
	listener := bufconn.Listen(1 << 20)
	server := grpc.NewServer(append(opts, grpc.WaitForHandlers(true))...)
	register(server)
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	conn, err := grpc.NewClient("passthrough:///host",
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatalf("connect: %v", err)
	}
	t.Cleanup(func() {
		_ = conn.Close() // closed twice by tests that close it themselves
		server.Stop()
		if err := <-served; err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	return conn
}

func serveFake(t *testing.T, opts fake.Options) (*fake.Host, *grpc.ClientConn) {
	t.Helper()
	h := fake.New(opts)
	return h, serve(t, func(s grpc.ServiceRegistrar) { fake.Register(s, h) })
}

func quiet() flintlock.Config {
	return flintlock.Config{Name: "h1", Logger: slog.New(slog.DiscardHandler)}
}

// newDriver makes a driver over a connection that is closed with the test.
func newDriver(t *testing.T, conn grpc.ClientConnInterface, cfg flintlock.Config) *flintlock.Driver {
	t.Helper()
	d := flintlock.New(conn, cfg)
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return d
}

func TestContract(t *testing.T) {
	for name, opts := range map[string]fake.Options{
		"at once": {},
		"slow": {
			CallDelay: time.Millisecond, BootDelay: 20 * time.Millisecond,
			GuestDelay: 20 * time.Millisecond, DeleteDelay: 20 * time.Millisecond,
		},
	} {
		t.Run(name, func(t *testing.T) {
			hosttest.Run(t, func(t *testing.T) hosttest.Setup {
				_, conn := serveFake(t, opts)
				return hosttest.Setup{
					Dial:     func(*testing.T) host.Driver { return flintlock.New(conn, quiet()) },
					Template: fake.Template(),
				}
			})
		})
	}
}
