package qemu

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"poolmgr/internal/microvm/qemu/kvmprobe"
)

// The choices of acceleration.
const (
	AccelAuto = "auto"
	AccelKVM  = "kvm"
	AccelTCG  = "tcg"
)

// probeLimit bounds the timing of KVM; the slowest seen took 27 ms.
const probeLimit = 2 * time.Second

// platform is where the facts about the host's processor are read.
type platform struct {
	kvm     string // the device
	modules string // /sys/module
	cpuinfo string
	bootID  string
	probe   func(ctx context.Context, device string) (time.Duration, error)
}

var thisHost = platform{
	kvm:     "/dev/kvm",
	modules: "/sys/module",
	cpuinfo: "/proc/cpuinfo",
	bootID:  "/proc/sys/kernel/random/boot_id",
	probe:   kvmprobe.Run,
}

// choose decides between KVM and TCG, and says why.
func (p platform) choose(ctx context.Context, asked string) (accel, reason string, err error) {
	switch asked {
	case AccelTCG:
		return AccelTCG, "asked for", nil
	case AccelAuto:
		if reason := p.whyNotKVM(); reason != "" {
			return AccelTCG, reason, nil
		}
	case AccelKVM:
	default:
		return "", "", fmt.Errorf("%w: %q is none of auto, kvm and tcg", ErrAccel, asked)
	}
	ctx, cancel := context.WithTimeout(ctx, probeLimit)
	defer cancel()
	per, err := p.probe(ctx, p.kvm)
	switch {
	case err == nil:
		return AccelKVM, fmt.Sprintf("KVM runs an instruction in %v", per), nil
	case asked == AccelKVM:
		return "", "", fmt.Errorf("%w: %w; use --accel tcg or auto", ErrAccel, err)
	}
	return AccelTCG, err.Error(), nil
}

// whyNotKVM finds the reasons that need no measuring.
func (p platform) whyNotKVM() string {
	if _, err := os.Stat(p.kvm); err != nil {
		return "there is no " + p.kvm
	}
	if _, err := os.Stat(filepath.Join(p.modules, "kvm_pvm")); err == nil {
		return "KVM is kvm_pvm, which emulates the guest's kernel"
	}
	cpuinfo, err := os.ReadFile(p.cpuinfo)
	if err != nil {
		return "the processor's flags cannot be read"
	}
	for _, flag := range strings.Fields(cpuField(string(cpuinfo), "flags")) {
		if flag == "vmx" || flag == "svm" {
			return ""
		}
	}
	return "the processor has neither vmx nor svm"
}

// cpuField returns a field of the first processor of /proc/cpuinfo.
func cpuField(cpuinfo, name string) string {
	for line := range strings.Lines(cpuinfo) {
		key, value, found := strings.Cut(line, ":")
		if found && strings.TrimSpace(key) == name {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// tscKHz is the frequency of the host's time stamp counter, which a guest
// under TCG shares; 0 where it is not known. bogomips is twice the MHz, and
// unlike "cpu MHz" it does not follow the scaling of the frequency.
func tscKHz(cpuinfo string) int {
	bogomips, err := strconv.ParseFloat(cpuField(cpuinfo, "bogomips"), 64)
	if err != nil || !(bogomips >= 200 && bogomips < 100_000) {
		return 0
	}
	return int(math.Round(bogomips / 2 * 1000))
}

// acceleration is the present choice. Under auto, KVM has to prove itself by
// booting a guest; where it fails, TCG takes over until the host boots anew.
type acceleration struct {
	file string // remembers a verdict
	log  *slog.Logger

	mu      sync.Mutex
	name    string
	proven  bool
	verdict verdict
}

// verdict is what is remembered of a host that is up.
type verdict struct {
	BootID string `json:"boot_id"`
	Accel  string `json:"accel"`
	Reason string `json:"reason"`
}

func newAcceleration(ctx context.Context, host platform, asked, file string, log *slog.Logger) (*acceleration, error) {
	a := &acceleration{file: file, log: log}
	bootID, err := os.ReadFile(host.bootID)
	if err != nil {
		return nil, fmt.Errorf("read the host's boot id: %w", err)
	}
	a.verdict.BootID = strings.TrimSpace(string(bootID))
	if asked == AccelAuto {
		if v, ok := a.remembered(); ok {
			a.name, a.proven, a.verdict = v.Accel, true, v
			log.Info("acceleration chosen", "accel", a.name, "reason", "found before: "+v.Reason)
			return a, nil
		}
	}
	name, reason, err := host.choose(ctx, asked)
	if err != nil {
		return nil, err
	}
	a.name, a.verdict.Reason = name, reason
	a.proven = asked != AccelAuto || name == AccelTCG // then there is nothing to fall back from
	log.Info("acceleration chosen", "accel", name, "reason", reason)
	return a, nil
}

func (a *acceleration) remembered() (verdict, bool) {
	data, err := os.ReadFile(a.file)
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			a.log.Warn("cannot read what was found about KVM, finding out anew", "error", err)
		}
		return verdict{}, false
	}
	var v verdict
	ok := json.Unmarshal(data, &v) == nil && v.BootID == a.verdict.BootID && (v.Accel == AccelKVM || v.Accel == AccelTCG)
	return v, ok
}

// current returns the acceleration for the next boot.
func (a *acceleration) current() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.name
}

// booted records that a guest booted with it.
func (a *acceleration) booted(name string) {
	a.conclude(name, AccelKVM, "a guest booted with it")
}

// failed records that a guest did not boot with it, and says whether another
// acceleration is in force by now.
func (a *acceleration) failed(name string) (changed bool) {
	a.conclude(name, AccelTCG, "a guest did not boot with KVM")
	return a.current() != name
}

func (a *acceleration) conclude(tried, accel, reason string) {
	a.mu.Lock()
	if a.proven || a.name != tried {
		a.mu.Unlock()
		return
	}
	a.name, a.proven = accel, true
	a.verdict.Accel, a.verdict.Reason = accel, reason
	v := a.verdict
	a.mu.Unlock()
	a.log.Info("acceleration settled", "accel", accel, "reason", reason)
	data, err := json.Marshal(v)
	if err == nil {
		err = writeFile(a.file, data)
	}
	if err != nil {
		a.log.Warn("cannot remember what was found about KVM; it will be found out anew", "error", err)
	}
}
