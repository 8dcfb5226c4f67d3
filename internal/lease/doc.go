// Package lease hands VMs out and takes them back: claims with their wait queue and pre-lease commands, heartbeats,
// releases, and commands in a leased VM.
//
// The store decides who gets which VM; what lives here may be lost at any moment. That is the line of waiting claims,
// whose callers are connections anyway, and the memory of hooks that fail in a row, which makes new failures cheaper.
// Everything runs on the callers' goroutines. Expiry is not done here but by the passes of reconcile, from the same
// rows.
//
// Lease ids are credentials: nothing here writes them to logs or errors.
package lease
