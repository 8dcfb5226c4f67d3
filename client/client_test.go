package client

import (
	"crypto/tls"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func TestTransport(t *testing.T) {
	for _, tc := range []struct {
		addr, target string
		plain        bool
		fails        bool
	}{
		{addr: "127.0.0.1:7070", target: "127.0.0.1:7070", plain: true},
		{addr: "[::1]:7070", target: "[::1]:7070", plain: true},
		{addr: "localhost:7070", target: "localhost:7070", plain: true},
		{addr: "pools.example:7070", target: "pools.example:7070"},
		{addr: "10.0.0.1:7070", target: "10.0.0.1:7070"},
		{addr: "http://10.0.0.1:7070/", target: "10.0.0.1:7070", plain: true},
		{addr: "https://127.0.0.1:7070", target: "127.0.0.1:7070"},
		{addr: "unix:/run/poolmgr.sock", target: "unix:/run/poolmgr.sock", plain: true},
		{addr: "127.0.0.1", fails: true},
		{addr: "127.0.0.1:", fails: true},
		{addr: "", fails: true},
		{addr: "ftp://127.0.0.1:7070", fails: true},
	} {
		t.Run(tc.addr, func(t *testing.T) {
			target, plain, err := transport(tc.addr)
			if (err != nil) != tc.fails {
				t.Fatalf("error is %v, want one: %t", err, tc.fails)
			}
			if target != tc.target || plain != tc.plain {
				t.Errorf("got %q, plain %t; want %q, plain %t", target, plain, tc.target, tc.plain)
			}
		})
	}
}

// A token goes out in clear only where the address says so, or within this machine.
func TestTokenNeedsTLSElsewhere(t *testing.T) {
	for addr, plain := range map[string]bool{
		"127.0.0.1:7070": true, "http://10.0.0.1:7070": true, "10.0.0.1:7070": false, "https://10.0.0.1:7070": false,
	} {
		_, isPlain, err := transport(addr)
		if err != nil {
			t.Fatal(err)
		}
		if got := (bearer{token: "t", plain: isPlain}).RequireTransportSecurity(); got == plain {
			t.Errorf("%s: requires TLS: %t", addr, got)
		}
	}
	header, err := bearer{token: "t"}.GetRequestMetadata(t.Context())
	if err != nil || header["authorization"] != "Bearer t" {
		t.Errorf("header %v, error %v", header, err)
	}
}

// Nothing was sent to a daemon that is not there, so the caller learns it at once.
func TestUnreachedDaemonIsAnErrorAtOnce(t *testing.T) {
	c, err := Dial("127.0.0.1:1", WithTLS(&tls.Config{MinVersion: tls.VersionTLS12}))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_, err = c.Claim(t.Context(), ClaimOptions{Pool: "quickstart"})
	if status.Code(err) != codes.Unavailable || !Unreached(err) {
		t.Errorf("got %v, want UNAVAILABLE from the dialling", err)
	}
	for _, err := range c.Follow(t.Context(), EventOptions{}) {
		if !Unreached(err) {
			t.Errorf("got %v, want UNAVAILABLE from the dialling", err)
		}
	}
}
