package flintlock_test

import (
	"context"
	"encoding/base64"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	microvmv1alpha1 "poolmgr/api/flintlock/microvm/v1alpha1"
	"poolmgr/api/flintlock/vmtypes"
	"poolmgr/internal/host"
	"poolmgr/internal/host/fake"
	"poolmgr/internal/host/flintlock"
	"poolmgr/internal/pool"
)

func TestReadsWhatTheHostTells(t *testing.T) {
	uid := "01H"
	d := newDriver(t, serveStub(t, &stub{get: func(context.Context) (*microvmv1alpha1.GetMicroVMResponse, error) {
		return &microvmv1alpha1.GetMicroVMResponse{Microvm: &vmtypes.MicroVM{
			Spec: &vmtypes.MicroVMSpec{
				Id: "web-0a1b2c3d", Namespace: "default", Uid: &uid,
				Metadata: map[string]string{host.OwnerKey: base64.StdEncoding.EncodeToString([]byte("inst/row/1"))},
			},
			Status: &vmtypes.MicroVMStatus{
				State: vmtypes.MicroVMStatus_CREATED,
				NetworkInterfaces: map[string]*vmtypes.NetworkInterfaceStatus{
					"eth1": {HostDeviceName: "fltap1", Index: 7, MacAddress: "02:00:00:00:00:01"},
				},
			},
		}}, nil
	}}), quiet())
	got, err := d.Get(t.Context(), uid)
	if err != nil {
		t.Fatal(err)
	}
	want := host.VM{
		UID: uid, Namespace: "default", Name: "web-0a1b2c3d", State: host.Created, Owner: "inst/row/1",
		Interfaces: map[string]pool.Interface{"eth1": {HostDevice: "fltap1", Index: 7, MAC: "02:00:00:00:00:01"}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("get (-want +got):\n%s", diff)
	}
	if _, err := d.Get(t.Context(), "01J"); err == nil {
		t.Error("an answer about another VM was taken")
	}
}

// TestListTrustsNoFilter: a host that ignores the filters must not make us take others' VMs for ours.
func TestListTrustsNoFilter(t *testing.T) {
	d := newDriver(t, serveStub(t, &stub{list: func(context.Context) (*microvmv1alpha1.ListMicroVMsResponse, error) {
		answer := &microvmv1alpha1.ListMicroVMsResponse{}
		for _, vm := range []struct{ uid, namespace, name string }{{"3", "a", "x"}, {"2", "b", "x"}, {"1", "a", "x"}, {"4", "a", "y"}} {
			spec := &vmtypes.MicroVMSpec{Uid: &vm.uid, Namespace: vm.namespace, Id: vm.name}
			answer.Microvm = append(answer.Microvm, &vmtypes.MicroVM{Spec: spec})
		}
		return answer, nil
	}}), quiet())
	vms, err := d.List(t.Context(), "a", "x")
	if err != nil || len(vms) != 2 || vms[0].UID != "1" || vms[1].UID != "3" {
		t.Errorf("list: %v, %v; want the VMs 1 and 3", vms, err)
	}
}

func TestCreateWithoutUID(t *testing.T) {
	d := newDriver(t, serveStub(t, &stub{create: func(context.Context) (*microvmv1alpha1.CreateMicroVMResponse, error) {
		return &microvmv1alpha1.CreateMicroVMResponse{}, nil
	}}), quiet())
	if _, err := d.Create(t.Context(), fake.Template()); err == nil {
		t.Error("an answer without a VM was taken")
	}
}

func TestInfo(t *testing.T) {
	t.Run("exec enabled", func(t *testing.T) {
		h, conn := serveFake(t, fake.Options{})
		h.Plant(host.SpecFor(fake.Template(), "a", "ns", ""))
		got, err := newDriver(t, conn, quiet()).Info(t.Context())
		if want := (host.Info{ExecEnabled: true, VMs: 1}); err != nil || got != want {
			t.Errorf("info: %+v, %v; want %+v", got, err, want)
		}
	})
	t.Run("exec disabled", func(t *testing.T) {
		h, conn := serveFake(t, fake.Options{NoExec: true})
		uid := h.Plant(host.SpecFor(fake.Template(), "a", "ns", ""))
		d := newDriver(t, conn, quiet())
		got, err := d.Info(t.Context())
		if want := (host.Info{VMs: 1}); err != nil || got != want {
			t.Errorf("info: %+v, %v; want %+v", got, err, want)
		}
		if _, err := d.Exec(t.Context(), host.ExecRequest{UID: uid, Cmd: "true"}, host.ExecStreams{}); !errors.Is(err, host.ErrExecDisabled) {
			t.Errorf("exec: %v, want ErrExecDisabled", err)
		}
	})
	t.Run("no flintlock", func(t *testing.T) {
		conn := serve(t, func(grpc.ServiceRegistrar) {})
		if _, err := newDriver(t, conn, quiet()).Info(t.Context()); err == nil || errors.Is(err, host.ErrUnreachable) {
			t.Errorf("info of another kind of server: %v, want an error that is not ErrUnreachable", err)
		}
	})
	t.Run("exec hangs", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			h, conn := serveFake(t, fake.Options{})
			h.Inject(fake.Fault{Op: fake.Exec, Hang: true})
			if _, err := newDriver(t, conn, quiet()).Info(t.Context()); !errors.Is(err, host.ErrUnreachable) {
				t.Errorf("info: %v, want ErrUnreachable", err)
			}
		})
	})
}

// TestEveryCallHasADeadline: a host that takes packets and answers nothing holds nobody up.
func TestEveryCallHasADeadline(t *testing.T) {
	for name, c := range map[string]struct {
		limit time.Duration
		call  func(context.Context, *flintlock.Driver) error
	}{
		"create": {host.CreateTimeout, func(ctx context.Context, d *flintlock.Driver) error {
			_, err := d.Create(ctx, fake.Template())
			return err
		}},
		"get":    {host.CallTimeout, func(ctx context.Context, d *flintlock.Driver) error { _, err := d.Get(ctx, "u"); return err }},
		"list":   {host.CallTimeout, func(ctx context.Context, d *flintlock.Driver) error { _, err := d.List(ctx, "", ""); return err }},
		"delete": {host.CallTimeout, func(ctx context.Context, d *flintlock.Driver) error { return d.Delete(ctx, "u") }},
		"info":   {host.CallTimeout, func(ctx context.Context, d *flintlock.Driver) error { _, err := d.Info(ctx); return err }},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h, conn := serveFake(t, fake.Options{})
				h.Silence()
				d := newDriver(t, conn, quiet())
				for _, own := range []time.Duration{0, 2 * time.Second, time.Hour} {
					ctx, cancel, want := t.Context(), context.CancelFunc(func() {}), c.limit
					if own > 0 {
						ctx, cancel = context.WithTimeout(ctx, own)
						want = min(want, own)
					}
					began := time.Now()
					err := c.call(ctx, d)
					cancel()
					if took := time.Since(began); took != want || !errors.Is(err, host.ErrUnreachable) {
						t.Errorf("own deadline %v: %v after %v; want ErrUnreachable after %v", own, err, took, want)
					}
				}
			})
		})
	}
}

// TestSilentHostFailsFast: after three calls without an answer the next ones cost nothing, and the host is found again.
func TestSilentHostFailsFast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, conn := serveFake(t, fake.Options{})
		d := newDriver(t, conn, quiet())
		h.Silence()
		for range 3 {
			_, _ = d.List(t.Context(), "", "")
		}
		began := time.Now()
		if _, err := d.List(t.Context(), "", ""); !errors.Is(err, host.ErrUnreachable) {
			t.Errorf("list: %v, want ErrUnreachable", err)
		}
		if _, err := d.Exec(t.Context(), host.ExecRequest{UID: "u", Cmd: "true"}, host.ExecStreams{}); !errors.Is(err, host.ErrUnreachable) {
			t.Errorf("exec: %v, want ErrUnreachable", err)
		}
		if took := time.Since(began); took != 0 {
			t.Errorf("failing fast took %v", took)
		}
		h.Up()
		time.Sleep(time.Second)
		if _, err := d.List(t.Context(), "", ""); err != nil {
			t.Errorf("list after the host came back: %v", err)
		}
	})
}

// TestHungExecsLeaveCallsAlone: with every exec slot taken by a hung command, the host's other calls go on.
func TestHungExecsLeaveCallsAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, conn := serveFake(t, fake.Options{})
		uid := h.Plant(host.SpecFor(fake.Template(), "a", "ns", ""))
		cfg := quiet()
		cfg.Limits = flintlock.Limits{Calls: 1, ShortExecs: 1, LongExecs: 1}
		d := newDriver(t, conn, cfg)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() {
			_, err := d.Exec(ctx, host.ExecRequest{UID: uid, Cmd: "hang"}, host.ExecStreams{})
			ended <- err
		}()
		synctest.Wait()
		probe, stop := context.WithTimeout(t.Context(), 5*time.Second)
		defer stop()
		if _, err := d.Exec(probe, host.ExecRequest{UID: uid, Cmd: "true"}, host.ExecStreams{}); err != nil {
			t.Errorf("a probe beside a hung command: %v", err)
		}
		if _, err := d.Get(t.Context(), uid); err != nil {
			t.Errorf("a get beside a hung command: %v", err)
		}
		second, stopSecond := context.WithTimeout(t.Context(), time.Minute)
		defer stopSecond()
		_, err := d.Exec(second, host.ExecRequest{UID: uid, Cmd: "true"}, host.ExecStreams{})
		if !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, host.ErrUnreachable) {
			t.Errorf("a command over the limit: %v, want its deadline, and no word against the host", err)
		}
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("the hung command: %v", err)
		}
	})
}

func TestBasicAuth(t *testing.T) {
	check := func(ctx context.Context) error {
		md, _ := metadata.FromIncomingContext(ctx)
		want := []string{"basic " + base64.StdEncoding.EncodeToString([]byte("s3cret"))}
		if !cmp.Equal(md.Get("authorization"), want) {
			return status.Error(codes.Unauthenticated, "no")
		}
		return nil
	}
	h := fake.New(fake.Options{})
	conn := serve(t, func(s grpc.ServiceRegistrar) { fake.Register(s, h) },
		grpc.UnaryInterceptor(func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
			if err := check(ctx); err != nil {
				return nil, err
			}
			return next(ctx, req)
		}),
		grpc.StreamInterceptor(func(srv any, s grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) error {
			if err := check(s.Context()); err != nil {
				return err
			}
			return next(srv, s)
		}))
	cfg := quiet()
	if _, err := newDriver(t, conn, cfg).Info(t.Context()); err == nil || errors.Is(err, host.ErrUnreachable) {
		t.Errorf("without a token: %v, want a refusal that is not ErrUnreachable", err)
	}
	cfg.Token = "s3cret"
	if info, err := newDriver(t, conn, cfg).Info(t.Context()); err != nil || !info.ExecEnabled {
		t.Errorf("with the token: %+v, %v", info, err)
	}
}
