package cli

import (
	"bytes"
	"context"
	"errors"
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
