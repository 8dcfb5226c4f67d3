package reconcile

import (
	"context"
	"strings"
	"time"

	"poolmgr/internal/host"
	"poolmgr/internal/pool"
)

// maxStrays bounds the deletions of one sweep of a host.
const maxStrays = 16

// strays finds VMs on one host that carry our mark and that no row can ever know: their row is gone, or it has another
// VM. They come from creates that were carried out late, after their answer was lost. Such a VM is removed when two
// listings show it, a sweep apart. VMs without the mark of this installation are never touched.
type strays struct {
	r    *Reconciler
	host string
	next time.Time            // of the next sweep
	seen map[string]time.Time // since when, by uid
}

// sweep looks when it is time to.
func (s *strays) sweep(ctx context.Context, h pool.Host) {
	now := s.r.cfg.Now()
	if now.Before(s.next) {
		return
	}
	s.next = now.Add(s.r.cfg.Sweep)
	driver, err := s.r.cfg.Fleet.Driver(h)
	if err != nil {
		return // the probe tells
	}
	w := &site{driver: driver}
	found, err := s.find(ctx, w)
	if err != nil {
		return // likewise; what was seen before is seen again, or not
	}
	seen := map[string]time.Time{}
	removed := 0
	for _, x := range found {
		since, again := s.seen[x.UID]
		if !again {
			since = now
		}
		seen[x.UID] = since
		if !again || now.Sub(since) < s.r.cfg.Sweep || removed == maxStrays {
			continue
		}
		removed++
		err := s.r.deleteVM(ctx, w, x.UID)
		s.r.log.Warn("removed a VM that no row knows", "host", s.host, "uid", x.UID, "name", x.Name, "error", err)
	}
	s.seen = seen
}

// find lists the strays on the host.
func (s *strays) find(ctx context.Context, w *site) ([]host.VM, error) {
	call, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	all, err := w.driver.List(call, "", "")
	if err != nil {
		return nil, err
	}
	var found []host.VM
	for _, x := range all {
		row, ours := s.rowOf(x)
		if !ours || x.State == host.Deleting {
			continue
		}
		v, err := s.r.cfg.Store.GetVM(ctx, row)
		switch {
		case pool.CodeOf(err) == pool.CodeNotFound:
		case err != nil:
			return nil, err
		case v.UID == "" || v.UID == x.UID:
			continue // a row without a uid may still adopt it, or looks after it when it ends
		}
		found = append(found, x)
	}
	return found, nil
}

// rowOf is the row that a VM was made for, by the mark that create left in its metadata.
func (s *strays) rowOf(x host.VM) (string, bool) {
	rest, ours := strings.CutPrefix(x.Owner, s.r.cfg.Store.Installation()+"/")
	row, _, whole := strings.Cut(rest, "/")
	return row, ours && whole && row == x.Name
}
