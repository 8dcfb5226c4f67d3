// Package store is the contract of poolmgr's memory: few verbs, each atomic, each a value. An implementation keeps
// pools, revisions, VMs, leases, hosts and events; it enforces the table of legal transitions, counts versions, and
// writes every event in the transaction of the change it reports.
//
// Implementations are store/sqlite (the default) and store/memory (tests); both run the verbs of store/engine, and
// both pass store/storetest.
package store
