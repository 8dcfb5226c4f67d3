package server

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Bounds of the HTTP endpoints.
const (
	readyLimit  = 2 * time.Second  // of /readyz
	scrapeLimit = 10 * time.Second // of /metrics
	maxScrapes  = 4                // of /metrics at once
)

// HTTP is the handler of the HTTP port: /healthz says that the process turns, /readyz that it serves, /metrics is for
// Prometheus. ready returns why the daemon does not serve, nil when it does.
func HTTP(reg prometheus.Gatherer, ready func(context.Context) error, log *slog.Logger) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { answer(w, http.StatusOK, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), readyLimit)
		defer cancel()
		if err := ready(ctx); err != nil {
			answer(w, http.StatusServiceUnavailable, "not ready: "+err.Error())
			return
		}
		answer(w, http.StatusOK, "ready")
	})
	mux.Handle("GET /metrics", promhttp.HandlerFor(reg, promhttp.HandlerOpts{
		ErrorLog: scrapeLog{log}, ErrorHandling: promhttp.ContinueOnError, // half of the numbers are better than none
		MaxRequestsInFlight: maxScrapes, Timeout: scrapeLimit,
	}))
	return mux
}

func answer(w http.ResponseWriter, code int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(code)
	_, _ = w.Write([]byte(text + "\n")) // the reader is gone, and nobody else cares
}

// scrapeLog takes what promhttp has to say.
type scrapeLog struct{ log *slog.Logger }

func (l scrapeLog) Println(v ...any) { l.log.Warn("a scrape is incomplete", "error", fmt.Sprint(v...)) }
