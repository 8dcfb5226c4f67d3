// Package sqlite keeps a store in one SQLite file: store/engine decides, and this package makes the engine's commits
// durable and loads them again. One daemon at a time works a file; a lock file beside it is held for the daemon's life.
//
// # Durability
//
// The file is in WAL mode with synchronous=FULL, so a commit has reached the disk when it returns. Everything is
// written by one connection with one transaction per commit; a few query_only connections read events beside it. A
// commit that fails in any way stops the log: nobody knows what the disk holds, and a failed sync is never tried again.
// Opening the file anew finds out.
//
// # Schema
//
// Folder migrations holds the numbered steps, applied in order in a transaction each and recorded in the table
// schema_version. A step that was released never changes. Instants are integers, nanoseconds since 1970 in UTC, 0 for
// none; specs and templates are messages of the public API; what has no column of its own is JSON of the form in
// codec.go. Constraints repeat what must never be false: a lease has one VM and a VM one lease, a request id one lease.
// Nothing that a host reports is constrained, since a host that lies must not be able to stop the store.
//
// # Limits
//
// Linux and other Unixes only (flock), on a local disk. There is no repair: a damaged file is refused.
package sqlite
