package pool

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"

	poolmgrv1alpha1 "poolmgr/api/poolmgr/v1alpha1"
)

// AcceptSpec turns what a client sent into the spec that is stored: converted, defaults filled in, validated against
// the registered hosts. The faults are all there are, at once; the spec may be used only without any.
func AcceptSpec(in *poolmgrv1alpha1.PoolSpec, hosts []Host) (Spec, Faults) {
	spec, faults := SpecFromAPI(in)
	if in == nil {
		return spec, faults
	}
	spec = spec.WithDefaults()
	for _, fault := range Validate(spec, hosts) {
		known := func(f Fault) bool { return f.Field == fault.Field }
		if !slices.ContainsFunc(faults, known) { // what could not be converted is missing in the spec: said already
			faults = append(faults, fault)
		}
	}
	return spec, faults
}

// SpecFromAPI converts the API's spec. Its faults are what a Spec cannot express: unknown enum numbers, durations that
// are none, fields this release does not know, an explicit min_size of 0. Everything else is left to Validate. The
// template is a copy. The server-computed template_hash and the generation are not part of a Spec.
func SpecFromAPI(in *poolmgrv1alpha1.PoolSpec) (Spec, Faults) {
	if in == nil {
		return Spec{}, Faults{{Field: "spec", Message: "is required"}}
	}
	c := converter{faults: unknownFields(in.ProtoReflect(), "")}
	strategy := in.GetReplenishmentStrategy()
	s := Spec{
		Key:      Key{Namespace: in.GetNamespace(), Name: in.GetName()},
		Size:     int(in.GetSize()),
		Hosts:    slices.Clone(in.GetFlintlockHosts()),
		Strategy: Strategy(c.word("replenishment_strategy.type", strategy.GetType())),
		MinSize:  int(strategy.GetMinSize()),

		CreateCommands:    slices.Clone(in.GetCreateCommands()),
		PreLeaseCommands:  slices.Clone(in.GetPreLeaseCommands()),
		HookFailurePolicy: HookFailurePolicy(c.word("hook_failure_policy", in.GetHookFailurePolicy())),

		HeartbeatInterval: c.duration("heartbeat_interval", in.GetHeartbeatInterval()),
		HeartbeatExpiry:   c.duration("heartbeat_expiry_threshold", in.GetHeartbeatExpiryThreshold()),
		MaxLeaseDuration:  c.duration("max_lease_duration", in.GetMaxLeaseDuration()),

		Rollout:         c.rollout(in.GetRolloutPolicy()),
		ClaimPreference: ClaimPreference(c.word("claim_preference", in.GetClaimPreference())),

		MaxVMs:         int(in.GetMaxVms()),
		MaxWarmAge:     c.duration("max_warm_age", in.GetMaxWarmAge()),
		BootTimeout:    c.duration("boot_timeout", in.GetBootTimeout()),
		CommandTimeout: c.duration("command_timeout", in.GetCommandTimeout()),
	}
	if in.GetMicrovmTemplate() != nil {
		s.Template = proto.CloneOf(in.GetMicrovmTemplate())
	}
	if strategy != nil && strategy.MinSize != nil && strategy.GetMinSize() == 0 {
		c.fault("replenishment_strategy.min_size", "must be at least 1; leave it out where it is not needed")
	}
	if in.GetGeneration() < 0 {
		c.fault("generation", "must not be negative; 0 or left out updates whatever is there")
	}
	if in.MaxQuarantined != nil {
		n := int(in.GetMaxQuarantined())
		s.MaxQuarantined = &n
	}
	return s, c.faults
}

// converter collects the faults of one conversion.
type converter struct{ faults Faults }

func (c *converter) fault(field, format string, args ...any) {
	c.faults = append(c.faults, Fault{Field: field, Message: fmt.Sprintf(format, args...)})
}

// word is the name of an API enum's value, "" for UNSPECIFIED.
func (c *converter) word(field string, e protoreflect.Enum) string {
	if e.Number() == 0 {
		return ""
	}
	v := e.Descriptor().Values().ByNumber(e.Number())
	if v == nil {
		c.fault(field, "unknown value %d; this release knows %s", e.Number(), strings.Join(words(e.Descriptor()), ", "))
		return ""
	}
	return string(v.Name())
}

// words lists an enum's names without UNSPECIFIED.
func words(d protoreflect.EnumDescriptor) []string {
	var names []string
	for i := range d.Values().Len() {
		if v := d.Values().Get(i); v.Number() != 0 {
			names = append(names, string(v.Name()))
		}
	}
	return names
}

func (c *converter) duration(field string, d *durationpb.Duration) time.Duration {
	if d == nil {
		return 0
	}
	if err := d.CheckValid(); err != nil {
		c.fault(field, "is not a valid duration (seconds and nanos out of range, or of different signs)")
		return 0
	}
	return d.AsDuration()
}

func (c *converter) rollout(in *poolmgrv1alpha1.RolloutPolicy) RolloutPolicy {
	p := RolloutPolicy{
		Paused:           in.GetPaused(),
		MinReady:         c.duration("rollout_policy.min_ready", in.GetMinReady()),
		ProgressDeadline: c.duration("rollout_policy.progress_deadline", in.GetProgressDeadline()),
		AutoRollback:     in.GetAutoRollback(),
	}
	switch v := in.GetMaxUnavailable().(type) {
	case *poolmgrv1alpha1.RolloutPolicy_Count:
		p.MaxUnavailable = Limit{Kind: LimitCount, Value: int(v.Count)}
	case *poolmgrv1alpha1.RolloutPolicy_Percent:
		p.MaxUnavailable = Limit{Kind: LimitPercent, Value: int(v.Percent)}
	}
	switch v := in.GetMaxSurge().GetValue().(type) {
	case *poolmgrv1alpha1.MaxSurge_Count:
		p.MaxSurge = Limit{Kind: LimitCount, Value: int(v.Count)}
	case *poolmgrv1alpha1.MaxSurge_Percent:
		p.MaxSurge = Limit{Kind: LimitPercent, Value: int(v.Percent)}
	}
	return p
}

// API is the spec as the API shows it: what is unset stays unset. The message is new but for the template, which is
// shared and must not be written to. Hash and generation are the caller's to add.
func (s Spec) API() *poolmgrv1alpha1.PoolSpec {
	out := &poolmgrv1alpha1.PoolSpec{
		Name:                     s.Name,
		Namespace:                s.Namespace,
		MicrovmTemplate:          s.Template,
		Size:                     int32(s.Size),
		FlintlockHosts:           slices.Clone(s.Hosts),
		CreateCommands:           slices.Clone(s.CreateCommands),
		PreLeaseCommands:         slices.Clone(s.PreLeaseCommands),
		HookFailurePolicy:        poolmgrv1alpha1.HookFailurePolicy(poolmgrv1alpha1.HookFailurePolicy_value[string(s.HookFailurePolicy)]),
		HeartbeatInterval:        durationToAPI(s.HeartbeatInterval),
		HeartbeatExpiryThreshold: durationToAPI(s.HeartbeatExpiry),
		MaxLeaseDuration:         durationToAPI(s.MaxLeaseDuration),
		RolloutPolicy:            s.Rollout.api(),
		ClaimPreference:          poolmgrv1alpha1.ClaimPreference(poolmgrv1alpha1.ClaimPreference_value[string(s.ClaimPreference)]),
		MaxVms:                   int32(s.MaxVMs),
		MaxWarmAge:               durationToAPI(s.MaxWarmAge),
		BootTimeout:              durationToAPI(s.BootTimeout),
		CommandTimeout:           durationToAPI(s.CommandTimeout),
	}
	if s.Strategy != "" || s.MinSize != 0 {
		out.ReplenishmentStrategy = &poolmgrv1alpha1.ReplenishmentStrategy{
			Type: poolmgrv1alpha1.ReplenishmentStrategyType(poolmgrv1alpha1.ReplenishmentStrategyType_value[string(s.Strategy)]),
		}
	}
	if s.MinSize != 0 {
		out.ReplenishmentStrategy.MinSize = proto.Int32(int32(s.MinSize))
	}
	if s.MaxQuarantined != nil {
		out.MaxQuarantined = proto.Int32(int32(*s.MaxQuarantined))
	}
	return out
}

// api is nil for a policy in which nothing is set.
func (p RolloutPolicy) api() *poolmgrv1alpha1.RolloutPolicy {
	if p == (RolloutPolicy{}) {
		return nil
	}
	out := &poolmgrv1alpha1.RolloutPolicy{
		Paused:           p.Paused,
		MinReady:         durationToAPI(p.MinReady),
		ProgressDeadline: durationToAPI(p.ProgressDeadline),
		AutoRollback:     p.AutoRollback,
	}
	switch p.MaxUnavailable.Kind {
	case LimitCount:
		out.MaxUnavailable = &poolmgrv1alpha1.RolloutPolicy_Count{Count: int32(p.MaxUnavailable.Value)}
	case LimitPercent:
		out.MaxUnavailable = &poolmgrv1alpha1.RolloutPolicy_Percent{Percent: int32(p.MaxUnavailable.Value)}
	}
	switch p.MaxSurge.Kind {
	case LimitCount:
		out.MaxSurge = &poolmgrv1alpha1.MaxSurge{Value: &poolmgrv1alpha1.MaxSurge_Count{Count: int32(p.MaxSurge.Value)}}
	case LimitPercent:
		out.MaxSurge = &poolmgrv1alpha1.MaxSurge{Value: &poolmgrv1alpha1.MaxSurge_Percent{Percent: int32(p.MaxSurge.Value)}}
	}
	return out
}

func durationToAPI(d time.Duration) *durationpb.Duration {
	if d == 0 {
		return nil
	}
	return durationpb.New(d)
}

// WithDefaults fills in what is unset; the result is what is stored and echoed. A heartbeat interval left out beside a
// threshold that the usual 30 s would not fit in is a third of the threshold.
func (s Spec) WithDefaults() Spec {
	setDefault(&s.Strategy, ImmediateOnLease)
	setDefault(&s.HookFailurePolicy, DeleteAndReplace)
	setDefault(&s.ClaimPreference, CurrentFirst)
	setDefault(&s.BootTimeout, DefaultBootTimeout)
	setDefault(&s.CommandTimeout, DefaultCommandTimeout)
	setDefault(&s.HeartbeatExpiry, DefaultHeartbeatExpiry)
	interval := DefaultHeartbeatInterval
	if s.HeartbeatExpiry > 0 && interval >= s.HeartbeatExpiry {
		interval = max(s.HeartbeatExpiry/3, 1)
	}
	setDefault(&s.HeartbeatInterval, interval)
	return s
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// unknownFields finds fields that a newer client set and this release would lose: they are refused, since a spec that
// means less than its author wrote must not run.
func unknownFields(m protoreflect.Message, path string) Faults {
	var faults Faults
	if len(m.GetUnknown()) > 0 {
		field := path
		if field == "" {
			field = "spec"
		}
		faults = append(faults, Fault{Field: field, Message: "has fields that this release of poolmgr does not know"})
	}
	m.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		at := strings.TrimPrefix(path+"."+string(fd.Name()), ".")
		switch {
		case fd.IsMap():
			if fd.MapValue().Message() != nil {
				v.Map().Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
					faults = append(faults, unknownFields(v.Message(), fmt.Sprintf("%s[%v]", at, k))...)
					return true
				})
			}
		case fd.Message() == nil:
		case fd.IsList():
			for i := range v.List().Len() {
				faults = append(faults, unknownFields(v.List().Get(i).Message(), fmt.Sprintf("%s[%d]", at, i))...)
			}
		default:
			faults = append(faults, unknownFields(v.Message(), at)...)
		}
		return true
	})
	slices.SortFunc(faults, func(a, b Fault) int { return strings.Compare(a.Field, b.Field) })
	return faults
}
