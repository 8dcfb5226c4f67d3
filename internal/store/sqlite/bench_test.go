package sqlite

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"poolmgr/internal/store"
	"poolmgr/internal/store/engine"
)

// BenchmarkClaim measures durable claims. Its commits/op, each of which is one sync of the disk, do not depend on the
// machine's mood: exactly 1 for a lone caller, and far fewer when many share them.
func BenchmarkClaim(b *testing.B) {
	for _, callers := range []int{1, 64} {
		b.Run(fmt.Sprintf("callers=%d", callers), func(b *testing.B) {
			s := openEngine(b, newPath(b))
			fill(b, s, b.N)
			before := s.Commits()
			b.ReportAllocs()
			b.ResetTimer()
			claimAll(b, s, callers, b.N)
			b.StopTimer()
			b.ReportMetric(float64(s.Commits()-before)/float64(b.N), "commits/op")
		})
	}
}

func openEngine(b *testing.B, path string) *engine.Engine {
	b.Helper()
	e, err := engine.Open(b.Context(), openTestLog(b, path), engine.Options{})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = e.Close() })
	return e
}

// claimAll makes n claims, shared among callers that each wait for their answer.
func claimAll(b *testing.B, s store.Store, callers, n int) {
	var wait sync.WaitGroup
	for caller := range callers {
		wait.Go(func() {
			for i := caller; i < n; i += callers {
				_, err := s.Claim(context.Background(), store.Claim{Pool: web, LeaseID: fmt.Sprintf("lease-%032x", i), Now: start})
				if err != nil {
					b.Errorf("claim: %v", err)
					return
				}
			}
		})
	}
	wait.Wait()
}

// BenchmarkOpen measures a restart with many VMs: checks, recovery and loading.
func BenchmarkOpen(b *testing.B) {
	const vms = 20_000
	path := newPath(b)
	s := openEngine(b, path)
	fill(b, s, vms)
	if err := s.Close(); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if err := openEngine(b, path).Close(); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N)/vms, "us/VM")
}
