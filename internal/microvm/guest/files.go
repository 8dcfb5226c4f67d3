package guest

import (
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
)

// FileName is the name of the file that holds the value of a metadata key or
// label: percent-encoded where a character does not fit a file name.
func FileName(key string) string {
	switch key {
	case "":
		return "%"
	case ".":
		return "%2E"
	case "..":
		return "%2E%2E"
	}
	return url.PathEscape(key)
}

// writeFacts writes metadata and labels below dir, replacing what an earlier
// call wrote.
func writeFacts(dir string, metadata map[string][]byte, labels map[string]string) error {
	values := make(map[string][]byte, len(labels))
	for key, value := range labels {
		values[key] = []byte(value)
	}
	if err := writeFiles(filepath.Join(dir, "metadata"), metadata); err != nil {
		return err
	}
	if err := writeFiles(filepath.Join(dir, "labels"), values); err != nil {
		return err
	}
	if err := writeJSON(filepath.Join(dir, "metadata.json"), nonNil(metadata)); err != nil {
		return err
	}
	return writeJSON(filepath.Join(dir, "labels.json"), nonNil(labels))
}

func nonNil[V any](m map[string]V) map[string]V {
	if m == nil {
		return map[string]V{}
	}
	return m
}

func writeFiles(dir string, files map[string][]byte) error {
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("clear %s: %w", dir, err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make %s: %w", dir, err)
	}
	for key, value := range files {
		if err := os.WriteFile(filepath.Join(dir, FileName(key)), value, 0o644); err != nil {
			return fmt.Errorf("write the value of %q: %w", key, err)
		}
	}
	return nil
}

func writeJSON(file string, value any) error {
	data, err := json.Marshal(value)
	if err != nil {
		return fmt.Errorf("encode %s: %w", file, err)
	}
	if err := os.WriteFile(file, append(data, '\n'), 0o644); err != nil {
		return fmt.Errorf("write %s: %w", file, err)
	}
	return nil
}
