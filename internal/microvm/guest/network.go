package guest

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"poolmgr/internal/microvm/guest/wire"
)

// configureInterfaces finds each interface by its MAC address, since the order
// in which a kernel finds devices says nothing, and names, addresses and ups it.
func configureInterfaces(wanted []wire.Interface) error {
	found, err := findInterfaces(wanted)
	if err != nil {
		return err
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open a socket for interface settings: %w", err)
	}
	defer unix.Close(fd)
	// Two rounds, for one's new name may be another's present one.
	current := make([]string, len(found))
	for i := range found {
		current[i] = fmt.Sprintf("renaming%d", i)
		if err := renameLink(fd, found[i], current[i]); err != nil {
			return err
		}
	}
	var nameservers []string
	for i, w := range wanted {
		name := w.Name
		if name == "" {
			name = found[i]
		}
		if err := renameLink(fd, current[i], name); err != nil {
			return err
		}
		if err := setAddress(fd, name, w); err != nil {
			return err
		}
		nameservers = append(nameservers, w.Nameservers...)
	}
	return writeNameservers(nameservers)
}

// findInterfaces returns the present name of each wanted interface.
func findInterfaces(wanted []wire.Interface) ([]string, error) {
	links, err := net.Interfaces()
	if err != nil {
		return nil, fmt.Errorf("list network interfaces: %w", err)
	}
	names := make([]string, 0, len(wanted))
	for _, w := range wanted {
		mac, err := net.ParseMAC(w.MAC)
		if err != nil {
			return nil, fmt.Errorf("interface %s: %w", w.Name, err)
		}
		name := ""
		for _, l := range links {
			if l.HardwareAddr.String() == mac.String() {
				name = l.Name
			}
		}
		if name == "" {
			return nil, fmt.Errorf("interface %s: no device has the address %s", w.Name, w.MAC)
		}
		names = append(names, name)
	}
	return names, nil
}

func renameLink(fd int, from, to string) error {
	if from == to {
		return nil
	}
	if len(to) >= unix.IFNAMSIZ {
		return fmt.Errorf("interface name %q is longer than %d", to, unix.IFNAMSIZ-1)
	}
	if err := setFlags(fd, from, 0, unix.IFF_UP); err != nil {
		return err
	}
	var req [40]byte // struct ifreq: name, new name
	copy(req[:unix.IFNAMSIZ], from)
	copy(req[unix.IFNAMSIZ:2*unix.IFNAMSIZ], to)
	if err := ioctl(fd, unix.SIOCSIFNAME, unsafe.Pointer(&req)); err != nil {
		return fmt.Errorf("rename interface %s to %s: %w", from, to, err)
	}
	return nil
}

func setAddress(fd int, name string, w wire.Interface) error {
	if w.Address != "" {
		prefix, err := netip.ParsePrefix(w.Address)
		if err != nil || !prefix.Addr().Is4() {
			return fmt.Errorf("interface %s: %q is not an IPv4 address with a prefix length", name, w.Address)
		}
		mask := net.CIDRMask(prefix.Bits(), 32)
		addr := prefix.Addr().As4()
		if err := setInet4(fd, name, unix.SIOCSIFADDR, addr[:]); err != nil {
			return fmt.Errorf("interface %s: set address: %w", name, err)
		}
		if err := setInet4(fd, name, unix.SIOCSIFNETMASK, mask); err != nil {
			return fmt.Errorf("interface %s: set netmask: %w", name, err)
		}
	}
	if err := setFlags(fd, name, unix.IFF_UP, 0); err != nil {
		return err
	}
	if w.Gateway != "" {
		return addDefaultRoute(fd, name, w.Gateway)
	}
	return nil
}

func setInet4(fd int, name string, request uint, addr []byte) error {
	req, err := unix.NewIfreq(name)
	if err != nil {
		return err
	}
	if err := req.SetInet4Addr(addr); err != nil {
		return err
	}
	return unix.IoctlIfreq(fd, request, req)
}

func setFlags(fd int, name string, set, clear uint16) error {
	req, err := unix.NewIfreq(name)
	if err == nil {
		err = unix.IoctlIfreq(fd, unix.SIOCGIFFLAGS, req)
	}
	if err == nil {
		req.SetUint16(req.Uint16()&^clear | set)
		err = unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, req)
	}
	if err != nil {
		return fmt.Errorf("interface %s: change flags: %w", name, err)
	}
	return nil
}

// rtentry is struct rtentry of linux/route.h on 64-bit machines.
type rtentry struct {
	pad1                  uint64
	dst, gateway, genmask unix.RawSockaddrInet4
	flags                 uint16
	_                     [2]uint16
	_                     [2]uint64
	metric                uint16
	_                     [3]uint16
	dev                   *byte
	mtu, window           uint64
	irtt                  uint16
	_                     [3]uint16
}

func addDefaultRoute(fd int, name, gateway string) error {
	addr, err := netip.ParseAddr(gateway)
	if err != nil || !addr.Is4() {
		return fmt.Errorf("interface %s: gateway %q is not an IPv4 address", name, gateway)
	}
	dev := append([]byte(name), 0)
	any4 := unix.RawSockaddrInet4{Family: unix.AF_INET}
	route := rtentry{dst: any4, genmask: any4, gateway: any4, flags: unix.RTF_UP | unix.RTF_GATEWAY, dev: &dev[0]}
	route.gateway.Addr = addr.As4()
	if err := ioctl(fd, unix.SIOCADDRT, unsafe.Pointer(&route)); err != nil && !errors.Is(err, syscall.EEXIST) {
		return fmt.Errorf("interface %s: add the route through %s: %w", name, gateway, err)
	}
	return nil
}

func ioctl(fd int, request uint, arg unsafe.Pointer) error {
	if _, _, errno := syscall.Syscall(syscall.SYS_IOCTL, uintptr(fd), uintptr(request), uintptr(arg)); errno != 0 {
		return errno
	}
	return nil
}

func writeNameservers(servers []string) error {
	if len(servers) == 0 {
		return nil
	}
	var text strings.Builder
	for _, s := range servers {
		fmt.Fprintf(&text, "nameserver %s\n", s)
	}
	if err := os.WriteFile("/etc/resolv.conf", []byte(text.String()), 0o644); err != nil {
		return fmt.Errorf("write name servers: %w", err)
	}
	return nil
}

// upLoopback brings up lo, which many programs take for granted.
func upLoopback() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open a socket for interface settings: %w", err)
	}
	defer unix.Close(fd)
	return setFlags(fd, "lo", unix.IFF_UP, 0)
}
