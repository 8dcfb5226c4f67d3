// Package hostd is the wiring of a host daemon: options and their flags, the
// backend that they ask for, the lock on its state folder, and the gRPC server
// over it. microvmd runs it as a program of its own, poolmgrd inside itself. It
// opens no port and reads no environment: that is its callers' business.
package hostd

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"poolmgr/internal/microvm/simulated"
)

// The backends.
const (
	BackendQEMU      = "qemu"      // real microVMs
	BackendSimulated = "simulated" // books without machines
)

// Options say what kind of host to run. Take DefaultOptions and change them, by
// hand or with AddFlags.
type Options struct {
	// Name of the host. It is mixed into the simulator's seed, so that hosts
	// with one seed do not fail in step.
	Name string
	// Backend is BackendQEMU or BackendSimulated.
	Backend string
	// StateDir is where the machines' state is kept. Needed by qemu; without it
	// simulated machines end with the process.
	StateDir string
	// MaxVMs and MaxMemoryMB limit what stands on the host; 0 = no limit.
	MaxVMs      int
	MaxMemoryMB int

	QEMU QEMUOptions

	// Seed and Simulated are for the simulated backend only.
	Seed      uint64
	Simulated simulated.Behaviour

	// prefix of the flags that set these options, for errors that name a flag.
	prefix string
}

// QEMUOptions are for the qemu backend only.
type QEMUOptions struct {
	Accel       string        // auto, kvm or tcg
	ImageDir    string        // built images, shared by hosts; empty = poolmgr/images in the user's cache folder
	ImageRoot   string        // where file: references may point to; empty = none are allowed
	GuestBinary string        // the guest's init; empty = poolmgr-guest beside the daemon's own binary
	MaxBoots    int           // boots at one time; 0 = number of CPUs
	BootTimeout time.Duration // for one attempt to boot, until the guest answers; 0 = the backend's default
}

// DefaultOptions are the options before any flag: a host without limits, whose
// simulated machines take about a second to boot and never fail.
func DefaultOptions() Options {
	return Options{
		QEMU: QEMUOptions{Accel: "auto"},
		Seed: 1,
		Simulated: simulated.Behaviour{
			BootDelay:   time.Second,
			BootJitter:  500 * time.Millisecond,
			DeleteDelay: 200 * time.Millisecond,
		},
	}
}

// AddFlags registers a flag for each option, with their present values as the
// defaults. With a prefix ("host-") the name and the backend get none: a program
// that runs the host inside itself decides these by flags of its own.
func (o *Options) AddFlags(flags *pflag.FlagSet, prefix string) {
	o.prefix = prefix
	if prefix == "" {
		flags.StringVar(&o.Name, "name", o.Name, "name of this host, mixed into the simulator's seed (default: the address it listens on)")
		flags.StringVar(&o.Backend, "backend", o.Backend, "what runs the microVMs: qemu or simulated (required)")
	}
	flags.StringVar(&o.StateDir, prefix+"state-dir", o.StateDir, "folder for the microVMs' state; they are found again there after a restart")
	flags.IntVar(&o.MaxVMs, prefix+"max-vms", o.MaxVMs, "most microVMs on the host; 0 = no limit")
	flags.IntVar(&o.MaxMemoryMB, prefix+"max-memory-mb", o.MaxMemoryMB, "most memory for microVMs, in MiB; 0 = no limit")
	o.QEMU.addFlags(flags, prefix)
	o.addSimulatedFlags(flags, prefix)
}

func (q *QEMUOptions) addFlags(flags *pflag.FlagSet, prefix string) {
	flags.StringVar(&q.Accel, prefix+"accel", q.Accel, "qemu: auto (KVM where it proves to work), kvm or tcg")
	flags.StringVar(&q.ImageDir, prefix+"image-dir", q.ImageDir, "qemu: folder of built images (default: poolmgr/images in the user's cache folder)")
	flags.StringVar(&q.ImageRoot, prefix+"image-root", q.ImageRoot, "qemu: folder that file: image references may point into (default: none are allowed)")
	flags.StringVar(&q.GuestBinary, prefix+"guest-binary", q.GuestBinary, "qemu: the guest's init program (default: poolmgr-guest beside this binary)")
	flags.IntVar(&q.MaxBoots, prefix+"max-boots", q.MaxBoots, "qemu: boots at one time; 0 = number of CPUs")
	flags.DurationVar(&q.BootTimeout, prefix+"boot-timeout", q.BootTimeout, "qemu: how long one boot may take; 0 = as the backend sees fit")
}

func (o *Options) addSimulatedFlags(flags *pflag.FlagSet, prefix string) {
	s := &o.Simulated
	flags.Uint64Var(&o.Seed, prefix+"seed", o.Seed, "simulated: seed of every random decision")
	flags.DurationVar(&s.BootDelay, prefix+"boot-delay", s.BootDelay, "simulated: how long a boot takes")
	flags.DurationVar(&s.BootJitter, prefix+"boot-jitter", s.BootJitter, "simulated: how much longer it may take")
	flags.DurationVar(&s.DeleteDelay, prefix+"delete-delay", s.DeleteDelay, "simulated: how long a deletion takes")
	flags.Float64Var(&s.FailCreate, prefix+"fail-create", s.FailCreate, "simulated: probability (0 to 1) that a create fails")
	flags.Float64Var(&s.FailBoot, prefix+"fail-boot", s.FailBoot, "simulated: probability that a boot fails; half of these look CREATED and never answer")
	flags.Float64Var(&s.LoseReply, prefix+"lose-reply", s.LoseReply, "simulated: probability that a create or delete is done and its reply lost")
	flags.Float64Var(&s.HangExec, prefix+"hang-exec", s.HangExec, "simulated: probability that a command never ends")
	flags.Float64Var(&s.Vanish, prefix+"vanish", s.Vanish, "simulated: probability that a microVM vanishes within 20 s of its boot")
}

// flag is the name of an option's flag, as a person would type it.
func (o *Options) flag(name string) string { return "--" + o.prefix + name }

// check finds what is wrong before anything is opened, all of it in one line.
func (o *Options) check() error {
	faults := o.checkBackend()
	for _, limit := range []struct {
		flag  string
		value int64
		text  any
	}{
		{"max-vms", int64(o.MaxVMs), o.MaxVMs},
		{"max-memory-mb", int64(o.MaxMemoryMB), o.MaxMemoryMB},
		{"max-boots", int64(o.QEMU.MaxBoots), o.QEMU.MaxBoots},
		{"boot-timeout", int64(o.QEMU.BootTimeout), o.QEMU.BootTimeout},
	} {
		if limit.value < 0 {
			faults = append(faults, fmt.Sprintf("%s is %v; it must not be negative", o.flag(limit.flag), limit.text))
		}
	}
	if len(faults) == 0 {
		return nil
	}
	return fmt.Errorf("%w: %s", ErrOptions, strings.Join(faults, "; "))
}

func (o *Options) checkBackend() (faults []string) {
	switch o.Backend {
	case BackendQEMU:
		if o.StateDir == "" {
			faults = append(faults, "the qemu backend needs a folder for its state: set "+o.flag("state-dir"))
		}
		if !slices.Contains([]string{"auto", "kvm", "tcg"}, o.QEMU.Accel) {
			faults = append(faults, fmt.Sprintf("%s is %q; it must be auto, kvm or tcg", o.flag("accel"), o.QEMU.Accel))
		}
	case BackendSimulated:
	case "":
		faults = append(faults, "no backend chosen: set --backend qemu or --backend simulated")
	default:
		faults = append(faults, fmt.Sprintf("unknown backend %q: it must be qemu or simulated", o.Backend))
	}
	return faults
}
