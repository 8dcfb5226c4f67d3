package flintlock

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"

	"poolmgr/internal/pool"
)

// maxAnswer bounds one answer of a host, in bytes. A listing carries every VM's whole spec, up to 32 KiB of metadata
// each, and a host carries hundreds of VMs.
const maxAnswer = 64 << 20

// Dial makes a driver for a host's address (host:port) with a connection of its own. It reads the certificates but does
// not wait for the host: a connection is made by the first call, and again after it was lost.
func Dial(address string, security pool.HostTLS, cfg Config) (*Driver, error) {
	transport, err := transportFor(security)
	if err != nil {
		return nil, fmt.Errorf("connect to host %s: %w", cfg.Name, err)
	}
	conn, err := grpc.NewClient(address,
		grpc.WithTransportCredentials(transport),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxAnswer)),
		grpc.WithDisableRetry(),         // a create is not to be repeated by anybody but us
		grpc.WithDisableServiceConfig(), // no host changes that through DNS
		grpc.WithNoProxy(),              // hosts are neighbours
		grpc.WithConnectParams(grpc.ConnectParams{
			// grpc's default waits up to two minutes before it looks for a host again.
			Backoff:           backoff.Config{BaseDelay: 200 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 5 * time.Second},
			MinConnectTimeout: 5 * time.Second,
		}),
		// A grpc-go server ends connections that are pinged more often than every 5 minutes. The timeout is also
		// the kernel's for data that the host does not acknowledge, which is what finds a dead connection quickly.
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 6 * time.Minute, Timeout: 20 * time.Second}),
	)
	if err != nil {
		return nil, fmt.Errorf("connect to host %s at %q: %w; the address must be host:port", cfg.Name, address, err)
	}
	d := New(conn, cfg)
	d.conn = conn
	return d, nil
}

// transportFor makes the transport credentials; Go's own verifier judges the host's certificate, always.
func transportFor(security pool.HostTLS) (credentials.TransportCredentials, error) {
	if security.Insecure {
		if security.CAFile != "" || security.CertFile != "" || security.KeyFile != "" {
			return nil, errors.New("tls.insecure and certificate files exclude each other: remove one of them")
		}
		return insecure.NewCredentials(), nil
	}
	cfg := &tls.Config{MinVersion: tls.VersionTLS13}
	if security.CAFile != "" {
		roots, err := readRoots(security.CAFile)
		if err != nil {
			return nil, err
		}
		cfg.RootCAs = roots
	}
	if (security.CertFile == "") != (security.KeyFile == "") {
		return nil, errors.New("tls.cert_file and tls.key_file go together: give both or none")
	}
	if security.CertFile != "" {
		load := func() (*tls.Certificate, error) {
			pair, err := tls.LoadX509KeyPair(security.CertFile, security.KeyFile)
			if err != nil {
				return nil, fmt.Errorf("load tls.cert_file and tls.key_file: %w", err)
			}
			return &pair, nil
		}
		if _, err := load(); err != nil {
			return nil, err
		}
		// Read again for every handshake, so that a renewed certificate needs no restart.
		cfg.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return load() }
	}
	return credentials.NewTLS(cfg), nil
}

func readRoots(path string) (*x509.CertPool, error) {
	pem, err := os.ReadFile(path) // the path is the operator's own
	if err != nil {
		return nil, fmt.Errorf("read tls.ca_file: %w", err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("read tls.ca_file %s: it holds no PEM certificate", path)
	}
	return roots, nil
}
