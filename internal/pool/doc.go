// Package pool holds the nouns and rules of poolmgr: pools, templates, VMs, leases, hosts and events, the phases a
// VM goes through and the legal transitions between them, validation, the revision hash and the budget arithmetic.
//
// Everything here is a value or a pure function. Nothing reads a clock, a random source or the outside world: what
// depends on time takes an instant, what needs an id is given one.
package pool
