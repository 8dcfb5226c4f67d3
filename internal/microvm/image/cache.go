package image

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

const (
	// maxImageFile bounds a file that is copied out of the image root.
	maxImageFile = 1 << 30
	// unusedAfter is when a cached file that nobody asked for may be removed.
	unusedAfter = 30 * 24 * time.Hour
)

func hashFile(file string) (string, error) {
	f, err := os.Open(file)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// hashStrings names the content that is made from parts.
func hashStrings(parts ...string) string {
	h := sha256.New()
	for _, p := range parts {
		fmt.Fprintf(h, "%d:%s", len(p), p)
	}
	return hex.EncodeToString(h.Sum(nil))
}

// cached returns the path of dir/name; when it is not there, write makes it in
// a file beside, which then takes the name: nobody ever sees half of it.
func (s *Store) cached(dir, name string, write func(io.Writer) error) (string, error) {
	folder := filepath.Join(s.dir, dir)
	path := filepath.Join(folder, name)
	if _, err := os.Stat(path); err == nil {
		now := time.Now()
		_ = os.Chtimes(path, now, now) // only prune looks at it
		return path, nil
	} else if !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("look for a cached image: %w", err)
	}
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return "", fmt.Errorf("make an image folder: %w", err)
	}
	prune(folder, time.Now().Add(-unusedAfter))
	return path, writeFile(path, write)
}

// prune removes what was not used since the given time, half-written files of
// a dead builder included. QEMU has read a file by the time that it is old.
func prune(folder string, before time.Time) {
	entries, err := os.ReadDir(folder)
	if err != nil {
		return // nothing to tidy up
	}
	for _, e := range entries {
		if info, err := e.Info(); err == nil && info.ModTime().Before(before) {
			discard(filepath.Join(folder, e.Name()))
		}
	}
}

// discard removes what is not needed any more. What cannot be removed is
// litter that prune comes across again, and no reason to fail.
func discard(path string) { _ = os.RemoveAll(path) }

// writeFile writes a file that is whole or absent, also after a power failure.
func writeFile(path string, write func(io.Writer) error) (err error) {
	tmp, err := os.CreateTemp(filepath.Dir(path), ".new-*")
	if err != nil {
		return fmt.Errorf("write an image file: %w", err)
	}
	defer func() {
		if err != nil {
			tmp.Close()
			discard(tmp.Name())
		}
	}()
	if err := write(tmp); err != nil {
		return err
	}
	if err := errors.Join(tmp.Chmod(0o644), tmp.Sync(), tmp.Close()); err != nil {
		return fmt.Errorf("write image file %s: %w", path, err)
	}
	if err := os.Rename(tmp.Name(), path); err != nil {
		return fmt.Errorf("write image file: %w", err)
	}
	return nil
}

// copyIn copies a file of the image root into the cache, since the original
// may change at any moment. os.Root keeps the path, and symbolic links in it,
// below the root.
func (s *Store) copyIn(path string) (cached, sum string, err error) {
	f, err := s.root.Open(path)
	if err != nil {
		return "", "", fmt.Errorf("open image file:%s: %w: %w", path, ErrNotFound, err)
	}
	defer f.Close()
	folder := filepath.Join(s.dir, "files")
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return "", "", fmt.Errorf("make an image folder: %w", err)
	}
	tmp, err := os.CreateTemp(folder, ".copy-*")
	if err != nil {
		return "", "", fmt.Errorf("copy image file:%s: %w", path, err)
	}
	defer discard(tmp.Name())
	defer tmp.Close()
	h := sha256.New()
	n, err := io.Copy(io.MultiWriter(tmp, h), io.LimitReader(f, maxImageFile+1))
	if err != nil {
		return "", "", fmt.Errorf("copy image file:%s: %w", path, err)
	}
	if n > maxImageFile {
		return "", "", fmt.Errorf("image file:%s: %w: it is larger than %d MiB", path, ErrUnsupported, maxImageFile>>20)
	}
	sum = hex.EncodeToString(h.Sum(nil))
	cached, err = s.cached("files", sum, func(w io.Writer) error {
		if _, err := tmp.Seek(0, io.SeekStart); err != nil {
			return err
		}
		_, err := io.Copy(w, tmp)
		return err
	})
	return cached, sum, err
}

// writeBytes is a writer function of a file's whole content.
func writeBytes(data []byte) func(io.Writer) error {
	return func(w io.Writer) error {
		_, err := io.Copy(w, bytes.NewReader(data))
		return err
	}
}
