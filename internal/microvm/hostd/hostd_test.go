package hostd_test

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/spf13/pflag"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"poolmgr/api/flintlock/vmtypes"
	"poolmgr/internal/host"
	"poolmgr/internal/host/flintlock"
	"poolmgr/internal/host/hosttest"
	"poolmgr/internal/microvm/guest/guesttest"
	"poolmgr/internal/microvm/hostd"
	"poolmgr/internal/pool"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

// simulatedOptions are those of a quick host in a folder of the test's own.
func simulatedOptions(t *testing.T) hostd.Options {
	t.Helper()
	opts := hostd.DefaultOptions()
	opts.Name, opts.Backend, opts.StateDir = "test", hostd.BackendSimulated, t.TempDir()
	opts.Simulated.BootDelay, opts.Simulated.BootJitter, opts.Simulated.DeleteDelay = 0, 0, 0
	return opts
}

// serve runs a host on a free port until the end of the test.
func serve(t *testing.T, opts hostd.Options) string {
	t.Helper()
	h, err := hostd.Open(t.Context(), opts, quiet())
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := hostd.NewServer(h, quiet())
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	t.Cleanup(func() {
		server.StopGently()
		if err := errors.Join(<-served, h.Close()); err != nil {
			t.Error(err)
		}
	})
	return listener.Addr().String()
}

// dialer makes drivers for a served host.
func dialer(addr string) func(*testing.T) host.Driver {
	return func(t *testing.T) host.Driver {
		t.Helper()
		d, err := flintlock.Dial(addr, pool.HostTLS{Insecure: true}, flintlock.Config{Name: "test", Logger: quiet()})
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
}

func template() *vmtypes.MicroVMSpec {
	return &vmtypes.MicroVMSpec{
		Vcpu: 1, MemoryInMb: 128,
		Kernel:     &vmtypes.Kernel{Image: "local:base"},
		RootVolume: &vmtypes.Volume{Id: "root", Source: &vmtypes.VolumeSource{ContainerSource: new("local:base")}},
	}
}

func TestSimulatedHostKeepsTheDriversContract(t *testing.T) {
	for name, delay := range map[string]time.Duration{"at once": 0, "slow": 20 * time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			hosttest.Run(t, func(t *testing.T) hosttest.Setup {
				opts := simulatedOptions(t)
				opts.Simulated.BootDelay, opts.Simulated.BootJitter, opts.Simulated.DeleteDelay = delay, delay, delay
				return hosttest.Setup{Template: template(), Dial: dialer(serve(t, opts))}
			})
		})
	}
}

// TestQEMUHostKeepsTheDriversContract boots real machines.
func TestQEMUHostKeepsTheDriversContract(t *testing.T) {
	if testing.Short() {
		t.Skip("boots real microVMs: not in the fast lane")
	}
	opts := hostd.DefaultOptions()
	opts.Name, opts.Backend, opts.StateDir = "test", hostd.BackendQEMU, t.TempDir()
	opts.QEMU.GuestBinary = guesttest.Build(t)
	addr := serve(t, opts)
	hosttest.Run(t, func(*testing.T) hosttest.Setup {
		return hosttest.Setup{Template: template(), Dial: dialer(addr), Wait: 2 * time.Minute, RealGuest: true}
	})
}

func TestServerTellsItsHealth(t *testing.T) {
	conn, err := grpc.NewClient(serve(t, simulatedOptions(t)), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	answer, err := healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{})
	if err != nil || answer.GetStatus() != healthpb.HealthCheckResponse_SERVING {
		t.Errorf("health: %v, %v", answer.GetStatus(), err)
	}
	err = conn.Invoke(ctx, "/microvm.services.api.v1alpha1.MicroVM/NoSuchCall", &healthpb.HealthCheckRequest{}, &healthpb.HealthCheckResponse{})
	if status.Code(err) != codes.Unimplemented {
		t.Errorf("an unknown call: %v", err)
	}
}

func TestStateFolderHasOneOwner(t *testing.T) {
	opts := simulatedOptions(t)
	opts.AddFlags(pflag.NewFlagSet("", pflag.ContinueOnError), "host-")
	first, err := hostd.Open(t.Context(), opts, quiet())
	if err != nil {
		t.Fatal(err)
	}
	_, err = hostd.Open(t.Context(), opts, quiet())
	if !errors.Is(err, hostd.ErrStateDirInUse) {
		t.Fatalf("the second: %v, want ErrStateDirInUse", err)
	}
	for _, part := range []string{opts.StateDir, "--host-state-dir", "process"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("the error does not say %q: %v", part, err)
		}
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	again, err := hostd.Open(t.Context(), opts, quiet())
	if err != nil {
		t.Fatalf("after the first is closed: %v", err)
	}
	if err := again.Close(); err != nil {
		t.Error(err)
	}
}

func TestAHostThatCannotOpenLetsGoOfItsFolder(t *testing.T) {
	opts := simulatedOptions(t)
	bad := filepath.Join(opts.StateDir, "simulated", "X.json")
	if err := os.MkdirAll(filepath.Dir(bad), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(bad, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := hostd.Open(t.Context(), opts, quiet()); err == nil || !strings.Contains(err.Error(), bad) {
		t.Fatalf("open: %v, want an error about %s", err, bad)
	}
	if err := os.Remove(bad); err != nil {
		t.Fatal(err)
	}
	h, err := hostd.Open(t.Context(), opts, quiet())
	if err != nil {
		t.Fatal(err)
	}
	if err := h.Close(); err != nil {
		t.Error(err)
	}
}

func TestFlagsSetOptions(t *testing.T) {
	for _, prefix := range []string{"", "host-"} {
		opts := hostd.DefaultOptions()
		flags := pflag.NewFlagSet("", pflag.ContinueOnError)
		opts.AddFlags(flags, prefix)
		var args []string
		for _, arg := range []string{
			"state-dir=/s", "max-vms=3", "max-memory-mb=512", "accel=tcg", "image-dir=/i", "image-root=/r", "guest-binary=/g",
			"max-boots=2", "boot-timeout=9s", "seed=42", "boot-delay=1s", "boot-jitter=2s", "delete-delay=3s",
			"fail-create=0.1", "fail-boot=0.2", "lose-reply=0.3", "hang-exec=0.4", "vanish=0.5",
		} {
			args = append(args, "--"+prefix+arg)
		}
		want := hostd.DefaultOptions()
		want.StateDir, want.MaxVMs, want.MaxMemoryMB, want.Seed = "/s", 3, 512, 42
		want.QEMU = hostd.QEMUOptions{Accel: "tcg", ImageDir: "/i", ImageRoot: "/r", GuestBinary: "/g", MaxBoots: 2, BootTimeout: 9 * time.Second}
		s := &want.Simulated
		s.BootDelay, s.BootJitter, s.DeleteDelay = time.Second, 2*time.Second, 3*time.Second
		s.FailCreate, s.FailBoot, s.LoseReply, s.HangExec, s.Vanish = 0.1, 0.2, 0.3, 0.4, 0.5
		if prefix == "" {
			args = append(args, "--backend=simulated", "--name=n")
			want.Backend, want.Name = "simulated", "n"
		} else if flags.Lookup("host-backend") != nil {
			t.Error("a program that runs the host inside itself chooses the backend")
		}
		if err := flags.Parse(args); err != nil {
			t.Fatal(err)
		}
		hidden := cmpopts.IgnoreUnexported(hostd.Options{})
		if diff := cmp.Diff(want, opts, hidden); diff != "" {
			t.Errorf("prefix %q (-want +got):\n%s", prefix, diff)
		}
	}
}

func TestOptionsThatMakeNoHost(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*hostd.Options)
		want   []string
	}{
		"no backend":      {func(o *hostd.Options) { o.Backend = "" }, []string{"--backend qemu"}},
		"unknown backend": {func(o *hostd.Options) { o.Backend = "xen" }, []string{`"xen"`}},
		"qemu":            {func(o *hostd.Options) { o.Backend, o.StateDir, o.QEMU.Accel = "qemu", "", "warp" }, []string{"--host-state-dir", "--host-accel"}},
		"limits":          {func(o *hostd.Options) { o.MaxVMs, o.MaxMemoryMB, o.QEMU.MaxBoots = -1, -2, -3 }, []string{"--host-max-vms is -1", "--host-max-memory-mb", "--host-max-boots"}},
		"probability":     {func(o *hostd.Options) { o.Simulated.Vanish = 2 }, []string{"vanish"}},
	} {
		opts := simulatedOptions(t)
		opts.AddFlags(pflag.NewFlagSet("", pflag.ContinueOnError), "host-")
		c.change(&opts)
		_, err := hostd.Open(t.Context(), opts, quiet())
		for _, part := range c.want {
			if err == nil || !strings.Contains(err.Error(), part) {
				t.Errorf("%s: %v; want an error that says %q", name, err, part)
			}
		}
	}
}
