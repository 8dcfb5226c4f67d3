// Package flintlock is the client of hosts that speak flintlock's gRPC API: a host.Driver for each, and the Fleet that
// keeps one for every registered host.
//
// It bounds what a host can do to us and we to it: every call has a deadline, calls in flight are limited per host (with
// commands apart from the rest, and short commands apart from long ones, so that neither a hung command nor a busy
// consumer keeps probes waiting), and a host that stopped answering is left alone for a moment instead of costing a full
// deadline each time. It retries nothing: create is not idempotent, and whoever calls knows what to look for first.
package flintlock
