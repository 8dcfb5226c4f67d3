package pool_test

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"poolmgr/api/flintlock/vmtypes"
	"poolmgr/internal/pool"
)

// TestTemplateHashGolden holds the promise that an upgrade rolls nobody's pools: these hashes are stored
// in users' databases. If this test fails, the encoding is wrong, never the vectors.
func TestTemplateHashGolden(t *testing.T) {
	data, err := os.ReadFile("testdata/hash_v1.json")
	if err != nil {
		t.Fatal(err)
	}
	var vectors []struct {
		Name           string
		Template       json.RawMessage
		CreateCommands []string `json:"create_commands"`
		Hash           string
	}
	if err := json.Unmarshal(data, &vectors); err != nil {
		t.Fatal(err)
	}
	seen := map[string]string{}
	for _, v := range vectors {
		t.Run(v.Name, func(t *testing.T) {
			template := &vmtypes.MicroVMSpec{}
			if err := protojson.Unmarshal(v.Template, template); err != nil {
				t.Fatal(err)
			}
			got := pool.TemplateHash(template, v.CreateCommands)
			if got != v.Hash {
				t.Errorf("hash is %s, the vector says %s", got, v.Hash)
			}
			if other, dup := seen[got]; dup {
				t.Errorf("same hash as vector %q", other)
			}
			seen[got] = v.Name
		})
	}
}

// TestTemplateHashBytes spells the encoding out by hand.
func TestTemplateHashBytes(t *testing.T) {
	template := &vmtypes.MicroVMSpec{Vcpu: 2, Labels: map[string]string{"b": "2", "a": ""}}
	want := "poolmgr template\x00" +
		"\x03m\x02" + "s\x01a" + "s\x00" + "s\x01b" + "s\x012" + // labels: a map of 2, by key
		"\x04i\x04" + // vcpu: 2 as a zigzag varint
		"\x00" + "\x00" + // the end, no unknown fields
		"\x01" + "\x04true" // one create command
	sum := sha256.Sum256([]byte(want))
	if got := pool.TemplateHash(template, []string{"true"}); got != "v1:"+hex.EncodeToString(sum[:]) {
		t.Errorf("hash is %s, want v1:%x", got, sum)
	}
}

// hashDecisions says of every field of a template whether it counts. A field that the API gains fails the test below
// until somebody decides.
var hashDecisions = map[string]bool{
	"id":                                 false, // every VM gets its own
	"namespace":                          true,
	"labels{}":                           true,
	"vcpu":                               true,
	"memory_in_mb":                       true,
	"kernel.image":                       true,
	"kernel.cmdline{}":                   true,
	"kernel.filename":                    true,
	"kernel.add_network_config":          true,
	"initrd.image":                       true,
	"initrd.filename":                    true,
	"interfaces[].device_id":             true,
	"interfaces[].type":                  true,
	"interfaces[].guest_mac":             true,
	"interfaces[].address.address":       true,
	"interfaces[].address.gateway":       true,
	"interfaces[].address.nameservers[]": true,
	"interfaces[].overrides.bridge_name": true,
	"metadata{}":                         true,
	"created_at.seconds":                 false,
	"created_at.nanos":                   false,
	"updated_at.seconds":                 false,
	"updated_at.nanos":                   false,
	"deleted_at.seconds":                 false,
	"deleted_at.nanos":                   false,
	"uid":                                false,
	"provider":                           true,
	"allow_guest_agent":                  false,
}

func init() {
	for _, volume := range []string{"root_volume", "additional_volumes[]"} {
		for _, field := range []string{
			"id", "is_read_only", "mount_point", "source.container_source", "source.virtiofs_source", "partition_id", "size_in_mb",
		} {
			hashDecisions[volume+"."+field] = true
		}
	}
}

func TestTemplateHashEveryField(t *testing.T) {
	full := &vmtypes.MicroVMSpec{}
	populate(full.ProtoReflect())
	base := pool.TemplateHash(full, nil)
	for _, path := range leaves(full.ProtoReflect().Descriptor(), "") {
		t.Run(path, func(t *testing.T) {
			significant, decided := hashDecisions[path]
			if !decided {
				t.Fatal("nobody decided whether this field counts in the hash")
			}
			for change, apply := range map[string]func(protoreflect.Message, protoreflect.FieldDescriptor){
				"changed": alter, "cleared": protoreflect.Message.Clear,
			} {
				template := proto.CloneOf(full)
				at(template.ProtoReflect(), path, apply)
				if differs := pool.TemplateHash(template, nil) != base; differs != significant {
					t.Errorf("%s: hash differs = %t, want %t", change, differs, significant)
				}
			}
		})
	}
}

// TestTemplateHashUnset: unset and explicit zero differ where the API makes them so, and nowhere else.
func TestTemplateHashUnset(t *testing.T) {
	full := &vmtypes.MicroVMSpec{}
	populate(full.ProtoReflect())
	for _, path := range leaves(full.ProtoReflect().Descriptor(), "") {
		if !hashDecisions[path] || strings.HasSuffix(path, "}") || strings.HasSuffix(path, "]") {
			continue
		}
		unset, zero, optional := proto.CloneOf(full), proto.CloneOf(full), false
		at(unset.ProtoReflect(), path, protoreflect.Message.Clear)
		at(zero.ProtoReflect(), path, func(m protoreflect.Message, fd protoreflect.FieldDescriptor) {
			optional = fd.HasPresence()
			m.Set(fd, fd.Default())
		})
		if differs := pool.TemplateHash(unset, nil) != pool.TemplateHash(zero, nil); differs != optional {
			t.Errorf("%s: unset differs from zero = %t, want %t", path, differs, optional)
		}
	}
	none, empty := &vmtypes.MicroVMSpec{}, &vmtypes.MicroVMSpec{Initrd: &vmtypes.Initrd{}, Labels: map[string]string{}}
	if pool.TemplateHash(none, nil) == pool.TemplateHash(empty, nil) {
		t.Error("an empty initrd and none have the same hash")
	}
	empty.Initrd = nil
	if pool.TemplateHash(none, nil) != pool.TemplateHash(empty, nil) {
		t.Error("an empty map and none have different hashes")
	}
}

func TestTemplateHashCreateCommands(t *testing.T) {
	template := &vmtypes.MicroVMSpec{Vcpu: 1}
	lists := [][]string{nil, {"a"}, {"b"}, {"a", "b"}, {"b", "a"}, {"ab"}, {"a", ""}, {"", "a"}}
	seen := map[string]int{}
	for i, commands := range lists {
		h := pool.TemplateHash(template, commands)
		if other, dup := seen[h]; dup {
			t.Errorf("%q and %q have the same hash", lists[other], commands)
		}
		seen[h] = i
	}
	if pool.TemplateHash(template, []string{}) != pool.TemplateHash(template, nil) {
		t.Error("an empty list of commands counts")
	}
}

func TestTemplateHashMapOrder(t *testing.T) {
	keys := []string{"a", "ab", "b", "", "Z", "é", "0"}
	want := ""
	for range 50 { // Go begins each range over a map somewhere else
		m := map[string]string{}
		for _, k := range keys {
			m[k] = "v" + k
		}
		slices.Reverse(keys)
		h := pool.TemplateHash(&vmtypes.MicroVMSpec{Labels: m, Metadata: m, Kernel: &vmtypes.Kernel{Cmdline: m}}, nil)
		if want == "" {
			want = h
		}
		if h != want {
			t.Fatal("the hash depends on the order of a map")
		}
	}
}

// TestTemplateHashSurvivesTheWire: what a database or a client re-encodes has the same hash, fields of a newer API too.
func TestTemplateHashSurvivesTheWire(t *testing.T) {
	template := &vmtypes.MicroVMSpec{}
	populate(template.ProtoReflect())
	known := pool.TemplateHash(template, nil)
	template.ProtoReflect().SetUnknown(protowire.AppendVarint(protowire.AppendTag(nil, 900, protowire.VarintType), 7))
	want := pool.TemplateHash(template, nil)
	if known == want {
		t.Error("a field that this release does not know is left out of the hash")
	}
	wire, err := proto.Marshal(template)
	if err != nil {
		t.Fatal(err)
	}
	again := &vmtypes.MicroVMSpec{}
	if err := proto.Unmarshal(wire, again); err != nil {
		t.Fatal(err)
	}
	if got := pool.TemplateHash(again, nil); got != want {
		t.Errorf("hash after a round trip is %s, want %s", got, want)
	}
}
