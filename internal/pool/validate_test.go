package pool_test

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"

	"poolmgr/api/flintlock/vmtypes"
	"poolmgr/internal/pool"
)

var hosts = []pool.Host{{Name: "flint"}, {Name: "micro", MinVMMemoryMB: 128}, {Name: "tiny", MinVMMemoryMB: 64}}

// valid is a spec without faults, with every default filled in.
func valid() pool.Spec {
	return pool.Spec{
		Key:  pool.Key{Namespace: "default", Name: "web"},
		Size: 2,
		Template: &vmtypes.MicroVMSpec{
			Vcpu: 1, MemoryInMb: 1024,
			Kernel:     &vmtypes.Kernel{Image: "local:base"},
			RootVolume: &vmtypes.Volume{Id: "root", Source: &vmtypes.VolumeSource{ContainerSource: proto.String("local:base")}},
		},
	}.WithDefaults()
}

func TestValidateAcceptsWhatIsGood(t *testing.T) {
	for name, edit := range map[string]func(*pool.Spec){
		"plain":             func(*pool.Spec) {},
		"size 0":            func(s *pool.Spec) { s.Size = 0 },
		"longest names":     func(s *pool.Spec) { s.Name, s.Namespace = strings.Repeat("a", 54), strings.Repeat("b", 63) },
		"one letter":        func(s *pool.Spec) { s.Name = "1" },
		"hosts":             func(s *pool.Spec) { s.Hosts = []string{"flint", "tiny"} },
		"small on microvmd": func(s *pool.Spec) { s.Hosts, s.Template.MemoryInMb = []string{"micro", "tiny"}, 128 },
		"largest":           func(s *pool.Spec) { s.Template.Vcpu, s.Template.MemoryInMb = 64, 32768 },
		"min size":          func(s *pool.Spec) { s.Strategy, s.MinSize = pool.MinSizeThreshold, 2 },
		"pause":             func(s *pool.Spec) { s.Rollout.MaxUnavailable = pool.Limit{Kind: pool.LimitCount} },
		"all at once":       func(s *pool.Spec) { s.Rollout.MaxUnavailable = pool.Limit{Kind: pool.LimitPercent, Value: 100} },
		"count above size":  func(s *pool.Spec) { s.Rollout.MaxUnavailable = pool.Limit{Kind: pool.LimitCount, Value: 50} },
		"max_vms":           func(s *pool.Spec) { s.MaxVMs = 2 },
		"max age":           func(s *pool.Spec) { s.MaxWarmAge, s.Rollout.MinReady = 3*time.Minute, time.Minute },
		"quarantine none":   func(s *pool.Spec) { s.MaxQuarantined = new(int) },
		"commands":          func(s *pool.Spec) { s.CreateCommands = []string{"set -e\n\tapk add curl && echo 'ü'"} },
		"cmdline":           func(s *pool.Spec) { s.Template.Kernel.Cmdline = map[string]string{"a": strings.Repeat("x", 1533)} },
		"metadata":          func(s *pool.Spec) { s.Template.Metadata = map[string]string{"user-data": "aGVsbG8="} },
		"labels":            func(s *pool.Spec) { s.Template.Labels = map[string]string{"example.com/tier": "front end"} },
		"interface":         withInterface(&vmtypes.NetworkInterface{DeviceId: "eth1", Type: vmtypes.NetworkInterface_TAP, Overrides: &vmtypes.NetworkOverrides{BridgeName: proto.String("br0")}}),
		"fixed, alone":      alone(func(*pool.Spec) {}),
		"fixed, max_vms 1":  func(s *pool.Spec) { s.Size, s.MaxVMs = 1, 1; withInterface(fixed())(s) },
		"volumes": func(s *pool.Spec) {
			s.Template.AdditionalVolumes = []*vmtypes.Volume{volume("data"), volume("more")}
		},
	} {
		t.Run(name, func(t *testing.T) {
			spec := valid()
			edit(&spec)
			if faults := pool.Validate(spec, hosts); len(faults) > 0 {
				t.Error(faults)
			}
		})
	}
}

func fixed() *vmtypes.NetworkInterface {
	return &vmtypes.NetworkInterface{
		DeviceId: "eth1", GuestMac: proto.String("02:00:00:00:00:01"),
		Address: &vmtypes.StaticAddress{Address: "192.0.2.10/24", Gateway: proto.String("192.0.2.1/24"), Nameservers: []string{"2001:db8::1"}},
	}
}

func volume(id string) *vmtypes.Volume {
	return &vmtypes.Volume{Id: id, Source: &vmtypes.VolumeSource{ContainerSource: proto.String("local:base")}}
}

func withInterface(n ...*vmtypes.NetworkInterface) func(*pool.Spec) {
	return func(s *pool.Spec) { s.Template.Interfaces = n }
}

// alone makes a pool that never holds two VMs, with a fixed address, and edits it.
func alone(edit func(*pool.Spec)) func(*pool.Spec) {
	return func(s *pool.Spec) {
		s.Size, s.Strategy = 1, pool.ReplaceOnDelete
		withInterface(fixed())(s)
		edit(s)
	}
}

// TestValidateFindsFaults has one row for each rule; the field path is what clients see.
func TestValidateFindsFaults(t *testing.T) {
	shared := []string{"microvm_template.interfaces[0].address", "microvm_template.interfaces[0].guest_mac"}
	limit := func(kind pool.LimitKind, n int) pool.Limit { return pool.Limit{Kind: kind, Value: n} }
	minus := -1
	rows := []struct {
		name string
		edit func(*pool.Spec)
		want []string
	}{
		{"no name", func(s *pool.Spec) { s.Name = "" }, []string{"name"}},
		{"long name", func(s *pool.Spec) { s.Name = strings.Repeat("a", 55) }, []string{"name"}},
		{"upper case", func(s *pool.Spec) { s.Name = "Web" }, []string{"name"}},
		{"slash", func(s *pool.Spec) { s.Name = "a/b" }, []string{"name"}},
		{"newline", func(s *pool.Spec) { s.Name = "a\n" }, []string{"name"}},
		{"hyphen", func(s *pool.Spec) { s.Name, s.Namespace = "-a", "a-" }, []string{"name", "namespace"}},
		{"namespace", func(s *pool.Spec) { s.Namespace = strings.Repeat("a", 64) }, []string{"namespace"}},
		{"size", func(s *pool.Spec) { s.Size = -1 }, []string{"size"}},
		{"huge", func(s *pool.Spec) { s.Size = pool.MaxSize + 1 }, []string{"size"}},
		{"strategy", func(s *pool.Spec) { s.Strategy = "SOMETIMES" }, []string{"replenishment_strategy.type"}},
		{"no min size", func(s *pool.Spec) { s.Strategy = pool.MinSizeThreshold }, []string{"replenishment_strategy.min_size"}},
		{"min above size", func(s *pool.Spec) { s.Strategy, s.MinSize = pool.MinSizeThreshold, 3 }, []string{"replenishment_strategy.min_size"}},
		{"min negative", func(s *pool.Spec) { s.MinSize = -1 }, []string{"replenishment_strategy.min_size"}},
		{"unknown host", func(s *pool.Spec) { s.Hosts = []string{"flint", "nowhere", "gone"} }, []string{"flintlock_hosts[1]", "flintlock_hosts[2]"}},
		{"host twice", func(s *pool.Spec) { s.Hosts = []string{"flint", "flint"} }, []string{"flintlock_hosts[1]"}},
		{"command", func(s *pool.Spec) { s.CreateCommands = []string{"true", " "} }, []string{"create_commands[1]"}},
		{"command NUL", func(s *pool.Spec) { s.PreLeaseCommands = []string{"a\x00b"} }, []string{"pre_lease_commands[0]"}},
		{"long command", func(s *pool.Spec) { s.PreLeaseCommands = []string{strings.Repeat("x", pool.MaxCommandLen+1)} }, []string{"pre_lease_commands[0]"}},
		{"many commands", func(s *pool.Spec) { s.CreateCommands = make([]string, pool.MaxCommands+1) }, []string{"create_commands"}},
		{"policy", func(s *pool.Spec) { s.HookFailurePolicy = "IGNORE" }, []string{"hook_failure_policy"}},
		{"preference", func(s *pool.Spec) { s.ClaimPreference = "BEST" }, []string{"claim_preference"}},
		{"negative", func(s *pool.Spec) { s.HeartbeatInterval, s.MaxLeaseDuration = -1, -1 }, []string{"heartbeat_interval", "max_lease_duration"}},
		{"negative 2", func(s *pool.Spec) { s.BootTimeout, s.CommandTimeout, s.MaxWarmAge = -1, -1, -1 }, []string{"boot_timeout", "command_timeout", "max_warm_age"}},
		{"negative 3", func(s *pool.Spec) { s.Rollout.MinReady, s.Rollout.ProgressDeadline = -1, -1 }, []string{"rollout_policy.min_ready", "rollout_policy.progress_deadline"}},
		{"for ever", func(s *pool.Spec) { s.HeartbeatExpiry = 1<<63 - 1 }, []string{"heartbeat_expiry_threshold"}},
		{"no heartbeat fits", func(s *pool.Spec) { s.HeartbeatExpiry = s.HeartbeatInterval }, []string{"heartbeat_expiry_threshold"}},
		{"age", func(s *pool.Spec) { s.MaxWarmAge, s.Rollout.MinReady = 3*time.Minute-1, time.Minute }, []string{"max_warm_age"}},
		{"count", func(s *pool.Spec) { s.Rollout.MaxUnavailable = limit(pool.LimitCount, -1) }, []string{"rollout_policy.count"}},
		{"percent", func(s *pool.Spec) { s.Rollout.MaxUnavailable = limit(pool.LimitPercent, 101) }, []string{"rollout_policy.percent"}},
		{"surge", func(s *pool.Spec) { s.Rollout.MaxSurge = limit(pool.LimitCount, -2) }, []string{"rollout_policy.max_surge.count"}},
		{"surge percent", func(s *pool.Spec) { s.Rollout.MaxSurge = limit(pool.LimitPercent, -2) }, []string{"rollout_policy.max_surge.percent"}},
		{"max_vms", func(s *pool.Spec) { s.MaxVMs = 1 }, []string{"max_vms"}},
		{"max_vms negative", func(s *pool.Spec) { s.MaxVMs = -1 }, []string{"max_vms"}},
		{"quarantined", func(s *pool.Spec) { s.MaxQuarantined = &minus }, []string{"max_quarantined"}},
		{"shared by two", alone(func(s *pool.Spec) { s.Size = 2 }), shared},
		{"shared on lease", alone(func(s *pool.Spec) { s.Strategy = pool.ImmediateOnLease }), shared},
		{"shared on refill", alone(func(s *pool.Spec) { s.Strategy, s.MinSize = pool.MinSizeThreshold, 1 }), shared},
		{"shared in quarantine", alone(func(s *pool.Spec) { s.HookFailurePolicy = pool.Quarantine }), shared},
		{"shared in surge", alone(func(s *pool.Spec) { s.Rollout.MaxSurge = limit(pool.LimitPercent, 1) }), shared},
	}
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			spec := valid()
			row.edit(&spec)
			faults := pool.Validate(spec, hosts)
			if diff := cmp.Diff(row.want, fields(faults)); diff != "" {
				t.Errorf("fields with faults (-want +got)\n%s\n%v", diff, faults)
			}
		})
	}
}

// TestValidateTemplate: what a host would refuse is refused at the door (pitfalls 31 and 57). Paths are relative to
// microvm_template.
func TestValidateTemplate(t *testing.T) {
	type spec = vmtypes.MicroVMSpec
	nic := func(n ...*vmtypes.NetworkInterface) func(*spec) { return func(t *spec) { t.Interfaces = n } }
	tap := vmtypes.NetworkInterface_TAP
	many := map[string]string{}
	for i := range 300 {
		many[strconv.Itoa(i)] = ""
	}
	rows := []struct {
		name string
		edit func(*spec)
		want []string
	}{
		{"vcpu", func(t *spec) { t.Vcpu = 0 }, []string{"vcpu"}},
		{"vcpus", func(t *spec) { t.Vcpu = 65 }, []string{"vcpu"}},
		{"little memory", func(t *spec) { t.MemoryInMb = 1023 }, []string{"memory_in_mb"}},
		{"much memory", func(t *spec) { t.MemoryInMb = 32769 }, []string{"memory_in_mb"}},
		{"kernel", func(t *spec) { t.Kernel = nil }, []string{"kernel.image"}},
		{"image", func(t *spec) { t.Kernel.Image = "a b" }, []string{"kernel.image"}},
		{"image path", func(t *spec) { t.Kernel.Image = "file:x/../../etc/shadow" }, []string{"kernel.image"}},
		{"filename", func(t *spec) { t.Kernel.Filename = proto.String("../vmlinux") }, []string{"kernel.filename"}},
		{"long cmdline", func(t *spec) { t.Kernel.Cmdline = map[string]string{"a": strings.Repeat("x", 1534)} }, []string{"kernel.cmdline"}},
		{"cmdline key", func(t *spec) { t.Kernel.Cmdline = map[string]string{"a b": ""} }, []string{`kernel.cmdline["a b"]`}},
		{"cmdline value", func(t *spec) { t.Kernel.Cmdline = map[string]string{"a": "x\ny"} }, []string{`kernel.cmdline["a"]`}},
		{"initrd", func(t *spec) { t.Initrd = &vmtypes.Initrd{} }, []string{"initrd.image"}},
		{"no source", func(t *spec) { t.RootVolume = &vmtypes.Volume{} }, []string{"root_volume.source"}},
		{"shared root", func(t *spec) { t.RootVolume.Source = &vmtypes.VolumeSource{VirtiofsSource: proto.String("/srv")} }, []string{"root_volume.source.virtiofs_source"}},
		{"two sources", func(t *spec) { t.RootVolume.Source.VirtiofsSource = proto.String("/srv") }, []string{"root_volume.source", "root_volume.source.virtiofs_source"}},
		{"volume id", func(t *spec) { t.AdditionalVolumes = []*vmtypes.Volume{volume(""), volume("a/b")} }, []string{"additional_volumes[0].id", "additional_volumes[1].id"}},
		{"volume twice", func(t *spec) { t.AdditionalVolumes = []*vmtypes.Volume{volume("root"), volume("x"), volume("x")} }, []string{"additional_volumes[0].id", "additional_volumes[2].id"}},
		{"volume size", func(t *spec) { t.RootVolume.SizeInMb = proto.Int32(-1) }, []string{"root_volume.size_in_mb"}},
		{"mount point", func(t *spec) { t.RootVolume.MountPoint = proto.String("/a/../b") }, []string{"root_volume.mount_point"}},
		{"no device", nic(&vmtypes.NetworkInterface{}), []string{"interfaces[0].device_id"}},
		{"eth0", nic(&vmtypes.NetworkInterface{DeviceId: "eth0"}), []string{"interfaces[0].device_id"}},
		{"device", nic(&vmtypes.NetworkInterface{DeviceId: "a/b"}), []string{"interfaces[0].device_id"}},
		{"device twice", nic(&vmtypes.NetworkInterface{DeviceId: "a"}, &vmtypes.NetworkInterface{DeviceId: "a"}), []string{"interfaces[1].device_id"}},
		{"type", nic(&vmtypes.NetworkInterface{DeviceId: "a", Type: 7}), []string{"interfaces[0].type"}},
		{"bridge", nic(&vmtypes.NetworkInterface{DeviceId: "a", Type: tap, Overrides: &vmtypes.NetworkOverrides{}}), []string{"interfaces[0].overrides.bridge_name"}},
		{"bridge of macvtap", nic(&vmtypes.NetworkInterface{DeviceId: "a", Overrides: &vmtypes.NetworkOverrides{BridgeName: proto.String("br0")}}), []string{"interfaces[0].overrides"}},
		{"metadata", func(t *spec) { t.Metadata = map[string]string{"a": "not base64!"} }, []string{`metadata["a"]`}},
		{"metadata key", func(t *spec) { t.Metadata = map[string]string{"../a": ""} }, []string{`metadata["../a"]`}},
		{"our metadata", func(t *spec) { t.Metadata = map[string]string{pool.OwnerKey: ""} }, []string{`metadata["poolmgr.owner"]`}},
		{"much metadata", func(t *spec) { t.Metadata = map[string]string{"a": strings.Repeat("QUJD", 8192)} }, []string{"metadata"}},
		{"many metadata", func(t *spec) { t.Metadata = many }, []string{"metadata"}},
		{"many labels", func(t *spec) { t.Labels = many }, []string{"labels"}},
		{"label", func(t *spec) { t.Labels = map[string]string{"a": "\x1b[2J", "b/../c": ""} }, []string{`labels["a"]`, `labels["b/../c"]`}},
		{"id", func(t *spec) { t.Id = "a/b" }, []string{"id"}},
		{"template namespace", func(t *spec) { t.Namespace = "A" }, []string{"namespace"}},
		{"provider", func(t *spec) { t.Provider = proto.String("../x") }, []string{"provider"}},
	}
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			spec := valid()
			row.edit(spec.Template)
			faults := pool.Validate(spec, hosts)
			var want []string
			for _, field := range row.want {
				want = append(want, "microvm_template."+field)
			}
			if diff := cmp.Diff(want, fields(faults)); diff != "" {
				t.Errorf("fields with faults (-want +got)\n%s\n%v", diff, faults)
			}
		})
	}
}

// TestValidateAddresses looks at addresses in a pool that may have fixed ones.
func TestValidateAddresses(t *testing.T) {
	rows := []struct {
		name string
		edit func(*vmtypes.NetworkInterface)
		want string
	}{
		{"no mac", func(n *vmtypes.NetworkInterface) { n.GuestMac = proto.String("") }, "guest_mac"},
		{"multicast", func(n *vmtypes.NetworkInterface) { n.GuestMac = proto.String("01:00:5e:00:00:01") }, "guest_mac"},
		{"long mac", func(n *vmtypes.NetworkInterface) { n.GuestMac = proto.String("02:00:00:00:00:00:00:01") }, "guest_mac"},
		{"no prefix", func(n *vmtypes.NetworkInterface) { n.Address.Address = "192.0.2.10" }, "address.address"},
		{"gateway", func(n *vmtypes.NetworkInterface) { n.Address.Gateway = proto.String("router") }, "address.gateway"},
		{"nameserver", func(n *vmtypes.NetworkInterface) { n.Address.Nameservers = []string{"dns.example"} }, "address.nameservers[0]"},
	}
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			spec := valid()
			alone(func(s *pool.Spec) { row.edit(s.Template.Interfaces[0]) })(&spec)
			want := []string{"microvm_template.interfaces[0]." + row.want}
			if diff := cmp.Diff(want, fields(pool.Validate(spec, hosts))); diff != "" {
				t.Errorf("fields with faults (-want +got)\n%s", diff)
			}
		})
	}
	spec := valid()
	alone(func(s *pool.Spec) {
		second := fixed()
		second.DeviceId = "eth2"
		s.Template.Interfaces = append(s.Template.Interfaces, second)
	})(&spec)
	if diff := cmp.Diff([]string{"microvm_template.interfaces[1].guest_mac"}, fields(pool.Validate(spec, hosts))); diff != "" {
		t.Errorf("same MAC twice: (-want +got)\n%s", diff)
	}
}

func TestValidateMemoryDependsOnHosts(t *testing.T) {
	for _, row := range []struct {
		named []string
		hosts []pool.Host
		min   int32
	}{
		{nil, nil, 1024},
		{nil, hosts, 1024},
		{nil, hosts[1:], 128},
		{[]string{"micro"}, hosts, 128},
		{[]string{"tiny"}, hosts, 64},
		{[]string{"tiny", "flint"}, hosts, 1024},
	} {
		spec := valid()
		spec.Hosts = row.named
		spec.Template.MemoryInMb = row.min
		if faults := pool.Validate(spec, row.hosts); len(faults) > 0 {
			t.Errorf("%d MiB on %v of %v: %v", row.min, row.named, row.hosts, faults)
		}
		spec.Template.MemoryInMb--
		if got := fields(pool.Validate(spec, row.hosts)); len(got) != 1 || got[0] != "microvm_template.memory_in_mb" {
			t.Errorf("%d MiB on %v: faults at %v", row.min-1, row.named, got)
		}
	}
}

func TestFaultsAreOneError(t *testing.T) {
	spec := valid()
	spec.Name, spec.Size = "", -1
	err := pool.Validate(spec, hosts).Err()
	if pool.CodeOf(err) != pool.CodeInvalid {
		t.Errorf("code is %s", pool.CodeOf(err))
	}
	for _, field := range []string{"name: ", "size: "} {
		if !strings.Contains(err.Error(), field) {
			t.Errorf("%q does not name %s", err, field)
		}
	}
	if err := pool.Validate(valid(), hosts).Err(); err != nil {
		t.Errorf("no faults, but an error: %v", err)
	}
}
