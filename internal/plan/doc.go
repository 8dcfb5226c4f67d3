// Package plan is the pure planner: Compute takes everything known about one pool, and the present instant, and
// returns what to do, when to look again, and a sentence for every shortfall. It has no context, clock, randomness,
// log, lock or error from outside, and it never writes to its input. Rollouts, scaling, repair, ageing, expiry and
// placement are decided here and nowhere else.
package plan
