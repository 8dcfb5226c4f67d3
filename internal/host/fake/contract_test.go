package fake_test

import (
	"testing"
	"time"

	"poolmgr/internal/host"
	"poolmgr/internal/host/fake"
	"poolmgr/internal/host/hosttest"
)

func TestContract(t *testing.T) {
	for name, opts := range map[string]fake.Options{
		"at once": {},
		"slow": {
			CallDelay: time.Millisecond, BootDelay: 20 * time.Millisecond,
			GuestDelay: 20 * time.Millisecond, DeleteDelay: 20 * time.Millisecond,
		},
	} {
		t.Run(name, func(t *testing.T) {
			hosttest.Run(t, func(*testing.T) hosttest.Setup {
				h := fake.New(opts)
				return hosttest.Setup{
					Dial:     func(*testing.T) host.Driver { return h.Dial() },
					Template: fake.Template(),
				}
			})
		})
	}
}
