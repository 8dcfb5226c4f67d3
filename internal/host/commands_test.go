package host_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"

	"poolmgr/api/flintlock/vmtypes"
	"poolmgr/internal/host"
	"poolmgr/internal/host/fake"
)

func plant(h *fake.Host) string { return h.Plant(host.SpecFor(fake.Template(), "web-1", "ns", "")) }

func TestRunCommandsStopsAtTheFirstFailure(t *testing.T) {
	var ran []string
	h := fake.New(fake.Options{OnCall: func(c fake.Call) { ran = append(ran, c.Line) }})
	uid := plant(h)
	h.Script("setup", fake.Reply{Code: 3, Stderr: "no disk"})
	err := host.RunCommands(t.Context(), h, uid, []string{"true", "setup", "never"}, time.Minute)
	var failure *host.CommandFailure
	if !errors.As(err, &failure) {
		t.Fatalf("error %v, want a CommandFailure", err)
	}
	if diff := cmp.Diff(&host.CommandFailure{Command: "setup", ExitCode: 3, StderrTail: "no disk"}, failure); diff != "" {
		t.Errorf("failure (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"true", "setup"}, ran); diff != "" {
		t.Errorf("commands run (-want +got):\n%s", diff)
	}
}

// TestRunCommandsTimeLimit: the guest's own limit and a silent guest are both failures of the command; the end of the
// caller's context and a lost host are not.
func TestRunCommandsTimeLimit(t *testing.T) {
	for name, c := range map[string]struct {
		spoil   func(*fake.Host, string)
		failure bool
	}{
		"the guest ends it": {func(*fake.Host, string) {}, true},
		"the guest is dead": {func(h *fake.Host, uid string) { h.KillGuest(uid) }, true},
		"the host is lost":  {func(h *fake.Host, _ string) { h.Down() }, false},
		"the VM is gone":    {func(h *fake.Host, uid string) { h.Vanish(uid) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := fake.New(fake.Options{})
				uid := plant(h)
				c.spoil(h, uid)
				err := host.RunCommands(t.Context(), h, uid, []string{"hang"}, time.Minute)
				var failure *host.CommandFailure
				if err == nil || errors.As(err, &failure) != c.failure {
					t.Errorf("error %v, want a CommandFailure: %v", err, c.failure)
				}
				if c.failure && failure.ExitCode != -1 {
					t.Errorf("exit code %d, want -1", failure.ExitCode)
				}
			})
		})
	}
	synctest.Test(t, func(t *testing.T) {
		h := fake.New(fake.Options{})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		err := host.RunCommands(ctx, h, plant(h), []string{"hang"}, time.Minute)
		var failure *host.CommandFailure
		if !errors.Is(err, context.DeadlineExceeded) || errors.As(err, &failure) {
			t.Errorf("at the caller's deadline: %v, want it, and no CommandFailure", err)
		}
	})
}

func TestTailKeepsTheEnd(t *testing.T) {
	var tail host.Tail
	for range 100 {
		if _, err := tail.Write([]byte(strings.Repeat("x", 1000))); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := tail.Write([]byte("the end")); err != nil {
		t.Fatal(err)
	}
	if got := tail.String(); len(got) != 4096 || !strings.HasSuffix(got, "the end") {
		t.Errorf("the tail has %d bytes and ends with %q", len(got), got[len(got)-10:])
	}
}

func TestSpecFor(t *testing.T) {
	template := fake.Template()
	template.AllowGuestAgent = false
	template.Uid = proto.String("someone's")
	before := proto.CloneOf(template)
	spec := host.SpecFor(template, "web-0a1b2c3d", "default", "inst/row/7")
	if diff := cmp.Diff(before.String(), template.String()); diff != "" {
		t.Errorf("the template was changed (-want +got):\n%s", diff)
	}
	if spec.Uid != nil || !spec.GetAllowGuestAgent() || spec.GetId() != "web-0a1b2c3d" || spec.GetNamespace() != "default" {
		t.Errorf("spec: %v", spec)
	}
	vm := host.VMOf(&vmtypes.MicroVM{Spec: spec})
	if want := (host.VM{Namespace: "default", Name: "web-0a1b2c3d", State: host.Pending, Owner: "inst/row/7"}); !cmp.Equal(vm, want) {
		t.Errorf("read back: %+v, want %+v", vm, want)
	}
	spec.Metadata[host.OwnerKey] = "*not base64*"
	if got := host.VMOf(&vmtypes.MicroVM{Spec: spec}).Owner; got != "" {
		t.Errorf("an owner that is not base64 reads as %q", got)
	}
	if got := host.VMOf(nil); !cmp.Equal(got, host.VM{State: host.Pending}) {
		t.Errorf("nothing reads as %+v", got)
	}
}
