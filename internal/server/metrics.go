package server

import (
	"context"
	"fmt"
	"maps"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"poolmgr/internal/pool"
	"poolmgr/internal/store"
)

// Metrics counts what the daemon does and shows what its pools hold. The gauges are read from the store at every
// scrape, and the counters of pools that are not there any more are dropped then, so that nothing of a deleted pool
// lives on. It is the one collector of everything, since collectors of their own would be read at the same time.
type Metrics struct {
	store store.Store

	mu      sync.Mutex
	seen    map[pool.Key]bool // pools that have counters
	sweepAt int               // how many of them make a new one look for those that are gone

	claims        *prometheus.CounterVec
	releases      *prometheus.CounterVec
	provision     *prometheus.HistogramVec
	hooks         *prometheus.HistogramVec
	hookFailures  *prometheus.CounterVec
	leaseDuration *prometheus.HistogramVec
	passes        prometheus.Histogram
	actions       prometheus.Counter
	panics        prometheus.Counter
	all           []prometheus.Collector
}

// sweepSlack is how many pools with counters need no second look.
const sweepSlack = 64

// bootBuckets reach from a restored snapshot to a guest that hardly boots, in seconds.
var bootBuckets = []float64{.05, .1, .25, .5, 1, 2, 4, 8, 15, 30, 60, 120, 300}

var poolLabels = []string{"pool_name", "pool_namespace"}

// NewMetrics registers the metrics.
func NewMetrics(reg prometheus.Registerer, st store.Store) *Metrics {
	m := &Metrics{
		store: st, seen: map[pool.Key]bool{}, sweepAt: sweepSlack,
		claims: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "poolmgr_vm_claims_total", Help: "Claims that were answered with a lease.",
		}, append([]string{"replayed"}, poolLabels...)),
		releases: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "poolmgr_vm_releases_total", Help: "Leases that ended, by reason.",
		}, append([]string{"reason"}, poolLabels...)),
		provision: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "poolmgr_vm_provision_duration_seconds", Help: "From the placement of a VM to its being available.",
			Buckets: bootBuckets,
		}, poolLabels),
		hooks: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "poolmgr_hook_duration_seconds", Help: "Boots and hooks, failed ones included.", Buckets: bootBuckets,
		}, []string{"hook"}),
		hookFailures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "poolmgr_hook_failures_total", Help: "Boots and hooks that failed.",
		}, []string{"hook"}),
		leaseDuration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "poolmgr_lease_duration_seconds", Help: "How long leases lived.",
			Buckets: prometheus.ExponentialBuckets(1, 4, 9),
		}, poolLabels),
		passes: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "poolmgr_pass_duration_seconds", Help: "Passes over a pool: snapshot, plan and execution.",
			Buckets: prometheus.ExponentialBuckets(.0001, 4, 9),
		}),
		actions: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "poolmgr_plan_actions_total", Help: "Actions that passes took.",
		}),
		panics: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "poolmgr_call_panics_total", Help: "Calls that panicked; each is a bug.",
		}),
	}
	m.all = []prometheus.Collector{m.claims, m.releases, m.provision, m.hooks, m.hookFailures, m.leaseDuration, m.passes, m.actions, m.panics}
	reg.MustRegister(m)
	return m
}

// gauges are the numbers of a pool's VMs.
var gauges = []struct {
	desc  *prometheus.Desc
	value func(store.PoolView) int
}{
	{gauge("poolmgr_pool_size", "Target size of the pool."), func(v store.PoolView) int { return v.Pool.Spec.Size }},
	{gauge("poolmgr_pool_available", "VMs that may be claimed."), func(v store.PoolView) int { return v.Counts.Claimable }},
	{gauge("poolmgr_pool_leased", "VMs that are held."), func(v store.PoolView) int { return v.Counts.Held }},
	{gauge("poolmgr_pool_provisioning", "VMs on their way to being available."), func(v store.PoolView) int { return v.Counts.Warming }},
	{gauge("poolmgr_pool_quarantined", "VMs kept for inspection."), func(v store.PoolView) int { return v.Counts.Quarantined }},
	{gauge("poolmgr_pool_stale", "VMs of another revision than the current one."), func(v store.PoolView) int { return v.Counts.Stale }},
	{gauge("poolmgr_pool_stale_leased", "VMs of another revision than the current one that are held."), func(v store.PoolView) int { return v.Counts.StaleLeased }},
	{gauge("poolmgr_pool_rollout_vms", "Warm stale VMs when the present rollout began."), func(v store.PoolView) int { return v.Pool.Rollout.Total }},
	{gauge("poolmgr_pool_rollout_failures", "VMs of the current revision that failed since one last came up."), func(v store.PoolView) int { return len(v.Pool.Rollout.Failures) }},
	{gauge("poolmgr_pool_deleting", "VMs that are being removed."), func(v store.PoolView) int { return v.Counts.Deleting }},
}

// rolloutState has a series for each state: 1 for the one that the rollout is in.
var rolloutState = prometheus.NewDesc("poolmgr_pool_rollout_state", "Where the rollout of the pool stands: 1 for its state, 0 for the others.",
	append([]string{"state"}, poolLabels...), nil)

func collectState(out chan<- prometheus.Metric, p pool.Pool) {
	key, now := p.Key(), p.State()
	for _, state := range pool.RolloutStates {
		value := 0.0
		if state == now {
			value = 1
		}
		out <- prometheus.MustNewConstMetric(rolloutState, prometheus.GaugeValue, value, string(state), key.Name, key.Namespace)
	}
}

func gauge(name, help string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, poolLabels, nil)
}

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(out chan<- *prometheus.Desc) {
	for _, g := range gauges {
		out <- g.desc
	}
	out <- rolloutState
	for _, c := range m.all {
		c.Describe(out)
	}
}

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(out chan<- prometheus.Metric) {
	views, err := m.sweep()
	if err != nil {
		out <- prometheus.NewInvalidMetric(gauges[0].desc, err)
	}
	for _, v := range views {
		collectState(out, v.Pool)
		for _, g := range gauges {
			key := v.Pool.Key()
			out <- prometheus.MustNewConstMetric(g.desc, prometheus.GaugeValue, float64(g.value(v)), key.Name, key.Namespace)
		}
	}
	for _, c := range m.all {
		c.Collect(out)
	}
}

// note remembers that a pool has counters; it is called after they were touched, so that no sweep misses them. Daemons
// whose metrics nobody reads look for pools that are gone as their number grows.
func (m *Metrics) note(key pool.Key) {
	m.mu.Lock()
	full := !m.seen[key] && len(m.seen) >= m.sweepAt
	m.seen[key] = true
	m.mu.Unlock()
	if full {
		_, _ = m.sweep() // the next one finds what this one could not
	}
}

// sweep lists the pools and drops the counters of those that are gone.
func (m *Metrics) sweep() ([]store.PoolView, error) {
	m.mu.Lock()
	before := maps.Clone(m.seen) // a pool that is made after the list must not be missed in it
	m.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), listLimit)
	defer cancel()
	views, err := m.store.ListPools(ctx, "")
	if err != nil {
		return nil, fmt.Errorf("list the pools: %w", err)
	}
	for _, v := range views {
		delete(before, v.Pool.Key())
	}
	m.mu.Lock()
	m.sweepAt = 2*len(views) + sweepSlack
	for key := range before {
		delete(m.seen, key)
	}
	m.mu.Unlock()
	for key := range before {
		m.forget(key)
	}
	return views, nil
}

// listLimit bounds the read of the store for one scrape.
const listLimit = 5 * time.Second

// Panicked counts a call that panicked.
func (m *Metrics) Panicked() { m.panics.Inc() }

// Claimed counts an answered claim; replayed when its request id found the lease.
func (m *Metrics) Claimed(key pool.Key, replayed bool) {
	m.claims.WithLabelValues(strconv.FormatBool(replayed), key.Name, key.Namespace).Inc()
	m.note(key)
}

// Released counts a lease that its consumer gave back.
func (m *Metrics) Released(key pool.Key, held time.Duration) { m.ended(key, "released", held) }

// LeaseExpired counts a lease that ended without heartbeats.
func (m *Metrics) LeaseExpired(key pool.Key, held time.Duration) { m.ended(key, "expired", held) }

func (m *Metrics) ended(key pool.Key, reason string, held time.Duration) {
	m.releases.WithLabelValues(reason, key.Name, key.Namespace).Inc()
	m.leaseDuration.WithLabelValues(key.Name, key.Namespace).Observe(held.Seconds())
	m.note(key)
}

// Provisioned observes a VM that became available.
func (m *Metrics) Provisioned(key pool.Key, took time.Duration) {
	m.provision.WithLabelValues(key.Name, key.Namespace).Observe(took.Seconds())
	m.note(key)
}

// HookRan observes a boot or a hook.
func (m *Metrics) HookRan(_ pool.Key, hook string, took time.Duration, failed bool) {
	m.hooks.WithLabelValues(hook).Observe(took.Seconds())
	if failed {
		m.hookFailures.WithLabelValues(hook).Inc()
	}
}

// Planned observes a pass.
func (m *Metrics) Planned(_ pool.Key, actions int, took time.Duration) {
	m.passes.Observe(took.Seconds())
	m.actions.Add(float64(actions))
}

// forget drops the counters of a pool.
func (m *Metrics) forget(key pool.Key) {
	labels := prometheus.Labels{"pool_name": key.Name, "pool_namespace": key.Namespace}
	m.claims.DeletePartialMatch(labels)
	m.releases.DeletePartialMatch(labels)
	m.provision.DeletePartialMatch(labels)
	m.leaseDuration.DeletePartialMatch(labels)
}
