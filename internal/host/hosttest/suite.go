// Package hosttest is the contract that every host.Driver keeps, as a test suite: the scripted fake, the flintlock client
// in front of it, and the client in front of microvmd's backends all run it.
//
// It tests what callers rely on and no more: what one kind of host can do beyond that is switched on in Setup. It never
// looks inside a host, and waits only with deadlines.
package hosttest

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"poolmgr/api/flintlock/vmtypes"
	"poolmgr/internal/host"
)

// Setup is a host for the suite.
type Setup struct {
	// Dial makes a driver for the host, another one with each call. The suite closes it.
	Dial func(t *testing.T) host.Driver
	// Template is a spec the host boots, without id and namespace.
	Template *vmtypes.MicroVMSpec
	// Wait bounds how long the host may take to boot a guest, and to get rid of a VM; default 10 s.
	Wait time.Duration
	// RealGuest: the guest is a real Linux with a shell, environment, signals and separate output streams. Without it
	// only `true`, `false`, `exit N`, `sleep S`, `echo` and `cat` (of its input) are run.
	RealGuest bool
}

// Factory makes a Setup whose host lives until the test ends. One host may serve several tests, also at once: the suite
// uses names of its own in each, and removes its VMs.
type Factory func(t *testing.T) Setup

// Run runs the suite.
func Run(t *testing.T, factory Factory) {
	for _, test := range []struct {
		name string
		run  func(*testing.T, *suite)
	}{
		{"a VM's life from create to gone", testLife},
		{"create is not idempotent", testSameNameTwice},
		{"creates at once make one VM each", testConcurrentCreates},
		{"a delete may come before the boot is done", testDeleteWhilePending},
		{"list filters and sorts", testList},
		{"unknown uids are not found", testUnknownUID},
		{"a spec without an id is refused", testRefusal},
		{"info", testInfo},
		{"the caller's context ends every call", testContext},
		{"exec", testExec},
		{"a command ends with its VM", testExecEndsWithVM},
		{"close ends what is in flight", testClose},
	} {
		t.Run(test.name, func(t *testing.T) { test.run(t, newSuite(t, factory)) })
	}
}

// suite is one test's view of its host.
type suite struct {
	Setup
	driver    host.Driver
	namespace string
}

func newSuite(t *testing.T, factory Factory) *suite {
	t.Helper()
	s := &suite{Setup: factory(t)}
	if s.Wait == 0 {
		s.Wait = 10 * time.Second
	}
	s.driver = s.Dial(t)
	t.Cleanup(func() { // after all VMs are removed
		if err := s.driver.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	s.namespace = fmt.Sprintf("hosttest-%d", time.Now().UnixNano())
	return s
}

// within is the test's context with a limit that no call of a working host comes near.
func (s *suite) within(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), s.Wait)
	t.Cleanup(cancel)
	return ctx
}

// create makes a VM and removes it when the test ends.
func (s *suite) create(t *testing.T, name string) host.VM {
	t.Helper()
	vm, err := s.driver.Create(s.within(t), host.SpecFor(s.Template, name, s.namespace, "owner/"+name))
	if err != nil {
		t.Fatalf("create %s: %v", name, err)
	}
	if vm.UID == "" {
		t.Fatalf("create %s: no uid", name)
	}
	t.Cleanup(func() { s.remove(t, vm.UID) })
	return vm
}

// remove deletes a VM and waits until it is gone.
func (s *suite) remove(t *testing.T, uid string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), s.Wait) // the test's own has ended
	defer cancel()
	s.poll(ctx, t, "vm "+uid+" is gone", func() error {
		if err := s.driver.Delete(ctx, uid); !errors.Is(err, host.ErrNotFound) {
			return fmt.Errorf("delete: %w", errors.Join(err, errors.New("it is still there")))
		}
		return nil
	})
}

// waitState waits for a state of a VM.
func (s *suite) waitState(t *testing.T, uid string, want host.State) host.VM {
	t.Helper()
	var vm host.VM
	ctx := s.within(t)
	s.poll(ctx, t, fmt.Sprintf("vm %s is %s", uid, want), func() (err error) {
		vm, err = s.driver.Get(ctx, uid)
		if err == nil && vm.State != want {
			err = fmt.Errorf("it is %s", vm.State)
		}
		return err
	})
	return vm
}

// waitGuest waits for an answer from inside a VM. Each try is given long enough for a slow guest.
func (s *suite) waitGuest(t *testing.T, uid string) {
	t.Helper()
	ctx := s.within(t)
	s.poll(ctx, t, fmt.Sprintf("the guest of vm %s answers", uid), func() error {
		try, cancel := context.WithTimeout(ctx, max(s.Wait/10, 2*time.Second))
		defer cancel()
		code, err := s.driver.Exec(try, host.ExecRequest{UID: uid, Cmd: "true"}, host.ExecStreams{})
		if err == nil && code != 0 {
			err = fmt.Errorf("`true` exited with %d", code)
		}
		return err
	})
}

// poll asks until there is no error, a few times a second, and fails the test when ctx ends.
func (s *suite) poll(ctx context.Context, t *testing.T, what string, ask func() error) {
	t.Helper()
	pause := time.NewTicker(max(s.Wait/500, 5*time.Millisecond))
	defer pause.Stop()
	for {
		err := ask()
		if err == nil {
			return
		}
		select {
		case <-pause.C:
		case <-ctx.Done():
			t.Fatalf("waiting until %s: %v", what, err)
		}
	}
}
