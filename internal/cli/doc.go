// Package cli holds poolmgrctl's commands: what they are called, what they ask of the daemon and how they show its
// answers. Results go to stdout, everything for people to stderr. It sees only what any client sees: the API, through
// package client. One file holds the commands of one noun.
package cli
