package client

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// Every event comes once, over breaks of the stream and whatever the daemon repeats.
func TestFollowResumesAfterTheLastEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDaemon()
		d.batches = [][]int64{{4, 5}, {}, {5, 6, 9}}
		c := connect(t, d)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		var got []int64
		var last error
		for event, err := range c.Follow(ctx, EventOptions{After: 3}) {
			if err != nil {
				last = err
				continue
			}
			got = append(got, event.GetId())
		}
		if diff := cmp.Diff([]int64{4, 5, 6, 9}, got); diff != "" {
			t.Errorf("events (-want +got):\n%s", diff)
		}
		if !errors.Is(last, context.DeadlineExceeded) {
			t.Errorf("ended with %v, want the context's end", last)
		}
		d.mu.Lock()
		defer d.mu.Unlock()
		var cursors []int64
		for _, sub := range d.subs {
			cursors = append(cursors, sub.GetAfterId())
		}
		if diff := cmp.Diff([]int64{3, 5, 5, 9}, cursors); diff != "" {
			t.Errorf("cursors (-want +got):\n%s", diff)
		}
	})
}

func TestFollowEndsWithTheReplay(t *testing.T) {
	d := newDaemon()
	d.batches = [][]int64{{1, 2}}
	c := connect(t, d)
	n := 0
	for _, err := range c.Follow(t.Context(), EventOptions{NoFollow: true}) {
		if err != nil {
			t.Fatal(err)
		}
		n++
	}
	if n != 2 {
		t.Errorf("%d events, want 2", n)
	}
}

func TestFollowStopsWhenNobodyListens(t *testing.T) {
	d := newDaemon()
	d.batches = [][]int64{{1, 2}}
	c := connect(t, d)
	for range c.Follow(t.Context(), EventOptions{}) {
		break
	}
}

// A daemon that refuses every stream is not asked for ever.
func TestFollowGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDaemon()
		d.batches = make([][]int64, 1000)
		c := connect(t, d)
		begin := time.Now()
		var last error
		for _, err := range c.Follow(t.Context(), EventOptions{ResumeFor: 20 * time.Second}) {
			last = err
		}
		if took := time.Since(begin); last == nil || took < 20*time.Second || took > 30*time.Second {
			t.Errorf("%v after %v, want an error after about 20 s", last, took)
		}
	})
}
