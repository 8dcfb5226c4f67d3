package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v4"
)

const (
	envPrefix = "POOLMGR_"

	// keyMark is the annotation of flags that are keys: --help and --version are not.
	keyMark = "poolmgrd_key"

	// maxConfigBytes bounds the configuration file.
	maxConfigBytes = 1 << 20
)

// envOf is the environment variable of a flag.
func envOf(flag string) string {
	return envPrefix + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// keyOf is the key of a flag in the file.
func keyOf(flag string) string { return strings.ReplaceAll(flag, "-", "_") }

// markKeys makes every flag that is registered now a key, and tells its environment variable in the help.
func markKeys(fs *pflag.FlagSet) {
	fs.VisitAll(func(f *pflag.Flag) {
		f.Annotations = map[string][]string{keyMark: {keyOf(f.Name)}}
		f.Usage += " [" + envOf(f.Name) + "]"
	})
}

// fill sets the flags that were not given from the environment and the file. An empty variable counts as not set.
func fill(fs *pflag.FlagSet, environ func(string) (string, bool)) error {
	given := map[string]bool{}
	fs.Visit(func(f *pflag.Flag) { given[f.Name] = true })
	var faults []error
	fs.VisitAll(func(f *pflag.Flag) {
		value, _ := environ(envOf(f.Name))
		if f.Annotations[keyMark] == nil || given[f.Name] || value == "" {
			return
		}
		given[f.Name] = true
		if err := fs.Set(f.Name, value); err != nil {
			faults = append(faults, fmt.Errorf("environment variable %s: %w", envOf(f.Name), err))
		}
	})
	if path := fs.Lookup("config").Value.String(); path != "" {
		faults = append(faults, fillFromFile(fs, path, given))
	}
	return errors.Join(faults...)
}

// fillFromFile reads the YAML file. Every fault is told with its line, and unknown keys are faults.
func fillFromFile(fs *pflag.FlagSet, path string, given map[string]bool) error {
	top, err := readConfig(path)
	if err != nil || top == nil {
		return err
	}
	byKey := map[string]*pflag.Flag{}
	fs.VisitAll(func(f *pflag.Flag) {
		if mark := f.Annotations[keyMark]; mark != nil && f.Name != "config" {
			byKey[mark[0]] = f
		}
	})
	var faults []error
	lines := map[string]int{}
	for i := 0; i+1 < len(top.Content); i += 2 {
		key, value := top.Content[i], top.Content[i+1]
		fault := func(format string, args ...any) {
			faults = append(faults, fmt.Errorf("%s:%d: "+format, append([]any{path, key.Line}, args...)...))
		}
		f := byKey[key.Value]
		switch {
		case f == nil:
			fault("unknown key %q", key.Value)
		case lines[key.Value] != 0:
			fault("%s is given twice, first on line %d", key.Value, lines[key.Value])
		case value.Kind != yaml.ScalarNode || value.ShortTag() == "!!null":
			fault("%s: expected a single value", key.Value)
		case !given[f.Name]:
			if err := fs.Set(f.Name, value.Value); err != nil {
				fault("%s: %w", key.Value, err)
			}
		}
		lines[key.Value] = key.Line
	}
	return errors.Join(faults...)
}

// readConfig is the mapping in the file; nil when the file is empty.
func readConfig(path string) (*yaml.Node, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read the configuration: %w", err)
	}
	defer file.Close()
	decoder := yaml.NewDecoder(io.LimitReader(file, maxConfigBytes))
	var doc, more yaml.Node
	switch err := decoder.Decode(&doc); {
	case errors.Is(err, io.EOF):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("%s: %s", path, strings.Join(strings.Fields(err.Error()), " "))
	}
	if err := decoder.Decode(&more); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%s: expected one YAML document", path)
	}
	if len(doc.Content) == 0 || doc.Content[0].ShortTag() == "!!null" {
		return nil, nil
	}
	top := doc.Content[0]
	if top.Kind != yaml.MappingNode {
		return nil, fmt.Errorf("%s:%d: expected keys and values", path, top.Line)
	}
	return top, nil
}
