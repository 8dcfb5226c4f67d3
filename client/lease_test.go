package client

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func claim(t *testing.T, c *Client) *Lease {
	t.Helper()
	l, err := c.Claim(t.Context(), ClaimOptions{Pool: "quickstart"})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func TestLeaseHeartbeatsUntilReleased(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDaemon()
		c := connect(t, d)
		l := claim(t, c)
		time.Sleep(10*time.Minute + time.Second)
		if got := d.count("Heartbeat"); got != 20 {
			t.Errorf("%d heartbeats in 10 minutes, want 20 (every 30 s)", got)
		}
		if l.Err() != nil || time.Until(l.ExpiresAt()) < 4*time.Minute || !l.Outdated() {
			t.Errorf("error %v, %v left, outdated %t; want a live and outdated lease", l.Err(), time.Until(l.ExpiresAt()), l.Outdated())
		}
		if err := l.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		<-l.Done()
		if err := l.Release(t.Context()); err != nil {
			t.Errorf("a second release: %v", err)
		}
		if !errors.Is(l.Err(), ErrReleased) || d.count("ReleaseVM") != 1 {
			t.Errorf("error %v after %d releases", l.Err(), d.count("ReleaseVM"))
		}
		time.Sleep(5 * time.Minute)
		if got := d.count("Heartbeat"); got != 20 {
			t.Errorf("%d heartbeats, want no more after the release", got)
		}
	})
}

// The interval never exceeds a third of what a lease lives without a heartbeat, whatever the pool says.
func TestHeartbeatFitsTheThreshold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDaemon()
		d.threshold = 3 * time.Second
		c := connect(t, d)
		claim(t, c)
		time.Sleep(10*time.Second + time.Millisecond)
		if got := d.count("Heartbeat"); got != 10 {
			t.Errorf("%d heartbeats in 10 s, want 10", got)
		}
	})
}

// A lease that is given back before its first heartbeat was even planned is nothing to tell anybody about.
func TestAShortLeaseIsQuiet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDaemon()
		d.slowPool = true
		var told bytes.Buffer
		c := connect(t, d, WithLogger(slog.New(slog.NewTextHandler(&told, nil))))
		l := claim(t, c)
		synctest.Wait()
		if err := l.Release(t.Context()); err != nil {
			t.Error(err)
		}
		synctest.Wait()
		if told.Len() > 0 {
			t.Errorf("told: %s", told.String())
		}
	})
}

func TestLeaseTellsWhenItIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDaemon()
		c := connect(t, d)
		l := claim(t, c)
		d.expire()
		<-l.Done()
		if !errors.Is(l.Err(), ErrLost) {
			t.Errorf("error %v, want ErrLost", l.Err())
		}
		if err := l.Release(t.Context()); !errors.Is(err, ErrLost) || status.Code(err) != codes.NotFound {
			t.Errorf("release: %v, want ErrLost with NOT_FOUND", err)
		}
	})
}

// A daemon that cannot be reached is no reason to give a lease up, and is asked again before the next beat is due.
func TestHeartbeatsOutliveAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDaemon()
		d.lose["Heartbeat"] = 10
		c := connect(t, d)
		l := claim(t, c)
		time.Sleep(time.Minute)
		if l.Err() != nil || d.count("Heartbeat") < 11 {
			t.Errorf("error %v after %d heartbeats, want a live lease after more than 10", l.Err(), d.count("Heartbeat"))
		}
	})
}

func TestLeaseEndsWithItsContextAndItsClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDaemon()
		c := connect(t, d)
		why := errors.New("job done")
		ctx, cancel := context.WithCancelCause(t.Context())
		first, err := c.Claim(ctx, ClaimOptions{Pool: "quickstart"})
		if err != nil {
			t.Fatal(err)
		}
		second := claim(t, c)
		cancel(why)
		<-first.Done()
		if !errors.Is(first.Err(), why) || second.Err() != nil {
			t.Errorf("errors %v and %v, want the cause and none", first.Err(), second.Err())
		}
		if err := first.Release(t.Context()); err != nil {
			t.Errorf("release after the context's end: %v", err)
		}
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
		if !errors.Is(second.Err(), ErrClosed) {
			t.Errorf("error %v, want ErrClosed", second.Err())
		}
	})
}

// A lost reply is asked for again under the same id, so that one claim never takes two VMs.
func TestClaimAfterALostReplyGetsTheSameVM(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDaemon()
		d.lose["ClaimVM"] = 3
		c := connect(t, d)
		l := claim(t, c)
		if d.count("ClaimVM") != 4 || d.handedOut() != 1 {
			t.Errorf("%d requests took %d VMs, want 4 and 1", d.count("ClaimVM"), d.handedOut())
		}
		d.mu.Lock()
		d.lose["ReleaseVM"] = 1
		d.mu.Unlock()
		if err := l.Release(t.Context()); err != nil {
			t.Errorf("a release whose reply was lost: %v", err)
		}
	})
}

func TestClaimGivesUpInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDaemon()
		d.lose["ClaimVM"] = 1 << 20
		c := connect(t, d)
		begin := time.Now()
		_, err := c.Claim(t.Context(), ClaimOptions{Pool: "quickstart", Wait: 5 * time.Second})
		if took := time.Since(begin); status.Code(err) != codes.Unavailable || took > 20*time.Second {
			t.Errorf("%v after %v, want UNAVAILABLE within wait and grace", err, took)
		}
		if d.held() != 0 {
			t.Error("the lease of a claim that was given up is still there")
		}
	})
}

func TestClaimOfACallerWhoWentIsGivenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDaemon()
		d.hang = true
		c := connect(t, d)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := c.Claim(ctx, ClaimOptions{Pool: "quickstart"}); err == nil {
			t.Fatal("the claim did not fail")
		}
		if d.handedOut() != 1 || d.held() != 0 || d.count("ReleaseVM") != 1 {
			t.Errorf("%d VMs taken, %d leases left, %d releases; want 1, 0, 1", d.handedOut(), d.held(), d.count("ReleaseVM"))
		}
		// With an id of the caller's own, the caller may come back for it.
		ctx, cancel = context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := c.Claim(ctx, ClaimOptions{Pool: "quickstart", RequestID: "mine"}); err == nil {
			t.Fatal("the claim did not fail")
		}
		if d.held() != 1 {
			t.Errorf("%d leases left, want the one under the caller's id", d.held())
		}
	})
}

func TestClaimErrorKeepsItsCode(t *testing.T) {
	c := connect(t, newDaemon())
	_, err := c.Claim(t.Context(), ClaimOptions{Pool: "empty"})
	if status.Code(err) != codes.ResourceExhausted {
		t.Errorf("got %v, want RESOURCE_EXHAUSTED", err)
	}
}

func TestClaimWithoutHeartbeats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDaemon()
		c := connect(t, d)
		l, err := c.Claim(t.Context(), ClaimOptions{Pool: "quickstart", NoHeartbeat: true})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		if got := d.count("Heartbeat"); got != 0 {
			t.Errorf("%d heartbeats, want none", got)
		}
		if err := l.Release(t.Context()); err != nil {
			t.Error(err)
		}
	})
}
