package cli

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "poolmgr/api/poolmgr/v1alpha1"
	"poolmgr/client"
)

// quiet is how long a claim may take before people are told what it waits for.
const quiet = 500 * time.Millisecond

func (a *app) leaseCommands() *cobra.Command {
	return group("lease", "Claim VMs, keep them, use them and give them back",
		a.leaseClaim(), a.leaseHeartbeat(), a.leaseRelease(), a.leaseList(), a.leaseExec(), a.leaseRun())
}

// claimFlags are those of lease claim and lease run.
type claimFlags struct {
	wait                time.Duration
	requestID, consumer string
}

func (f *claimFlags) add(c *cobra.Command) {
	c.Flags().DurationVar(&f.wait, "wait", 0, "how long to queue for a VM; at its end the exit code is 3")
	c.Flags().StringVar(&f.requestID, "request-id", "", "your own id of this claim: repeating it gets the same lease")
	c.Flags().StringVar(&f.consumer, "consumer", "", "who claims, for people to read")
}

func (f *claimFlags) options(a *app, pool string) client.ClaimOptions {
	return client.ClaimOptions{
		Namespace: a.namespace, Pool: pool, Wait: f.wait, RequestID: f.requestID, Consumer: f.consumer,
	}
}

func (a *app) leaseClaim() *cobra.Command {
	c := &cobra.Command{
		Use: "claim POOL", Short: "Take a VM of a pool", Args: exactly("POOL"), ValidArgsFunction: a.completePools,
		Long: "Prints the lease, which ends unless \"lease heartbeat\" extends it. Whoever knows its id may use and release the VM.",
	}
	var flags claimFlags
	flags.add(c)
	c.RunE = func(c *cobra.Command, args []string) error {
		options := flags.options(a, args[0])
		options.NoHeartbeat = true // the lease outlives this process
		lease, err := a.claim(c.Context(), options)
		if err != nil {
			return err
		}
		vm := lease.VM()
		t := table{
			columns: []string{"LEASE", "VM", "HOST", "EXPIRES", "STALE"},
			extra:   []string{"UID", "ADDRESS", "TEMPLATE"},
		}
		t.add(vm.GetLeaseId(), vm.GetVmId(), vm.GetHost().GetName(), until(vm.GetExpiresAt()), yesNo(vm.GetStale()),
			vm.GetVmUid(), vm.GetHost().GetAddress(), vm.GetTemplateHash())
		return a.print(vm, t)
	}
	return c
}

// claim takes a VM. While it waits, people are told what it waits for.
func (a *app) claim(ctx context.Context, o client.ClaimOptions) (*client.Lease, error) {
	if err := within("wait", o.Wait); err != nil {
		return nil, err
	}
	conn, err := a.client()
	if err != nil {
		return nil, err
	}
	begin := time.Now()
	stop := func() {}
	if o.Wait > 0 {
		stop = a.tellOfWaiting(ctx, o.Pool)
	}
	lease, err := conn.Claim(ctx, o)
	stop()
	if status.Code(err) == codes.ResourceExhausted && o.Wait > 0 && time.Since(begin) >= o.Wait {
		return nil, waitError{fmt.Sprintf("waited %v for a VM of pool %s: %s", o.Wait, title(a.ref(o.Pool)), sentence(err))}
	}
	return lease, err
}

// sentence is what the daemon said, without what was wrapped around it.
func sentence(err error) string {
	var answer interface{ GRPCStatus() *status.Status }
	if errors.As(err, &answer) {
		return answer.GRPCStatus().Message()
	}
	return err.Error()
}

// tellOfWaiting shows the pool's state while a claim waits, until stop is called.
func (a *app) tellOfWaiting(ctx context.Context, pool string) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var teller sync.WaitGroup
	teller.Go(func() {
		show := a.progress()
		defer show.done()
		for delay := quiet; ; delay = time.Second {
			select {
			case <-time.After(delay):
			case <-ctx.Done():
				return
			}
			p, err := a.getPool(ctx, pool)
			switch {
			case ctx.Err() != nil:
				return
			case err != nil:
				show.say("waiting for a VM of pool " + title(a.ref(pool)))
			default:
				show.say(fmt.Sprintf("waiting for a VM of pool %s: %s", title(a.ref(pool)), poolState(p, p.GetStatus().GetDesiredCount())))
			}
		}
	})
	return func() {
		cancel()
		teller.Wait()
	}
}

func (a *app) leaseHeartbeat() *cobra.Command {
	return &cobra.Command{
		Use: "heartbeat LEASE", Short: "Extend a lease", Args: exactly("LEASE"),
		RunE: func(c *cobra.Command, args []string) error {
			conn, err := a.client()
			if err != nil {
				return err
			}
			resp, err := conn.Leases().Heartbeat(c.Context(), &pb.HeartbeatRequest{LeaseId: args[0]})
			if err != nil {
				return err
			}
			t := table{columns: []string{"LEASE", "EXPIRES", "OUTDATED"}}
			t.add(args[0], until(resp.GetExpiresAt()), yesNo(resp.GetOutdated()))
			return a.print(resp, t)
		},
	}
}

func (a *app) leaseRelease() *cobra.Command {
	return &cobra.Command{
		Use: "release LEASE", Short: "Give a VM back, to be destroyed", Args: exactly("LEASE"),
		RunE: func(c *cobra.Command, args []string) error {
			conn, err := a.client()
			if err != nil {
				return err
			}
			if _, err := conn.Leases().ReleaseVM(c.Context(), &pb.ReleaseVMRequest{LeaseId: args[0]}); err != nil {
				return err
			}
			return a.printDone("released; the VM is being destroyed")
		},
	}
}

func (a *app) leaseList() *cobra.Command {
	c := &cobra.Command{
		Use: "list", Short: "List leases", Args: none,
		Long: "Lists the leases of one pool, of one namespace with --namespace alone, or of every pool.",
	}
	pool := c.Flags().String("pool", "", "only the leases of this pool")
	c.RunE = func(c *cobra.Command, _ []string) error {
		conn, err := a.client()
		if err != nil {
			return err
		}
		list, err := conn.Leases().ListLeases(c.Context(), &pb.ListLeasesRequest{PoolRef: a.filter(*pool)})
		if err != nil {
			return err
		}
		narrow := a.onlyNamespace(c, *pool)
		shown := &pb.ListLeasesResponse{}
		t := table{
			columns: []string{"LEASE", "NAMESPACE", "POOL", "VM", "CONSUMER", "CLAIMED", "EXPIRES"},
			extra:   []string{"UID", "HEARTBEAT", "REQUEST"},
		}
		for _, l := range list.GetLeases() {
			if narrow && l.GetPoolNamespace() != a.namespace {
				continue
			}
			shown.Leases = append(shown.Leases, l)
			t.add(l.GetLeaseId(), l.GetPoolNamespace(), l.GetPoolName(), l.GetVmId(), l.GetConsumer(), age(l.GetClaimedAt()), until(l.GetExpiresAt()),
				l.GetVmUid(), age(l.GetLastHeartbeatAt()), l.GetRequestId())
		}
		return a.print(shown, t)
	}
	return c
}
