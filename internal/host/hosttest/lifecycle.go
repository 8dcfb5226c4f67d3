package hosttest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"poolmgr/internal/host"
)

func testLife(t *testing.T, s *suite) {
	vm := s.create(t, "life-0a1b2c3d")
	if vm.State != host.Pending && vm.State != host.Created {
		t.Errorf("a new VM is %s, want PENDING (or CREATED)", vm.State)
	}
	vm = s.waitState(t, vm.UID, host.Created)
	if vm.Name != "life-0a1b2c3d" || vm.Namespace != s.namespace || vm.Owner != "owner/life-0a1b2c3d" {
		t.Errorf("get: name %q, namespace %q, owner %q", vm.Name, vm.Namespace, vm.Owner)
	}
	if err := s.driver.Delete(s.within(t), vm.UID); err != nil {
		t.Fatalf("delete: %v", err)
	}
	switch after, err := s.driver.Get(s.within(t), vm.UID); {
	case errors.Is(err, host.ErrNotFound):
	case err != nil:
		t.Errorf("get after delete: %v", err)
	case after.State != host.Deleting:
		t.Errorf("get after delete: %s, want DELETING", after.State)
	}
	if err := s.driver.Delete(s.within(t), vm.UID); err != nil && !errors.Is(err, host.ErrNotFound) {
		t.Errorf("delete again: %v; repeating it is harmless", err)
	}
	s.remove(t, vm.UID)
	if _, err := s.driver.Get(s.within(t), vm.UID); !errors.Is(err, host.ErrNotFound) {
		t.Errorf("get of a VM that is gone: %v, want ErrNotFound", err)
	}
	if got := s.list(t, s.namespace, ""); len(got) != 0 {
		t.Errorf("list after the VM is gone: %v", got)
	}
}

func testSameNameTwice(t *testing.T, s *suite) {
	first, second := s.create(t, "twice-0a1b2c3d"), s.create(t, "twice-0a1b2c3d")
	if first.UID == second.UID {
		t.Fatalf("two creates of one name made one uid, %s", first.UID)
	}
	want := []string{first.UID, second.UID}
	slices.Sort(want)
	if diff := gocmp.Diff(want, uids(s.list(t, s.namespace, "twice-0a1b2c3d"))); diff != "" {
		t.Errorf("list by name (-want +got):\n%s", diff)
	}
}

func testConcurrentCreates(t *testing.T, s *suite) {
	const n = 4
	var made sync.Map
	var all sync.WaitGroup
	for range n {
		all.Go(func() {
			vm, err := s.driver.Create(s.within(t), host.SpecFor(s.Template, "crowd-0a1b2c3d", s.namespace, ""))
			if err != nil {
				t.Errorf("create: %v", err)
				return
			}
			made.Store(vm.UID, true)
		})
	}
	all.Wait()
	var want []string
	made.Range(func(uid, _ any) bool {
		want = append(want, uid.(string)) // stored above
		return true
	})
	slices.Sort(want)
	t.Cleanup(func() {
		for _, uid := range want {
			s.remove(t, uid)
		}
	})
	if len(want) != n {
		t.Errorf("%d creates made %d uids", n, len(want))
	}
	if diff := gocmp.Diff(want, uids(s.list(t, s.namespace, ""))); diff != "" {
		t.Errorf("list (-want +got):\n%s", diff)
	}
}

func testDeleteWhilePending(t *testing.T, s *suite) {
	vm := s.create(t, "early-0a1b2c3d")
	if err := s.driver.Delete(s.within(t), vm.UID); err != nil {
		t.Fatalf("delete at once: %v", err)
	}
	s.remove(t, vm.UID)
}

func testList(t *testing.T, s *suite) {
	a, b := s.create(t, "list-aaaaaaaa"), s.create(t, "list-bbbbbbbb")
	other := *s
	other.namespace += "-other"
	c := other.create(t, "list-aaaaaaaa")
	for _, q := range []struct {
		what, namespace, name string
		want                  []string
	}{
		{"by namespace", s.namespace, "", []string{a.UID, b.UID}},
		{"by namespace and name", s.namespace, "list-bbbbbbbb", []string{b.UID}},
		{"the other namespace", other.namespace, "", []string{c.UID}},
		{"an unknown name", s.namespace, "list-cccccccc", nil},
		{"an unknown namespace", s.namespace + "-none", "", nil},
	} {
		slices.Sort(q.want)
		if diff := gocmp.Diff(q.want, uids(s.list(t, q.namespace, q.name))); diff != "" {
			t.Errorf("list %s (-want +got):\n%s", q.what, diff)
		}
	}
	everything := uids(s.list(t, "", ""))
	for _, vm := range []host.VM{a, b, c} {
		if !slices.Contains(everything, vm.UID) {
			t.Errorf("vm %s of namespace %s is not in the listing of everything", vm.UID, vm.Namespace)
		}
	}
	if !slices.IsSortedFunc(everything, cmp.Compare) {
		t.Errorf("the listing is not sorted by uid: %v", everything)
	}
}

func (s *suite) list(t *testing.T, namespace, name string) []host.VM {
	t.Helper()
	vms, err := s.driver.List(s.within(t), namespace, name)
	if err != nil {
		t.Fatalf("list (namespace %q, name %q): %v", namespace, name, err)
	}
	return vms
}

func uids(vms []host.VM) []string {
	var out []string
	for _, vm := range vms {
		out = append(out, vm.UID)
	}
	return out
}

func testUnknownUID(t *testing.T, s *suite) {
	const uid = "01HNOSUCHVM000000000000000"
	if _, err := s.driver.Get(s.within(t), uid); !errors.Is(err, host.ErrNotFound) {
		t.Errorf("get: %v, want ErrNotFound", err)
	}
	if err := s.driver.Delete(s.within(t), uid); !errors.Is(err, host.ErrNotFound) {
		t.Errorf("delete: %v, want ErrNotFound", err)
	}
	input, feed := io.Pipe()
	_, err := s.driver.Exec(s.within(t), host.ExecRequest{UID: uid, Cmd: "true"}, host.ExecStreams{Stdin: input})
	if !errors.Is(err, host.ErrNotFound) {
		t.Errorf("exec: %v, want ErrNotFound", err)
	}
	if _, err := feed.Write([]byte("x")); err == nil {
		t.Error("exec did not close the input of a command that never ran")
	}
}

func testRefusal(t *testing.T, s *suite) {
	_, err := s.driver.Create(s.within(t), host.SpecFor(s.Template, "", s.namespace, ""))
	if !errors.Is(err, host.ErrRefused) {
		t.Errorf("create without an id: %v, want ErrRefused", err)
	}
	if got := s.list(t, s.namespace, ""); len(got) != 0 {
		t.Errorf("a refused create left %v", got)
	}
}

func testInfo(t *testing.T, s *suite) {
	s.create(t, "info-0a1b2c3d")
	info, err := s.driver.Info(s.within(t))
	if err != nil {
		t.Fatalf("info: %v", err)
	}
	if !info.ExecEnabled {
		t.Error("exec is not enabled")
	}
	if info.VMs < 1 {
		t.Errorf("info counts %d VMs, and there is one at least", info.VMs)
	}
}

func testContext(t *testing.T, s *suite) {
	vm := s.create(t, "ctx-0a1b2c3d")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for name, call := range map[string]func() error{
		"create": func() error {
			_, err := s.driver.Create(ctx, host.SpecFor(s.Template, "ctx-11111111", s.namespace, ""))
			return err
		},
		"get":    func() error { _, err := s.driver.Get(ctx, vm.UID); return err },
		"list":   func() error { _, err := s.driver.List(ctx, s.namespace, ""); return err },
		"delete": func() error { return s.driver.Delete(ctx, vm.UID) },
		"info":   func() error { _, err := s.driver.Info(ctx); return err },
		"exec": func() error {
			_, err := s.driver.Exec(ctx, host.ExecRequest{UID: vm.UID, Cmd: "true"}, host.ExecStreams{})
			return err
		},
	} {
		err := call()
		if !errors.Is(err, context.Canceled) || errors.Is(err, host.ErrUnreachable) {
			t.Errorf("%s with a cancelled context: %v; want context.Canceled, and no word against the host", name, err)
		}
	}
	if got := uids(s.list(t, s.namespace, "")); !slices.Equal(got, []string{vm.UID}) {
		t.Errorf("after the cancelled calls the host has %v, want vm %s alone", got, vm.UID)
	}
}

// endless begins a command that has no end of its own and returns when its input was read, so that it is under way.
// What it ends with arrives on the channel.
func (s *suite) endless(t *testing.T, d host.Driver, uid string) <-chan error {
	t.Helper()
	input, feed := io.Pipe()
	t.Cleanup(func() { _ = feed.Close() })
	ended := make(chan error, 1)
	go func() {
		code, err := d.Exec(t.Context(), host.ExecRequest{UID: uid, Cmd: "cat"}, host.ExecStreams{Stdin: input})
		if err == nil && code != 0 {
			err = fmt.Errorf("it was killed: exit code %d", code)
		}
		ended <- err
	}()
	if _, err := feed.Write([]byte("x")); err != nil {
		t.Errorf("write to a command's input: %v", err)
	}
	return ended
}

// mustFail waits until the command ends, which it must not do well.
func (s *suite) mustFail(t *testing.T, ended <-chan error) error {
	t.Helper()
	select {
	case err := <-ended:
		if err == nil {
			t.Error("the command ended well")
		}
		return err
	case <-s.within(t).Done():
		t.Fatal("the command goes on")
		return nil
	}
}

func testExecEndsWithVM(t *testing.T, s *suite) {
	vm := s.create(t, "ends-0a1b2c3d")
	s.waitGuest(t, vm.UID)
	ended := s.endless(t, s.driver, vm.UID)
	s.remove(t, vm.UID)
	_ = s.mustFail(t, ended)
}

func testClose(t *testing.T, s *suite) {
	vm := s.create(t, "close-0a1b2c3d")
	s.waitGuest(t, vm.UID)
	second := s.Dial(t)
	ended := s.endless(t, second, vm.UID)
	if err := second.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
	if err := s.mustFail(t, ended); !errors.Is(err, host.ErrUnreachable) {
		t.Errorf("a command whose driver was closed: %v, want ErrUnreachable", err)
	}
	if _, err := second.Info(s.within(t)); !errors.Is(err, host.ErrUnreachable) {
		t.Errorf("info over a closed driver: %v, want ErrUnreachable", err)
	}
	if code, err := s.driver.Exec(s.within(t), host.ExecRequest{UID: vm.UID, Cmd: "true"}, host.ExecStreams{}); code != 0 || err != nil {
		t.Errorf("the VM after a driver was closed: %d, %v; it lives on, and other drivers too", code, err)
	}
}
