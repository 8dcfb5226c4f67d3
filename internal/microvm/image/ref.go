package image

import (
	"fmt"
	"path"
	"strings"
)

// Base is the reference of the image that the package builds itself.
const Base = "local:base"

// refKind says where an image comes from.
type refKind int

const (
	kindLocal refKind = iota
	kindFile
)

// ref is a parsed reference.
type ref struct {
	kind refKind
	// path is the file below the image root, cleaned, for kindFile.
	path string
}

// parse understands a reference; filename selects a file in a folder, and is
// empty where the spec names none.
func parse(text, filename string) (ref, error) {
	scheme, rest, _ := strings.Cut(text, ":")
	switch scheme {
	case "local":
		if text != Base {
			return ref{}, fmt.Errorf("image %q: %w: the only local image is %s", text, ErrNotFound, Base)
		}
		return ref{kind: kindLocal}, nil
	case "file":
		file := path.Clean(path.Join(rest, filename))
		if rest == "" || path.IsAbs(file) || file == "." || file == ".." || strings.HasPrefix(file, "../") || strings.ContainsRune(file, 0) {
			return ref{}, fmt.Errorf("image %q: %w: the path must lead to a file below the image root", text, ErrUnsupported)
		}
		return ref{kind: kindFile, path: file}, nil
	}
	return ref{}, fmt.Errorf("image %q: %w: OCI images come later; use %s or file:PATH", text, ErrUnsupported, Base)
}
