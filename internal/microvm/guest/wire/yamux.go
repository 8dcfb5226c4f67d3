package wire

import (
	"log/slog"
	"time"

	"github.com/hashicorp/yamux"
)

// YamuxConfig is the configuration that both ends use. There is no keepalive:
// a loaded host stalls a guest for seconds, and it would kill good sessions.
func YamuxConfig(log *slog.Logger) *yamux.Config {
	config := yamux.DefaultConfig()
	config.EnableKeepAlive = false
	config.ConnectionWriteTimeout = 2 * time.Minute
	config.StreamOpenTimeout = 0
	// Bounds what a hostile guest can make its host hold: a window per stream.
	config.AcceptBacklog = 64
	config.LogOutput = nil
	config.Logger = slog.NewLogLogger(log.Handler(), slog.LevelDebug)
	return config
}
