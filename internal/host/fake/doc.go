// Package fake is a scripted microVM host in memory, for tests: it behaves as a real flintlockd does, with its delays
// and refusals, and misbehaves as it is told to: calls that fail, hang, or do their work and lose the answer, listings
// that are short or stale, guests that never come up, machines that vanish or come back.
//
// It reads time only through package time and owns no goroutine: a VM's state follows from stored instants and is worked
// out when somebody asks. So it runs in a synctest bubble, and nothing needs to be closed. Register serves a Host over
// gRPC with flintlock's services and error codes.
package fake
