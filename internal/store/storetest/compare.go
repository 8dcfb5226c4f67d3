package storetest

import (
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"google.golang.org/protobuf/proto"

	"poolmgr/api/flintlock/vmtypes"
)

// sameTemplate compares templates as messages, since their structs hold what only the codec knows.
var sameTemplate = cmp.Comparer(func(a, b *vmtypes.MicroVMSpec) bool { return proto.Equal(a, b) })

// emptyIsNil takes empty lists and maps for absent ones, which no storage needs to tell apart.
var emptyIsNil = cmpopts.EquateEmpty()

// diff is empty for equal values.
func diff(want, got any) string { return cmp.Diff(want, got, sameTemplate, emptyIsNil) }
