package reconcile

import (
	"cmp"
	"crypto/rand"
	"encoding/hex"
	mrand "math/rand/v2"
	"time"

	"poolmgr/internal/pool"
)

// The defaults of Config. Three starts in flight per host is flintlock's advice: one worker per host reconciles, so
// that more creates only queue up there.
const (
	defaultStartsPerHost  = 3
	defaultNewRows        = 100
	defaultPasses         = 4
	defaultDeletesPerHost = 8
	defaultResync         = 30 * time.Second
	defaultHostProbe      = 5 * time.Second
	defaultSweep          = 30 * time.Second
)

func (c Config) withDefaults() Config {
	c.Limits.StartsPerHost = cmp.Or(c.Limits.StartsPerHost, defaultStartsPerHost)
	c.Limits.NewRows = cmp.Or(c.Limits.NewRows, defaultNewRows)
	c.Passes = cmp.Or(c.Passes, defaultPasses)
	c.DeletesPerHost = cmp.Or(c.DeletesPerHost, defaultDeletesPerHost)
	c.Resync = cmp.Or(c.Resync, defaultResync)
	c.HostProbe = cmp.Or(c.HostProbe, defaultHostProbe)
	c.Sweep = cmp.Or(c.Sweep, defaultSweep)
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Random == nil {
		c.Random = mrand.Float64
	}
	if c.NewID == nil {
		c.NewID = newID
	}
	if c.Observer == nil {
		c.Observer = noObserver{}
	}
	return c
}

// newID makes a row id, which is also the VM's name on its host. A collision is refused by the store, and the next
// pass makes another.
func newID(pool string) string {
	var b [4]byte
	_, _ = rand.Read(b[:]) // never fails
	return pool + "-" + hex.EncodeToString(b[:])
}

type noObserver struct{}

func (noObserver) Provisioned(pool.Key, time.Duration)           {}
func (noObserver) HookRan(pool.Key, string, time.Duration, bool) {}
func (noObserver) LeaseExpired(pool.Key, time.Duration)          {}
func (noObserver) Planned(pool.Key, int, time.Duration)          {}
