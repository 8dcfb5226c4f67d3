package pool

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"slices"

	"google.golang.org/protobuf/reflect/protoreflect"

	"poolmgr/api/flintlock/vmtypes"
)

// hashV1 names the algorithm in front of every hash. Another algorithm gets another prefix and must go on recognising
// hashes of this one for unchanged templates, or an upgrade would roll every pool of every user.
const hashV1 = "v1:"

// ignoredInHash are the fields of a template, by their number, that the server overrides or the host fills in. An
// empty namespace is such a field too, and does not count because empty strings never do.
var ignoredInHash = map[protoreflect.FieldNumber]string{
	1:  "id: every VM gets its own",
	12: "created_at: filled in by the host",
	13: "updated_at: filled in by the host",
	14: "deleted_at: filled in by the host",
	15: "uid: made by the host",
	17: "allow_guest_agent: always on for our VMs",
}

// TemplateHash identifies what a VM is made from: the template as the user gave it, and the create commands where
// there are any, because they shape a warm VM as much as its image does.
//
// The encoding is our own, since neither protojson nor proto.Marshal promises the same bytes in the next release:
// every populated field in order of its number, as number, kind and value, with lengths in front of whatever varies
// in length and maps sorted by key. Unset differs from zero exactly where the API makes it so (optional fields,
// messages). A field that the API gains later changes no hash until somebody sets it. Fields this release does not
// know count as they are.
func TemplateHash(template *vmtypes.MicroVMSpec, createCommands []string) string {
	e := encoder{buf: []byte("poolmgr template\x00")}
	e.message(template.ProtoReflect(), ignoredInHash)
	if len(createCommands) > 0 {
		e.uint(uint64(len(createCommands)))
		for _, c := range createCommands {
			e.bytes([]byte(c))
		}
	}
	sum := sha256.Sum256(e.buf)
	return hashV1 + hex.EncodeToString(sum[:])
}

// encoder appends the canonical form of a message.
type encoder struct{ buf []byte }

func (e *encoder) uint(n uint64) { e.buf = binary.AppendUvarint(e.buf, n) }

func (e *encoder) bytes(b []byte) {
	e.uint(uint64(len(b)))
	e.buf = append(e.buf, b...)
}

// message appends the populated fields that are not ignored, then 0, which is no field number, then unknown fields.
func (e *encoder) message(m protoreflect.Message, ignored map[protoreflect.FieldNumber]string) {
	var fields []protoreflect.FieldDescriptor
	m.Range(func(fd protoreflect.FieldDescriptor, _ protoreflect.Value) bool {
		if _, skip := ignored[fd.Number()]; !skip {
			fields = append(fields, fd)
		}
		return true
	})
	slices.SortFunc(fields, func(a, b protoreflect.FieldDescriptor) int { return cmp.Compare(a.Number(), b.Number()) })
	for _, fd := range fields {
		e.uint(uint64(fd.Number()))
		e.field(fd, m.Get(fd))
	}
	e.uint(0)
	e.bytes(m.GetUnknown())
}

func (e *encoder) field(fd protoreflect.FieldDescriptor, v protoreflect.Value) {
	switch {
	case fd.IsMap():
		e.buf = append(e.buf, 'm')
		e.entries(fd, v.Map())
	case fd.IsList():
		e.buf = append(e.buf, 'l')
		list := v.List()
		e.uint(uint64(list.Len()))
		for i := range list.Len() {
			e.value(fd, list.Get(i))
		}
	default:
		e.value(fd, v)
	}
}

// entries appends a map in the order of its encoded keys.
func (e *encoder) entries(fd protoreflect.FieldDescriptor, m protoreflect.Map) {
	type entry struct{ key, value []byte }
	var all []entry
	m.Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
		var key, value encoder
		key.value(fd.MapKey(), k.Value())
		value.value(fd.MapValue(), v)
		all = append(all, entry{key.buf, value.buf})
		return true
	})
	slices.SortFunc(all, func(a, b entry) int { return bytes.Compare(a.key, b.key) })
	e.uint(uint64(len(all)))
	for _, x := range all {
		e.buf = append(e.buf, x.key...)
		e.buf = append(e.buf, x.value...)
	}
}

// value appends one value with a letter for its kind. Kinds that no template has are refused loudly rather than
// encoded by guess; a test walks every field of the template through here.
func (e *encoder) value(fd protoreflect.FieldDescriptor, v protoreflect.Value) {
	switch fd.Kind() {
	case protoreflect.BoolKind:
		e.buf = append(e.buf, 'b', 0)
		if v.Bool() {
			e.buf[len(e.buf)-1] = 1
		}
	case protoreflect.EnumKind:
		e.buf = binary.AppendVarint(append(e.buf, 'i'), int64(v.Enum()))
	case protoreflect.Int32Kind, protoreflect.Int64Kind, protoreflect.Sint32Kind, protoreflect.Sint64Kind,
		protoreflect.Sfixed32Kind, protoreflect.Sfixed64Kind:
		e.buf = binary.AppendVarint(append(e.buf, 'i'), v.Int())
	case protoreflect.Uint32Kind, protoreflect.Uint64Kind, protoreflect.Fixed32Kind, protoreflect.Fixed64Kind:
		e.buf = binary.AppendUvarint(append(e.buf, 'u'), v.Uint())
	case protoreflect.StringKind:
		e.buf = append(e.buf, 's')
		e.bytes([]byte(v.String()))
	case protoreflect.BytesKind:
		e.buf = append(e.buf, 'y')
		e.bytes(v.Bytes())
	case protoreflect.MessageKind:
		e.buf = append(e.buf, 'M')
		e.message(v.Message(), nil)
	default:
		panic(fmt.Sprintf("pool: the template hash has no encoding for %s of kind %s (this is a bug)", fd.FullName(), fd.Kind()))
	}
}
