package engine

import (
	"context"

	"poolmgr/internal/pool"
	"poolmgr/internal/store"
)

// Log makes the engine's commits durable: store/sqlite keeps them in a database file, store/memory in maps. One
// goroutine at a time calls Commit; Events may be called at any time. The engine normalises what it hands over:
// instants are UTC without a monotonic part, and the rows of a commit are never written to afterwards.
type Log interface {
	// Load opens a new epoch (durably one more than the last) and returns every row.
	Load(ctx context.Context) (State, error)
	// Commit makes all of the changes durable, or none. Every changed or removed row is guarded by the version it had
	// before (see Change); a row that is not as expected is a bug and fails the commit with ErrCorrupt. A commit that
	// fails otherwise leaves the disk's content unknown: the engine stops.
	Commit(ctx context.Context, c Changes) error
	// Events reads events of ids in (q.After, upTo], oldest first.
	Events(ctx context.Context, q store.EventQuery, upTo int64) ([]pool.Event, error)
	// Close releases files and locks.
	Close() error
}

// State is everything the engine keeps in memory.
type State struct {
	Installation string
	Epoch        int64
	LastEvent    int64 // newest event id; 0 = none
	FirstEvent   int64 // oldest event id that is kept; 0 = none
	Pools        []pool.Pool
	Revisions    []pool.Revision
	VMs          []pool.VM
	Leases       []pool.Lease
	Hosts        []pool.Host
}

// Changes is the content of one commit: each row at most once, as it is after the commit. In each list the removed
// rows come first, then the others in the order in which they were first written. A key that a commit removes is never
// inserted again by the same commit, so that a unique column freed by a removal (a lease's request id, a pool's name)
// can be taken by an insertion that follows. Rows are consistent with each other only as a whole: a lease may
// precede the change of its VM, so checks across tables belong at the end of the transaction.
type Changes struct {
	Pools     []Change[pool.Pool, pool.Key]
	VMs       []Change[pool.VM, string]
	Leases    []Change[pool.Lease, string]
	Hosts     []Change[pool.Host, string]
	Revisions []pool.Revision // new ones; those of a removed pool go with it
	Forgotten []RevisionKey   // revisions to remove, of pools that stay; removed after the VMs were written
	Events    []pool.Event    // ids assigned, ascending
}

// RevisionKey names a revision.
type RevisionKey struct {
	Pool   pool.Key
	Number int64
}

// Change is one row that was inserted (Before 0), updated, or removed (After nil).
type Change[R any, K comparable] struct {
	Key    K
	Before int64 // the row's version before this commit; 0 = there was none
	After  *R    // nil = removed
}

// Empty reports whether there is nothing to commit.
func (c Changes) Empty() bool {
	return len(c.Pools)+len(c.VMs)+len(c.Leases)+len(c.Hosts)+len(c.Revisions)+len(c.Forgotten)+len(c.Events) == 0
}
