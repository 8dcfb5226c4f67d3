package flintlockapi

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"

	microvmv1alpha1 "poolmgr/api/flintlock/microvm/v1alpha1"
	microvmsshproxyv1alpha1 "poolmgr/api/flintlock/microvmsshproxy/v1alpha1"
	"poolmgr/api/flintlock/vmtypes"
	"poolmgr/internal/microvm"
	"poolmgr/internal/microvm/simulated"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// limit is far beyond what any call of these tests takes.
const limit = 30 * time.Second

// serve serves a backend on a free port until the end of the test.
func serve(t *testing.T, backend microvm.Backend, opts Options) *grpc.ClientConn {
	t.Helper()
	opts.Logger = slog.New(slog.DiscardHandler)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(grpc.WaitForHandlers(true))
	Register(server, backend, opts)
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	conn, err := grpc.NewClient(listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		conn.Close()
		server.Stop()
		if err := <-served; err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	return conn
}

func newSimulated(t *testing.T, cfg simulated.Config) *simulated.Backend {
	t.Helper()
	cfg.Logger = slog.New(slog.DiscardHandler)
	b, err := simulated.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	return b
}

func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	t.Cleanup(cancel)
	return ctx
}

func goodSpec() *vmtypes.MicroVMSpec {
	return &vmtypes.MicroVMSpec{
		Id: "vm-0a1b2c3d", Namespace: "default", Vcpu: 1, MemoryInMb: 128, AllowGuestAgent: true,
		Kernel:     &vmtypes.Kernel{Image: "local:base", Cmdline: map[string]string{"version": "1"}},
		RootVolume: &vmtypes.Volume{Id: "root", Source: &vmtypes.VolumeSource{ContainerSource: new("local:base")}},
		Metadata:   map[string]string{"poolmgr.owner": "eA=="},
		Labels:     map[string]string{"kept": "yes"},
	}
}

func createVM(t *testing.T, conn *grpc.ClientConn) string {
	t.Helper()
	made, err := microvmv1alpha1.NewMicroVMClient(conn).CreateMicroVM(within(t),
		&microvmv1alpha1.CreateMicroVMRequest{Microvm: goodSpec()})
	if err != nil {
		t.Fatalf("create: %v", err)
	}
	return made.GetMicrovm().GetSpec().GetUid()
}

func TestMachineCalls(t *testing.T) {
	conn := serve(t, newSimulated(t, simulated.Config{Behaviour: simulated.Behaviour{BootDelay: time.Hour, DeleteDelay: time.Hour}}), Options{})
	client := microvmv1alpha1.NewMicroVMClient(conn)
	first, second := createVM(t, conn), createVM(t, conn)
	if first == second {
		t.Error("the same id twice made one uid")
	}
	got, err := client.GetMicroVM(within(t), &microvmv1alpha1.GetMicroVMRequest{Uid: first})
	if err != nil {
		t.Fatalf("get: %v", err)
	}
	want := goodSpec()
	want.Uid = &first
	if diff := cmp.Diff(want, got.GetMicrovm().GetSpec(), protocmp.Transform(),
		protocmp.IgnoreFields(&vmtypes.MicroVMSpec{}, "created_at", "updated_at")); diff != "" {
		t.Errorf("spec (-sent +got):\n%s", diff)
	}
	if got.GetMicrovm().GetStatus().GetState() != vmtypes.MicroVMStatus_PENDING {
		t.Errorf("state %v, want PENDING", got.GetMicrovm().GetStatus().GetState())
	}
	for range 2 {
		if _, err := client.DeleteMicroVM(within(t), &microvmv1alpha1.DeleteMicroVMRequest{Uid: second}); err != nil {
			t.Errorf("delete: %v", err)
		}
	}
	checkList(t, client, &microvmv1alpha1.ListMicroVMsRequest{}, map[string]string{first: "PENDING", second: "DELETING"})
	checkList(t, client, &microvmv1alpha1.ListMicroVMsRequest{Namespace: "default", Name: new("vm-0a1b2c3d")}, map[string]string{first: "PENDING", second: "DELETING"})
	checkList(t, client, &microvmv1alpha1.ListMicroVMsRequest{Namespace: "nowhere"}, map[string]string{})
}

// checkList compares both ways to list.
func checkList(t *testing.T, client microvmv1alpha1.MicroVMClient, req *microvmv1alpha1.ListMicroVMsRequest, want map[string]string) {
	t.Helper()
	states := func(vms []*vmtypes.MicroVM) map[string]string {
		found := map[string]string{}
		for _, vm := range vms {
			found[vm.GetSpec().GetUid()] = vm.GetStatus().GetState().String()
		}
		return found
	}
	list, err := client.ListMicroVMs(within(t), req)
	if err != nil {
		t.Fatalf("list: %v", err)
	}
	if diff := cmp.Diff(want, states(list.GetMicrovm())); diff != "" {
		t.Errorf("list %v (-want +got):\n%s", req, diff)
	}
	stream, err := client.ListMicroVMsStream(within(t), req)
	if err != nil {
		t.Fatalf("list stream: %v", err)
	}
	var vms []*vmtypes.MicroVM
	for {
		msg, err := stream.Recv()
		if err != nil {
			break // the number of messages tells a fault from the end
		}
		vms = append(vms, msg.GetMicrovm())
	}
	if diff := cmp.Diff(want, states(vms)); diff != "" {
		t.Errorf("list stream %v (-want +got):\n%s", req, diff)
	}
}

func TestAnswersToBadCalls(t *testing.T) {
	conn := serve(t, newSimulated(t, simulated.Config{MaxVMs: 1}), Options{})
	client := microvmv1alpha1.NewMicroVMClient(conn)
	createVM(t, conn)
	for name, c := range map[string]struct {
		call func(context.Context) error
		code codes.Code
		text string
	}{
		"get without uid": {func(ctx context.Context) error {
			_, err := client.GetMicroVM(ctx, &microvmv1alpha1.GetMicroVMRequest{})
			return err
		}, codes.InvalidArgument, "no uid"},
		"delete without uid": {func(ctx context.Context) error {
			_, err := client.DeleteMicroVM(ctx, &microvmv1alpha1.DeleteMicroVMRequest{})
			return err
		}, codes.InvalidArgument, "no uid"},
		"create without a spec": {func(ctx context.Context) error {
			_, err := client.CreateMicroVM(ctx, &microvmv1alpha1.CreateMicroVMRequest{})
			return err
		}, codes.InvalidArgument, "no microvm"},
		"get of an unknown uid": {func(ctx context.Context) error {
			_, err := client.GetMicroVM(ctx, &microvmv1alpha1.GetMicroVMRequest{Uid: "none"})
			return err
		}, codes.Unknown, "not found"},
		"delete of an unknown uid": {func(ctx context.Context) error {
			_, err := client.DeleteMicroVM(ctx, &microvmv1alpha1.DeleteMicroVMRequest{Uid: "none"})
			return err
		}, codes.Unknown, "not found"},
		"create on a full host": {func(ctx context.Context) error {
			_, err := client.CreateMicroVM(ctx, &microvmv1alpha1.CreateMicroVMRequest{Microvm: goodSpec()})
			return err
		}, codes.ResourceExhausted, "capacity"},
		"ssh": {func(ctx context.Context) error {
			stream, err := microvmsshproxyv1alpha1.NewMicroVMSSHProxyClient(conn).SSHProxy(ctx)
			if err != nil {
				return err
			}
			_, err = stream.Recv()
			return err
		}, codes.Unimplemented, "use MicroVMExec.ExecCommand"},
	} {
		err := c.call(within(t))
		if status.Code(err) != c.code || !strings.Contains(fmt.Sprint(err), c.text) {
			t.Errorf("%s: %v; want %v with %q", name, err, c.code, c.text)
		}
	}
}

func TestSpecsThatNoHostCouldRun(t *testing.T) {
	opts := Options{MinMemoryMB: 128, MaxMemoryMB: 1024}
	if err := opts.checkSpec(goodSpec()); err != nil {
		t.Errorf("a good spec: %v", err)
	}
	long := strings.Repeat("x", 64)
	for name, c := range map[string]struct {
		change func(*vmtypes.MicroVMSpec)
		want   []string // parts of the one answer
	}{
		"everything missing": {
			func(s *vmtypes.MicroVMSpec) { *s = vmtypes.MicroVMSpec{} },
			[]string{"id is required", "namespace is required", "vcpu 0", "memory_in_mb 0", "kernel.image is required"},
		},
		"names with a path":      {func(s *vmtypes.MicroVMSpec) { s.Id, s.Namespace = "a/b", ".." }, []string{"id \"a/b\"", "namespace \"..\""}},
		"names with control":     {func(s *vmtypes.MicroVMSpec) { s.Id = "a\nb" }, []string{`id "a\nb"`}},
		"names that are long":    {func(s *vmtypes.MicroVMSpec) { s.Id = long }, []string{"id has 64 bytes"}},
		"too large":              {func(s *vmtypes.MicroVMSpec) { s.Vcpu, s.MemoryInMb = 65, 1025 }, []string{"vcpu 65", "memory_in_mb 1025"}},
		"too small":              {func(s *vmtypes.MicroVMSpec) { s.MemoryInMb = 127 }, []string{"memory_in_mb 127"}},
		"initrd without image":   {func(s *vmtypes.MicroVMSpec) { s.Initrd = &vmtypes.Initrd{} }, []string{"initrd.image"}},
		"kernel words":           {func(s *vmtypes.MicroVMSpec) { s.Kernel.Cmdline = map[string]string{"a b": "1", "c": `"`} }, []string{`["a b"]`, `["c"]`}},
		"kernel line":            {func(s *vmtypes.MicroVMSpec) { s.Kernel.Cmdline["x"] = strings.Repeat("y", 2048) }, []string{"kernel.cmdline has"}},
		"metadata not in base64": {func(s *vmtypes.MicroVMSpec) { s.Metadata["a"] = "!" }, []string{`metadata["a"] is not base64`}},
		"metadata without a key": {func(s *vmtypes.MicroVMSpec) { s.Metadata[""] = "" }, []string{`metadata[""]`}},
		"metadata too large":     {func(s *vmtypes.MicroVMSpec) { s.Metadata["a"] = strings.Repeat("AAAA", 9000) }, []string{"metadata has"}},
		"interfaces": {func(s *vmtypes.MicroVMSpec) {
			s.Interfaces = []*vmtypes.NetworkInterface{
				{DeviceId: "eth0", GuestMac: new("nonsense")},
				{},
				{DeviceId: "eth1", Type: 7},
				{DeviceId: "eth1"},
				{DeviceId: "eth2", Address: &vmtypes.StaticAddress{Address: "10.0.0.1"}, Overrides: &vmtypes.NetworkOverrides{}},
			}
		}, []string{
			"interfaces[0].device_id eth0", "interfaces[0].guest_mac", "interfaces[1].device_id is required", "interfaces[2].type 7",
			"interfaces[3].device_id \"eth1\" is used twice", "interfaces[4].address.address", "interfaces[4].overrides has no bridge_name",
		}},
	} {
		spec := goodSpec()
		c.change(spec)
		err := opts.checkSpec(spec)
		if !errors.Is(err, microvm.ErrRefused) {
			t.Errorf("%s: %v, want ErrRefused", name, err)
		}
		for _, part := range c.want {
			if !strings.Contains(fmt.Sprint(err), part) {
				t.Errorf("%s: the answer does not name %q: %v", name, part, err)
			}
		}
	}
}

func TestEveryErrorHasItsCode(t *testing.T) {
	for _, c := range []struct {
		err  error
		want codes.Code
	}{
		{nil, codes.OK},
		{microvm.ErrNotFound, codes.Unknown},
		{microvm.ErrNotRunning, codes.Unknown},
		{errors.New("disk on fire"), codes.Unknown},
		{microvm.ErrRefused, codes.InvalidArgument},
		{microvm.ErrNoCapacity, codes.ResourceExhausted},
		{microvm.ErrClosed, codes.Unavailable},
		{context.Canceled, codes.Canceled},
		{context.DeadlineExceeded, codes.DeadlineExceeded},
		{status.Error(codes.Unavailable, "cut off"), codes.Unavailable},
	} {
		err := c.err
		if err != nil {
			err = fmt.Errorf("do a thing: %w", err)
		}
		got := toStatus(err)
		if status.Code(got) != c.want || (err != nil && !strings.Contains(got.Error(), "do a thing")) {
			t.Errorf("%v became %v, want %v with the whole text", err, got, c.want)
		}
	}
}
