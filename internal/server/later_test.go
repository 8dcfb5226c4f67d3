package server_test

import (
	"errors"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"

	pb "poolmgr/api/poolmgr/v1alpha1"
)

// laterRPCs are the calls that come with later releases. A new one is put here, or served.
var laterRPCs = []string{
	"Guest.Connect", "VMAdmin.DeleteVM", "VMAdmin.ReleaseQuarantinedVM",
}

// files hold the services.
var files = []protoreflect.FileDescriptor{
	pb.File_poolmgr_v1alpha1_pool_admin_proto, pb.File_poolmgr_v1alpha1_lease_proto, pb.File_poolmgr_v1alpha1_events_proto,
	pb.File_poolmgr_v1alpha1_host_admin_proto, pb.File_poolmgr_v1alpha1_vm_admin_proto,
	pb.File_poolmgr_v1alpha1_rollout_admin_proto, pb.File_poolmgr_v1alpha1_guest_proto,
}

// Every RPC of every service is either served or answers UNIMPLEMENTED with a sentence of ours, which the generated
// default is not.
func TestEveryRPCIsServedOrAnnounced(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		var later, served []string
		for _, file := range files {
			for i := range file.Services().Len() {
				service := file.Services().Get(i)
				served = append(served, string(service.FullName()))
				for j := range service.Methods().Len() {
					method := service.Methods().Get(j)
					st := status.Convert(r.call(method))
					name := string(service.Name()) + "." + string(method.Name())
					if st.Code() != codes.Unimplemented {
						continue
					}
					later = append(later, name)
					if !strings.HasPrefix(st.Message(), name+" comes with a later release") {
						t.Errorf("%s: %q is no sentence of ours", name, st.Message())
					}
				}
			}
		}
		slices.Sort(later)
		if diff := cmp.Diff(laterRPCs, later); diff != "" {
			t.Errorf("calls that come later (-want +got):\n%s", diff)
		}
		for name := range r.rpc.GetServiceInfo() {
			if strings.HasPrefix(name, "poolmgr.") && !slices.Contains(served, name) {
				t.Errorf("service %s is not looked at by this test", name)
			}
		}
	})
}

// call makes an empty call and returns its first error; a stream that answers is hung up on.
func (r *rig) call(m protoreflect.MethodDescriptor) error {
	r.Helper()
	stream, err := r.conn.NewStream(r.ctx(), &grpc.StreamDesc{
		ServerStreams: m.IsStreamingServer(), ClientStreams: m.IsStreamingClient(),
	}, "/"+string(m.Parent().FullName())+"/"+string(m.Name()))
	r.must(err)
	req := dynamicpb.NewMessage(m.Input())
	if f := m.Input().Fields().ByName("no_follow"); f != nil {
		req.Set(f, protoreflect.ValueOfBool(true))
	}
	if err := stream.SendMsg(req); err != nil && !errors.Is(err, io.EOF) {
		r.Fatal(err)
	}
	r.must(stream.CloseSend())
	for {
		if err := stream.RecvMsg(dynamicpb.NewMessage(m.Output())); errors.Is(err, io.EOF) || !m.IsStreamingServer() {
			return err
		} else if err != nil {
			return err
		}
	}
}

func TestHealthReflectsReadiness(t *testing.T) {
	inBubble(t, 0, func(r *rig) {
		check := func(service string) healthpb.HealthCheckResponse_ServingStatus {
			got, err := healthpb.NewHealthClient(r.conn).Check(r.ctx(), &healthpb.HealthCheckRequest{Service: service})
			r.must(err)
			return got.GetStatus()
		}
		all := []string{
			"", "poolmgr.v1alpha1.PoolAdmin", "poolmgr.v1alpha1.Lease", "poolmgr.v1alpha1.Events", "poolmgr.v1alpha1.HostAdmin",
			"poolmgr.v1alpha1.VMAdmin", "poolmgr.v1alpha1.RolloutAdmin", "poolmgr.v1alpha1.Guest",
		}
		expect := func(want healthpb.HealthCheckResponse_ServingStatus) {
			t.Helper()
			for _, service := range all {
				if got := check(service); got != want {
					t.Errorf("%q is %s, want %s", service, got, want)
				}
			}
		}
		expect(healthpb.HealthCheckResponse_NOT_SERVING)
		r.health.Serving()
		expect(healthpb.HealthCheckResponse_SERVING)
		r.health.Shutdown()
		expect(healthpb.HealthCheckResponse_NOT_SERVING)
	})
}

func TestReflectionListsTheServices(t *testing.T) {
	inBubble(t, 0, func(r *rig) {
		stream, err := reflectionpb.NewServerReflectionClient(r.conn).ServerReflectionInfo(r.ctx())
		r.must(err)
		r.must(stream.Send(&reflectionpb.ServerReflectionRequest{
			MessageRequest: &reflectionpb.ServerReflectionRequest_ListServices{},
		}))
		answer, err := stream.Recv()
		r.must(err)
		r.must(stream.CloseSend())
		var ours []string
		for _, s := range answer.GetListServicesResponse().GetService() {
			if strings.HasPrefix(s.GetName(), "poolmgr.v1alpha1.") {
				ours = append(ours, s.GetName())
			}
		}
		if len(ours) != 7 {
			t.Errorf("services: %v", ours)
		}
	})
}
