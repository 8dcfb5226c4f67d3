// Package client is the Go SDK of poolmgr: it claims warm microVMs, keeps their leases alive, runs commands inside them
// and follows events. Requests that may be lost on the way are repeated safely, by request id or by cursor, and every
// call has a deadline. It speaks only the public API and imports nothing of the daemon.
package client
