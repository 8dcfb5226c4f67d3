// Package reconcile is the active part of poolmgr: wake, take a snapshot, plan, execute; and the work on single VMs
// that passes start but never wait for: provisioning, hooks and deletion.
//
// Nothing here remembers what is owed. A Reconciler may be thrown away at any moment and made anew: the rows say what
// is left to do. Decisions are made in package plan; this package carries them out, one conditional write at a time.
package reconcile
