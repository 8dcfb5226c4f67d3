package flintlock

import (
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	microvmv1alpha1 "poolmgr/api/flintlock/microvm/v1alpha1"
	microvmexecv1alpha1 "poolmgr/api/flintlock/microvmexec/v1alpha1"
	"poolmgr/api/flintlock/vmtypes"
	"poolmgr/internal/host"
)

// Config is what a Driver needs besides its connection.
type Config struct {
	Name   string       // the host's name, for errors and logs
	Logger *slog.Logger // required
	Token  string       // basic-auth token of the host's API, in clear; empty = none is sent
	Limits Limits
}

// Driver is a host.Driver over flintlock's API.
type Driver struct {
	name    string
	log     *slog.Logger
	auth    string // value of the authorization header; empty = none
	vms     microvmv1alpha1.MicroVMClient
	execs   microvmexecv1alpha1.MicroVMExecClient
	lanes   lanes
	breaker breaker
	conn    io.Closer // nil where the connection is somebody else's

	life context.Context // the driver's life, ended by Close
	end  context.CancelCauseFunc
}

var _ host.Driver = (*Driver)(nil)

var errClosed = errors.New("the driver was closed")

// New makes a driver over a connection that stays its owner's: Close ends the driver's calls only.
func New(conn grpc.ClientConnInterface, cfg Config) *Driver {
	life, end := context.WithCancelCause(context.Background())
	d := &Driver{
		name:    cfg.Name,
		log:     cfg.Logger,
		vms:     microvmv1alpha1.NewMicroVMClient(conn),
		execs:   microvmexecv1alpha1.NewMicroVMExecClient(conn),
		lanes:   newLanes(cfg.Limits),
		breaker: newBreaker(),
		life:    life,
		end:     end,
	}
	if cfg.Token != "" {
		d.auth = "basic " + base64.StdEncoding.EncodeToString([]byte(cfg.Token))
	}
	return d
}

// Create implements host.Driver.
func (d *Driver) Create(ctx context.Context, spec *vmtypes.MicroVMSpec) (host.VM, error) {
	var vm host.VM
	doing := fmt.Sprintf("create vm %s/%s", spec.GetNamespace(), spec.GetId())
	err := d.unary(ctx, opCreate, doing, func(ctx context.Context) error {
		answer, err := d.vms.CreateMicroVM(ctx, &microvmv1alpha1.CreateMicroVMRequest{Microvm: spec})
		vm = host.VMOf(answer.GetMicrovm())
		return err
	})
	if err != nil {
		return host.VM{}, err
	}
	if vm.UID == "" {
		return host.VM{}, fmt.Errorf("%s on host %s: the host accepted it without a uid; look for it by name", doing, d.name)
	}
	return vm, nil
}

// Get implements host.Driver.
func (d *Driver) Get(ctx context.Context, uid string) (host.VM, error) {
	var vm host.VM
	err := d.unary(ctx, opGet, "get vm "+uid, func(ctx context.Context) error {
		answer, err := d.vms.GetMicroVM(ctx, &microvmv1alpha1.GetMicroVMRequest{Uid: uid})
		vm = host.VMOf(answer.GetMicrovm())
		return err
	})
	if err != nil {
		return host.VM{}, err
	}
	if vm.UID != uid {
		return host.VM{}, fmt.Errorf("get vm %s on host %s: the host answered with vm %q", uid, d.name, vm.UID)
	}
	return vm, nil
}

// List implements host.Driver.
func (d *Driver) List(ctx context.Context, namespace, name string) ([]host.VM, error) {
	var vms []host.VM
	doing := fmt.Sprintf("list vms (namespace %q, name %q)", namespace, name)
	err := d.unary(ctx, opList, doing, func(ctx context.Context) (err error) {
		vms, err = d.list(ctx, namespace, name)
		return err
	})
	return vms, err
}

// list asks for a listing and trusts no filter of the host's: what was not asked for is dropped.
func (d *Driver) list(ctx context.Context, namespace, name string, opts ...grpc.CallOption) ([]host.VM, error) {
	req := &microvmv1alpha1.ListMicroVMsRequest{Namespace: namespace}
	if name != "" {
		req.Name = &name
	}
	answer, err := d.vms.ListMicroVMs(ctx, req, opts...)
	if err != nil {
		return nil, err
	}
	var vms []host.VM
	for _, m := range answer.GetMicrovm() {
		vm := host.VMOf(m)
		if (namespace == "" || vm.Namespace == namespace) && (name == "" || vm.Name == name) {
			vms = append(vms, vm)
		}
	}
	slices.SortFunc(vms, func(a, b host.VM) int { return cmp.Compare(a.UID, b.UID) })
	return vms, nil
}

// Delete implements host.Driver.
func (d *Driver) Delete(ctx context.Context, uid string) error {
	return d.unary(ctx, opDelete, "delete vm "+uid, func(ctx context.Context) error {
		_, err := d.vms.DeleteMicroVM(ctx, &microvmv1alpha1.DeleteMicroVMRequest{Uid: uid})
		return err
	})
}

// nobody is a uid that no VM has: asking for a command in it tells whether exec is switched on, and runs nothing.
const nobody = "poolmgr-exec-probe"

// Info implements host.Driver. Exec is enabled when a command for an unknown VM is refused in any other way than
// UNIMPLEMENTED. flintlock's API has no call that tells its version.
func (d *Driver) Info(ctx context.Context) (host.Info, error) {
	var info host.Info
	err := d.unary(ctx, opInfo, "ask for info", func(ctx context.Context) error {
		var header metadata.MD
		vms, err := d.list(ctx, "", "", grpc.Header(&header))
		if err != nil {
			return err
		}
		info.VMs, info.Limits = len(vms), readLimits(header)
		info.ExecEnabled, err = d.probeExec(ctx)
		return err
	})
	if err != nil {
		return host.Info{}, err
	}
	return info, nil
}

func (d *Driver) probeExec(ctx context.Context) (enabled bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // ends the stream
	stream, err := d.execs.ExecCommand(ctx)
	if err != nil {
		return execEnabled(err)
	}
	start := startMessage(host.ExecRequest{UID: nobody, Cmd: "true", Timeout: time.Second}, false)
	if err := stream.Send(start); err != nil && !errors.Is(err, io.EOF) { // EOF: Recv tells why
		return execEnabled(err)
	}
	if err := stream.CloseSend(); err != nil {
		return execEnabled(err)
	}
	_, err = stream.Recv()
	return execEnabled(err)
}

// Close implements host.Driver: it ends the calls in flight, and the connection where it is the driver's own.
func (d *Driver) Close() error {
	d.end(errClosed)
	if d.conn == nil {
		return nil
	}
	if err := d.conn.Close(); err != nil {
		return fmt.Errorf("close the connection to host %s: %w", d.name, err)
	}
	return nil
}

// unary makes one bounded call: a slot, the breaker, a deadline, and the error in our terms.
func (d *Driver) unary(ctx context.Context, op op, doing string, call func(context.Context) error) error {
	limit := host.CallTimeout
	if op == opCreate {
		limit = host.CreateTimeout
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	ctx, leave := d.join(ctx)
	defer leave()

	release, err := d.lanes.calls.enter(ctx)
	if err != nil {
		return fmt.Errorf("%s on host %s: %w", doing, d.name, d.cause(err))
	}
	defer release()
	pass, err := d.breaker.admit(time.Now(), true)
	if err != nil {
		return fmt.Errorf("%s on host %s: %w", doing, d.name, err)
	}
	began := time.Now()
	err = call(ctx)
	d.settle(pass, verdictOf(err, time.Since(began)))
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s on host %s: %w", doing, d.name, d.cause(translate(op, err, ended(ctx))))
}

// join ties a call to the driver's life and adds the credentials; leave ends the call.
func (d *Driver) join(ctx context.Context) (joined context.Context, leave func()) {
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(d.life, cancel)
	if d.auth != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", d.auth)
	}
	return ctx, func() { stop(); cancel() }
}

// cause says that the driver was closed where that is why a call failed.
func (d *Driver) cause(err error) error {
	if d.life.Err() != nil {
		return fmt.Errorf("%w: %w", host.ErrUnreachable, context.Cause(d.life))
	}
	return err
}

// settle tells the breaker how a call went, and logs when that changed its mind.
func (d *Driver) settle(p pass, v verdict) {
	switch d.breaker.record(time.Now(), p, v) {
	case tripped:
		d.log.Warn("the host does not answer; calls fail fast until it does", "host", d.name)
	case recovered:
		d.log.Info("the host answers again", "host", d.name)
	case unchanged:
	}
}
