package cli

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"

	vmtypes "poolmgr/api/flintlock/vmtypes"
	pb "poolmgr/api/poolmgr/v1alpha1"
)

func TestDecodeSpec(t *testing.T) {
	for _, tc := range []struct {
		name, text string
		want       *pb.PoolSpec
	}{
		{"snake case", "name: web\nheartbeat_interval: 1m30s\nmax_quarantined: 0", &pb.PoolSpec{
			Name: "web", HeartbeatInterval: durationpb.New(90 * time.Second), MaxQuarantined: proto.Int32(0),
		}},
		{"camel case in JSON with tabs", "{\n\t\"name\": \"web\",\n\t\"heartbeatInterval\": \"1.5s\", \"generation\": \"7\"}", &pb.PoolSpec{
			Name: "web", HeartbeatInterval: durationpb.New(1500 * time.Millisecond), Generation: 7,
		}},
		{"oneofs", "rollout_policy: {count: 1, max_surge: {percent: 20}}", &pb.PoolSpec{RolloutPolicy: &pb.RolloutPolicy{
			MaxUnavailable: &pb.RolloutPolicy_Count{Count: 1},
			MaxSurge:       &pb.MaxSurge{Value: &pb.MaxSurge_Percent{Percent: 20}},
		}}},
		{"an explicit 0 is not unset", "rollout_policy: {count: 0}", &pb.PoolSpec{RolloutPolicy: &pb.RolloutPolicy{
			MaxUnavailable: &pb.RolloutPolicy_Count{},
		}}},
		{"an empty message is not unset", "rollout_policy: {}", &pb.PoolSpec{RolloutPolicy: &pb.RolloutPolicy{}}},
		{"nothing behind a key is unset", "name: web\nrollout_policy:\nmax_vms: null", &pb.PoolSpec{Name: "web"}},
		{"lists, enums and aliases", "create_commands: [&c 'true', *c]\nclaim_preference: OLDEST_FIRST", &pb.PoolSpec{
			CreateCommands: []string{"true", "true"}, ClaimPreference: pb.ClaimPreference_OLDEST_FIRST,
		}},
		{"templates", "microvm_template:\n  kernel: {cmdline: {quiet: '', v: '1'}}\n  interfaces:\n  - {device_id: eth1, type: TAP}\n  created_at: 2026-01-31T12:00:00Z", &pb.PoolSpec{
			MicrovmTemplate: &vmtypes.MicroVMSpec{
				Kernel:     &vmtypes.Kernel{Cmdline: map[string]string{"quiet": "", "v": "1"}},
				Interfaces: []*vmtypes.NetworkInterface{{DeviceId: "eth1", Type: vmtypes.NetworkInterface_TAP}},
				CreatedAt:  timestamp(2026, time.January, 31),
			},
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := &pb.PoolSpec{}
			if faults := decodeSpec([]byte(tc.text), got); len(faults) > 0 {
				t.Fatalf("faults: %v", faults)
			}
			if diff := cmp.Diff(tc.want, got, protocmp.Transform()); diff != "" {
				t.Errorf("spec (-want +got):\n%s", diff)
			}
		})
	}
}

func TestDecodeSpecFaults(t *testing.T) {
	for _, tc := range []struct {
		name, text string
		line       int
		want       string
	}{
		{"unknown key", "name: a\nsize: 1\ncolour: red", 3, `unknown key "colour"`},
		{"unknown key far below", "microvm_template:\n  interfaces:\n  - device_id: eth1\n    mac: x", 4, `unknown key "mac" in microvm_template.interfaces[0]`},
		{"another spelling", "Name: a", 1, `did you mean "name"?`},
		{"kebab case", "max-vms: 3", 1, `did you mean "max_vms"?`},
		{"key twice", "name: a\nname: b", 2, "name is given twice, first on line 1"},
		{"key twice in two spellings", "max_vms: 1\nmaxVms: 2", 2, "max_vms is given twice, first on line 1"},
		{"map key twice", "microvm_template:\n  labels:\n    a: b\n    a: c", 4, "microvm_template.labels.a is given twice"},
		{"number too large", "size: 3000000000", 1, "size must be a whole number of at most 32 bits, not the number 3000000000"},
		{"number as text", "size: '2'", 1, `size must be a whole number of at most 32 bits, not "2"`},
		{"duration without unit", "boot_timeout: 30", 1, `boot_timeout: "30" is not a duration such as 30s or 5m`},
		{"duration as a mapping", "boot_timeout: {seconds: 30}", 1, "boot_timeout: not a mapping"},
		{"text without quotes", "microvm_template: {labels: {on: true}}", 1, `microvm_template.labels.on must be text (write "true"), not the truth value true`},
		{"no text", "microvm_template: {labels: {on: }}", 1, "microvm_template.labels.on must be text"},
		{"truth", "rollout_policy: {paused: 1}", 1, "rollout_policy.paused must be true or false, not the number 1"},
		{"truth of old", "rollout_policy: {paused: yes}", 1, `rollout_policy.paused must be true or false, not "yes"`},
		{"enum by number", "hook_failure_policy: 1", 1, "hook_failure_policy must be one of DELETE_AND_REPLACE, QUARANTINE, not the number 1"},
		{"list for text", "name: [a]", 1, "name must be a single value, not a list"},
		{"text for a message", "rollout_policy: fast", 1, `rollout_policy must be a mapping of keys to values, not "fast"`},
		{"text for a file", "web", 1, `the file must be a mapping of keys to values, not "web"`},
		{"list for a map", "microvm_template: {labels: [a]}", 1, "microvm_template.labels must be a mapping of keys to values, not a list"},
		{"merge key", "x: &x {name: a}\n<<: *x", 2, "merge keys (<<) are not supported"},
		{"two documents", "name: a\n---\nname: b", 2, "more than one document"},
		{"nothing", "# only a comment\n", 0, "is empty"},
		{"no YAML", "name: [a", 0, "neither YAML nor JSON"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			faults := decodeSpec([]byte(tc.text), &pb.PoolSpec{})
			for _, f := range faults {
				if f.line == tc.line && strings.Contains(f.text, tc.want) {
					return
				}
			}
			t.Errorf("faults %v, want %q on line %d", faults, tc.want, tc.line)
		})
	}
}

// What "pool get -o json" and "-o yaml" print of a spec is a spec file again.
func TestPrintedSpecsAreSpecFiles(t *testing.T) {
	text, err := os.ReadFile("../../examples/quickstart/pool.yaml")
	if err != nil {
		t.Fatal(err)
	}
	want := &pb.PoolSpec{}
	if faults := decodeSpec(text, want); len(faults) > 0 {
		t.Fatalf("faults: %v", faults)
	}
	want.Generation, want.MaxWarmAge = 3, durationpb.New(90*time.Minute)
	for name, print := range map[string]func(proto.Message) ([]byte, error){"json": jsonText, "yaml": yamlText} {
		printed, err := print(want)
		if err != nil {
			t.Fatal(err)
		}
		got := &pb.PoolSpec{}
		if faults := decodeSpec(printed, got); len(faults) > 0 {
			t.Fatalf("%s: faults: %v", name, faults)
		}
		if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// The two example pools differ in what can be seen from inside a VM, and in nothing else.
func TestExamples(t *testing.T) {
	specs := make([]*pb.PoolSpec, 2)
	for i, name := range []string{"pool.yaml", "pool-v2.yaml"} {
		text, err := os.ReadFile("../../examples/quickstart/" + name)
		if err != nil {
			t.Fatal(err)
		}
		specs[i] = &pb.PoolSpec{}
		if faults := decodeSpec(text, specs[i]); len(faults) > 0 {
			t.Fatalf("%s: faults: %v", name, faults)
		}
	}
	old, changed := specs[0].GetMicrovmTemplate(), specs[1].GetMicrovmTemplate()
	if old.GetKernel().GetCmdline()["quickstart.version"] != "1" || changed.GetKernel().GetCmdline()["quickstart.version"] != "2" {
		t.Errorf("command lines %v and %v, want versions 1 and 2", old.GetKernel().GetCmdline(), changed.GetKernel().GetCmdline())
	}
	changed.Kernel.Cmdline, changed.Metadata = old.GetKernel().GetCmdline(), old.GetMetadata()
	if diff := cmp.Diff(specs[0], specs[1], protocmp.Transform()); diff != "" {
		t.Errorf("differ in more than the version:\n%s", diff)
	}
}

func FuzzDecodeSpec(f *testing.F) {
	f.Add([]byte("name: web\nmicrovm_template: {kernel: {cmdline: {a: b}}}\nrollout_policy: {count: 1}"))
	f.Add([]byte("a: &a [*a]"))
	f.Add([]byte("? [x]\n: y"))
	f.Fuzz(func(_ *testing.T, text []byte) {
		for _, fault := range decodeSpec(text, &pb.PoolSpec{}) {
			if fault.text == "" {
				panic("a fault without words")
			}
		}
	})
}
