package lease_test

import (
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"poolmgr/internal/host"
	"poolmgr/internal/host/fake"
	"poolmgr/internal/lease"
	"poolmgr/internal/pool"
	"poolmgr/internal/store"
)

// TestWaitersAreServedInOrder: first come, first served, and a claim without wait does not overtake.
func TestWaitersAreServedInOrder(t *testing.T) {
	inBubble(t, nil, func(r *rig) {
		var line []*pending
		for range 5 {
			line = append(line, r.start(lease.Request{Wait: time.Hour}))
		}
		if n := r.manager.Waiting(web); n != 5 {
			t.Fatalf("%d claims wait", n)
		}
		for i, p := range line {
			if p.done() {
				t.Fatalf("claim %d was served before its turn", i)
			}
			r.warm(1)
			if _, err := r.claim(""); i < len(line)-1 {
				r.refused(err, pool.CodeExhausted, "wait")
			}
			synctest.Wait()
			got, err := p.wait()
			r.must(err)
			if want := fmt.Sprintf("web-%08x", i+1); got.VM.ID != want {
				t.Errorf("claim %d got %s, want %s", i, got.VM.ID, want)
			}
			if n := r.manager.Waiting(web); n != len(line)-1-i {
				t.Errorf("%d claims wait", n)
			}
		}
	})
}

// deaf is a store whose changes nobody hears of: those who wait sleep on.
type deaf struct{ store.Store }

func (deaf) Changed() <-chan struct{} { return nil }

// TestNobodyOvertakes: there is a VM, but it belongs to a claim that waits and has not woken yet.
func TestNobodyOvertakes(t *testing.T) {
	inBubble(t, nil, func(r *rig) {
		r.must(r.store.Close())
		r.open(func(s store.Store) store.Store { return deaf{s} })
		first := r.start(lease.Request{Wait: time.Hour})
		r.warm(1)
		_, err := r.claim("")
		r.refused(err, pool.CodeExhausted, "other claims (1) wait")
		second := r.start(lease.Request{Wait: time.Hour})
		if first.done() || second.done() {
			t.Error("a claim was served out of turn")
		}
		first.cancel()
		_, _ = first.wait()
		_, err = second.wait() // it is the first now
		r.must(err)
	})
}

func TestManyVMsAtOnceServeTheWholeLine(t *testing.T) {
	inBubble(t, []string{"sleep 1"}, func(r *rig) {
		const n = 20
		var line []*pending
		for range n {
			line = append(line, r.start(lease.Request{Wait: time.Hour}))
		}
		r.warm(n)
		synctest.Wait()
		if left := r.manager.Waiting(web); left != 0 {
			t.Errorf("%d claims still wait: hooks must not hold up the line", left)
		}
		var claims []lease.Claimed
		for _, p := range line {
			got, err := p.wait()
			r.must(err)
			claims = append(claims, got)
		}
		r.distinct(claims)
	})
}

func TestWaitEnds(t *testing.T) {
	inBubble(t, nil, func(r *rig) {
		began := time.Now()
		_, err := r.manager.Claim(r.Context(), lease.Request{Pool: web, Wait: 10 * time.Second})
		r.refused(err, pool.CodeExhausted, "10s")
		if took := time.Since(began); took != 10*time.Second {
			t.Errorf("it waited %s", took)
		}
	})
}

// TestGoneWaiterIsSkipped: a waiting claim whose caller gave up takes nothing. The next in line gets the VM.
func TestGoneWaiterIsSkipped(t *testing.T) {
	inBubble(t, nil, func(r *rig) {
		first, second := r.start(lease.Request{Wait: time.Hour}), r.start(lease.Request{Wait: time.Hour})
		first.cancel()
		if _, err := first.wait(); err == nil {
			t.Error("the caller that is gone got a lease")
		}
		r.warm(1)
		got, err := second.wait()
		r.must(err)
		if got.VM.ID != "web-00000001" {
			t.Errorf("got %s", got.VM.ID)
		}
	})
}

func TestLineIsBounded(t *testing.T) {
	inBubble(t, nil, func(r *rig) {
		var line []*pending
		for range lease.MaxWaiting {
			line = append(line, r.start(lease.Request{Wait: time.Hour}))
		}
		_, err := r.manager.Claim(r.Context(), lease.Request{Pool: web, Wait: time.Hour})
		r.refused(err, pool.CodeExhausted, "1024")
		r.manager.Drain()
		for _, p := range line {
			_, err := p.wait()
			r.refused(err, pool.CodeUnavailable)
		}
	})
}

// TestWaitersDoNotInflateThePool: claims that wait do not make the pool larger than its size.
func TestWaitersDoNotInflateThePool(t *testing.T) {
	inBubble(t, nil, func(r *rig) {
		p := r.start(lease.Request{Wait: time.Hour})
		view, err := r.store.GetPool(r.Context(), web)
		r.must(err)
		if view.Counts.Desired != 3 {
			t.Errorf("desired is %d", view.Counts.Desired)
		}
		p.cancel()
		_, _ = p.wait()
	})
}

// TestReplayPassesTheLine: a claim that was answered needs no VM, so it need not wait for one.
func TestReplayPassesTheLine(t *testing.T) {
	inBubble(t, nil, func(r *rig) {
		r.warm(1)
		mine, err := r.claim("mine")
		r.must(err)
		waiting := r.start(lease.Request{Wait: time.Hour})
		for _, wait := range []time.Duration{0, time.Hour} {
			again, err := r.manager.Claim(r.Context(), lease.Request{Pool: web, RequestID: "mine", Wait: wait})
			r.must(err)
			if again.Lease.ID != mine.Lease.ID {
				t.Error("another lease")
			}
		}
		waiting.cancel()
		_, _ = waiting.wait()
	})
}

// TestImpatientTwin: an earlier call of the same claim waits; a repetition that does not want to wait hears so at once,
// and one that does gets the same lease.
func TestImpatientTwin(t *testing.T) {
	inBubble(t, nil, func(r *rig) {
		first := r.start(lease.Request{RequestID: "job", Wait: time.Hour})
		_, err := r.claim("job")
		r.refused(err, pool.CodeExhausted)
		_, err = r.manager.Claim(r.Context(), lease.Request{Pool: web, RequestID: "job", Wait: time.Second})
		r.refused(err, pool.CodeExhausted)
		second := r.start(lease.Request{RequestID: "job", Wait: time.Hour})
		if n := r.manager.Waiting(web); n != 1 {
			t.Errorf("%d claims wait for one request", n)
		}
		r.warm(2)
		a, err := first.wait()
		r.must(err)
		b, err := second.wait()
		r.must(err)
		if a.Lease.ID != b.Lease.ID {
			t.Error("two leases for one request")
		}
	})
}

// TestHookFailureKeepsItsPlace: a claim that had its turn and got a bad VM is served before those behind it.
func TestHookFailureKeepsItsPlace(t *testing.T) {
	inBubble(t, []string{"prepare"}, func(r *rig) {
		r.host.Script("prepare", fake.Reply{Code: 1, Delay: time.Second}, fake.Reply{})
		first, second := r.start(lease.Request{Wait: time.Hour}), r.start(lease.Request{Wait: time.Hour})
		r.warm(1)
		<-time.After(2 * time.Second)
		synctest.Wait()
		if n := r.manager.Waiting(web); n != 2 {
			t.Fatalf("%d claims wait", n)
		}
		r.warm(1)
		got, err := first.wait()
		r.must(err)
		if got.VM.ID != "web-00000002" || second.done() {
			t.Errorf("the first got %s, the second is done: %t", got.VM.ID, second.done())
		}
		r.warm(1)
		_, err = second.wait()
		r.must(err)
	})
}

func TestDeletedPoolSendsWaitersAway(t *testing.T) {
	inBubble(t, nil, func(r *rig) {
		one, two := r.start(lease.Request{Wait: time.Hour}), r.start(lease.Request{Wait: time.Hour})
		r.must(r.store.ClosePool(r.Context(), store.ClosePool{Pool: web, Now: time.Now()}))
		for _, p := range []*pending{one, two} {
			_, err := p.wait()
			r.refused(err, pool.CodeNotFound)
		}
	})
}

// TestCrowd lets many callers claim, give up, repeat and release at once, while hooks fail now and then; the rig's checks
// hold afterwards, and nobody waits for ever.
func TestCrowd(t *testing.T) {
	inBubble(t, []string{"prepare"}, func(r *rig) {
		var replies []fake.Reply
		for i := range 40 {
			replies = append(replies, fake.Reply{Code: oneIf(i%5 == 4), Delay: time.Duration(i%3) * time.Second})
		}
		r.host.Script("prepare", replies...)
		var wg sync.WaitGroup
		var mu sync.Mutex
		granted := map[string]string{} // VM to lease
		for i := range 60 {
			wg.Go(func() {
				<-time.After(time.Duration(i%7) * time.Second)
				req := lease.Request{Pool: web, Wait: time.Duration(i%4) * 20 * time.Second, RequestID: fmt.Sprintf("job-%d", i/2)}
				got, err := r.manager.Claim(r.Context(), req)
				if err != nil {
					return
				}
				mu.Lock()
				if other, taken := granted[got.VM.ID]; taken && other != got.Lease.ID {
					t.Errorf("VM %s was handed out twice", got.VM.ID)
				}
				granted[got.VM.ID] = got.Lease.ID
				mu.Unlock()
				if i%3 == 0 {
					_ = r.manager.Release(r.Context(), got.Lease.ID)
				}
			})
		}
		for range 30 {
			r.warm(1)
			<-time.After(2 * time.Second)
		}
		wg.Wait()
		if len(granted) < 10 {
			t.Errorf("only %d VMs were handed out", len(granted))
		}
	})
}

func oneIf(b bool) int {
	if b {
		return 1
	}
	return 0
}

func TestExec(t *testing.T) {
	inBubble(t, nil, func(r *rig) {
		r.warm(1)
		got, err := r.claim("")
		r.must(err)
		var out output
		code, err := r.manager.Exec(r.Context(), got.Lease.ID, host.ExecRequest{Cmd: "echo hello; exit 7", Shell: true}, host.ExecStreams{Stdout: &out})
		r.must(err)
		if code != 7 || string(out) != "hello\n" {
			t.Errorf("exit code %d, output %q", code, out)
		}
		_, err = r.manager.Exec(r.Context(), "nonsense", host.ExecRequest{Cmd: "true"}, host.ExecStreams{})
		r.refused(err, pool.CodeNotFound)
		_, err = r.manager.Exec(r.Context(), got.Lease.ID, host.ExecRequest{Cmd: "hang", Timeout: time.Second}, host.ExecStreams{})
		r.refused(err, pool.CodeDeadline)
		r.host.Down()
		_, err = r.manager.Exec(r.Context(), got.Lease.ID, host.ExecRequest{Cmd: "true"}, host.ExecStreams{})
		r.refused(err, pool.CodeUnavailable)
		r.host.Up()
		r.host.Vanish(got.VM.UID)
		_, err = r.manager.Exec(r.Context(), got.Lease.ID, host.ExecRequest{Cmd: "true"}, host.ExecStreams{})
		r.refused(err, pool.CodeAborted)
		r.must(r.manager.Release(r.Context(), got.Lease.ID))
		_, err = r.manager.Exec(r.Context(), got.Lease.ID, host.ExecRequest{Cmd: "true"}, host.ExecStreams{})
		r.refused(err, pool.CodeNotFound)
	})
}

// A lease that ends takes the commands in its VM with it, and they are told so.
func TestExecWhoseLeaseEnds(t *testing.T) {
	inBubble(t, nil, func(r *rig) {
		r.warm(1)
		got, err := r.claim("")
		r.must(err)
		ended := make(chan error, 1)
		go func() {
			_, err := r.manager.Exec(r.Context(), got.Lease.ID, host.ExecRequest{Cmd: "hang"}, host.ExecStreams{})
			ended <- err
		}()
		synctest.Wait()
		r.must(r.manager.Release(r.Context(), got.Lease.ID))
		r.host.Vanish(got.VM.UID)
		r.refused(<-ended, pool.CodeAborted, "the lease", "ended")
	})
}

type output []byte

func (o *output) Write(p []byte) (int, error) {
	*o = append(*o, p...)
	return len(p), nil
}
