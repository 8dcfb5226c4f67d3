// Package arch holds the rules of the house as tests: which room may import which, where goroutines may start, where
// no clock may be read, and how long a function may grow. Each rule is data with its reason, so that whoever breaks
// one reads why it is there. The package has no code of its own.
package arch
