package flintlock

import (
	"context"

	"poolmgr/internal/host"
	"poolmgr/internal/pool"
)

// Check asks a host that may not be registered what it can do, over a connection of its own: the fleet's connections
// are left alone, that of a host of the same name too. Settings that no connection can be made with are
// INVALID_ARGUMENT; everything else is as for Driver.Info.
func (f *Fleet) Check(ctx context.Context, h pool.Host) (host.Info, error) {
	d, err := f.newDriver(h)
	if err != nil {
		return host.Info{}, &pool.Error{Code: pool.CodeInvalid, Message: err.Error()}
	}
	defer f.dismiss(h.Name, member{driver: d})
	return d.Info(ctx)
}
