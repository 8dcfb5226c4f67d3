package store

import "errors"

// The sentinels of the contract. Refusals meant for users are *pool.Error values instead.
var (
	// ErrConflict: a row's version, the pool's generation or a recount was not what the action was computed from.
	// It is normal and silent: the next pass decides from fresh truth.
	ErrConflict = errors.New("the rows changed since this was decided")

	// ErrFenced: the step carries the epoch of an earlier daemon run. Whoever gets it must stop.
	ErrFenced = errors.New("this daemon is no longer the one that works this store")

	// ErrIllegalTransition: an action asked for a change of phase outside the table in pool. It is a bug.
	ErrIllegalTransition = errors.New("illegal change of phase (this is a bug)")

	// ErrLocked: another daemon has the store open.
	ErrLocked = errors.New("another poolmgrd has this database open")

	// ErrNewerSchema: the store was written by a newer release.
	ErrNewerSchema = errors.New("the database was written by a newer release of poolmgr")

	// ErrBroken: an earlier commit failed in a way that leaves the disk's content unknown. Nothing is acknowledged
	// any more; the daemon must be restarted.
	ErrBroken = errors.New("the store stopped after a failed commit; restart the daemon")

	// ErrClosed: the store was closed.
	ErrClosed = errors.New("the store is closed")
)
