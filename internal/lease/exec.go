package lease

import (
	"context"

	"poolmgr/internal/host"
	"poolmgr/internal/pool"
)

// Exec runs a command in the VM of a lease and returns its exit code; req.UID is filled in. Without a deadline of its
// own the call is bounded by host.ExecTimeout. NOT_FOUND for an unknown or ended lease, ABORTED when the lease ended or
// the VM went while the command ran.
func (m *Manager) Exec(ctx context.Context, lease string, req host.ExecRequest, streams host.ExecStreams) (int, error) {
	_, vm, err := m.cfg.Store.GetLease(ctx, lease)
	if err != nil {
		return 0, err
	}
	driver, err := m.driverOf(ctx, vm)
	if err != nil {
		return 0, err
	}
	req.UID = vm.UID
	code, err := driver.Exec(ctx, req, streams)
	if err == nil {
		return code, nil
	}
	// How the end of a lease looks from the host depends on how far the VM's deletion got; the row says what happened.
	if _, _, ended := m.cfg.Store.GetLease(ctx, lease); pool.CodeOf(ended) == pool.CodeNotFound {
		return 0, &pool.Error{
			Code: pool.CodeAborted, Err: err,
			Message: "the lease of vm " + vm.ID + " ended while the command ran: it was released, it expired, or its pool was deleted",
		}
	}
	return 0, execError(err, vm)
}

// driverOf finds the driver of a VM's host.
func (m *Manager) driverOf(ctx context.Context, vm pool.VM) (host.Driver, error) {
	h, err := m.cfg.Store.GetHost(ctx, vm.Host)
	if err != nil {
		return nil, err
	}
	driver, err := m.cfg.Fleet.Driver(h.Host)
	if err != nil {
		return nil, &pool.Error{Code: pool.CodeUnavailable, Message: "host " + vm.Host + " cannot be reached", Err: err}
	}
	return driver, nil
}
