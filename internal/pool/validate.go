package pool

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// Bounds of a spec.
const (
	MaxNameLen      = 54 // a VM is named "<pool>-<8 hex>", and a label of a host name ends at 63
	MaxNamespaceLen = 63
	MaxSize         = 100_000
	MaxHosts        = 1_000
	MaxCommands     = 64        // of each kind of hook
	MaxCommandLen   = 32 * 1024 // bytes of one command

	// MaxDuration bounds every duration, so that sums of them cannot overflow.
	MaxDuration = 10 * 365 * 24 * time.Hour
)

var labelPattern = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`)

// Validate finds everything that is wrong with a spec whose defaults are filled in, given the registered hosts. The
// order of the faults is that of the fields.
func Validate(spec Spec, hosts []Host) Faults {
	c := checker{spec: spec, hosts: hosts}
	c.names()
	c.template()
	c.size()
	c.hostNames()
	c.strategy()
	c.commands("create_commands", spec.CreateCommands)
	c.commands("pre_lease_commands", spec.PreLeaseCommands)
	c.policies()
	c.durations()
	c.rollout()
	c.limits()
	return c.faults
}

// checker collects the faults of one spec.
type checker struct {
	spec   Spec
	hosts  []Host
	faults Faults
}

func (c *checker) fault(field, format string, args ...any) {
	c.faults = append(c.faults, Fault{Field: field, Message: fmt.Sprintf(format, args...)})
}

func (c *checker) names() {
	c.label("name", c.spec.Name, MaxNameLen)
	c.label("namespace", c.spec.Namespace, MaxNamespaceLen)
}

func (c *checker) label(field, value string, limit int) {
	switch {
	case value == "":
		c.fault(field, "is required")
	case len(value) > limit:
		c.fault(field, "has %d characters, at most %d are allowed", len(value), limit)
	case !labelPattern.MatchString(value):
		c.fault(field, "%s must be lower-case letters, digits and '-', and begin and end with a letter or digit", quote(value))
	}
}

func (c *checker) size() {
	switch {
	case c.spec.Size < 0:
		c.fault("size", "is %d, must not be negative", c.spec.Size)
	case c.spec.Size > MaxSize:
		c.fault("size", "is %d, at most %d are allowed", c.spec.Size, MaxSize)
	}
}

func (c *checker) hostNames() {
	if len(c.spec.Hosts) > MaxHosts {
		c.fault("flintlock_hosts", "has %d hosts, at most %d are allowed", len(c.spec.Hosts), MaxHosts)
		return
	}
	for i, name := range c.spec.Hosts {
		field := fmt.Sprintf("flintlock_hosts[%d]", i)
		known := slices.ContainsFunc(c.hosts, func(h Host) bool { return h.Name == name })
		switch {
		case !known:
			c.fault(field, "no host %s is registered", quote(name))
		case slices.Contains(c.spec.Hosts[:i], name):
			c.fault(field, "host %s is named twice", quote(name))
		}
	}
}

func (c *checker) strategy() {
	const field = "replenishment_strategy.min_size"
	s := c.spec
	switch s.Strategy {
	case ImmediateOnLease, ReplaceOnDelete:
		if s.MinSize < 0 {
			c.fault(field, "is %d, must not be negative", s.MinSize)
		}
	case MinSizeThreshold:
		switch {
		case s.MinSize < 1:
			c.fault(field, "must be at least 1 with MIN_SIZE_THRESHOLD")
		case s.MinSize > s.Size:
			c.fault(field, "is %d, must not be greater than size (%d)", s.MinSize, s.Size)
		}
	default:
		c.fault("replenishment_strategy.type", "unknown strategy %s", quote(string(s.Strategy)))
	}
}

func (c *checker) commands(field string, commands []string) {
	if len(commands) > MaxCommands {
		c.fault(field, "has %d commands, at most %d are allowed", len(commands), MaxCommands)
		return
	}
	for i, command := range commands {
		at := fmt.Sprintf("%s[%d]", field, i)
		switch {
		case strings.TrimSpace(command) == "":
			c.fault(at, "is empty")
		case len(command) > MaxCommandLen:
			c.fault(at, "has %d bytes, at most %d are allowed", len(command), MaxCommandLen)
		case strings.ContainsRune(command, 0) || !utf8.ValidString(command):
			c.fault(at, "must be UTF-8 text without NUL characters")
		}
	}
}

func (c *checker) policies() {
	switch c.spec.HookFailurePolicy {
	case DeleteAndReplace, Quarantine:
	default:
		c.fault("hook_failure_policy", "unknown policy %s", quote(string(c.spec.HookFailurePolicy)))
	}
	switch c.spec.ClaimPreference {
	case CurrentFirst, CurrentOnly, OldestFirst:
	default:
		c.fault("claim_preference", "unknown preference %s", quote(string(c.spec.ClaimPreference)))
	}
}

func (c *checker) durations() {
	s := c.spec
	all := []struct {
		field string
		value time.Duration
		zero  bool // 0 has a meaning
	}{
		{"heartbeat_interval", s.HeartbeatInterval, false},
		{"heartbeat_expiry_threshold", s.HeartbeatExpiry, false},
		{"max_lease_duration", s.MaxLeaseDuration, true},
		{"max_warm_age", s.MaxWarmAge, true},
		{"boot_timeout", s.BootTimeout, false},
		{"command_timeout", s.CommandTimeout, false},
		{"rollout_policy.min_ready", s.Rollout.MinReady, true},
		{"rollout_policy.progress_deadline", s.Rollout.ProgressDeadline, true},
	}
	before := len(c.faults)
	for _, d := range all {
		switch {
		case d.value < 0:
			c.fault(d.field, "is %s, must not be negative", d.value)
		case d.value > MaxDuration:
			c.fault(d.field, "is %s, at most %s is allowed", d.value, MaxDuration)
		case d.value == 0 && !d.zero:
			c.fault(d.field, "must be greater than 0")
		}
	}
	if len(c.faults) > before {
		return // comparisons below would only repeat it
	}
	if s.HeartbeatExpiry <= s.HeartbeatInterval {
		c.fault("heartbeat_expiry_threshold",
			"is %s, must be longer than heartbeat_interval (%s), or a lease ends before its first heartbeat",
			s.HeartbeatExpiry, s.HeartbeatInterval)
	}
	if youngest := s.BootTimeout + s.Rollout.MinReady; s.MaxWarmAge > 0 && s.MaxWarmAge < youngest {
		c.fault("max_warm_age",
			"is %s, must be at least boot_timeout + rollout_policy.min_ready (%s), or VMs are refreshed faster than they boot",
			s.MaxWarmAge, youngest)
	}
}

func (c *checker) rollout() {
	c.limit("rollout_policy", c.spec.Rollout.MaxUnavailable)
	c.limit("rollout_policy.max_surge", c.spec.Rollout.MaxSurge)
}

func (c *checker) limit(field string, l Limit) {
	switch l.Kind {
	case LimitUnset:
	case LimitCount:
		if l.Value < 0 {
			c.fault(field+".count", "is %d, must not be negative", l.Value)
		}
	case LimitPercent:
		if l.Value < 0 || l.Value > 100 {
			c.fault(field+".percent", "is %d, must be from 0 to 100", l.Value)
		}
	default:
		c.fault(field, "unknown kind of limit %s", quote(string(l.Kind)))
	}
}

func (c *checker) limits() {
	s := c.spec
	switch {
	case s.MaxVMs < 0:
		c.fault("max_vms", "is %d, must not be negative", s.MaxVMs)
	case s.MaxVMs > 0 && s.MaxVMs < s.Size:
		c.fault("max_vms", "is %d, must not be less than size (%d)", s.MaxVMs, s.Size)
	}
	if s.MaxQuarantined != nil && *s.MaxQuarantined < 0 {
		c.fault("max_quarantined", "is %d, must not be negative", *s.MaxQuarantined)
	}
}

// quote shows a client's text in a message, escaped and not longer than a line.
func quote(s string) string {
	const limit = 60
	if len(s) > limit {
		return fmt.Sprintf("%.*q...", limit, s)
	}
	return fmt.Sprintf("%q", s)
}
