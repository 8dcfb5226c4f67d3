package pool_test

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"

	"poolmgr/api/flintlock/vmtypes"
)

// leaves lists the paths of a message's scalar fields, with [] for a list's elements and {} for a map's values.
func leaves(d protoreflect.MessageDescriptor, prefix string) []string {
	var paths []string
	for i := range d.Fields().Len() {
		fd := d.Fields().Get(i)
		path := strings.TrimPrefix(prefix+"."+string(fd.Name()), ".")
		switch {
		case fd.IsMap():
			paths = append(paths, path+"{}")
		case fd.IsList() && fd.Message() != nil:
			paths = append(paths, leaves(fd.Message(), path+"[]")...)
		case fd.IsList():
			paths = append(paths, path+"[]")
		case fd.Message() != nil:
			paths = append(paths, leaves(fd.Message(), path)...)
		default:
			paths = append(paths, path)
		}
	}
	return paths
}

// at calls f with the message that holds the last field of the path.
func at(m protoreflect.Message, path string, f func(protoreflect.Message, protoreflect.FieldDescriptor)) {
	name, rest, more := strings.Cut(path, ".")
	fd := m.Descriptor().Fields().ByName(protoreflect.Name(strings.TrimRight(name, "[]{}")))
	switch {
	case !more:
		f(m, fd)
	case fd.IsList():
		at(m.Mutable(fd).List().Get(0).Message(), rest, f)
	default:
		at(m.Mutable(fd).Message(), rest, f)
	}
}

// populate sets every field to something that is not zero, lists and maps to one element. Of a oneof the last wins.
func populate(m protoreflect.Message) {
	for i := range m.Descriptor().Fields().Len() {
		fd := m.Descriptor().Fields().Get(i)
		switch {
		case fd.IsMap():
			m.Mutable(fd).Map().Set(protoreflect.ValueOfString("key").MapKey(), sample(fd.MapValue(), 1))
		case fd.IsList() && fd.Message() != nil:
			populate(m.Mutable(fd).List().AppendMutable().Message())
		case fd.IsList():
			m.Mutable(fd).List().Append(sample(fd, 1))
		case fd.Message() != nil:
			populate(m.Mutable(fd).Message())
		default:
			m.Set(fd, sample(fd, 1))
		}
	}
}

// alter gives a populated field another value.
func alter(m protoreflect.Message, fd protoreflect.FieldDescriptor) {
	switch {
	case fd.IsMap():
		m.Mutable(fd).Map().Set(protoreflect.ValueOfString("key").MapKey(), sample(fd.MapValue(), 2))
	case fd.IsList():
		m.Mutable(fd).List().Set(0, sample(fd, 2))
	case fd.Kind() == protoreflect.BoolKind: // has one value that is not zero
		m.Clear(fd)
	default:
		m.Set(fd, sample(fd, 2))
	}
}

func sample(fd protoreflect.FieldDescriptor, n int64) protoreflect.Value {
	switch fd.Kind() {
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(true)
	case protoreflect.EnumKind:
		// An enum of two values has one that is not zero; numbers beyond the known ones do for a second.
		return protoreflect.ValueOfEnum(protoreflect.EnumNumber(n))
	case protoreflect.Int32Kind:
		return protoreflect.ValueOfInt32(int32(n))
	case protoreflect.Int64Kind:
		return protoreflect.ValueOfInt64(n)
	case protoreflect.StringKind:
		return protoreflect.ValueOfString(strings.Repeat("x", int(n)))
	default:
		panic("no sample for " + fd.FullName())
	}
}

func TestPopulateSetsEverything(t *testing.T) {
	m := &vmtypes.MicroVMSpec{}
	populate(m.ProtoReflect())
	paths := leaves(m.ProtoReflect().Descriptor(), "")
	if len(paths) < 40 {
		t.Errorf("found only %d fields in a template", len(paths))
	}
	for _, path := range paths {
		at(m.ProtoReflect(), path, func(m protoreflect.Message, fd protoreflect.FieldDescriptor) {
			if !m.Has(fd) {
				t.Errorf("%s is not set", path)
			}
		})
	}
}
