package simulated

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protojson"

	"poolmgr/api/flintlock/vmtypes"
)

// stateFiles keeps one JSON file per machine. A file is written beside its
// place and renamed into it, so that a daemon killed at any moment leaves the
// old text or the new one. It is not synced to disk: a simulated machine may
// be lost together with the power, as a real one is.
type stateFiles struct {
	dir string // empty: nothing is kept
}

// The endings of finished and of half-written files.
const (
	fileEnding = ".json"
	tempEnding = ".tmp"
)

// fileVersion grows when the meaning of a field changes.
const fileVersion = 1

// storedRecord is a record as it is written.
type storedRecord struct {
	Version   int             `json:"version"`
	UID       string          `json:"uid"`
	Attempt   int             `json:"attempt"`
	Fate      fate            `json:"fate"`
	CreatedAt time.Time       `json:"created_at"`
	BootAt    time.Time       `json:"boot_at"`
	VanishAt  time.Time       `json:"vanish_at,omitzero"`
	DeletedAt time.Time       `json:"deleted_at,omitzero"`
	GoneAt    time.Time       `json:"gone_at,omitzero"`
	Spec      json.RawMessage `json:"spec"`
}

func (f stateFiles) path(uid string) string { return filepath.Join(f.dir, uid+fileEnding) }

func (f stateFiles) save(r record) error {
	if f.dir == "" {
		return nil
	}
	spec, err := protojson.Marshal(r.Spec)
	if err != nil {
		return fmt.Errorf("encode the spec of simulated microvm %s: %w", r.UID, err)
	}
	text, err := json.MarshalIndent(storedRecord{
		Version: fileVersion, UID: r.UID, Attempt: r.Attempt, Fate: r.Fate,
		CreatedAt: r.CreatedAt, BootAt: r.BootAt, VanishAt: r.VanishAt,
		DeletedAt: r.DeletedAt, GoneAt: r.GoneAt, Spec: spec,
	}, "", "  ")
	if err != nil {
		return fmt.Errorf("encode the state of simulated microvm %s: %w", r.UID, err)
	}
	temp := f.path(r.UID) + tempEnding
	if err := os.WriteFile(temp, text, 0o600); err != nil {
		return fmt.Errorf("write the state of simulated microvm %s: %w", r.UID, err)
	}
	if err := os.Rename(temp, f.path(r.UID)); err != nil {
		return fmt.Errorf("keep the state of simulated microvm %s: %w", r.UID, err)
	}
	return nil
}

// remove forgets a machine; one that has no file is fine.
func (f stateFiles) remove(uid string) error {
	if f.dir == "" {
		return nil
	}
	if err := os.Remove(f.path(uid)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the state of simulated microvm %s: %w", uid, err)
	}
	return nil
}

// load makes the folder where there is none, clears what an earlier daemon left
// half written, and reads the rest. A file that cannot be read stops it: a
// machine that is silently forgotten would look like one that died.
func (f stateFiles) load() ([]record, error) {
	if f.dir == "" {
		return nil, nil
	}
	if err := os.MkdirAll(f.dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the folder of simulated microvms: %w", err)
	}
	entries, err := os.ReadDir(f.dir)
	if err != nil {
		return nil, fmt.Errorf("read the folder of simulated microvms: %w", err)
	}
	var records []record
	for _, entry := range entries {
		path := filepath.Join(f.dir, entry.Name())
		switch {
		case strings.HasSuffix(path, tempEnding):
			if err := os.Remove(path); err != nil {
				return nil, fmt.Errorf("clear a half-written state file: %w", err)
			}
		case strings.HasSuffix(path, fileEnding):
			r, err := readRecord(path)
			if err != nil {
				return nil, fmt.Errorf("state file %s of a simulated microvm: %w (remove the file to forget that machine)", path, err)
			}
			records = append(records, r)
		}
	}
	return records, nil
}

func readRecord(path string) (record, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return record{}, err
	}
	var s storedRecord
	if err := json.Unmarshal(text, &s); err != nil {
		return record{}, err
	}
	if s.Version != fileVersion {
		return record{}, fmt.Errorf("version %d is not the %d that this program reads", s.Version, fileVersion)
	}
	if s.UID+fileEnding != filepath.Base(path) {
		return record{}, fmt.Errorf("it tells of microvm %q", s.UID)
	}
	spec := &vmtypes.MicroVMSpec{}
	if err := protojson.Unmarshal(s.Spec, spec); err != nil {
		return record{}, err
	}
	return record{
		UID: s.UID, Attempt: s.Attempt, Fate: s.Fate,
		CreatedAt: s.CreatedAt, BootAt: s.BootAt, VanishAt: s.VanishAt,
		DeletedAt: s.DeletedAt, GoneAt: s.GoneAt, Spec: spec,
	}, nil
}
