package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	pb "poolmgr/api/poolmgr/v1alpha1"
)

// inputChunk is the most of standard input, in bytes, that one message carries.
const inputChunk = 32 << 10

// Command is what to run inside a VM.
type Command struct {
	Name string   // the program, or with Shell the whole command line
	Args []string // its arguments
	Dir  string   // working folder in the guest; empty = the agent's own
	Env  map[string]string
	// Shell runs Name by the guest's shell.
	Shell bool
	User  string // empty = the agent's own, usually root
	// Timeout makes the guest kill the command after this long, in whole seconds. 0 = never.
	Timeout time.Duration

	Stdin          io.Reader // nil = empty input
	Stdout, Stderr io.Writer // nil = thrown away
}

func (c Command) start(leaseID string) *pb.GuestExecRequest {
	start := &pb.GuestExecStart{
		LeaseId: leaseID, Cmd: c.Name, Args: c.Args, Cwd: c.Dir, Env: c.Env, Shell: c.Shell, User: c.User,
		HasStdin: c.Stdin != nil,
	}
	if c.Timeout > 0 {
		start.Timeout = durationpb.New(c.Timeout)
	}
	return &pb.GuestExecRequest{Payload: &pb.GuestExecRequest_Start{Start: start}}
}

// Exec runs one command inside the VM of a lease and returns its exit code: 126 when it could not be set up, 127 when
// it was not found, 128 + the signal's number when a signal ended it. An error means that the command did not run, or
// that what became of it is not known; it is never repeated. It lasts as long as the command does: bound it by ctx.
//
// The goroutine that feeds Stdin ends with the first Read after the command's own end, as with os/exec.
func (c *Client) Exec(ctx context.Context, leaseID string, command Command) (exitCode int, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stream, err := c.Guests().Exec(ctx)
	if err != nil {
		return 0, fmt.Errorf("run %s in the VM: %w", command.Name, err)
	}
	// A failed Send is io.EOF; Recv below tells the reason.
	if err := stream.Send(command.start(leaseID)); err != nil && !errors.Is(err, io.EOF) {
		return 0, fmt.Errorf("run %s in the VM: %w", command.Name, err)
	}
	if command.Stdin == nil {
		_ = stream.CloseSend() // fails only after the stream has, and then Recv tells
	} else {
		go func() {
			if err := feed(stream, command.Stdin); err != nil {
				cancel(err)
			}
		}()
	}
	code, err := output(stream, command)
	if err == nil {
		return code, nil
	}
	if cause := context.Cause(ctx); cause != nil && !errors.Is(err, cause) {
		err = fmt.Errorf("%w (%w)", cause, err)
	}
	return 0, fmt.Errorf("run %s in the VM: %w", command.Name, err)
}

// feed sends the input. Only a failing reader is an error: of a stream that broke, output tells.
func feed(stream pb.Guest_ExecClient, in io.Reader) error {
	buf := make([]byte, inputChunk)
	for {
		n, err := in.Read(buf)
		if n > 0 {
			piece := &pb.GuestExecRequest{Payload: &pb.GuestExecRequest_Stdin{Stdin: buf[:n]}}
			if stream.Send(piece) != nil {
				return nil
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			_ = stream.Send(&pb.GuestExecRequest{Payload: &pb.GuestExecRequest_StdinEof{StdinEof: true}})
			_ = stream.CloseSend()
			return nil
		case err != nil:
			return fmt.Errorf("read the command's input: %w", err)
		}
	}
}

// output passes on what the command writes, until it has ended.
func output(stream pb.Guest_ExecClient, command Command) (exitCode int, err error) {
	for {
		resp, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return 0, errors.New("the stream ended without an exit code; what became of the command is not known")
		}
		if err != nil {
			return 0, err
		}
		switch p := resp.GetPayload().(type) {
		case *pb.GuestExecResponse_Stdout:
			err = write(command.Stdout, p.Stdout)
		case *pb.GuestExecResponse_Stderr:
			err = write(command.Stderr, p.Stderr)
		case *pb.GuestExecResponse_ExitCode:
			return int(p.ExitCode), nil
		case *pb.GuestExecResponse_Error:
			return 0, errors.New(p.Error)
		}
		if err != nil {
			return 0, fmt.Errorf("pass on the command's output: %w", err)
		}
	}
}

func write(to io.Writer, piece []byte) error {
	if to == nil {
		return nil
	}
	_, err := to.Write(piece)
	return err
}
