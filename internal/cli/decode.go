package cli

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v4"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// decoder fills messages from YAML nodes by their descriptors, and goes on after a fault to find them all. protojson
// alone would know neither lines nor more than the first fault, and no durations like 5m.
type decoder struct {
	faults []fault
}

func (d *decoder) fail(n *yaml.Node, format string, args ...any) {
	d.faults = append(d.faults, fault{n.Line, fmt.Sprintf(format, args...)})
}

// message reads a mapping. path is where it stands, empty for the whole file.
func (d *decoder) message(n *yaml.Node, m protoreflect.Message, path string) {
	if n = target(n); n.Kind != yaml.MappingNode {
		d.fail(n, "%s must be a mapping of keys to values, not %s", subject(path), kindOf(n))
		return
	}
	seen := map[protoreflect.FieldNumber]int{} // on which line
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], target(n.Content[i+1])
		field := lookup(m.Descriptor(), key.Value)
		if field == nil {
			d.unknown(key, m.Descriptor(), path)
			continue
		}
		name := join(path, string(field.Name()))
		if before, twice := seen[field.Number()]; twice {
			d.fail(key, "%s is given twice, first on line %d", name, before)
			continue
		}
		seen[field.Number()] = key.Line
		if isNull(value) {
			continue // "key:" with nothing behind it is unset
		}
		if choice := field.ContainingOneof(); choice != nil && !choice.IsSynthetic() {
			if other := m.WhichOneof(choice); other != nil {
				d.fail(key, "%s and %s exclude each other", name, join(path, string(other.Name())))
				continue
			}
		}
		d.field(value, m, field, name)
	}
}

func (d *decoder) unknown(key *yaml.Node, in protoreflect.MessageDescriptor, path string) {
	if key.Value == "<<" {
		d.fail(key, "merge keys (<<) are not supported: write the keys out")
		return
	}
	text := fmt.Sprintf("unknown key %q", key.Value)
	if path != "" {
		text += " in " + path
	}
	if like := nearest(in, key.Value); like != "" {
		text += fmt.Sprintf("; did you mean %q?", like)
	}
	d.fail(key, "%s", text)
}

// field reads the value of one field.
func (d *decoder) field(n *yaml.Node, m protoreflect.Message, field protoreflect.FieldDescriptor, path string) {
	switch {
	case field.IsMap():
		d.mapping(n, m, field, path)
	case field.IsList():
		d.list(n, m, field, path)
	default:
		if value, ok := d.value(n, m.NewField(field), field, path); ok {
			m.Set(field, value)
		}
	}
}

// value reads one value; fresh is an empty one of the right type.
func (d *decoder) value(n *yaml.Node, fresh protoreflect.Value, field protoreflect.FieldDescriptor, path string) (protoreflect.Value, bool) {
	if field.Kind() == protoreflect.MessageKind {
		switch into := fresh.Message().Interface().(type) {
		case *durationpb.Duration:
			return d.moment(n, path, into, parseDuration)
		case *timestamppb.Timestamp:
			return d.moment(n, path, into, parseTimestamp)
		}
		d.message(n, fresh.Message(), path)
		return fresh, true
	}
	value, err := scalar(n, field)
	if err != nil {
		d.fail(n, "%s %v", path, err)
	}
	return value, err == nil
}

func (d *decoder) list(n *yaml.Node, m protoreflect.Message, field protoreflect.FieldDescriptor, path string) {
	if n.Kind != yaml.SequenceNode {
		d.fail(n, "%s must be a list, not %s", path, kindOf(n))
		return
	}
	list := m.Mutable(field).List()
	for i, item := range n.Content {
		if value, ok := d.value(target(item), list.NewElement(), field, fmt.Sprintf("%s[%d]", path, i)); ok {
			list.Append(value)
		}
	}
}

func (d *decoder) mapping(n *yaml.Node, m protoreflect.Message, field protoreflect.FieldDescriptor, path string) {
	if n.Kind != yaml.MappingNode {
		d.fail(n, "%s must be a mapping of keys to values, not %s", path, kindOf(n))
		return
	}
	into := m.Mutable(field).Map()
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, item := n.Content[i], target(n.Content[i+1])
		name := join(path, key.Value)
		index := protoreflect.ValueOfString(key.Value).MapKey() // the API has no maps by anything else
		if key.Kind != yaml.ScalarNode {
			d.fail(key, "%s has a key that is not text", path)
			continue
		}
		if into.Has(index) {
			d.fail(key, "%s is given twice", name)
			continue
		}
		if value, ok := d.value(item, into.NewValue(), field.MapValue(), name); ok {
			into.Set(index, value)
		}
	}
}

// moment reads a duration or a point in time.
func (d *decoder) moment(n *yaml.Node, path string, into proto.Message, parse func(string, proto.Message) error) (protoreflect.Value, bool) {
	err := fmt.Errorf("not %s", kindOf(n))
	if n.Kind == yaml.ScalarNode {
		err = parse(n.Value, into)
	}
	if err != nil {
		d.fail(n, "%s: %v", path, err)
		return protoreflect.Value{}, false
	}
	return protoreflect.ValueOfMessage(into.ProtoReflect()), true
}

func parseDuration(text string, into proto.Message) error {
	value, err := time.ParseDuration(text)
	if err != nil {
		return fmt.Errorf("%q is not a duration such as 30s or 5m", text)
	}
	proto.Merge(into, durationpb.New(value))
	return nil
}

func parseTimestamp(text string, into proto.Message) error {
	value, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		return fmt.Errorf("%q is not a time such as 2026-01-31T12:00:00Z", text)
	}
	proto.Merge(into, timestamppb.New(value))
	return nil
}

// scalar reads text, a number, a truth value or a name of an enum. The error goes on after the field's name.
func scalar(n *yaml.Node, field protoreflect.FieldDescriptor) (protoreflect.Value, error) {
	bad := func(want string) (protoreflect.Value, error) {
		return protoreflect.Value{}, fmt.Errorf("must be %s, not %s", want, kindOf(n))
	}
	if n.Kind != yaml.ScalarNode {
		return bad("a single value")
	}
	tag := n.ShortTag()
	switch field.Kind() {
	case protoreflect.StringKind:
		if tag != "!!str" {
			return bad(fmt.Sprintf("text (write %q)", n.Value))
		}
		return protoreflect.ValueOfString(n.Value), nil
	case protoreflect.BoolKind:
		var truth bool
		if tag != "!!bool" || n.Decode(&truth) != nil {
			return bad("true or false")
		}
		return protoreflect.ValueOfBool(truth), nil
	case protoreflect.Int32Kind:
		var whole int32
		if tag != "!!int" || n.Decode(&whole) != nil {
			return bad("a whole number of at most 32 bits")
		}
		return protoreflect.ValueOfInt32(whole), nil
	case protoreflect.Int64Kind:
		if tag == "!!str" { // JSON of the API writes these as text
			whole, err := strconv.ParseInt(n.Value, 10, 64)
			if err != nil {
				return bad("a whole number")
			}
			return protoreflect.ValueOfInt64(whole), nil
		}
		var whole int64
		if tag != "!!int" || n.Decode(&whole) != nil {
			return bad("a whole number")
		}
		return protoreflect.ValueOfInt64(whole), nil
	case protoreflect.EnumKind:
		values := field.Enum().Values()
		if value := values.ByName(protoreflect.Name(n.Value)); value != nil {
			return protoreflect.ValueOfEnum(value.Number()), nil
		}
		return bad("one of " + strings.Join(choices(values), ", "))
	default:
		return protoreflect.Value{}, fmt.Errorf("has the type %s, which spec files cannot hold (this is a bug of poolmgrctl)", field.Kind())
	}
}

// choices are the names of an enum that mean something.
func choices(values protoreflect.EnumValueDescriptors) []string {
	var names []string
	for i := range values.Len() {
		if name := string(values.Get(i).Name()); !strings.HasSuffix(name, "_UNSPECIFIED") {
			names = append(names, name)
		}
	}
	return names
}

// lookup finds a field by its snake_case or camelCase name.
func lookup(in protoreflect.MessageDescriptor, key string) protoreflect.FieldDescriptor {
	if field := in.Fields().ByName(protoreflect.Name(key)); field != nil {
		return field
	}
	return in.Fields().ByJSONName(key)
}

// nearest is the field whose name is at most two letters away from a key; empty without one.
func nearest(in protoreflect.MessageDescriptor, key string) string {
	near := map[string]int{}
	for i := range in.Fields().Len() {
		name := string(in.Fields().Get(i).Name())
		plain := strings.ToLower(strings.ReplaceAll(key, "-", "_"))
		if far := min(distance(plain, name), distance(plain, strings.ReplaceAll(name, "_", ""))); far <= 2 {
			near[name] = far
		}
	}
	names := slices.Sorted(maps.Keys(near))
	if len(names) == 0 {
		return ""
	}
	return slices.MinFunc(names, func(a, b string) int { return near[a] - near[b] })
}

// distance counts the letters to insert, delete or replace to make b of a (Levenshtein).
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			replace := diagonal
			if a[i] != b[j] {
				replace++
			}
			diagonal = row[j+1]
			row[j+1] = min(row[j]+1, row[j+1]+1, replace)
		}
	}
	return row[len(b)]
}

// target follows an alias (*name) to what it stands for.
func target(n *yaml.Node) *yaml.Node {
	for n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	return n
}

func isNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" }

// kindOf names what stands there, for errors.
func kindOf(n *yaml.Node) string {
	switch {
	case n.Kind == yaml.MappingNode:
		return "a mapping"
	case n.Kind == yaml.SequenceNode:
		return "a list"
	case isNull(n):
		return "nothing"
	case n.ShortTag() == "!!int" || n.ShortTag() == "!!float":
		return "the number " + n.Value
	case n.ShortTag() == "!!bool":
		return "the truth value " + n.Value
	default:
		return strconv.Quote(n.Value)
	}
}

func subject(path string) string {
	if path == "" {
		return "the file"
	}
	return path
}

func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}
