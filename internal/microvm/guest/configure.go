package guest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"poolmgr/internal/microvm/guest/wire"
)

// Numbers of random(4) that the libraries lack.
const (
	rndAddEntropy = 0x40085203
	rndReseedCRNG = 0x5207
	maxEntropy    = 512
)

// configure applies what the host says at first contact. The random generator
// comes first: nothing random may be drawn before.
func (m *machine) configure(c wire.Configure) error {
	if len(c.Entropy) > 0 {
		if err := addEntropy(c.Entropy); err != nil {
			return err
		}
	}
	if c.UnixNano != 0 {
		tv := syscall.NsecToTimeval(c.UnixNano)
		if err := syscall.Settimeofday(&tv); err != nil {
			return fmt.Errorf("set the clock: %w", err)
		}
	}
	if c.Hostname != "" {
		if err := setHostname(c.Hostname); err != nil {
			return err
		}
	}
	if len(c.Interfaces) > 0 {
		if err := m.loadModules("net"); err != nil {
			return err
		}
		if err := configureInterfaces(c.Interfaces); err != nil {
			return err
		}
	}
	return writeFacts("/run/poolmgr", c.Metadata, c.Labels)
}

// addEntropy credits entropy to the kernel and makes it draw new keys from it.
func addEntropy(entropy []byte) error {
	if len(entropy) > maxEntropy {
		return fmt.Errorf("entropy of %d bytes is more than %d", len(entropy), maxEntropy)
	}
	random, err := os.OpenFile("/dev/urandom", os.O_WRONLY, 0)
	if err != nil {
		return fmt.Errorf("open the random generator: %w", err)
	}
	defer random.Close()
	// struct rand_pool_info: bits, bytes, data.
	info := binary.NativeEndian.AppendUint32(nil, uint32(8*len(entropy)))
	info = binary.NativeEndian.AppendUint32(info, uint32(len(entropy)))
	info = append(info, entropy...)
	if _, _, errno := syscall.Syscall(syscall.SYS_IOCTL, random.Fd(), rndAddEntropy, uintptr(unsafe.Pointer(&info[0]))); errno != 0 {
		return fmt.Errorf("add entropy: %w", errno)
	}
	if _, _, errno := syscall.Syscall(syscall.SYS_IOCTL, random.Fd(), rndReseedCRNG, 0); errno != 0 {
		return fmt.Errorf("reseed the random generator: %w", errno)
	}
	return nil
}

func setHostname(name string) error {
	if err := syscall.Sethostname([]byte(name)); err != nil {
		return fmt.Errorf("set the host name: %w", err)
	}
	err1 := os.WriteFile("/etc/hostname", []byte(name+"\n"), 0o644)
	err2 := os.WriteFile("/etc/hosts", []byte("127.0.0.1 localhost "+name+"\n::1 localhost\n"), 0o644)
	if err := errors.Join(err1, err2); err != nil {
		return fmt.Errorf("write the host name: %w", err)
	}
	return nil
}

// info describes this guest.
func info() (wire.Info, error) {
	bootID, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return wire.Info{}, fmt.Errorf("read the boot id: %w", err)
	}
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return wire.Info{}, fmt.Errorf("ask for the kernel's name: %w", err)
	}
	uptime, err := uptime()
	if err != nil {
		return wire.Info{}, err
	}
	return wire.Info{
		BootID:   strings.TrimSpace(string(bootID)),
		Kernel:   unix.ByteSliceToString(name.Release[:]),
		Hostname: unix.ByteSliceToString(name.Nodename[:]),
		UptimeS:  uptime.Seconds(),
	}, nil
}

func uptime() (time.Duration, error) {
	data, err := os.ReadFile("/proc/uptime")
	if err != nil {
		return 0, fmt.Errorf("read the uptime: %w", err)
	}
	seconds, err := strconv.ParseFloat(strings.Fields(string(data) + " 0")[0], 64)
	if err != nil {
		return 0, fmt.Errorf("parse the uptime: %w", err)
	}
	return time.Duration(seconds * float64(time.Second)), nil
}
