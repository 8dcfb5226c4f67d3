package server

import (
	"fmt"
	"strings"

	"google.golang.org/protobuf/types/known/durationpb"

	pb "poolmgr/api/poolmgr/v1alpha1"
	"poolmgr/internal/pool"
)

// Bounds of texts in requests, in bytes: what is longer names nothing that exists, and would only fill logs and errors.
const (
	maxName   = 256
	maxReason = 1024
	maxPath   = 4096
)

// invalid refuses a request with all its faults at once; nil without any.
func invalid(faults pool.Faults) error {
	if len(faults) == 0 {
		return nil
	}
	lines := make([]string, len(faults))
	for i, f := range faults {
		lines[i] = f.Field + ": " + f.Message
	}
	return &pool.Error{Code: pool.CodeInvalid, Message: "invalid request: " + strings.Join(lines, "; "), Faults: faults}
}

// faults collects what is wrong with a request.
type faults struct{ pool.Faults }

func (f *faults) add(field, format string, args ...any) {
	f.Faults = append(f.Faults, pool.Fault{Field: field, Message: fmt.Sprintf(format, args...)})
}

// name checks that something is named; whether it exists is not said here.
func (f *faults) name(field, value string) {
	if value == "" {
		f.add(field, "is required")
		return
	}
	f.short(field, value, maxName)
}

func (f *faults) short(field, value string, limit int) {
	if len(value) > limit {
		f.add(field, "has %d bytes, at most %d are allowed", len(value), limit)
	}
}

// oneName checks a request that names one thing.
func oneName(field, value string) error {
	var f faults
	f.name(field, value)
	return invalid(f.Faults)
}

// keyOf reads the pool reference in a field; an unset one is refused.
func keyOf(field string, ref *pb.PoolRef) (pool.Key, error) {
	var f faults
	f.name(field+".name", ref.GetName())
	f.name(field+".namespace", ref.GetNamespace())
	return pool.Key{Namespace: ref.GetNamespace(), Name: ref.GetName()}, invalid(f.Faults)
}

// optionalKey reads a pool reference that may be absent, which means all pools.
func optionalKey(field string, ref *pb.PoolRef) (*pool.Key, error) {
	if ref == nil {
		return nil, nil
	}
	key, err := keyOf(field, ref)
	return &key, err
}

// duration checks a duration of 0 or more; an unset one is 0.
func (f *faults) duration(field string, d *durationpb.Duration) {
	switch {
	case d == nil:
	case d.CheckValid() != nil:
		f.add(field, "is not a valid duration (seconds and nanos out of range, or of different signs)")
	case d.AsDuration() < 0:
		f.add(field, "is %s, must not be negative", d.AsDuration())
	}
}

// at is the path of an element of a repeated field.
func at(field string, i int) string { return fmt.Sprintf("%s[%d]", field, i) }
