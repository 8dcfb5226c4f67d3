package sqlite

import (
	"encoding/json"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"

	poolmgrv1alpha1 "poolmgr/api/poolmgr/v1alpha1"
	"poolmgr/internal/pool"
)

// nanos is the stored form of an instant; 0 stands for the zero time, which has no number of its own. Instants outside
// the years 1678 to 2262 have none either, and nothing of ours lies there.
func nanos(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixNano()
}

// instant scans a stored instant.
type instant struct{ t *time.Time }

func at(t *time.Time) instant { return instant{t} }

// Scan implements sql.Scanner.
func (i instant) Scan(value any) error {
	n, ok := value.(int64)
	if !ok {
		return fmt.Errorf("an instant is stored as %T", value)
	}
	*i.t = time.Time{}
	if n != 0 {
		*i.t = time.Unix(0, n).UTC()
	}
	return nil
}

// nullable is NULL for an empty reference.
func nullable(s string) any {
	if s == "" {
		return nil
	}
	return s
}

// reference scans what nullable wrote.
type reference struct{ s *string }

func refer(s *string) reference { return reference{s} }

// Scan implements sql.Scanner.
func (r reference) Scan(value any) error {
	switch v := value.(type) {
	case nil:
		*r.s = ""
	case string:
		*r.s = v
	default:
		return fmt.Errorf("a reference is stored as %T", value)
	}
	return nil
}

// toJSON is the JSON of a value, and empty text for a nil one, so that nil and empty both come back as they were.
func toJSON(value any, isNil bool) (string, error) {
	if isNil {
		return "", nil
	}
	text, err := json.Marshal(value)
	return string(text), err
}

// fromJSON scans what toJSON wrote.
type fromJSON[T any] struct{ value *T }

func parse[T any](value *T) fromJSON[T] { return fromJSON[T]{value} }

// Scan implements sql.Scanner.
func (j fromJSON[T]) Scan(value any) error {
	text, ok := value.(string)
	if !ok {
		return fmt.Errorf("JSON is stored as %T", value)
	}
	var zero T
	*j.value = zero
	if text == "" {
		return nil
	}
	return json.Unmarshal([]byte(text), j.value)
}

// storedInterface is the stored form of pool.Interface: its keys stay what they are when the type changes.
type storedInterface struct {
	HostDevice string `json:"host_device,omitempty"`
	Index      int32  `json:"index,omitempty"`
	MAC        string `json:"mac,omitempty"`
}

// storedFailure is the stored form of pool.Failure.
type storedFailure struct {
	VM      string `json:"vm"`
	Host    string `json:"host,omitempty"`
	Message string `json:"message,omitempty"`
	At      int64  `json:"at"`
}

func encodeInterfaces(m map[string]pool.Interface) (string, error) {
	stored := make(map[string]storedInterface, len(m))
	for id, i := range m {
		stored[id] = storedInterface(i)
	}
	return toJSON(stored, m == nil)
}

func decodeInterfaces(stored map[string]storedInterface) map[string]pool.Interface {
	if stored == nil {
		return nil
	}
	m := make(map[string]pool.Interface, len(stored))
	for id, i := range stored {
		m[id] = pool.Interface(i)
	}
	return m
}

func encodeFailures(failures []pool.Failure) (string, error) {
	stored := make([]storedFailure, len(failures))
	for i, f := range failures {
		stored[i] = storedFailure{VM: f.VM, Host: f.Host, Message: f.Message, At: nanos(f.At)}
	}
	return toJSON(stored, failures == nil)
}

func decodeFailures(stored []storedFailure) ([]pool.Failure, error) {
	if stored == nil {
		return nil, nil
	}
	failures := make([]pool.Failure, len(stored))
	for i, s := range stored {
		failures[i] = pool.Failure{VM: s.VM, Host: s.Host, Message: s.Message}
		if err := at(&failures[i].At).Scan(s.At); err != nil {
			return nil, err
		}
	}
	return failures, nil
}

// marshal encodes a message. Deterministic, so that a row that did not change keeps its bytes.
func marshal(m proto.Message) ([]byte, error) {
	return proto.MarshalOptions{Deterministic: true}.Marshal(m)
}

func decodeSpec(text []byte) (pool.Spec, error) {
	var in poolmgrv1alpha1.PoolSpec
	if err := proto.Unmarshal(text, &in); err != nil {
		return pool.Spec{}, fmt.Errorf("decode the spec: %w", err)
	}
	spec, faults := pool.SpecFromAPI(&in)
	if err := faults.Err(); err != nil {
		return pool.Spec{}, fmt.Errorf("decode the spec of %s: %w", spec.Key, err)
	}
	return spec, nil
}
