// Package engine runs the verbs of the store contract for every implementation: it keeps all rows in memory, decides
// each verb on them, enforces the table of legal transitions, counts versions and writes events. A Log makes its
// commits durable; the engine itself does no I/O, reads no clock and starts no goroutine.
//
// # Two mirrors
//
// The working mirror belongs to whoever leads the commit at hand: verbs run on it one after another, each with a
// journal that takes back what a refused verb or action wrote. The published mirror is what reads see. After the
// Log's commit the changed rows are published under a write lock. The two share rows, which are never written to
// after they were put, so the second mirror costs index entries only.
//
// # Group commit
//
// Callers queue their verb under a mutex. Whoever finds no leader becomes it, runs all that is queued (at most
// MaxBatch verbs), commits once, publishes, answers the others, and hands the lead to the first of those who came
// meanwhile. A lone verb costs exactly one commit and waits for no timer; a verb that changed nothing costs none.
package engine
