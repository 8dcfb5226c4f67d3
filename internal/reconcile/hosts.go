package reconcile

import (
	"context"
	"sync"

	"poolmgr/internal/host"
	"poolmgr/internal/pool"
)

// lostAfter is how many probes in a row must fail before a host counts as unreachable.
const lostAfter = 2

// hostProbes asks every registered host from time to time whether it is there, each host in a goroutine of its own, so
// that one that hangs delays nobody.
type hostProbes struct {
	r       *Reconciler
	wg      sync.WaitGroup
	running map[string]context.CancelFunc // owned by run
}

func newHostProbes(r *Reconciler) *hostProbes {
	return &hostProbes{r: r, running: map[string]context.CancelFunc{}}
}

// run keeps one probe per registered host until ctx ends, and waits for them.
func (p *hostProbes) run(ctx context.Context) {
	defer p.wg.Wait()
	for {
		p.follow(ctx)
		if !sleep(ctx, p.r.cfg.HostProbe) {
			return
		}
	}
}

// follow starts probes of new hosts and ends those of removed ones.
func (p *hostProbes) follow(ctx context.Context) {
	hosts, err := p.r.cfg.Store.ListHosts(ctx)
	if err != nil {
		if ctx.Err() == nil {
			p.r.log.Error("cannot list hosts to probe them", "error", err)
		}
		return
	}
	registered := map[string]bool{}
	for _, h := range hosts {
		registered[h.Name] = true
		if p.running[h.Name] == nil {
			probing, stop := context.WithCancel(ctx)
			p.running[h.Name] = stop
			p.wg.Go(func() { p.watch(probing, h.Name) })
		}
	}
	for name, stop := range p.running {
		if !registered[name] {
			stop()
			delete(p.running, name)
			p.r.cfg.Fleet.Forget(name)
			p.r.trouble.worked(name)
		}
	}
}

// watch probes one host until ctx ends, and stores changes only. That the host is not registered at the moment is for
// follow to judge: it may be back before follow looks.
func (p *hostProbes) watch(ctx context.Context, name string) {
	failures := 0
	s := &strays{r: p.r, host: name}
	for {
		load, err := p.r.cfg.Store.GetHost(ctx, name)
		if err == nil {
			failures = p.once(ctx, load.Host, failures)
			if failures == 0 && ctx.Err() == nil {
				s.sweep(ctx, load.Host)
			}
		}
		if !sleep(ctx, p.r.cfg.HostProbe) {
			return
		}
	}
}

func (p *hostProbes) once(ctx context.Context, h pool.Host, failures int) int {
	call, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	info, err := p.ask(call, h)
	if ctx.Err() != nil {
		return failures
	}
	if err == nil {
		p.limits(ctx, h, info.Limits)
	}
	failures++
	message := ""
	if err == nil {
		failures = 0
	} else {
		message = err.Error()
	}
	if reachable := failures == 0; reachable != h.Reachable && (reachable || failures >= lostAfter) {
		p.r.log.Warn("host changed", "host", h.Name, "reachable", reachable, "error", message)
		if err := p.r.cfg.Store.SetReachable(ctx, h.Name, reachable, message, p.r.cfg.Now()); err != nil && ctx.Err() == nil {
			p.r.log.Error("cannot store a host's state", "host", h.Name, "error", err)
		}
	}
	return failures
}

// limits stores what a host tells of its limits when it is not what was known: it was registered unseen, or restarted
// with others.
func (p *hostProbes) limits(ctx context.Context, h pool.Host, told host.Limits) {
	known := host.Limits{MaxVMs: h.MaxVMs, MemoryMB: h.MemoryMB, MinVMMemoryMB: h.MinVMMemoryMB}
	if told == (host.Limits{}) || told == known {
		return
	}
	h.MaxVMs, h.MemoryMB, h.MinVMMemoryMB = told.MaxVMs, told.MemoryMB, told.MinVMMemoryMB
	if _, err := p.r.cfg.Store.UpdateHost(ctx, h, p.r.cfg.Now()); err != nil && ctx.Err() == nil {
		p.r.log.Error("cannot store a host's limits", "host", h.Name, "error", err)
	}
}

func (p *hostProbes) ask(ctx context.Context, h pool.Host) (host.Info, error) {
	driver, err := p.r.cfg.Fleet.Driver(h)
	if err != nil {
		return host.Info{}, err
	}
	return driver.Info(ctx)
}
