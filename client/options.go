package client

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
)

// DefaultCallTimeout bounds every call that Dial is not told another limit for.
const DefaultCallTimeout = 30 * time.Second

// settings is what the options say.
type settings struct {
	tls         *tls.Config
	token       string
	callTimeout time.Duration
	log         *slog.Logger
	dial        []grpc.DialOption
}

// Option changes how Dial connects.
type Option func(*settings)

// WithTLS connects by TLS, also on loopback. A nil config means the system's roots and no client certificate.
func WithTLS(config *tls.Config) Option {
	return func(s *settings) {
		if config == nil {
			config = &tls.Config{MinVersion: tls.VersionTLS12}
		}
		s.tls = config
	}
}

// WithToken sends a bearer token with every call. Empty means none.
func WithToken(token string) Option { return func(s *settings) { s.token = token } }

// WithCallTimeout bounds every unary call; a claim that waits gets its wait on top. It must be above 0.
func WithCallTimeout(limit time.Duration) Option { return func(s *settings) { s.callTimeout = limit } }

// WithLogger is told of heartbeats that failed and of streams that were resumed. Unset means that nobody is.
func WithLogger(log *slog.Logger) Option { return func(s *settings) { s.log = log } }

// WithDialOptions adds options of grpc-go's own, for interceptors, metrics and tests.
func WithDialOptions(options ...grpc.DialOption) Option {
	return func(s *settings) { s.dial = append(s.dial, options...) }
}

// transport reads an address: what to connect to, and whether in plain text. Without a scheme, plain text is for this
// machine only: a token or a lease id must not cross a network in clear because somebody forgot a flag.
func transport(addr string) (target string, plain bool, err error) {
	if strings.HasPrefix(addr, "unix:") {
		return addr, true, nil
	}
	scheme, rest, found := strings.Cut(addr, "://")
	if !found {
		scheme, rest = "", addr
	}
	rest = strings.TrimSuffix(rest, "/")
	name, port, err := net.SplitHostPort(rest)
	if err != nil || port == "" {
		return "", false, fmt.Errorf("address %q is not host:port, such as 127.0.0.1:7070", addr)
	}
	switch scheme {
	case "":
		return rest, loopback(name), nil
	case "http":
		return rest, true, nil
	case "https":
		return rest, false, nil
	default:
		return "", false, fmt.Errorf("address %q: unknown scheme %q; use host:port, http:// for plain text, https:// or a unix: path", addr, scheme)
	}
}

func loopback(name string) bool {
	if name == "localhost" {
		return true
	}
	ip, err := netip.ParseAddr(name)
	return err == nil && ip.IsLoopback()
}

// dialOptions are the transport's: credentials, patience with a daemon that restarts, and a check that it lives.
func (s *settings) dialOptions(plain bool) []grpc.DialOption {
	creds := insecure.NewCredentials()
	switch {
	case s.tls != nil:
		creds = credentials.NewTLS(s.tls)
	case !plain:
		creds = credentials.NewTLS(&tls.Config{MinVersion: tls.VersionTLS12})
	}
	options := []grpc.DialOption{
		grpc.WithTransportCredentials(creds),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 2 * time.Second},
			MinConnectTimeout: 5 * time.Second,
		}),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 30 * time.Second, Timeout: 10 * time.Second}),
	}
	if s.token != "" {
		options = append(options, grpc.WithPerRPCCredentials(bearer{token: s.token, plain: plain && s.tls == nil}))
	}
	return append(options, s.dial...)
}

// bearer is a token in every call's metadata.
type bearer struct {
	token string
	plain bool
}

func (b bearer) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{"authorization": "Bearer " + b.token}, nil
}

func (b bearer) RequireTransportSecurity() bool { return !b.plain }
