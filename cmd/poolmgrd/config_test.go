package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

// values are three values of each type of flag, none of which is a default.
var values = map[string][3]string{
	"string":   {"from-file", "from-env", "from-flag"},
	"int":      {"11", "12", "13"},
	"uint64":   {"11", "12", "13"},
	"float64":  {"0.11", "0.12", "0.13"},
	"duration": {"11s", "12s", "13s"},
	"bool":     {"true", "false", "true"}, // with the default false each differs from the one that it beats
}

func newFlags(t *testing.T, args ...string) *pflag.FlagSet {
	t.Helper()
	fs := pflag.NewFlagSet("poolmgrd", pflag.ContinueOnError)
	new(Config).flags(fs)
	if err := fs.Parse(args); err != nil {
		t.Fatal(err)
	}
	return fs
}

func environ(vars map[string]string) func(string) (string, bool) {
	return func(name string) (string, bool) { v, ok := vars[name]; return v, ok }
}

func writeConfig(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "poolmgrd.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// Flag beats environment beats file beats default, for every key there is.
func TestPrecedence(t *testing.T) {
	newFlags(t).VisitAll(func(f *pflag.Flag) {
		if f.Name == "config" {
			return // it names the file
		}
		v, ok := values[f.Value.Type()]
		if !ok {
			t.Errorf("--%s: no values for type %s", f.Name, f.Value.Type())
			return
		}
		file := writeConfig(t, fmt.Sprintf("%s: %s\n", keyOf(f.Name), v[0]))
		env := map[string]string{envOf(f.Name): v[1]}
		for what, c := range map[string]struct {
			args []string
			env  map[string]string
			want string
		}{
			"default":     {nil, nil, f.DefValue},
			"file":        {[]string{"--config", file}, nil, v[0]},
			"environment": {[]string{"--config", file}, env, v[1]},
			"flag":        {[]string{"--config", file, "--" + f.Name + "=" + v[2]}, env, v[2]},
		} {
			fs := newFlags(t, c.args...)
			if err := fill(fs, environ(c.env)); err != nil {
				t.Errorf("--%s from the %s: %v", f.Name, what, err)
			}
			if got := fs.Lookup(f.Name).Value.String(); got != c.want {
				t.Errorf("--%s from the %s: %q, want %q", f.Name, what, got, c.want)
			}
		}
	})
}

func TestTheFileIsNamedByFlagOrEnvironment(t *testing.T) {
	byEnv, byFlag := writeConfig(t, "db: env.db"), writeConfig(t, "db: flag.db")
	for want, args := range map[string][]string{"env.db": nil, "flag.db": {"--config", byFlag}} {
		fs := newFlags(t, args...)
		if err := fill(fs, environ(map[string]string{"POOLMGR_CONFIG": byEnv})); err != nil {
			t.Fatal(err)
		}
		if got := fs.Lookup("db").Value.String(); got != want {
			t.Errorf("db is %q, want %q", got, want)
		}
	}
}

func TestAnEmptyVariableIsNotSet(t *testing.T) {
	fs := newFlags(t)
	if err := fill(fs, environ(map[string]string{"POOLMGR_STARTS_PER_HOST": "", "POOLMGR_DB": ""})); err != nil {
		t.Fatal(err)
	}
	if got := fs.Lookup("db").Value.String(); got != "poolmgr.db" {
		t.Errorf("db is %q", got)
	}
}

// What is wrong with a file is told all at once, each fault with its line and key.
func TestFaultsOfTheFile(t *testing.T) {
	path := writeConfig(t, strings.Join([]string{
		"db: here.db",           // 1
		"lisen: 127.0.0.1:1",    // 2 unknown
		"log-level: debug",      // 3 not how keys are written
		"starts_per_host: many", // 4 no number
		"embedded_host: [qemu]", // 5 no single value
		"db: there.db",          // 6 twice
		"insecure:",             // 7 no value
		"config: other.yaml",    // 8 not a key of the file
		"help: true",            // 9
		"version: true",         // 10
	}, "\n"))
	err := fill(newFlags(t, "--config", path), environ(map[string]string{"POOLMGR_HOST_BOOT_DELAY": "soon"}))
	if err == nil {
		t.Fatal("no fault was found")
	}
	for _, want := range []string{
		`:2: unknown key "lisen"`, `:3: unknown key "log-level"`, ":4: starts_per_host: ", ":5: embedded_host: expected a single value",
		":6: db is given twice, first on line 1", ":7: insecure: expected a single value", `:8: unknown key "config"`,
		`:9: unknown key "help"`, `:10: unknown key "version"`, "environment variable POOLMGR_HOST_BOOT_DELAY: ",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not told in:\n%v", want, err)
		}
	}
	if n := strings.Count(err.Error(), "\n") + 1; n != 10 {
		t.Errorf("%d lines for 10 faults:\n%v", n, err)
	}
}

func TestFilesThatAreNoConfiguration(t *testing.T) {
	for text, want := range map[string]string{
		"- db":              ":1: expected keys and values",
		"just text":         ":1: expected keys and values",
		"db: a\n---\ndb: b": "expected one YAML document",
		"db: [":             "yaml: line 2",
	} {
		path := writeConfig(t, text)
		err := fill(newFlags(t, "--config", path), environ(nil))
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), path) {
			t.Errorf("%q: want %q, got %v", text, want, err)
		}
	}
	for _, text := range []string{"", "# nothing\n", "---\n", "{}\n"} {
		if err := fill(newFlags(t, "--config", writeConfig(t, text)), environ(nil)); err != nil {
			t.Errorf("%q: %v", text, err)
		}
	}
	if err := fill(newFlags(t, "--config", "/nonexistent/poolmgrd.yaml"), environ(nil)); err == nil || !strings.Contains(err.Error(), "/nonexistent/poolmgrd.yaml") {
		t.Errorf("a missing file: %v", err)
	}
}

func TestListenAddresses(t *testing.T) {
	for addr, ok := range map[string]bool{
		"127.0.0.1:7070": true, "127.1.2.3:0": true, "[::1]:7070": true, "localhost:7070": true,
		"0.0.0.0:7070": false, ":7070": false, "[::]:7070": false, "192.0.2.1:7070": false, "host.example:7070": false,
		"localhost.evil.example:1": false, "127.0.0.1": false, "127.0.0.1:http": false, "127.0.0.1:65536": false, "": false,
	} {
		c := Config{}
		if err := c.checkListen("--listen", addr); (err == nil) != ok {
			t.Errorf("%q: %v", addr, err)
		} else if err != nil && !strings.Contains(err.Error(), "--listen") {
			t.Errorf("%q: the flag is not told: %v", addr, err)
		}
	}
	open := Config{Insecure: true}
	if err := open.checkListen("--listen", "0.0.0.0:7070"); err != nil {
		t.Errorf("--insecure allows it: %v", err)
	}
	closed := Config{}
	if err := closed.checkListen("--listen", "0.0.0.0:7070"); err == nil || !strings.Contains(err.Error(), "--insecure") {
		t.Errorf("the way out is not told: %v", err)
	}
}

// run runs the command line and never a daemon.
func run(t *testing.T, vars map[string]string, args ...string) (code int, stdout, stderr string, got *Config) {
	t.Helper()
	var out, errs bytes.Buffer
	p := program{
		environ: environ(vars), stdout: &out, stderr: &errs,
		run: func(_ context.Context, c Config, log *slog.Logger) error {
			got = &c
			if c.DB == "fails.db" {
				return errors.New("the first fault\nand the second")
			}
			return nil
		},
	}
	code = p.main(t.Context(), args)
	return code, out.String(), errs.String(), got
}

func TestExitCodes(t *testing.T) {
	file := writeConfig(t, "lisen: 1\n")
	for name, c := range map[string]struct {
		args []string
		want int
		told []string
	}{
		"all is well":       {nil, 0, nil},
		"the daemon fails":  {[]string{"--db", "fails.db"}, 1, []string{"poolmgrd: the first fault\n", "poolmgrd: and the second\n"}},
		"an unknown flag":   {[]string{"--nosuch"}, 2, []string{"--nosuch", "--help"}},
		"a flag's value":    {[]string{"--starts-per-host", "x"}, 2, []string{"starts-per-host"}},
		"an argument":       {[]string{"start"}, 2, []string{`"start"`}},
		"PostgreSQL":        {[]string{"--db", "postgres://db/x"}, 2, []string{"--db", "PostgreSQL"}},
		"one port for both": {[]string{"--listen", "127.0.0.1:7", "--http-listen", "127.0.0.1:7"}, 2, []string{"--http-listen"}},
		"everything at once": {
			[]string{"--config", file, "--db", "", "--embedded-host", "xen", "--listen", "0.0.0.0:1", "--log-level", "loud", "--log-format", "xml", "--starts-per-host", "0"},
			2,
			[]string{"lisen", "--db", "--embedded-host", "--listen", "--log-level", "--log-format", "--starts-per-host"},
		},
	} {
		code, _, stderr, _ := run(t, nil, c.args...)
		if code != c.want {
			t.Errorf("%s: exit code %d, want %d: %s", name, code, c.want, stderr)
		}
		for _, text := range c.told {
			if !strings.Contains(stderr, text) {
				t.Errorf("%s: %q is not told:\n%s", name, text, stderr)
			}
		}
		for line := range strings.Lines(stderr) {
			if !strings.HasPrefix(line, "poolmgrd: ") {
				t.Errorf("%s: the line %q does not say whose it is", name, line)
			}
		}
	}
}

func TestVersion(t *testing.T) {
	code, stdout, _, cfg := run(t, map[string]string{"POOLMGR_VERSION": "9", "POOLMGR_HELP": "9"}, "--version")
	if code != 0 || !strings.HasPrefix(stdout, "poolmgrd version "+version) || cfg != nil {
		t.Errorf("%d %q", code, stdout)
	}
	if code, _, stderr, cfg := run(t, map[string]string{"POOLMGR_VERSION": "9", "POOLMGR_HELP": "9"}); code != 0 || cfg == nil {
		t.Errorf("help and version are no keys: %d %s", code, stderr)
	}
}

func TestHelpNamesEveryVariable(t *testing.T) {
	_, stdout, _, _ := run(t, nil, "--help")
	newFlags(t).VisitAll(func(f *pflag.Flag) {
		if !strings.Contains(stdout, "--"+f.Name+" ") || !strings.Contains(stdout, "["+envOf(f.Name)+"]") {
			t.Errorf("--%s or its variable is not in the help", f.Name)
		}
	})
}

func TestLoggers(t *testing.T) {
	for format, want := range map[string]string{"json": `"msg":"hello"`, "auto": `"msg":"hello"`, "text": "msg=hello"} {
		var out bytes.Buffer
		c := Config{LogFormat: format, LogLevel: "warn"}
		log := c.logger(&out)
		log.Info("too quiet")
		log.Warn("hello")
		if !strings.Contains(out.String(), want) || strings.Contains(out.String(), "too quiet") {
			t.Errorf("%s: %s", format, out.String())
		}
	}
}
