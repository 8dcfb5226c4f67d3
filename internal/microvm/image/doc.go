// Package image turns image references into what a machine boots from: a
// kernel and an initramfs.
//
// It knows local:base, which it builds from the distribution's kernel, a static
// busybox and the guest's binary, and file:PATH below a configured root. It
// caches what it builds by its content, so that a second builder, or a second
// daemon with another guest binary, never disturbs the first. It installs
// nothing: packages are downloaded and unpacked into the cache.
package image

import "errors"

// Errors of the package.
var (
	// ErrUnsupported: a reference of a kind that is not understood here.
	ErrUnsupported = errors.New("image reference is not supported")
	// ErrNotFound: a reference to something that does not exist.
	ErrNotFound = errors.New("image not found")
	// ErrNotBuildable: local:base cannot be built on this machine; the text
	// says what to do.
	ErrNotBuildable = errors.New("image cannot be built")
	// ErrNoGuestBinary: the guest's binary was not found.
	ErrNoGuestBinary = errors.New("guest binary not found")
)
