package pool

import (
	"fmt"
	"net"
	"net/netip"
	"regexp"

	"poolmgr/api/flintlock/vmtypes"
)

// devicePattern is flintlock's; 15 characters are what Linux allows for the name of a device.
var devicePattern = regexp.MustCompile(`^[a-z][a-z0-9_]{0,14}$`)

func (c *checker) interfaces(interfaces []*vmtypes.NetworkInterface) {
	const field = templateField + ".interfaces"
	if len(interfaces) > MaxInterfaces {
		c.fault(field, "has %d interfaces, at most %d are allowed", len(interfaces), MaxInterfaces)
		return
	}
	devices, macs := map[string]bool{}, map[string]bool{}
	for i, n := range interfaces {
		at := fmt.Sprintf("%s[%d]", field, i)
		c.device(at, n, devices)
		if mac := n.GetGuestMac(); n.GuestMac != nil {
			c.mac(at+".guest_mac", mac, macs)
		}
		if n.GetAddress() != nil {
			c.address(at+".address", n.GetAddress())
		}
		if c.spec.CanHoldTwo() {
			c.shared(at, n)
		}
	}
}

func (c *checker) device(at string, n *vmtypes.NetworkInterface, seen map[string]bool) {
	id := n.GetDeviceId()
	switch {
	case id == "":
		c.fault(at+".device_id", "is required")
	case id == "eth0":
		c.fault(at+".device_id", "eth0 is the host's own metadata interface; take eth1 or another name")
	case !devicePattern.MatchString(id):
		c.fault(at+".device_id", "%s must be up to 15 lower-case letters, digits and '_', and begin with a letter", quote(id))
	case seen[id]:
		c.fault(at+".device_id", "%s names another interface already", quote(id))
	}
	seen[id] = true
	if _, known := vmtypes.NetworkInterface_IfaceType_name[int32(n.GetType())]; !known {
		c.fault(at+".type", "unknown value %d", n.GetType())
	}
	if n.GetOverrides() == nil {
		return
	}
	switch bridge := n.GetOverrides().GetBridgeName(); {
	case n.GetType() != vmtypes.NetworkInterface_TAP:
		c.fault(at+".overrides", "apply to TAP interfaces only")
	case bridge == "":
		c.fault(at+".overrides.bridge_name", "is required where there are overrides")
	case len(bridge) > 15 || !volumePattern.MatchString(bridge):
		c.fault(at+".overrides.bridge_name", "%s is not the name of a bridge", quote(bridge))
	}
}

func (c *checker) mac(field, value string, seen map[string]bool) {
	mac, err := net.ParseMAC(value)
	switch {
	case err != nil || len(mac) != 6:
		c.fault(field, "%s is not a MAC address such as 02:00:00:00:00:01", quote(value))
	case mac[0]&1 == 1 || mac.String() == "00:00:00:00:00:00":
		c.fault(field, "%s is not the address of a single machine", quote(value))
	case seen[mac.String()]:
		c.fault(field, "%s is another interface's already", quote(value))
	default:
		seen[mac.String()] = true
	}
}

func (c *checker) address(at string, a *vmtypes.StaticAddress) {
	if _, err := netip.ParsePrefix(a.GetAddress()); err != nil {
		c.fault(at+".address", "%s must be an address with its prefix length, such as 192.0.2.10/24", quote(a.GetAddress()))
	}
	if g := a.GetGateway(); a.Gateway != nil {
		_, cidr := netip.ParsePrefix(g)
		_, plain := netip.ParseAddr(g)
		if cidr != nil && plain != nil {
			c.fault(at+".gateway", "%s is not an IP address", quote(g))
		}
	}
	for i, server := range a.GetNameservers() {
		if _, err := netip.ParseAddr(server); err != nil {
			c.fault(fmt.Sprintf("%s.nameservers[%d]", at, i), "%s is not an IP address", quote(server))
		}
	}
}

// shared refuses what only one VM on a network can have.
func (c *checker) shared(at string, n *vmtypes.NetworkInterface) {
	const why = "would be shared by two VMs: it needs REPLACE_ON_DELETE, DELETE_AND_REPLACE, size 1 and no surge (or max_vms 1)"
	if n.GuestMac != nil {
		c.fault(at+".guest_mac", "%s", why)
	}
	if n.GetAddress() != nil {
		c.fault(at+".address", "%s", why)
	}
}

// HasFixedAddress reports whether the template gives its VMs a MAC or IP address, so that only one may exist.
func (s Spec) HasFixedAddress() bool {
	for _, n := range s.Template.GetInterfaces() {
		if n.GuestMac != nil || n.GetAddress() != nil {
			return true
		}
	}
	return false
}

// CanHoldTwo reports whether two VMs of the pool may exist at once by the spec alone: two slots, a refill beside a
// leased VM, one kept in quarantine beside its successor, or a surge.
func (s Spec) CanHoldTwo() bool {
	if s.MaxVMs == 1 {
		return false
	}
	return s.Size > 1 || s.Strategy != ReplaceOnDelete || s.HookFailurePolicy == Quarantine || s.Rollout.MaxSurge.Value > 0
}
