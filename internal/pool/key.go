package pool

import "strings"

// Key names a pool: pools of different namespaces may share a name.
type Key struct {
	Namespace string
	Name      string
}

// String is the form used in logs, errors and cursors: "namespace/name".
func (k Key) String() string { return k.Namespace + "/" + k.Name }

// Compare orders keys by namespace, then by name.
func (k Key) Compare(o Key) int {
	if c := strings.Compare(k.Namespace, o.Namespace); c != 0 {
		return c
	}
	return strings.Compare(k.Name, o.Name)
}
