package cli

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// The last look of a wait may be ended by the daemon, a moment before our own clock ends it: that is the end of the
// wait, and no daemon that does not answer.
func TestAWaitEndsWithItsLastLook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var said bytes.Buffer
		a := &app{streams: streams{err: &said}, timeout: 30 * time.Second}
		looks := 0
		err := a.await(t.Context(), time.Second, "something", func(context.Context) (bool, string, error) {
			if looks++; looks == 1 {
				return false, "not yet", nil
			}
			return false, "", status.Error(codes.DeadlineExceeded, "stream terminated")
		})
		var waited waitError
		if !errors.As(err, &waited) || waited.sentence != "waited 1s for something: not yet" {
			t.Errorf("error %v", err)
		}
		if said.String() != "not yet\n" {
			t.Errorf("said %q", said.String())
		}
	})
}

// A rollout is drawn on a terminal, and told in plain lines elsewhere (the scripts look at those).
func TestARolloutIsDrawnOnATerminal(t *testing.T) {
	f := newFake()
	addr, stop := f.serve(t)
	defer stop()
	code, _, errs := ctl(t.Context(), streams{terminal: true}, addr, "rollout", "status", "rolling", "--wait")
	if want := "\r\x1b[KPROGRESSING: [#####...........] 1 of 3 VMs replaced (revision 2) ("; code != exitOK || !strings.Contains(errs, want) {
		t.Errorf("exit code %d, stderr %q, want %q", code, errs, want)
	}
	_, _, errs = ctl(t.Context(), streams{terminal: true}, addr, "-n", "team", "rollout", "restart", "web")
	if want := "poolmgrctl -n team rollout status web --wait"; !strings.Contains(errs, want) {
		t.Errorf("stderr %q, want %q", errs, want)
	}
}

func TestBar(t *testing.T) {
	for _, c := range []struct {
		done, total int
		want        string
	}{
		{0, 0, ""},
		{1, -1, ""},
		{0, 2, "[................] "},
		{1, 2, "[########........] "},
		{2, 2, "[################] "},
		{199, 200, "[###############.] "},
		{-1, 2, "[................] "},
		{3, 2, "[################] "},
	} {
		if got := bar(c.done, c.total); got != c.want {
			t.Errorf("bar(%d, %d) = %q, want %q", c.done, c.total, got, c.want)
		}
	}
}
