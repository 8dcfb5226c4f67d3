package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"
)

// webStop is how long the requests under way may take when the daemon ends.
const webStop = time.Second

// website is the HTTP port. It is there from the beginning, so that /healthz and /readyz answer while the daemon starts
// and while it drains.
type website struct {
	server *http.Server
	done   chan struct{}
	err    error // why it ended by itself; read after done
}

func startWeb(ln net.Listener, handler http.Handler, log *slog.Logger) *website {
	w := &website{
		server: &http.Server{
			Handler:           handler,
			ReadHeaderTimeout: 5 * time.Second,
			ReadTimeout:       10 * time.Second,
			WriteTimeout:      30 * time.Second,
			IdleTimeout:       2 * time.Minute,
			MaxHeaderBytes:    16 << 10,
			ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelWarn),
		},
		done: make(chan struct{}),
	}
	go func() {
		defer close(w.done)
		if err := w.server.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
			w.err = fmt.Errorf("serve HTTP: %w", err)
		}
	}()
	return w
}

// wait returns why the server ended by itself; nil when ctx ends before that.
func (w *website) wait(ctx context.Context) error {
	select {
	case <-w.done:
		return w.err
	case <-ctx.Done():
		return nil
	}
}

// stop ends the server and returns when it has ended.
func (w *website) stop() {
	ctx, cancel := context.WithTimeout(context.Background(), webStop)
	defer cancel()
	if err := w.server.Shutdown(ctx); err != nil {
		_ = w.server.Close() // a scrape that takes longer than the drain is cut off
	}
	<-w.done
}
