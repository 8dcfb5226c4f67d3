package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	microvmv1alpha1 "poolmgr/api/flintlock/microvm/v1alpha1"
	microvmexecv1alpha1 "poolmgr/api/flintlock/microvmexec/v1alpha1"
	"poolmgr/api/flintlock/vmtypes"
)

// limit is far beyond what anything of these tests takes.
const limit = time.Minute

// binary builds microvmd once for all tests that run it.
var binary = sync.OnceValues(func() (string, error) {
	path := filepath.Join(binaryDir, "microvmd")
	out, err := exec.Command("go", "build", "-o", path, ".").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("build microvmd: %w: %s", err, out)
	}
	return path, nil
})

var binaryDir string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "microvmd-test-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	binaryDir = dir
	code := m.Run()
	os.RemoveAll(dir)
	os.Exit(code)
}

func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	t.Cleanup(cancel)
	return ctx
}

// process is a running microvmd.
type process struct {
	cmd  *exec.Cmd
	logs chan string // its last words, once it has ended
	addr string
	conn *grpc.ClientConn
}

var addrInLog = regexp.MustCompile(`msg="microvmd serves" addr=(\S+)`)

// start runs the binary and waits until it serves.
func start(t *testing.T, args ...string) *process {
	t.Helper()
	path, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	p := &process{cmd: exec.Command(path, append([]string{"--listen", "127.0.0.1:0", "--backend", "simulated"}, args...)...), logs: make(chan string, 1)}
	stderr, err := p.cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	addr := make(chan string, 1)
	go func() {
		var all strings.Builder
		for lines := bufio.NewScanner(stderr); lines.Scan(); {
			fmt.Fprintln(&all, lines.Text())
			if found := addrInLog.FindStringSubmatch(lines.Text()); found != nil {
				addr <- found[1]
			}
		}
		p.logs <- all.String()
	}()
	t.Cleanup(func() { _ = p.stop(syscall.SIGKILL) })
	select {
	case p.addr = <-addr:
	case logs := <-p.logs:
		t.Fatalf("microvmd ended: %s", logs)
	case <-within(t).Done():
		t.Fatal("microvmd does not serve")
	}
	p.conn, err = grpc.NewClient(p.addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// stop signals the process and waits for its end; doing it again does nothing.
func (p *process) stop(signal os.Signal) error {
	if p.cmd.ProcessState != nil {
		return nil
	}
	if p.conn != nil {
		p.conn.Close()
	}
	if err := p.cmd.Process.Signal(signal); err != nil {
		return err
	}
	<-p.logs // the pipe is read to its end before Wait closes it
	return p.cmd.Wait()
}

func (p *process) create(ctx context.Context, id string) (string, error) {
	answer, err := microvmv1alpha1.NewMicroVMClient(p.conn).CreateMicroVM(ctx, &microvmv1alpha1.CreateMicroVMRequest{
		Microvm: &vmtypes.MicroVMSpec{
			Id: id, Namespace: "default", Vcpu: 1, MemoryInMb: 128, AllowGuestAgent: true,
			Kernel: &vmtypes.Kernel{Image: "local:base", Cmdline: map[string]string{"id": id}},
		},
	})
	return answer.GetMicrovm().GetSpec().GetUid(), err
}

// states is what is listed: states by uid.
func (p *process) states(t *testing.T) map[string]string {
	t.Helper()
	answer, err := microvmv1alpha1.NewMicroVMClient(p.conn).ListMicroVMs(within(t), &microvmv1alpha1.ListMicroVMsRequest{})
	if err != nil {
		t.Fatalf("list: %v", err)
	}
	found := map[string]string{}
	for _, vm := range answer.GetMicrovm() {
		found[vm.GetSpec().GetUid()] = vm.GetStatus().GetState().String()
	}
	return found
}

// waitState polls until the machine has this state; "" is gone.
func (p *process) waitState(t *testing.T, uid, want string) {
	t.Helper()
	ctx := within(t)
	pause := time.NewTicker(10 * time.Millisecond)
	defer pause.Stop()
	for {
		got := p.states(t)[uid]
		if got == want {
			return
		}
		select {
		case <-pause.C:
		case <-ctx.Done():
			t.Fatalf("microvm %s is %q, want %q", uid, got, want)
		}
	}
}

// run gives a command's standard output, if it ends well.
func (p *process) run(t *testing.T, uid, line string) string {
	t.Helper()
	stream, err := microvmexecv1alpha1.NewMicroVMExecClient(p.conn).ExecCommand(within(t))
	if err != nil {
		t.Fatal(err)
	}
	start := &microvmexecv1alpha1.ExecCommandRequest_Start{Start: &microvmexecv1alpha1.ExecStart{Uid: uid, Cmd: line, Shell: true}}
	if err := stream.Send(&microvmexecv1alpha1.ExecCommandRequest{Payload: start}); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	for {
		msg, err := stream.Recv()
		if err != nil {
			t.Fatalf("exec %q: %v", line, err)
		}
		out.Write(msg.GetStdout())
		if end, ok := msg.GetPayload().(*microvmexecv1alpha1.ExecCommandResponse_ExitCode); ok {
			if end.ExitCode != 0 {
				t.Fatalf("exec %q: exit code %d", line, end.ExitCode)
			}
			return out.String()
		}
	}
}

func TestSimulatedMachinesSurviveKill9(t *testing.T) {
	dir := t.TempDir()
	p := start(t, "--state-dir", dir, "--boot-delay", "0", "--boot-jitter", "0", "--delete-delay", "1h")
	up, err := p.create(within(t), "up")
	if err != nil {
		t.Fatal(err)
	}
	deleting, err := p.create(within(t), "deleting")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := microvmv1alpha1.NewMicroVMClient(p.conn).DeleteMicroVM(within(t), &microvmv1alpha1.DeleteMicroVMRequest{Uid: deleting}); err != nil {
		t.Fatal(err)
	}
	_ = p.stop(syscall.SIGKILL)

	p = start(t, "--state-dir", dir, "--boot-delay", "0", "--boot-jitter", "0", "--delete-delay", "0")
	if got := p.run(t, up, "cat /proc/cmdline"); got != "id=up\n" {
		t.Errorf("the guest says %q after the restart", got)
	}
	p.waitState(t, deleting, "DELETING") // as long as was decided when it was asked for
	booting, err := p.create(within(t), "booting")
	if err != nil {
		t.Fatal(err)
	}
	p.waitState(t, booting, "CREATED")
	if _, err := microvmv1alpha1.NewMicroVMClient(p.conn).DeleteMicroVM(within(t), &microvmv1alpha1.DeleteMicroVMRequest{Uid: up}); err != nil {
		t.Fatal(err)
	}
	p.waitState(t, up, "")
	if err := p.stop(syscall.SIGTERM); err != nil {
		t.Errorf("SIGTERM: %v, want exit code 0", err)
	}
}

// TestKill9LosesNoAnsweredCreate kills the daemon again and again while machines
// are being made: what was answered is there afterwards.
func TestKill9LosesNoAnsweredCreate(t *testing.T) {
	dir := t.TempDir()
	answered := map[string]bool{}
	for round := range 4 {
		p := start(t, "--state-dir", dir, "--boot-delay", "100ms")
		for uid := range answered {
			if p.states(t)[uid] == "" {
				t.Errorf("round %d: microvm %s is lost", round, uid)
			}
		}
		ctx := within(t)
		uids := make(chan string, 1)
		var creators sync.WaitGroup
		for i := range 4 {
			creators.Go(func() {
				for n := 0; ; n++ {
					uid, err := p.create(ctx, fmt.Sprintf("vm-%d-%d-%d", round, i, n))
					if err != nil {
						return // it was killed
					}
					uids <- uid
				}
			})
		}
		for range 25 {
			select {
			case uid := <-uids:
				answered[uid] = true
			case <-ctx.Done():
				t.Fatal("the creates take too long")
			}
		}
		killed := make(chan struct{})
		go func() { // creators that got an answer go on
			defer close(killed)
			_ = p.cmd.Process.Kill()
			creators.Wait()
			close(uids)
		}()
		for uid := range uids {
			answered[uid] = true
		}
		<-killed
		_ = p.stop(syscall.SIGKILL)
	}
	p := start(t, "--state-dir", dir)
	states := p.states(t)
	for uid := range answered {
		if states[uid] == "" {
			t.Errorf("microvm %s is lost", uid)
		}
	}
	t.Logf("%d answered, %d found", len(answered), len(states))
}

func TestOneLineSaysWhatToDo(t *testing.T) {
	path, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	p := start(t, "--state-dir", dir)
	for name, c := range map[string]struct {
		args []string
		code int
		want []string
	}{
		"port in use":     {[]string{"--backend", "simulated", "--listen", p.addr}, 1, []string{p.addr, "in use", "--listen"}},
		"folder in use":   {[]string{"--backend", "simulated", "--listen", "127.0.0.1:0", "--state-dir", dir}, 1, []string{dir, "--state-dir", fmt.Sprint(p.cmd.Process.Pid)}},
		"not on loopback": {[]string{"--backend", "simulated", "--listen", "0.0.0.0:0"}, 1, []string{"--insecure", "127.0.0.1"}},
		"no backend":      {nil, 1, []string{"--backend"}},
		"unknown flag":    {[]string{"--turbo"}, 2, []string{"--turbo", "--help"}},
		"an argument":     {[]string{"start"}, 2, []string{`"start"`}},
		"log level":       {[]string{"--log-level", "loud"}, 2, []string{"--log-level", "loud"}},
		"no port":         {[]string{"--listen", "localhost"}, 2, []string{"--listen", "HOST:PORT"}},
	} {
		out, err := exec.CommandContext(within(t), path, c.args...).CombinedOutput()
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() != c.code {
			t.Errorf("%s: %v, want exit code %d", name, err, c.code)
		}
		text := strings.TrimSuffix(string(out), "\n")
		if strings.Contains(text, "\n") || !strings.HasPrefix(text, "microvmd: ") {
			t.Errorf("%s: not one line of ours: %q", name, text)
		}
		for _, part := range c.want {
			if !strings.Contains(text, part) {
				t.Errorf("%s: %q does not say %q", name, text, part)
			}
		}
	}
}
