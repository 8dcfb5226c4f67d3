package e2e

import (
	"bufio"
	"context"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	microvmv1alpha1 "poolmgr/api/flintlock/microvm/v1alpha1"
	pb "poolmgr/api/poolmgr/v1alpha1"
)

// decode reads what a command printed with -o json.
func decode[M proto.Message](t *testing.T, text string, into M) M {
	t.Helper()
	if err := protojson.Unmarshal([]byte(text), into); err != nil {
		t.Fatalf("not the JSON of the API: %v\n%s", err, text)
	}
	return into
}

func (d *daemon) claim(args ...string) *pb.ClaimVMResponse {
	d.t.Helper()
	return decode(d.t, d.ok(append([]string{"lease", "claim", "-o", "json"}, args...)...), &pb.ClaimVMResponse{})
}

func (d *daemon) pool(name string) *pb.Pool {
	d.t.Helper()
	return decode(d.t, d.ok("pool", "get", name, "-o", "json"), &pb.Pool{})
}

func (d *daemon) vms() []*pb.VMRecord {
	d.t.Helper()
	return decode(d.t, d.ok("vm", "list", "-o", "json"), &pb.ListVMsResponse{}).GetVms()
}

func (d *daemon) leases() []*pb.LeaseRecord {
	d.t.Helper()
	return decode(d.t, d.ok("lease", "list", "-o", "json"), &pb.ListLeasesResponse{}).GetLeases()
}

// events is everything that was reported so far.
func (d *daemon) events(args ...string) []*pb.Event {
	d.t.Helper()
	out := d.ok(append([]string{"events", "tail", "--no-follow", "-o", "json"}, args...)...)
	var events []*pb.Event
	lines := bufio.NewScanner(strings.NewReader(out))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		events = append(events, decode(d.t, lines.Text(), &pb.Event{}))
	}
	return events
}

func (d *daemon) count(typ pb.EventType) int {
	d.t.Helper()
	n := 0
	for _, e := range d.events() {
		if e.GetType() == typ {
			n++
		}
	}
	return n
}

// onHost is the VMs that a host daemon has, by flintlock's API.
func onHost(t *testing.T, addr string) map[string]string {
	t.Helper()
	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	list, err := microvmv1alpha1.NewMicroVMClient(conn).ListMicroVMs(ctx, &microvmv1alpha1.ListMicroVMsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	vms := map[string]string{}
	for _, vm := range list.GetMicrovm() {
		vms[vm.GetSpec().GetUid()] = vm.GetSpec().GetId()
	}
	return vms
}
