package pool_test

import (
	"math"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"

	"poolmgr/api/flintlock/vmtypes"
	poolmgrv1alpha1 "poolmgr/api/poolmgr/v1alpha1"
	"poolmgr/internal/pool"
)

// serverOnly are the fields of a spec that a Spec does not hold: the server adds them.
var serverOnly = []string{"template_hash", "generation"}

// TestSpecRoundTripEveryField sets each field of the API's spec by itself. A field that the API gains fails this until
// it is converted both ways.
func TestSpecRoundTripEveryField(t *testing.T) {
	fields := (&poolmgrv1alpha1.PoolSpec{}).ProtoReflect().Descriptor().Fields()
	for i := range fields.Len() {
		fd := fields.Get(i)
		name := string(fd.Name())
		t.Run(name, func(t *testing.T) {
			full := &poolmgrv1alpha1.PoolSpec{}
			populate(full.ProtoReflect())
			in := &poolmgrv1alpha1.PoolSpec{}
			in.ProtoReflect().Set(fd, full.ProtoReflect().Get(fd))
			spec, faults := pool.SpecFromAPI(in)
			if len(faults) > 0 {
				t.Fatal(faults)
			}
			if slices.Contains(serverOnly, name) {
				in = &poolmgrv1alpha1.PoolSpec{}
			}
			if diff := cmp.Diff(in, spec.API(), protocmp.Transform()); diff != "" {
				t.Errorf("(-sent +echoed)\n%s", diff)
			}
		})
	}
}

// TestSpecRoundTripUnset: unset and explicit zero stay apart where they differ in meaning.
func TestSpecRoundTripUnset(t *testing.T) {
	count := func(n int32) *poolmgrv1alpha1.RolloutPolicy {
		return &poolmgrv1alpha1.RolloutPolicy{MaxUnavailable: &poolmgrv1alpha1.RolloutPolicy_Count{Count: n}}
	}
	percent := func(n int32) *poolmgrv1alpha1.RolloutPolicy {
		return &poolmgrv1alpha1.RolloutPolicy{MaxUnavailable: &poolmgrv1alpha1.RolloutPolicy_Percent{Percent: n}}
	}
	surge := func(s *poolmgrv1alpha1.MaxSurge) *poolmgrv1alpha1.RolloutPolicy {
		return &poolmgrv1alpha1.RolloutPolicy{MaxSurge: s}
	}
	specs := map[string]*poolmgrv1alpha1.PoolSpec{
		"nothing":          {},
		"count 0":          {RolloutPolicy: count(0)},
		"count 3":          {RolloutPolicy: count(3)},
		"count negative":   {RolloutPolicy: count(-1)},
		"percent 0":        {RolloutPolicy: percent(0)},
		"percent 25":       {RolloutPolicy: percent(25)},
		"surge count 0":    {RolloutPolicy: surge(&poolmgrv1alpha1.MaxSurge{Value: &poolmgrv1alpha1.MaxSurge_Count{}})},
		"surge percent 0":  {RolloutPolicy: surge(&poolmgrv1alpha1.MaxSurge{Value: &poolmgrv1alpha1.MaxSurge_Percent{}})},
		"quarantined 0":    {MaxQuarantined: proto.Int32(0)},
		"quarantined 2":    {MaxQuarantined: proto.Int32(2)},
		"optional zeros":   {MicrovmTemplate: &vmtypes.MicroVMSpec{Uid: proto.String(""), Initrd: &vmtypes.Initrd{}}},
		"empty template":   {MicrovmTemplate: &vmtypes.MicroVMSpec{}},
		"negative seconds": {BootTimeout: durationpb.New(-time.Second)},
		"part of a second": {CommandTimeout: durationpb.New(1500*time.Millisecond + 7)},
	}
	seen := map[string]string{}
	for name, in := range specs {
		spec, faults := pool.SpecFromAPI(in)
		if len(faults) > 0 {
			t.Errorf("%s: %v", name, faults)
		}
		out := spec.API()
		if diff := cmp.Diff(in, out, protocmp.Transform()); diff != "" {
			t.Errorf("%s: (-sent +echoed)\n%s", name, diff)
		}
		text, err := proto.MarshalOptions{Deterministic: true}.Marshal(out)
		if err != nil {
			t.Fatal(err)
		}
		if other, dup := seen[string(text)]; dup {
			t.Errorf("%s and %s look the same afterwards", name, other)
		}
		seen[string(text)] = name
	}
}

func TestSpecFromAPIFaults(t *testing.T) {
	unknown := func(m proto.Message) {
		m.ProtoReflect().SetUnknown(protowire.AppendVarint(protowire.AppendTag(nil, 999, protowire.VarintType), 1))
	}
	in := &poolmgrv1alpha1.PoolSpec{
		ReplenishmentStrategy: &poolmgrv1alpha1.ReplenishmentStrategy{Type: 9, MinSize: proto.Int32(0)},
		HookFailurePolicy:     -1,
		ClaimPreference:       77,
		Generation:            -1,
		HeartbeatInterval:     &durationpb.Duration{Seconds: 1, Nanos: -1},
		MaxWarmAge:            &durationpb.Duration{Seconds: math.MaxInt64},
		RolloutPolicy:         &poolmgrv1alpha1.RolloutPolicy{MinReady: &durationpb.Duration{Nanos: math.MaxInt32}},
		MicrovmTemplate: &vmtypes.MicroVMSpec{
			Kernel:     &vmtypes.Kernel{},
			Interfaces: []*vmtypes.NetworkInterface{{}, {}},
		},
	}
	unknown(in)
	unknown(in.MicrovmTemplate.Kernel)
	unknown(in.MicrovmTemplate.Interfaces[1])
	_, faults := pool.SpecFromAPI(in)
	want := []string{
		"claim_preference", "generation", "heartbeat_interval", "hook_failure_policy", "max_warm_age",
		"microvm_template.interfaces[1]", "microvm_template.kernel", "replenishment_strategy.min_size",
		"replenishment_strategy.type", "rollout_policy.min_ready", "spec",
	}
	if diff := cmp.Diff(want, fields(faults)); diff != "" {
		t.Errorf("fields with faults (-want +got)\n%s\n%v", diff, faults)
	}
}

func TestSpecFromAPINil(t *testing.T) {
	if _, faults := pool.AcceptSpec(nil, nil); len(faults) != 1 || faults[0].Field != "spec" {
		t.Errorf("faults are %v", faults)
	}
}

// TestAcceptSpecReportsAllAtOnce: faults of conversion and of validation come together, one for a field.
func TestAcceptSpecReportsAllAtOnce(t *testing.T) {
	in := &poolmgrv1alpha1.PoolSpec{
		Name:                  "UPPER",
		Size:                  -1,
		ReplenishmentStrategy: &poolmgrv1alpha1.ReplenishmentStrategy{Type: poolmgrv1alpha1.ReplenishmentStrategyType_MIN_SIZE_THRESHOLD, MinSize: proto.Int32(0)},
		HookFailurePolicy:     42,
		BootTimeout:           durationpb.New(-time.Second),
	}
	_, faults := pool.AcceptSpec(in, nil)
	want := []string{
		"boot_timeout", "hook_failure_policy", "microvm_template", "name", "namespace", "replenishment_strategy.min_size", "size",
	}
	if diff := cmp.Diff(want, fields(faults)); diff != "" {
		t.Errorf("fields with faults (-want +got)\n%s\n%v", diff, faults)
	}
}

func TestSpecFromAPICopiesTheTemplate(t *testing.T) {
	in := &poolmgrv1alpha1.PoolSpec{MicrovmTemplate: &vmtypes.MicroVMSpec{Vcpu: 1}, CreateCommands: []string{"a"}}
	spec, _ := pool.SpecFromAPI(in)
	in.MicrovmTemplate.Vcpu = 2
	in.CreateCommands[0] = "b"
	if spec.Template.GetVcpu() != 1 || spec.CreateCommands[0] != "a" {
		t.Error("the spec shares memory with the request")
	}
}

func TestWithDefaults(t *testing.T) {
	got := pool.Spec{}.WithDefaults()
	want := pool.Spec{
		Strategy: pool.ImmediateOnLease, HookFailurePolicy: pool.DeleteAndReplace, ClaimPreference: pool.CurrentFirst,
		HeartbeatInterval: 30 * time.Second, HeartbeatExpiry: 5 * time.Minute,
		BootTimeout: 2 * time.Minute, CommandTimeout: 5 * time.Minute,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if again := got.WithDefaults(); cmp.Diff(got, again) != "" {
		t.Error("defaults change what is set")
	}
	short := pool.Spec{HeartbeatExpiry: 3 * time.Second}.WithDefaults()
	if short.HeartbeatInterval != time.Second || short.HeartbeatExpiry != 3*time.Second {
		t.Errorf("interval %s beside a threshold of %s", short.HeartbeatInterval, short.HeartbeatExpiry)
	}
}

// fields are the field paths of the faults, sorted.
func fields(faults pool.Faults) []string {
	var names []string
	for _, f := range faults {
		names = append(names, f.Field)
	}
	slices.Sort(names)
	return names
}
