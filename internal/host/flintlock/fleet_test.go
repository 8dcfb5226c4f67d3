package flintlock_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"log/slog"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"poolmgr/internal/host"
	"poolmgr/internal/host/fake"
	"poolmgr/internal/host/flintlock"
	"poolmgr/internal/pool"
)

func newFleet(t *testing.T, inProcess map[string]grpc.ClientConnInterface) *flintlock.Fleet {
	t.Helper()
	f := flintlock.NewFleet(flintlock.FleetConfig{Logger: slog.New(slog.DiscardHandler), InProcess: inProcess})
	t.Cleanup(func() {
		if err := f.Close(); err != nil {
			t.Errorf("close the fleet: %v", err)
		}
	})
	return f
}

func mustDriver(t *testing.T, f host.Fleet, h pool.Host) host.Driver {
	t.Helper()
	d, err := f.Driver(h)
	if err != nil {
		t.Fatalf("driver of %s: %v", h.Name, err)
	}
	return d
}

// listen serves a fake host on a loopback port.
func listen(t *testing.T, h *fake.Host, opts ...grpc.ServerOption) (address string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(append(opts, grpc.WaitForHandlers(true))...)
	fake.Register(server, h)
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	t.Cleanup(func() {
		server.Stop()
		if err := <-served; err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	return listener.Addr().String()
}

func TestFleetKeepsOneDriverPerHost(t *testing.T) {
	first := listen(t, fake.New(fake.Options{}))
	second := listen(t, fake.New(fake.Options{}))
	f := newFleet(t, nil)
	h := pool.Host{Name: "h1", Address: first, TLS: pool.HostTLS{Insecure: true}}
	d := mustDriver(t, f, h)
	if _, err := d.Info(t.Context()); err != nil {
		t.Errorf("info: %v", err)
	}
	h.Cordoned = true // nothing of the connection
	if mustDriver(t, f, h) != d {
		t.Error("the same host got another driver")
	}
	h.Address = second
	moved := mustDriver(t, f, h)
	if moved == d {
		t.Fatal("a host that moved kept its driver")
	}
	if _, err := moved.Info(t.Context()); err != nil {
		t.Errorf("info of the host that moved: %v", err)
	}
	if _, err := d.Info(t.Context()); !errors.Is(err, host.ErrUnreachable) {
		t.Errorf("info over the old driver: %v, want ErrUnreachable", err)
	}
	f.Forget("h1")
	f.Forget("h1")
	if _, err := moved.Info(t.Context()); !errors.Is(err, host.ErrUnreachable) {
		t.Errorf("info of a forgotten host: %v, want ErrUnreachable", err)
	}
	if err := f.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
	if _, err := f.Driver(h); err == nil {
		t.Error("a closed fleet made a driver")
	}
}

func TestFleetInProcess(t *testing.T) {
	_, conn := serveFake(t, fake.Options{})
	f := newFleet(t, map[string]grpc.ClientConnInterface{"embedded": conn})
	h := pool.Host{Name: "embedded", Address: "in-process"}
	if _, err := mustDriver(t, f, h).Info(t.Context()); err != nil {
		t.Errorf("info: %v", err)
	}
	f.Forget("embedded") // its connection stays its owner's
	if _, err := mustDriver(t, f, h).Info(t.Context()); err != nil {
		t.Errorf("info after the driver was forgotten: %v", err)
	}
}

func TestUnreachableHost(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().String()
	_ = listener.Close() // nobody listens there now
	d := mustDriver(t, newFleet(t, nil), pool.Host{Name: "h1", Address: address, TLS: pool.HostTLS{Insecure: true}})
	if _, err := d.Info(t.Context()); !errors.Is(err, host.ErrUnreachable) || !strings.Contains(err.Error(), "host h1") {
		t.Errorf("info: %v, want ErrUnreachable with the host's name", err)
	}
	_, err = d.Exec(t.Context(), host.ExecRequest{UID: "u", Cmd: "true"}, host.ExecStreams{})
	if !errors.Is(err, host.ErrUnreachable) {
		t.Errorf("exec: %v, want ErrUnreachable", err)
	}
}

// TestHostOverTCP runs a VM's life over a real connection, TLS with certificates on both sides.
func TestHostOverTCP(t *testing.T) {
	dir := t.TempDir()
	ca := newAuthority(t, dir)
	serverCert, serverKey := ca.issue(t, "server")
	clientCert, clientKey := ca.issue(t, "client")
	pair, err := tls.LoadX509KeyPair(serverCert, serverKey)
	if err != nil {
		t.Fatal(err)
	}
	h := fake.New(fake.Options{})
	address := listen(t, h, grpc.Creds(credentials.NewTLS(&tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{pair},
		ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: ca.pool,
	})))
	for name, c := range map[string]struct {
		tls pool.HostTLS
		ok  bool
	}{
		"both certificates": {pool.HostTLS{CAFile: ca.file, CertFile: clientCert, KeyFile: clientKey}, true},
		"no client's":       {pool.HostTLS{CAFile: ca.file}, false},
		"unknown authority": {pool.HostTLS{CertFile: clientCert, KeyFile: clientKey}, false},
		"plain text":        {pool.HostTLS{Insecure: true}, false},
	} {
		t.Run(name, func(t *testing.T) {
			d := mustDriver(t, newFleet(t, nil), pool.Host{Name: "h1", Address: address, TLS: c.tls})
			_, err := d.Create(t.Context(), host.SpecFor(fake.Template(), "web-1", "ns", ""))
			if c.ok != (err == nil) || (!c.ok && !errors.Is(err, host.ErrUnreachable)) {
				t.Errorf("create: %v", err)
			}
		})
	}
	if n := len(h.VMs()); n != 1 {
		t.Errorf("%d VMs, want the one of the caller with both certificates", n)
	}
}

func TestWrongTLSSettings(t *testing.T) {
	dir := t.TempDir()
	empty := filepath.Join(dir, "empty.pem")
	if err := os.WriteFile(empty, []byte("not a certificate"), 0o600); err != nil {
		t.Fatal(err)
	}
	for want, settings := range map[string]pool.HostTLS{
		"exclude each other": {Insecure: true, CAFile: empty},
		"no PEM certificate": {CAFile: empty},
		"read tls.ca_file":   {CAFile: filepath.Join(dir, "missing.pem")},
		"go together":        {CertFile: empty},
		"load tls.cert_file": {CertFile: empty, KeyFile: empty},
	} {
		_, err := newFleet(t, nil).Driver(pool.Host{Name: "h1", Address: "127.0.0.1:1", TLS: settings})
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "host h1") {
			t.Errorf("%+v: %v, want an error with %q and the host's name", settings, err, want)
		}
	}
}

// authority issues certificates for a test.
type authority struct {
	dir, file string
	cert      *x509.Certificate
	key       *ecdsa.PrivateKey
	pool      *x509.CertPool
}

func newAuthority(t *testing.T, dir string) *authority {
	t.Helper()
	a := &authority{dir: dir, file: filepath.Join(dir, "ca.pem"), key: newKey(t), pool: x509.NewCertPool()}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test authority"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &a.key.PublicKey, a.key)
	if err != nil {
		t.Fatal(err)
	}
	if a.cert, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	a.pool.AddCert(a.cert)
	writePEM(t, a.file, "CERTIFICATE", der)
	return a
}

func (a *authority) issue(t *testing.T, name string) (certFile, keyFile string) {
	t.Helper()
	key := newKey(t)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, &key.PublicKey, a.key)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	certFile, keyFile = filepath.Join(a.dir, name+".pem"), filepath.Join(a.dir, name+".key")
	writePEM(t, certFile, "CERTIFICATE", der)
	writePEM(t, keyFile, "EC PRIVATE KEY", keyDER)
	return certFile, keyFile
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func writePEM(t *testing.T, path, kind string, der []byte) {
	t.Helper()
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
}
