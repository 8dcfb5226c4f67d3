package sqlite

import (
	"context"
	"database/sql"
	"log/slog"
	"sync"
	"time"
)

// The rules of checkpoints in idle moments.
const (
	idleAfter      = 250 * time.Millisecond // without a commit
	idleCommits    = 64                     // fewer are not worth two syncs
	checkpointTime = 5 * time.Second        // bounds one checkpoint
)

// checkpointer copies the WAL into the database when nobody commits, so that claims rarely meet the checkpoint that
// SQLite makes by itself at walPages. A passive checkpoint blocks nobody, and when it fails nothing is lost.
type checkpointer struct {
	logger *slog.Logger
	db     *sql.DB // of the readers: the writer's connection is never kept waiting

	mu      sync.Mutex
	timer   *time.Timer
	commits int
	stopped bool
	running sync.WaitGroup
}

// committed notes a commit and puts the next checkpoint off.
func (c *checkpointer) committed() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.commits++
	switch {
	case c.stopped || c.commits < idleCommits:
	case c.timer == nil:
		c.timer = time.AfterFunc(idleAfter, c.run)
	default:
		c.timer.Reset(idleAfter)
	}
}

func (c *checkpointer) run() {
	c.mu.Lock()
	if c.stopped {
		c.mu.Unlock()
		return
	}
	c.commits = 0
	c.running.Add(1)
	c.mu.Unlock()
	defer c.running.Done()

	ctx, cancel := context.WithTimeout(context.Background(), checkpointTime)
	defer cancel()
	if err := checkpoint(ctx, c.db); err != nil {
		c.logger.Warn("could not copy the write-ahead log into the database; it grows until that succeeds", slog.Any("error", err))
	}
}

// stop ends it and waits for a checkpoint that runs.
func (c *checkpointer) stop() {
	c.mu.Lock()
	c.stopped = true
	if c.timer != nil {
		c.timer.Stop()
	}
	c.mu.Unlock()
	c.running.Wait()
}

func checkpoint(ctx context.Context, db *sql.DB) error {
	var busy, pages, copied int
	return db.QueryRowContext(ctx, "PRAGMA wal_checkpoint(PASSIVE)").Scan(&busy, &pages, &copied)
}
