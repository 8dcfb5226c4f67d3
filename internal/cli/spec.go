package cli

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"
	"google.golang.org/grpc/codes"

	pb "poolmgr/api/poolmgr/v1alpha1"
)

// maxSpecBytes bounds a spec file: the daemon takes no larger message.
const maxSpecBytes = 1 << 20

// fault is one thing that is wrong with a spec file.
type fault struct {
	line int // 0 = of the whole file
	text string
}

// readSpec reads a pool's spec from a file, or from stdin for "-". Without a namespace it gets that of the flags; one
// that contradicts a flag that was really given is refused, since it would change another pool than the user thinks.
func (a *app) readSpec(file string, namespaceGiven bool) (*pb.PoolSpec, error) {
	data, name, err := a.specText(file)
	if err != nil {
		return nil, err
	}
	spec := &pb.PoolSpec{}
	if faults := decodeSpec(data, spec); len(faults) > 0 {
		return nil, specError(name, faults)
	}
	switch {
	case spec.GetNamespace() == "":
		spec.Namespace = a.namespace
	case namespaceGiven && spec.GetNamespace() != a.namespace:
		return nil, failf(codes.InvalidArgument, "%s says namespace %q and --namespace says %q; leave one of them out", name, spec.GetNamespace(), a.namespace)
	}
	return spec, nil
}

func (a *app) specText(file string) (data []byte, name string, err error) {
	source, name := a.in, "stdin"
	if file != "-" {
		f, err := os.Open(file)
		if err != nil {
			return nil, "", fmt.Errorf("read the spec file: %w", err)
		}
		defer f.Close()
		source, name = f, file
	}
	data, err = io.ReadAll(io.LimitReader(source, maxSpecBytes+1))
	switch {
	case err != nil:
		return nil, "", fmt.Errorf("read the spec from %s: %w", name, err)
	case len(data) > maxSpecBytes:
		return nil, "", failf(codes.InvalidArgument, "%s is larger than the 1 MiB that a spec may have", name)
	}
	return data, name, nil
}

// specError lists every fault in the order of the lines.
func specError(name string, faults []fault) error {
	slices.SortStableFunc(faults, func(a, b fault) int { return cmp.Compare(a.line, b.line) })
	lines := make([]string, len(faults))
	for i, f := range faults {
		lines[i] = name + ": " + line(f.text)
		if f.line > 0 {
			lines[i] = fmt.Sprintf("%s:%d: %s", name, f.line, line(f.text))
		}
	}
	if len(lines) == 1 {
		return failf(codes.InvalidArgument, "%s", lines[0])
	}
	return failf(codes.InvalidArgument, "%s has %d faults\n  %s", name, len(lines), strings.Join(lines, "\n  "))
}

// decodeSpec reads a spec in YAML or JSON into a message, and returns everything that is wrong with it.
func decodeSpec(data []byte, spec *pb.PoolSpec) []fault {
	if json.Valid(data) {
		// YAML forbids tabs where JSON has them as white space; inside a valid JSON string there is none.
		data = bytes.ReplaceAll(data, []byte("\t"), []byte(" "))
	}
	loader := yaml.NewDecoder(bytes.NewReader(data))
	var document, more yaml.Node
	switch err := loader.Decode(&document); {
	case errors.Is(err, io.EOF):
		return []fault{{text: "is empty: it should hold a pool's spec, with its name, size and microvm_template"}}
	case err != nil:
		return []fault{{text: "is neither YAML nor JSON: " + strings.TrimPrefix(err.Error(), "yaml: ")}}
	}
	if err := loader.Decode(&more); !errors.Is(err, io.EOF) {
		return []fault{{line: more.Line, text: "holds more than one document: give each pool a file of its own"}}
	}
	root := &document
	if root.Kind == yaml.DocumentNode {
		root = root.Content[0]
	}
	var d decoder
	d.message(root, spec.ProtoReflect(), "")
	return d.faults
}
