package main

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"poolmgr/internal/microvm/hostd"
)

// Config is what a daemon is started with. Every key has a flag, an environment variable (POOLMGR_<FLAG>) and a key in
// the YAML file (the flag with underscores); a flag beats the environment, which beats the file.
type Config struct {
	ConfigFile    string
	DB            string // path of the SQLite file
	Listen        string // gRPC
	HTTPListen    string // /healthz, /readyz, /metrics
	EmbeddedHost  string // "", "qemu" or "simulated"
	LogLevel      string
	LogFormat     string
	Insecure      bool // serve other addresses than loopback without TLS or a token
	StartsPerHost int
	Host          hostd.Options
}

// embeddedName is how the embedded host is registered.
const embeddedName = "embedded"

// flags registers every key. The flag set is the list of keys: environment and file are read through it.
func (c *Config) flags(fs *pflag.FlagSet) {
	defer markKeys(fs)
	fs.StringVar(&c.ConfigFile, "config", "", "YAML file with the keys of these flags (with underscores)")
	fs.StringVar(&c.DB, "db", "poolmgr.db", "database file; it is made when it is missing")
	fs.StringVar(&c.Listen, "listen", "127.0.0.1:7070", "address of the gRPC API")
	fs.StringVar(&c.HTTPListen, "http-listen", "127.0.0.1:7071", "address of /healthz, /readyz and /metrics")
	fs.StringVar(&c.EmbeddedHost, "embedded-host", "", `run a host in this process and register it as "embedded": qemu or simulated`)
	fs.StringVar(&c.LogLevel, "log-level", "info", "debug, info, warn or error")
	fs.StringVar(&c.LogFormat, "log-format", "auto", "text, json, or auto: text on a terminal, json otherwise")
	fs.BoolVar(&c.Insecure, "insecure", false, "allow to listen on other addresses than loopback without protection")
	fs.IntVar(&c.StartsPerHost, "starts-per-host", 3, "VMs that may be starting on a host at once")
	c.Host = hostd.DefaultOptions()
	c.Host.AddFlags(fs, "host-")
	fs.Lookup("host-state-dir").Usage += " (default: the database's path with .host)"
}

// check refuses what cannot work, all faults at once.
func (c *Config) check() error {
	var faults []error
	if strings.HasPrefix(c.DB, "postgres://") || strings.HasPrefix(c.DB, "postgresql://") {
		faults = append(faults, errors.New("--db: PostgreSQL is not supported in this release; name a file for SQLite"))
	}
	if c.DB == "" {
		faults = append(faults, errors.New("--db: name a database file"))
	}
	if !slices.Contains([]string{"", "qemu", "simulated"}, c.EmbeddedHost) {
		faults = append(faults, fmt.Errorf("--embedded-host: %q is not qemu or simulated", c.EmbeddedHost))
	}
	if c.Listen == c.HTTPListen && !strings.HasSuffix(c.Listen, ":0") {
		faults = append(faults, fmt.Errorf("--http-listen: %s is the address of --listen too; they need one each", c.HTTPListen))
	}
	for flag, addr := range map[string]string{"--listen": c.Listen, "--http-listen": c.HTTPListen} {
		if err := c.checkListen(flag, addr); err != nil {
			faults = append(faults, err)
		}
	}
	faults = append(faults, c.checkLog()...)
	if c.StartsPerHost < 1 {
		faults = append(faults, fmt.Errorf("--starts-per-host: %d is less than 1", c.StartsPerHost))
	}
	slices.SortFunc(faults, func(a, b error) int { return cmp.Compare(a.Error(), b.Error()) })
	return errors.Join(faults...)
}

func (c *Config) checkListen(flag, addr string) error {
	name, port, err := net.SplitHostPort(addr)
	if err != nil {
		return fmt.Errorf("%s: %q is not host:port: %w", flag, addr, err)
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		return fmt.Errorf("%s: %q is not a port; use 0 to 65535 (0 = any free one)", flag, port)
	}
	if ip := net.ParseIP(name); name != "localhost" && (ip == nil || !ip.IsLoopback()) && !c.Insecure {
		return fmt.Errorf("%s: %s is not a loopback address and nothing protects the API; use --insecure if that is what you want", flag, addr)
	}
	return nil
}
