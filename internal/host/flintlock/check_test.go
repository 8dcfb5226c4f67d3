package flintlock_test

import (
	"errors"
	"testing"

	"poolmgr/internal/host"
	"poolmgr/internal/host/fake"
	"poolmgr/internal/pool"
)

// A host that is only being checked, under the name of one that is registered, must not cost that one its connection.
func TestCheckLeavesTheFleetAlone(t *testing.T) {
	insecure := pool.HostTLS{Insecure: true}
	registered := pool.Host{Name: "a", Address: listen(t, fake.New(fake.Options{Name: "a"})), TLS: insecure}
	fleet := newFleet(t, nil)
	before := mustDriver(t, fleet, registered)

	mute := pool.Host{Name: "a", Address: listen(t, fake.New(fake.Options{Name: "b", NoExec: true})), TLS: insecure}
	if info, err := fleet.Check(t.Context(), mute); err != nil || info.ExecEnabled {
		t.Errorf("a host without exec: %+v, %v", info, err)
	}
	if info, err := fleet.Check(t.Context(), registered); err != nil || !info.ExecEnabled {
		t.Errorf("a good host: %+v, %v", info, err)
	}
	away := pool.Host{Name: "a", Address: "127.0.0.1:1", TLS: insecure}
	if _, err := fleet.Check(t.Context(), away); !errors.Is(err, host.ErrUnreachable) {
		t.Errorf("a host that is away: %v", err)
	}
	odd := pool.Host{Name: "a", Address: "127.0.0.1:1", TLS: pool.HostTLS{CAFile: "/nonexistent/ca.pem"}}
	if _, err := fleet.Check(t.Context(), odd); pool.CodeOf(err) != pool.CodeInvalid {
		t.Errorf("settings that cannot work: %v", err)
	}

	if after := mustDriver(t, fleet, registered); after != before {
		t.Error("the registered host's driver was replaced")
	}
	if _, err := before.Info(t.Context()); err != nil {
		t.Errorf("the registered host's driver was closed: %v", err)
	}
}
