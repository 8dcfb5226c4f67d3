package server_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "poolmgr/api/poolmgr/v1alpha1"
	"poolmgr/internal/host"
	"poolmgr/internal/host/fake"
	"poolmgr/internal/lease"
	"poolmgr/internal/plan"
	"poolmgr/internal/pool"
	"poolmgr/internal/reconcile"
	"poolmgr/internal/server"
	"poolmgr/internal/store"
	"poolmgr/internal/store/memory"
	"poolmgr/internal/store/storetest"
)

// rig is a daemon's inside but for its files: every service over a connection in memory, the real reconciler and lease
// manager, and scripted hosts, in a bubble of time.
type rig struct {
	*testing.T
	storage  *memory.Storage
	store    store.Store
	hosts    []*fake.Host
	fleet    *fake.Fleet
	leaseMgr *lease.Manager
	services *server.Server
	rpc      *grpc.Server
	health   *server.Health
	metrics  *server.Metrics
	registry *prometheus.Registry
	stopping chan struct{}
	cutoff   chan struct{}
	logs     *syncBuffer
	endWork  func()

	conn     *grpc.ClientConn
	pools    pb.PoolAdminClient
	leases   pb.LeaseClient
	events   pb.EventsClient
	hostsAPI pb.HostAdminClient
	vms      pb.VMAdminClient
	rollouts pb.RolloutAdminClient
	guests   pb.GuestClient
}

// inBubble runs a test with a rig of n hosts, named host-0 and so on, and checks at the end that nothing leaked.
func inBubble(t *testing.T, n int, test func(*rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := &rig{
			T: t, storage: memory.NewStorage(), registry: prometheus.NewRegistry(),
			stopping: make(chan struct{}), cutoff: make(chan struct{}), logs: &syncBuffer{},
		}
		for i := range n {
			r.hosts = append(r.hosts, fake.New(fake.Options{
				Name: fmt.Sprintf("host-%d", i), MinMemoryMB: 128,
				BootDelay: 500 * time.Millisecond, GuestDelay: 500 * time.Millisecond, DeleteDelay: 300 * time.Millisecond,
			}))
		}
		r.fleet = fake.NewFleet(r.hosts...)
		st, err := r.storage.Open(t.Context())
		r.must(err)
		r.store = st
		for i := range n {
			_, err := st.AddHost(t.Context(), pool.Host{
				Name: fmt.Sprintf("host-%d", i), Address: fmt.Sprintf("10.0.0.%d:9090", i+1), MinVMMemoryMB: 128,
			}, time.Now())
			r.must(err)
		}
		r.start()
		defer func() { // also after a fatal failure: a bubble must end empty
			r.stop()
			storetest.Check(t, r.store)
			if err := r.store.Close(); err != nil {
				t.Error(err)
			}
		}()
		test(r)
	})
}

func (r *rig) start() {
	log := slog.New(slog.NewTextHandler(r.logs, &slog.HandlerOptions{Level: slog.LevelDebug}))
	r.metrics = server.NewMetrics(r.registry, r.store)
	r.leaseMgr = lease.New(lease.Config{Store: r.store, Fleet: r.fleet, Logger: log, Observer: r.metrics})
	r.services = server.New(server.Config{
		Store: r.store, Leases: r.leaseMgr, Fleet: r.fleet, CheckHost: r.checkHost, Limits: plan.Limits{StartsPerHost: 3, NewRows: 100},
		Logger: log, Stopping: r.stopping, Cutoff: r.cutoff,
	})
	r.rpc = grpc.NewServer(server.Options(log, r.metrics.Panicked)...)
	r.services.Register(r.rpc)
	r.health = server.RegisterHealth(r.rpc)
	ln := bufconn.Listen(256 << 10)
	served := make(chan error, 1)
	go func() { served <- r.rpc.Serve(ln) }()

	ctx, cancel := context.WithCancel(context.Background())
	work := reconcile.New(reconcile.Config{
		Store: r.store, Fleet: r.fleet, Logger: log, Observer: r.metrics, Random: func() float64 { return 0.5 },
	})
	worked := make(chan error, 1)
	go func() { worked <- work.Run(ctx) }()
	r.endWork = sync.OnceFunc(func() {
		cancel()
		errs := <-worked
		r.rpc.Stop()
		if err := errors.Join(errs, <-served); err != nil {
			r.Error(err)
		}
	})

	conn, err := grpc.NewClient("passthrough:///rig",
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return ln.DialContext(ctx) }),
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDisableRetry())
	r.must(err)
	r.conn = conn
	r.pools, r.leases, r.events = pb.NewPoolAdminClient(conn), pb.NewLeaseClient(conn), pb.NewEventsClient(conn)
	r.hostsAPI, r.vms = pb.NewHostAdminClient(conn), pb.NewVMAdminClient(conn)
	r.rollouts, r.guests = pb.NewRolloutAdminClient(conn), pb.NewGuestClient(conn)
}

// stop ends everything but the store. The services must then have no goroutine left.
func (r *rig) stop() {
	_ = r.conn.Close() // a test may have closed it
	r.endWork()
	r.services.Wait()
	if err := errors.Join(r.leaseMgr.Close(), r.fleet.Close()); err != nil {
		r.Error(err)
	}
}

// checkHost is what flintlock's fleet does, over the scripted hosts.
func (r *rig) checkHost(ctx context.Context, h pool.Host) (host.Info, error) {
	found := r.fleet.Host(h.Name)
	if found == nil {
		return host.Info{}, fmt.Errorf("%w: connection refused", host.ErrUnreachable)
	}
	return found.Info(ctx)
}

func (r *rig) must(err error) {
	r.Helper()
	if err != nil {
		r.Fatal(err)
	}
}

// ctx bounds a call; time in the bubble is free.
func (r *rig) ctx() context.Context {
	ctx, cancel := context.WithTimeout(r.Context(), time.Hour)
	r.Cleanup(cancel)
	return ctx
}

// pass lets time pass.
func (r *rig) pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

// eventually lets time pass until cond holds, for two minutes at most.
func (r *rig) eventually(what string, cond func() bool) {
	r.Helper()
	for end := time.Now().Add(2 * time.Minute); time.Now().Before(end); r.pass(50 * time.Millisecond) {
		synctest.Wait()
		if cond() {
			return
		}
	}
	r.Fatalf("never: %s\n%s", what, r.logs)
}

var webRef = &pb.PoolRef{Name: "web", Namespace: "default"}

// spec is a valid pool of a size.
func spec(size int32) *pb.PoolSpec {
	tmpl := fake.Template()
	tmpl.MemoryInMb = 128
	tmpl.Kernel.Cmdline = map[string]string{"version": "1"}
	return &pb.PoolSpec{Name: "web", Namespace: "default", Size: size, MicrovmTemplate: tmpl, CommandTimeout: durationpb.New(time.Minute)}
}

func (r *rig) create(s *pb.PoolSpec) *pb.Pool {
	r.Helper()
	p, err := r.pools.CreatePool(r.ctx(), &pb.CreatePoolRequest{Spec: s})
	r.must(err)
	return p
}

// filled makes a pool and waits until its VMs are there.
func (r *rig) filled(s *pb.PoolSpec) {
	r.Helper()
	r.create(s)
	r.eventually("the pool is full", func() bool { return r.get().GetStatus().GetAvailableCount() == s.GetSize() })
}

func (r *rig) get() *pb.Pool {
	r.Helper()
	p, err := r.pools.GetPool(r.ctx(), &pb.GetPoolRequest{Ref: webRef})
	r.must(err)
	return p
}

func (r *rig) claim() *pb.ClaimVMResponse {
	r.Helper()
	got, err := r.leases.ClaimVM(r.ctx(), &pb.ClaimVMRequest{Pool: webRef})
	r.must(err)
	return got
}

// refused expects a code with a sentence that holds every text.
func (r *rig) refused(err error, code codes.Code, texts ...string) *status.Status {
	r.Helper()
	st := status.Convert(err)
	if err == nil || st.Code() != code {
		r.Fatalf("want %s, got %v", code, err)
	}
	for _, text := range texts {
		if !bytes.Contains([]byte(st.Message()), []byte(text)) {
			r.Errorf("the answer %q does not tell %q", st.Message(), text)
		}
	}
	return st
}

// fields lists the field paths of a BadRequest, sorted.
func fields(st *status.Status) []string {
	var paths []string
	for _, d := range st.Details() {
		if bad, ok := d.(*errdetails.BadRequest); ok {
			for _, v := range bad.GetFieldViolations() {
				paths = append(paths, v.GetField())
			}
		}
	}
	slices.Sort(paths)
	return slices.Compact(paths)
}

// replay is every event of the pool web so far, of these types.
func (r *rig) replay(types ...pb.EventType) []*pb.Event {
	r.Helper()
	stream, err := r.events.Subscribe(r.ctx(), &pb.SubscribeRequest{Pool: webRef, Types: types, NoFollow: true})
	r.must(err)
	all, err := drain(stream)
	r.must(err)
	return all
}

func drain(stream grpc.ServerStreamingClient[pb.Event]) ([]*pb.Event, error) {
	var all []*pb.Event
	for {
		e, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return all, err
		}
		all = append(all, e)
	}
}

// syncBuffer is a log that may be read while it is written.
type syncBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}
