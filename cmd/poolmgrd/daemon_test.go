package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/spf13/pflag"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "poolmgr/api/poolmgr/v1alpha1"
	"poolmgr/internal/host/fake"
	"poolmgr/internal/microvm/hostd"
	"poolmgr/internal/pool"
	"poolmgr/internal/store"
	"poolmgr/internal/store/memory"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// limit bounds every wait of these tests; they run in real time.
const limit = 30 * time.Second

// running is a daemon under test with a client of it.
type running struct {
	*testing.T
	stop  context.CancelFunc
	ended chan error
	http  string
	conn  *grpc.ClientConn
}

func config(dir string) Config {
	var c Config
	c.flags(pflag.NewFlagSet("poolmgrd", pflag.ContinueOnError))
	c.DB, c.EmbeddedHost = filepath.Join(dir, "poolmgr.db"), "simulated"
	c.Listen, c.HTTPListen = "127.0.0.1:0", "127.0.0.1:0"
	c.Host.Simulated.BootDelay, c.Host.Simulated.BootJitter, c.Host.Simulated.DeleteDelay = 0, 0, 0
	return c
}

// begin starts a daemon and waits until it serves.
func begin(t *testing.T, c Config) *running {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	r := &running{T: t, stop: stop, ended: make(chan error, 1)}
	type addresses struct{ grpc, http net.Addr }
	serving := make(chan addresses, 1)
	d := &Daemon{
		Config: c, Logger: slog.New(slog.DiscardHandler), Grace: 300 * time.Millisecond,
		Started: func(g, h net.Addr) { serving <- addresses{g, h} },
	}
	go func() { r.ended <- d.Run(ctx) }()
	select {
	case at := <-serving:
		conn, err := grpc.NewClient(at.grpc.String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
		r.must(err)
		r.conn, r.http = conn, "http://"+at.http.String()
	case err := <-r.ended:
		stop()
		t.Fatalf("the daemon did not start: %v", err)
	case <-time.After(limit):
		stop()
		t.Fatal("the daemon does not start")
	}
	t.Cleanup(func() { stop(); _ = r.conn.Close() })
	return r
}

// end stops the daemon, which must return nil.
func (r *running) end() {
	r.Helper()
	r.stop()
	r.must(r.wait())
	_ = r.conn.Close()
}

func (r *running) wait() error {
	r.Helper()
	select {
	case err := <-r.ended:
		return err
	case <-time.After(limit):
		r.Fatal("the daemon does not stop")
		return nil
	}
}

func (r *running) must(err error) {
	r.Helper()
	if err != nil {
		r.Fatal(err)
	}
}

func (r *running) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	r.Cleanup(cancel)
	return ctx
}

func (r *running) get(path string) (int, string) {
	r.Helper()
	req, err := http.NewRequestWithContext(r.ctx(), http.MethodGet, r.http+path, nil)
	r.must(err)
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	r.must(err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	r.must(err)
	return resp.StatusCode, string(body)
}

func ref(name string) *pb.PoolRef { return &pb.PoolRef{Name: name, Namespace: "default"} }

// pool makes a pool and waits for its VMs.
func (r *running) pool(name string, size int32, hooks ...string) {
	r.Helper()
	tmpl := fake.Template()
	tmpl.MemoryInMb = 128
	_, err := pb.NewPoolAdminClient(r.conn).CreatePool(r.ctx(), &pb.CreatePoolRequest{Spec: &pb.PoolSpec{
		Name: name, Namespace: "default", Size: size, MicrovmTemplate: tmpl, PreLeaseCommands: hooks,
	}})
	r.must(err)
	stream, err := pb.NewEventsClient(r.conn).Subscribe(r.ctx(), &pb.SubscribeRequest{
		Pool: ref(name), Types: []pb.EventType{pb.EventType_VM_AVAILABLE},
	})
	r.must(err)
	for range size {
		_, err := stream.Recv()
		r.must(err)
	}
}

func (r *running) claim(name string, wait time.Duration) (*pb.ClaimVMResponse, error) {
	return pb.NewLeaseClient(r.conn).ClaimVM(r.ctx(), &pb.ClaimVMRequest{Pool: ref(name), Wait: durationpb.New(wait)})
}

// exec begins a command in a leased VM.
func (r *running) exec(lease, cmd string, args ...string) pb.Guest_ExecClient {
	r.Helper()
	stream, err := pb.NewGuestClient(r.conn).Exec(r.ctx())
	r.must(err)
	r.must(stream.Send(&pb.GuestExecRequest{Payload: &pb.GuestExecRequest_Start{
		Start: &pb.GuestExecStart{LeaseId: lease, Cmd: cmd, Args: args},
	}}))
	return stream
}

func TestADaemonServesAndStops(t *testing.T) {
	r := begin(t, config(t.TempDir()))
	if code, body := r.get("/readyz"); code != http.StatusOK {
		t.Errorf("/readyz: %d %s", code, body)
	}
	if code, _ := r.get("/healthz"); code != http.StatusOK {
		t.Errorf("/healthz: %d", code)
	}
	health, err := healthpb.NewHealthClient(r.conn).Check(r.ctx(), &healthpb.HealthCheckRequest{Service: "poolmgr.v1alpha1.Lease"})
	if err != nil || health.GetStatus() != healthpb.HealthCheckResponse_SERVING {
		t.Errorf("health: %v %v", health, err)
	}
	hosts, err := pb.NewHostAdminClient(r.conn).ListHosts(r.ctx(), &pb.ListHostsRequest{})
	r.must(err)
	if got := hosts.GetHosts(); len(got) != 1 || got[0].GetHost().GetName() != "embedded" {
		t.Errorf("the embedded host is registered before the daemon is ready: %v", got)
	}
	r.pool("web", 2)
	got, err := r.claim("web", 0)
	r.must(err)
	stream := r.exec(got.GetLeaseId(), "echo", "hello")
	m, err := stream.Recv()
	r.must(err)
	if string(m.GetStdout()) != "hello\n" {
		t.Errorf("exec: %v", m)
	}
	if _, err := stream.Recv(); err != nil {
		t.Error(err)
	}
	if _, body := r.get("/metrics"); !strings.Contains(body, `poolmgr_vm_claims_total{pool_name="web",pool_namespace="default",replayed="false"} 1`) ||
		!strings.Contains(body, "go_goroutines") {
		t.Error("the claim is not in the metrics")
	}
	r.end()
}

// What was there before is there after a restart: pools, VMs, leases.
func TestASecondStartFindsEverything(t *testing.T) {
	c := config(t.TempDir())
	r := begin(t, c)
	r.pool("web", 2)
	held, err := r.claim("web", 0)
	r.must(err)
	r.end()

	r = begin(t, c)
	_, err = pb.NewLeaseClient(r.conn).Heartbeat(r.ctx(), &pb.HeartbeatRequest{LeaseId: held.GetLeaseId()})
	r.must(err)
	stream := r.exec(held.GetLeaseId(), "echo", "still here")
	if m, err := stream.Recv(); err != nil || string(m.GetStdout()) != "still here\n" {
		t.Errorf("the VM lives on: %v %v", m, err)
	}
	vm, err := pb.NewVMAdminClient(r.conn).GetVM(r.ctx(), &pb.GetVMRequest{Id: held.GetVmId()})
	r.must(err)
	if vm.GetUid() != held.GetVmUid() || vm.GetPhase() != pb.VMPhase_LEASED {
		t.Errorf("VM: %v", vm)
	}
	if _, err := r.claim("web", limit); err != nil {
		t.Error(err)
	}
	r.end()
}

// At the end streams get a hint, claims an answer, commands a while; and the daemon is done soon and without an error.
func TestADrainAnswersEverybody(t *testing.T) {
	c := config(t.TempDir())
	r := begin(t, c)
	r.pool("web", 1)
	r.pool("hooked", 1, "hang")
	held, err := r.claim("web", 0)
	r.must(err)
	last := make(chan error, 4)
	subscription, err := pb.NewEventsClient(r.conn).Subscribe(r.ctx(), &pb.SubscribeRequest{AfterId: 1 << 40})
	r.must(err)
	_, err = subscription.Header() // the subscription is heard
	r.must(err)
	go func() { _, err := subscription.Recv(); last <- err }()
	quick, hanging := r.exec(held.GetLeaseId(), "sleep", "0.1"), r.exec(held.GetLeaseId(), "hang")
	go func() { _, err := hanging.Recv(); last <- err }()
	go func() { _, err := r.claim("hooked", 0); last <- err }()
	r.pool("empty", 0)
	go func() { _, err := r.claim("empty", limit); last <- err }()
	r.until("claims are under way", func() bool {
		hooked, err := pb.NewPoolAdminClient(r.conn).GetPool(r.ctx(), &pb.GetPoolRequest{Ref: ref("hooked")})
		r.must(err)
		empty, err := pb.NewPoolAdminClient(r.conn).GetPool(r.ctx(), &pb.GetPoolRequest{Ref: ref("empty")})
		r.must(err)
		return hooked.GetStatus().GetLeasedCount() == 1 && empty.GetStatus().GetWaitingClaims() == 1
	})
	began := time.Now()
	r.stop()
	if m, err := quick.Recv(); err != nil || m.GetExitCode() != 0 {
		t.Errorf("a command that ends in time is answered: %v %v", m, err)
	}
	for range cap(last) {
		err := <-last
		if st := status.Convert(err); st.Code() != codes.Unavailable || !strings.Contains(st.Message(), "stopping") {
			t.Errorf("want UNAVAILABLE with a sentence, got %v", err)
		}
	}
	r.must(r.wait())
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("it took %s", took)
	}

	// The VM whose hook was interrupted was touched: it is replaced. The lease lives on.
	r = begin(t, c)
	_, err = pb.NewLeaseClient(r.conn).Heartbeat(r.ctx(), &pb.HeartbeatRequest{LeaseId: held.GetLeaseId()})
	r.must(err)
	r.end()
}

// until waits for a condition that other processes' time brings about, by looking again at every change.
func (r *running) until(what string, cond func() bool) {
	r.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(limit); time.Now().Before(end); <-tick.C {
		if cond() {
			return
		}
	}
	r.Fatal("never: " + what)
}

// Each of these is one line that says what to do.
func TestStartsThatAreRefused(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	dir := t.TempDir()
	r := begin(t, config(dir))
	defer r.end()

	for name, c := range map[string]struct {
		change func(*Config)
		told   []string
		is     error
	}{
		"gRPC port in use":    {func(c *Config) { c.Listen = taken.Addr().String() }, []string{"--listen", taken.Addr().String(), "in use"}, nil},
		"HTTP port in use":    {func(c *Config) { c.HTTPListen = taken.Addr().String() }, []string{"--http-listen", taken.Addr().String(), "in use"}, nil},
		"no such address":     {func(c *Config) { c.Listen = "192.0.2.1:0" }, []string{"--listen", "192.0.2.1:0"}, nil},
		"second daemon":       {func(c *Config) { c.DB = filepath.Join(dir, "poolmgr.db") }, []string{"another poolmgrd", fmt.Sprint(os.Getpid()), "stop that daemon"}, store.ErrLocked},
		"missing directory":   {func(c *Config) { c.DB = "/nonexistent/x/poolmgr.db" }, []string{"/nonexistent/x", "create it"}, nil},
		"options of the host": {func(c *Config) { c.Host.MaxVMs = -1 }, []string{"--host-max-vms", "negative"}, hostd.ErrOptions},
		"host folder in use":  {func(c *Config) { c.Host.StateDir = filepath.Join(dir, "poolmgr.db.host") }, []string{"poolmgr.db.host", "--host-state-dir"}, hostd.ErrStateDirInUse},
	} {
		cfg := config(t.TempDir())
		c.change(&cfg)
		err := (&Daemon{Config: cfg, Logger: slog.New(slog.DiscardHandler)}).Run(r.ctx())
		if err == nil {
			t.Errorf("%s: it started", name)
			continue
		}
		if strings.Contains(err.Error(), "\n") || (c.is != nil && !errors.Is(err, c.is)) {
			t.Errorf("%s: %v", name, err)
		}
		for _, text := range c.told {
			if !strings.Contains(err.Error(), text) {
				t.Errorf("%s: %q is not told: %v", name, text, err)
			}
		}
	}
}

func TestAStartThatIsInterruptedIsNoFailure(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := (&Daemon{Config: config(t.TempDir()), Logger: slog.New(slog.DiscardHandler)}).Run(ctx); err != nil {
		t.Error(err)
	}
}

// A refused start leaves nothing open: the same files can be used at once.
func TestARefusedStartLetsGoOfItsFiles(t *testing.T) {
	c := config(t.TempDir())
	broken := c
	broken.Host.Simulated.FailBoot = 2
	if err := (&Daemon{Config: broken, Logger: slog.New(slog.DiscardHandler)}).Run(t.Context()); err == nil {
		t.Fatal("a probability of 2 was accepted")
	}
	begin(t, c).end()
}

// A store that stopped ends the daemon: nothing but a new start helps.
func TestAStoreThatStopsEndsTheDaemon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		storage := memory.NewStorage()
		st, err := storage.Open(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer st.Close()
		w := &storeWatch{store: st}
		ended := make(chan error, 1)
		go func() { ended <- w.run(t.Context()) }()
		<-time.After(time.Minute)
		synctest.Wait()
		select {
		case err := <-ended:
			t.Fatalf("it ended: %v", err)
		default:
		}
		storage.FailCommits(errors.New("the disk is full"))
		if _, err := st.AddHost(t.Context(), pool.Host{Name: "h", Address: "h:1"}, time.Now()); err == nil {
			t.Fatal("the commit did not fail")
		}
		began := time.Now()
		if err := <-ended; !errors.Is(err, store.ErrBroken) || !strings.Contains(err.Error(), "restart the daemon") {
			t.Errorf("want ErrBroken, got %v", err)
		}
		if took := time.Since(began); took > watchEvery {
			t.Errorf("it took %s", took)
		}
	})
}

func TestADatabaseThatDoesNotAnswerIsNotReady(t *testing.T) {
	now := time.Now()
	w := &storeWatch{}
	if err := w.ready(now); err != nil {
		t.Error(err)
	}
	w.asked.Store(now.UnixNano())
	if err := w.ready(now.Add(time.Second)); err != nil {
		t.Error(err)
	}
	if err := w.ready(now.Add(time.Minute)); err == nil || !strings.Contains(err.Error(), "1m0s") {
		t.Errorf("after a minute: %v", err)
	}
}

func TestNotReadyWhileStarting(t *testing.T) {
	if err := new(Daemon).ready(t.Context()); err == nil {
		t.Error("a daemon that does not serve is ready")
	}
}
