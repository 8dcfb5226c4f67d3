// Package storetest is the suite that every implementation of the store contract passes: each verb with its
// refusals, races, the life over a reopening, and a consistency check after every test. Check is for other packages'
// tests too. The suite knows the contract only, no implementation.
package storetest

import (
	"context"
	"testing"

	"poolmgr/internal/store"
)

// Opener opens the store on one storage; each call opens the same one, after the store before was closed.
type Opener func(ctx context.Context) (store.Store, error)

// test is one test of the suite, on a storage of its own.
type test struct {
	name string
	run  func(f *fixture)
}

// Run runs the suite. newStorage makes an empty storage for each test.
func Run(t *testing.T, newStorage func(t *testing.T) Opener) {
	groups := []struct {
		name  string
		tests []test
	}{
		{"Pools", poolTests},
		{"Rollout", rolloutTests},
		{"Steer", steerTests},
		{"Undo", undoTests},
		{"States", stateTests},
		{"Revisions", revisionTests},
		{"Warm", warmTests},
		{"Boot", bootTests},
		{"Claims", claimTests},
		{"Hooks", hookTests},
		{"Leases", leaseTests},
		{"Steps", stepTests},
		{"Hosts", hostTests},
		{"Events", eventTests},
		{"Life", lifeTests},
		{"Races", raceTests},
		{"RandomWalk", walkTests},
	}
	for _, g := range groups {
		t.Run(g.name, func(t *testing.T) {
			for _, test := range g.tests {
				t.Run(test.name, func(t *testing.T) { test.run(newFixture(t, newStorage(t))) })
			}
		})
	}
}
