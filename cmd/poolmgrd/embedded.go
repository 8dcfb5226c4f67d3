package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	"poolmgr/internal/microvm/hostd"
	"poolmgr/internal/pool"
	"poolmgr/internal/store"
)

// embedded is the host inside the daemon: the code of microvmd, spoken to over the same gRPC API as any other host, but
// through memory. A nil one means that there is none.
type embedded struct {
	host *hostd.Host
	rpc  *hostd.Server
	conn *grpc.ClientConn
	done chan error
}

const (
	pipeBytes = 256 << 10 // buffer of the connection in memory, each way
	maxAnswer = 64 << 20  // of the host, in bytes: a listing carries every VM's whole spec
)

// openEmbedded opens the host that the configuration asks for and registers it; its VMs are kept beside the database.
func openEmbedded(ctx context.Context, c *Config, st store.Store, log *slog.Logger) (*embedded, error) {
	if c.EmbeddedHost == "" {
		return nil, nil
	}
	opts := c.Host
	opts.Name, opts.Backend = embeddedName, c.EmbeddedHost
	opts.StateDir = cmp.Or(opts.StateDir, c.DB+".host")
	h, err := hostd.Open(ctx, opts, log)
	if err != nil {
		return nil, fmt.Errorf("open the embedded host: %w", err)
	}
	e := &embedded{host: h, rpc: hostd.NewServer(h, log), done: make(chan error, 1)}
	ln := bufconn.Listen(pipeBytes)
	go func() { e.done <- e.rpc.Serve(ln) }()
	e.conn, err = grpc.NewClient("passthrough:///"+embeddedName,
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return ln.DialContext(ctx) }),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxAnswer)),
		grpc.WithDisableRetry()) // a create is not to be repeated by anybody but the reconciler
	if err == nil {
		err = e.register(ctx, st)
	}
	if err != nil {
		return nil, errors.Join(err, e.close())
	}
	return e, nil
}

// register makes the host known, or brings its limits up to date when it is.
func (e *embedded) register(ctx context.Context, st store.Store) error {
	h := pool.Host{
		Name: embeddedName, Address: "embedded:0", TLS: pool.HostTLS{Insecure: true}, Reachable: true,
		MaxVMs: e.host.MaxVMs(), MemoryMB: e.host.MemoryMB(), MinVMMemoryMB: e.host.MinVMMemoryMB(),
	}
	now := time.Now()
	_, err := st.AddHost(ctx, h, now)
	if err != nil && pool.CodeOf(err) == pool.CodeAlreadyExists {
		_, err = st.UpdateHost(ctx, h, now)
	}
	if err != nil {
		return fmt.Errorf("register the embedded host: %w", err)
	}
	return nil
}

// inProcess is how the fleet reaches the host.
func (e *embedded) inProcess() map[string]grpc.ClientConnInterface {
	if e == nil {
		return nil
	}
	return map[string]grpc.ClientConnInterface{embeddedName: e.conn}
}

// close ends the host; its VMs live on.
func (e *embedded) close() error {
	if e == nil {
		return nil
	}
	var errs []error
	if e.conn != nil {
		errs = append(errs, e.conn.Close())
	}
	e.rpc.StopGently()
	return errors.Join(append(errs, <-e.done, e.host.Close())...)
}
