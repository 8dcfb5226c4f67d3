package main

import (
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"time"

	"github.com/lmittmann/tint"
)

// logFormats are what --log-format takes.
var logFormats = []string{"auto", "text", "json"}

func (c *Config) level() (slog.Level, error) {
	var l slog.Level
	if err := l.UnmarshalText([]byte(c.LogLevel)); err != nil {
		return l, fmt.Errorf("--log-level: %q is not debug, info, warn or error", c.LogLevel)
	}
	return l, nil
}

func (c *Config) checkLog() []error {
	var faults []error
	if _, err := c.level(); err != nil {
		faults = append(faults, err)
	}
	if !slices.Contains(logFormats, c.LogFormat) {
		faults = append(faults, fmt.Errorf("--log-format: %q is not text, json or auto", c.LogFormat))
	}
	return faults
}

// logger writes text on terminals and JSON elsewhere, unless told otherwise. The configuration must have been checked.
func (c *Config) logger(w io.Writer) *slog.Logger {
	level, _ := c.level() // checked
	options := &slog.HandlerOptions{Level: level}
	switch {
	case c.LogFormat == "text":
		return slog.New(slog.NewTextHandler(w, options))
	case c.LogFormat == "auto" && isTerminal(w):
		return slog.New(tint.NewTextHandler(w, &tint.Options{Level: level, TimeFormat: time.TimeOnly}))
	default:
		return slog.New(slog.NewJSONHandler(w, options))
	}
}

func isTerminal(w io.Writer) bool {
	file, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := file.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}
