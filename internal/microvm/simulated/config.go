package simulated

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"
)

// Config describes one simulated host. The zero value is a well-behaved host
// that boots and deletes at once, keeps its machines in memory and has no limit.
type Config struct {
	// HostName is mixed into the seed, so that two hosts of one fleet and one
	// seed do not fail in step.
	HostName string
	// Seed of every random decision. The same seed, host name and machine ids
	// give the same failures, whatever the order of the calls.
	Seed uint64
	// StateDir keeps one file per machine, so that machines outlive the daemon.
	// Empty: in memory only. One Backend per directory at a time; the caller
	// holds the lock.
	StateDir string

	// MaxVMs and MaxMemoryMB limit what stands on the host, machines that are
	// being deleted included; 0 = no limit.
	MaxVMs      int
	MaxMemoryMB int

	Behaviour

	// Logger must be set.
	Logger *slog.Logger
}

// Behaviour is how the simulated host behaves: how long things take, and how
// often it fails or lies. Probabilities are from 0 to 1.
type Behaviour struct {
	BootDelay   time.Duration // from create to CREATED with an answering guest
	BootJitter  time.Duration // up to this much more, evenly spread
	DeleteDelay time.Duration // from delete to gone

	FailCreate float64 // create is refused with an error and makes nothing
	FailBoot   float64 // half of these end FAILED, half look CREATED and their guest never answers
	LoseReply  float64 // create or delete is done, and its answer is an error all the same
	HangExec   float64 // a command never ends, whatever timeout it asked for
	Vanish     float64 // the machine is gone some time after its boot, without a word
}

// vanishWithin is the span after the boot in which a machine that is to vanish
// does so: long enough to be claimed first, short enough to be seen in a test.
const vanishWithin = 20 * time.Second

// validate names every fault at once.
func (c Config) validate() error {
	var faults []string
	for _, d := range []struct {
		name  string
		value time.Duration
	}{
		{"boot delay", c.BootDelay},
		{"boot jitter", c.BootJitter},
		{"delete delay", c.DeleteDelay},
	} {
		if d.value < 0 {
			faults = append(faults, fmt.Sprintf("%s %v is negative", d.name, d.value))
		}
	}
	for _, p := range []struct {
		name  string
		value float64
	}{
		{"fail-create", c.FailCreate},
		{"fail-boot", c.FailBoot},
		{"lose-reply", c.LoseReply},
		{"hang-exec", c.HangExec},
		{"vanish", c.Vanish},
	} {
		if !(p.value >= 0 && p.value <= 1) { // written so that NaN is refused too
			faults = append(faults, fmt.Sprintf("probability %s %v is not between 0 and 1", p.name, p.value))
		}
	}
	if c.MaxVMs < 0 {
		faults = append(faults, fmt.Sprintf("max VMs %d is negative", c.MaxVMs))
	}
	if c.MaxMemoryMB < 0 {
		faults = append(faults, fmt.Sprintf("max memory %d MB is negative", c.MaxMemoryMB))
	}
	if c.Logger == nil {
		faults = append(faults, "no logger given")
	}
	if len(faults) == 0 {
		return nil
	}
	return errors.New(strings.Join(faults, "; "))
}
