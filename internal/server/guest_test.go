package server_test

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "poolmgr/api/poolmgr/v1alpha1"
	"poolmgr/internal/host"
	"poolmgr/internal/host/fake"
)

// command is what came of an Exec.
type command struct {
	stdout, stderr bytes.Buffer
	code           int32
	exited         bool
	complaint      string
}

func (r *rig) open(first *pb.GuestExecRequest) pb.Guest_ExecClient {
	r.Helper()
	stream, err := r.guests.Exec(r.ctx())
	r.must(err)
	if first != nil {
		r.must(stream.Send(first))
	}
	return stream
}

func start(s *pb.GuestExecStart) *pb.GuestExecRequest {
	return &pb.GuestExecRequest{Payload: &pb.GuestExecRequest_Start{Start: s}}
}

func stdin(text string) *pb.GuestExecRequest {
	return &pb.GuestExecRequest{Payload: &pb.GuestExecRequest_Stdin{Stdin: []byte(text)}}
}

func eof() *pb.GuestExecRequest {
	return &pb.GuestExecRequest{Payload: &pb.GuestExecRequest_StdinEof{StdinEof: true}}
}

// outcome reads a stream to its end.
func outcome(stream pb.Guest_ExecClient) (*command, error) {
	c := &command{}
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return c, nil
		}
		if err != nil {
			return c, err
		}
		switch p := m.GetPayload().(type) {
		case *pb.GuestExecResponse_Stdout:
			c.stdout.Write(p.Stdout)
		case *pb.GuestExecResponse_Stderr:
			c.stderr.Write(p.Stderr)
		case *pb.GuestExecResponse_ExitCode:
			c.code, c.exited = p.ExitCode, true
		case *pb.GuestExecResponse_Error:
			c.complaint = p.Error
		}
	}
}

// leased makes a pool of one VM, claims it and returns the lease.
func (r *rig) leased() string {
	r.Helper()
	r.filled(spec(1))
	return r.claim().GetLeaseId()
}

func TestExecPassesOutputAndExitCodeOn(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		lease := r.leased()
		long := strings.Repeat("0123456789", 20_000)
		r.hosts[0].Script("report", fake.Reply{Code: 42, Stdout: long, Stderr: "careful\n"})
		stream := r.open(start(&pb.GuestExecStart{LeaseId: lease, Cmd: "report"}))
		r.must(stream.CloseSend())
		got, err := outcome(stream)
		r.must(err)
		if got.stdout.String() != long || got.stderr.String() != "careful\n" || !got.exited || got.code != 42 {
			t.Errorf("%d bytes, %q, %d", got.stdout.Len(), got.stderr.String(), got.code)
		}
		shell, err := outcome(r.open(start(&pb.GuestExecStart{LeaseId: lease, Cmd: "echo a >&2 ; exit 3", Shell: true})))
		r.must(err)
		if shell.stderr.String() != "a\n" || shell.code != 3 {
			t.Errorf("shell: %q, %d", shell.stderr.String(), shell.code)
		}
	})
}

func TestExecFeedsTheInput(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		lease := r.leased()
		for name, end := range map[string]func(pb.Guest_ExecClient){
			"stdin_eof":      func(s pb.Guest_ExecClient) { r.must(s.Send(eof())) },
			"half a hang-up": func(s pb.Guest_ExecClient) { r.must(s.CloseSend()) },
		} {
			stream := r.open(start(&pb.GuestExecStart{LeaseId: lease, Cmd: "cat", HasStdin: true}))
			r.must(stream.Send(stdin("one ")))
			r.must(stream.Send(stdin("two")))
			end(stream)
			got, err := outcome(stream)
			if err != nil || got.stdout.String() != "one two" || !got.exited || got.code != 0 {
				t.Errorf("%s: %q, %v", name, got.stdout.String(), err)
			}
		}
		// A command that ends without reading its input ends the stream all the same.
		stream := r.open(start(&pb.GuestExecStart{LeaseId: lease, Cmd: "false", HasStdin: true}))
		got, err := outcome(stream)
		if err != nil || !got.exited || got.code != 1 {
			t.Errorf("input that nobody reads: %+v, %v", got, err)
		}
	})
}

func TestExecThatIsRefused(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		lease := r.leased()
		ok := &pb.GuestExecStart{LeaseId: lease, Cmd: "true"}
		for name, c := range map[string]struct {
			first *pb.GuestExecRequest
			code  codes.Code
			text  string
		}{
			"unknown lease":     {start(&pb.GuestExecStart{LeaseId: "nosuch", Cmd: "true"}), codes.NotFound, "no such lease"},
			"no lease":          {start(&pb.GuestExecStart{Cmd: "true"}), codes.InvalidArgument, "start.lease_id"},
			"no command":        {start(&pb.GuestExecStart{LeaseId: lease}), codes.InvalidArgument, "start.cmd"},
			"input first":       {stdin("x"), codes.InvalidArgument, "first message"},
			"empty message":     {&pb.GuestExecRequest{}, codes.InvalidArgument, "first message"},
			"negative timeout":  {start(&pb.GuestExecStart{LeaseId: lease, Cmd: "true", Timeout: durationpb.New(-1)}), codes.InvalidArgument, "start.timeout"},
			"timeout for ever":  {start(&pb.GuestExecStart{LeaseId: lease, Cmd: "true", Timeout: &durationpb.Duration{Seconds: 300e9}}), codes.InvalidArgument, "start.timeout"},
			"timeout of a week": {start(&pb.GuestExecStart{LeaseId: lease, Cmd: "true", Timeout: durationpb.New(168 * time.Hour)}), codes.InvalidArgument, "start.timeout"},
		} {
			_, err := outcome(r.open(c.first))
			t.Log(name)
			r.refused(err, c.code, c.text)
		}
		silent := r.open(nil)
		r.must(silent.CloseSend())
		_, err := outcome(silent)
		r.refused(err, codes.InvalidArgument, "first message")
		_, err = outcome(r.open(nil)) // a stream that says nothing does not stay for ever
		r.refused(err, codes.DeadlineExceeded, "no start came")

		for name, second := range map[string]*pb.GuestExecRequest{
			"a second start": start(ok), "input without has_stdin": stdin("x"), "an empty message": {},
		} {
			stream := r.open(start(&pb.GuestExecStart{LeaseId: lease, Cmd: "hang"}))
			r.must(stream.Send(second))
			_, err := outcome(stream)
			t.Log(name)
			r.refused(err, codes.InvalidArgument)
		}
		stream := r.open(start(&pb.GuestExecStart{LeaseId: lease, Cmd: "hang", HasStdin: true}))
		r.must(stream.Send(eof()))
		r.must(stream.Send(stdin("x")))
		_, err = outcome(stream)
		r.refused(err, codes.InvalidArgument, "stdin_eof came before")
	})
}

func TestExecEndsWithItsTimeout(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		lease := r.leased()
		began := time.Now()
		_, err := outcome(r.open(start(&pb.GuestExecStart{LeaseId: lease, Cmd: "hang", Timeout: durationpb.New(7 * time.Second)})))
		r.refused(err, codes.DeadlineExceeded, "did not end in time")
		if took := time.Since(began); took != 7*time.Second {
			t.Errorf("it took %s", took)
		}
		// A guest that does not even report its time limit is given up on.
		r.hosts[0].KillGuest(r.hosts[0].VMs()[0].UID)
		_, err = outcome(r.open(start(&pb.GuestExecStart{LeaseId: lease, Cmd: "true", Timeout: durationpb.New(7 * time.Second)})))
		r.refused(err, codes.DeadlineExceeded)
	})
}

func TestExecEndsWithItsCaller(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		ended := make(chan error, 1)
		r.filled(spec(1))
		lease := r.claim()
		r.hosts[0].Inject(fake.Fault{Op: fake.Exec, Match: func(c fake.Call) bool { return c.Line == "true" }, Hang: true})
		stream := r.open(start(&pb.GuestExecStart{LeaseId: lease.GetLeaseId(), Cmd: "hang", HasStdin: true}))
		go func() {
			_, err := outcome(stream)
			ended <- err
		}()
		synctest.Wait()
		r.must(r.conn.Close())
		r.refused(<-ended, codes.Canceled)
		synctest.Wait()
		r.services.Wait() // no goroutine of the stream is left, although nobody told the host
	})
}

func TestExecWhenTheVMOrItsHostIsLost(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		r.filled(spec(2))
		one, two := r.claim(), r.claim()
		r.hosts[0].Script("odd", fake.Reply{Err: errors.New("agent said \xff no")})
		got, err := outcome(r.open(start(&pb.GuestExecStart{LeaseId: one.GetLeaseId(), Cmd: "odd"})))
		if err != nil || got.exited || !strings.Contains(got.complaint, "agent said") {
			t.Errorf("an outcome that is not known is told as an error: %+v, %v", got, err)
		}
		r.hosts[0].FailNext(fake.Exec, 1, host.ErrExecDisabled)
		_, err = outcome(r.open(start(&pb.GuestExecStart{LeaseId: two.GetLeaseId(), Cmd: "true"})))
		r.refused(err, codes.FailedPrecondition, "enable exec")
		r.hosts[0].Vanish(one.GetVmUid())
		_, err = outcome(r.open(start(&pb.GuestExecStart{LeaseId: one.GetLeaseId(), Cmd: "true"})))
		r.refused(err, codes.Aborted, "gone", "claim another")
		r.hosts[0].Down()
		_, err = outcome(r.open(start(&pb.GuestExecStart{LeaseId: two.GetLeaseId(), Cmd: "true"})))
		r.refused(err, codes.Unavailable, "does not answer")
	})
}

func TestExecIsEndedWhenTheDaemonMustGo(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		stream := r.open(start(&pb.GuestExecStart{LeaseId: r.leased(), Cmd: "hang"}))
		synctest.Wait()
		close(r.stopping) // commands go on for a while
		r.pass(time.Second)
		close(r.cutoff)
		_, err := outcome(stream)
		r.refused(err, codes.Unavailable, "its lease live on")
	})
}
