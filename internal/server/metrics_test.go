package server_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"

	pb "poolmgr/api/poolmgr/v1alpha1"
	"poolmgr/internal/pool"
	"poolmgr/internal/server"
	"poolmgr/internal/store/memory"
)

// series lists the names that are there, each with its labels' names.
func series(t *testing.T, reg prometheus.Gatherer) []string {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, f := range families {
		var labels []string
		for _, l := range f.GetMetric()[0].GetLabel() {
			labels = append(labels, l.GetName())
		}
		all = append(all, f.GetName()+"{"+strings.Join(labels, ",")+"}")
	}
	return all
}

// sum adds up the series of one name.
func sum(t *testing.T, reg prometheus.Gatherer, name string) (total float64) {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(families, func(f *dto.MetricFamily) bool { return f.GetName() == name })
	if i < 0 {
		t.Fatalf("there is no %s", name)
	}
	for _, m := range families[i].GetMetric() {
		total += m.GetGauge().GetValue() + m.GetCounter().GetValue()
	}
	return total
}

func TestMetricsHaveTheNamesThatOthersRead(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		s := spec(2)
		s.PreLeaseCommands = []string{"true"}
		r.filled(s)
		id := r.claim().GetLeaseId()
		r.eventually("it is replaced", func() bool { return r.get().GetStatus().GetAvailableCount() == 2 })
		for name, want := range map[string]float64{
			"poolmgr_pool_available": 2, "poolmgr_pool_leased": 1, "poolmgr_pool_size": 2, "poolmgr_pool_quarantined": 0,
			"poolmgr_vm_claims_total": 1, "poolmgr_pool_rollout_state": 1,
		} {
			if got := sum(t, r.registry, name); got != want {
				t.Errorf("%s is %v, want %v", name, got, want)
			}
		}
		_, err := r.leases.ReleaseVM(r.ctx(), &pb.ReleaseVMRequest{LeaseId: id})
		r.must(err)
		r.metrics.HookRan(pool.Key{}, "boot", time.Second, true)
		want := []string{
			"poolmgr_hook_duration_seconds{hook}", "poolmgr_hook_failures_total{hook}",
			"poolmgr_lease_duration_seconds{pool_name,pool_namespace}",
			"poolmgr_pool_available{pool_name,pool_namespace}", "poolmgr_pool_leased{pool_name,pool_namespace}",
			"poolmgr_pool_provisioning{pool_name,pool_namespace}", "poolmgr_pool_quarantined{pool_name,pool_namespace}",
			"poolmgr_pool_rollout_failures{pool_name,pool_namespace}", "poolmgr_pool_rollout_vms{pool_name,pool_namespace}",
			"poolmgr_pool_rollout_state{pool_name,pool_namespace,state}", "poolmgr_pool_size{pool_name,pool_namespace}",
			"poolmgr_pool_stale{pool_name,pool_namespace}", "poolmgr_pool_stale_leased{pool_name,pool_namespace}",
			"poolmgr_vm_claims_total{pool_name,pool_namespace,replayed}",
			"poolmgr_vm_provision_duration_seconds{pool_name,pool_namespace}",
			"poolmgr_vm_releases_total{pool_name,pool_namespace,reason}",
		}
		got := series(t, r.registry)
		missing := slices.DeleteFunc(slices.Clone(want), func(s string) bool { return slices.Contains(got, s) })
		if len(missing) > 0 {
			t.Errorf("missing %v in %v", missing, got)
		}
		families, err := r.registry.Gather()
		r.must(err)
		problems, err := promlint.NewWithMetricFamilies(families).Lint()
		r.must(err)
		for _, p := range problems {
			t.Errorf("%s: %s", p.Metric, p.Text)
		}
	})
}

func TestNoSeriesOfADeletedPool(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		r.filled(spec(1))
		_, err := r.leases.ReleaseVM(r.ctx(), &pb.ReleaseVMRequest{LeaseId: r.claim().GetLeaseId()})
		r.must(err)
		for _, name := range []string{"poolmgr_vm_claims_total", "poolmgr_vm_releases_total", "poolmgr_pool_size"} {
			if got := sum(t, r.registry, name); got != 1 {
				t.Errorf("%s is %v before", name, got)
			}
		}
		_, err = r.pools.DeletePool(r.ctx(), &pb.DeletePoolRequest{Ref: webRef})
		r.must(err)
		r.eventually("the pool is gone", func() bool {
			list, err := r.pools.ListPools(r.ctx(), &pb.ListPoolsRequest{})
			r.must(err)
			return len(list.GetPools()) == 0
		})
		gone := func() {
			t.Helper()
			for _, s := range series(t, r.registry) {
				if strings.Contains(s, "pool_name") {
					t.Errorf("a series lives on: %s", s)
				}
			}
		}
		gone()
		r.metrics.Provisioned(pool.Key{Namespace: "default", Name: "web"}, time.Second) // late news
		gone()
	})
}

// A daemon that nobody scrapes does not grow with the pools that come and go.
func TestMetricsStaySmallWithoutScrapes(t *testing.T) {
	reg := prometheus.NewRegistry()
	st := memory.New()
	defer st.Close()
	m := server.NewMetrics(reg, st)
	for i := range 10_000 {
		m.Claimed(pool.Key{Namespace: "default", Name: fmt.Sprintf("pool-%d", i)}, false)
	}
	if n := m.Known(); n > 100 {
		t.Errorf("%d pools are remembered", n)
	}
}

func TestHTTPEndpoints(t *testing.T) {
	st := memory.New()
	reg := prometheus.NewRegistry()
	server.NewMetrics(reg, st)
	reason := errors.New("the daemon is starting")
	h := server.HTTP(reg, func(context.Context) error { return reason }, slog.New(slog.DiscardHandler))
	get := func(method, path string) (int, string) {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), method, path, nil))
		body, err := io.ReadAll(w.Result().Body)
		if err != nil {
			t.Fatal(err)
		}
		return w.Code, string(body)
	}
	if code, body := get(http.MethodGet, "/healthz"); code != http.StatusOK || body != "ok\n" {
		t.Errorf("/healthz: %d %q", code, body)
	}
	if code, body := get(http.MethodGet, "/readyz"); code != http.StatusServiceUnavailable || !strings.Contains(body, reason.Error()) {
		t.Errorf("/readyz: %d %q", code, body)
	}
	reason = nil
	if code, body := get(http.MethodGet, "/readyz"); code != http.StatusOK || body != "ready\n" {
		t.Errorf("/readyz: %d %q", code, body)
	}
	if code, body := get(http.MethodGet, "/metrics"); code != http.StatusOK || !strings.Contains(body, "poolmgr_plan_actions_total 0") {
		t.Errorf("/metrics: %d %q", code, body)
	}
	for path, want := range map[string]int{"/": http.StatusNotFound, "/nosuch": http.StatusNotFound} {
		if code, _ := get(http.MethodGet, path); code != want {
			t.Errorf("%s: %d", path, code)
		}
	}
	if code, _ := get(http.MethodPost, "/metrics"); code != http.StatusMethodNotAllowed {
		t.Errorf("POST /metrics: %d", code)
	}
	// A store that is gone takes its numbers with it, not the others.
	if err := st.Close(); err != nil {
		t.Fatal(err)
	}
	if code, body := get(http.MethodGet, "/metrics"); code != http.StatusOK || !strings.Contains(body, "poolmgr_plan_actions_total 0") {
		t.Errorf("/metrics without a store: %d %q", code, body)
	}
}
