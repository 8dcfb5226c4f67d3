package qemu

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"

	"poolmgr/internal/microvm/guest/wire"
	"poolmgr/internal/microvm/image"
)

// Names in a machine's folder, which is QEMU's working directory.
const (
	qmpSocket   = "qmp.sock"
	agentSocket = "agent.sock"
)

// arguments returns QEMU's arguments for a machine. There is no serial device:
// a guest could fill the host's disk through it.
func arguments(r record, boot image.Boot, accel, cmdline string) []string {
	acceleration, cpu := "tcg,tb-size=32", "max"
	if accel == AccelKVM {
		acceleration, cpu = "kvm", "host"
	}
	args := []string{
		"-name", r.uid,
		"-M", "microvm,acpi=on,rtc=on",
		"-accel", acceleration, "-cpu", cpu,
		"-m", strconv.Itoa(int(r.spec.GetMemoryInMb())),
		"-smp", strconv.Itoa(int(r.spec.GetVcpu())),
		"-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
		"-sandbox", "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny",
		"-kernel", boot.Kernel, "-initrd", boot.Initrd, "-append", cmdline,
		"-pidfile", pidFile,
		"-qmp", "unix:" + qmpSocket + ",server=on,wait=off",
		"-chardev", "socket,id=c0,path=" + agentSocket + ",server=on,wait=off",
		"-device", "virtio-serial-device",
		"-device", "virtserialport,chardev=c0,name=" + wire.PortName + ",id=" + wire.PortName,
	}
	for i, nic := range r.spec.GetInterfaces() {
		id := "n" + strconv.Itoa(i)
		args = append(args,
			// Without restrict, a guest reaches the host's loopback services.
			"-netdev", "user,id="+id+",restrict=on",
			"-device", "virtio-net-device,netdev="+id+",mac="+macOf(r.uid, nic))
	}
	return args
}

// clean removes what a QEMU that was killed leaves behind.
func clean(dir string) error {
	for _, name := range []string{pidFile, qmpSocket, agentSocket, logFile} {
		if err := os.Remove(filepath.Join(dir, name)); err != nil && !os.IsNotExist(err) {
			return fmt.Errorf("clean the microvm's folder: %w", err)
		}
	}
	return nil
}

// dialer returns a function that connects to a socket in a folder, however
// long the folder's path: a socket's own path has at most 107 bytes.
func dialer(dir, socket string) func(context.Context) (net.Conn, error) {
	return func(ctx context.Context) (net.Conn, error) {
		folder, err := os.Open(dir)
		if err != nil {
			return nil, err
		}
		defer folder.Close()
		conn, err := new(net.Dialer).DialContext(ctx, "unix", fmt.Sprintf("/proc/self/fd/%d/%s", folder.Fd(), socket))
		runtime.KeepAlive(folder)
		if err != nil {
			return nil, fmt.Errorf("%s in %s: %w", socket, dir, err)
		}
		return conn, nil
	}
}
