package cli

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	pb "poolmgr/api/poolmgr/v1alpha1"
)

// shownHash is how much of a template's hash a table shows: the version of the algorithm and enough to tell two apart.
const shownHash = 15

func (a *app) poolPlan() *cobra.Command {
	c := &cobra.Command{
		Use: "plan --spec-file FILE", Args: none,
		Short: "Show what an update by a spec file would do, and change nothing",
		Long: "The daemon's own planner plays the update: which VMs would be replaced in which order and in how many batches,\n" +
			"how few would be available on the way, and how long it would take by the boots seen so far. It takes for granted\n" +
			"that nothing is claimed meanwhile and that every VM boots. For a pool that does not exist it plays the creation.",
	}
	file := c.Flags().StringP("spec-file", "f", "", "the spec, or - for stdin")
	c.RunE = func(c *cobra.Command, _ []string) error {
		if *file == "" {
			return usagef("--spec-file is missing: name a file with the pool's spec, or - for stdin")
		}
		spec, err := a.readSpec(*file, c.Flags().Changed("namespace"))
		if err != nil {
			return err
		}
		conn, err := a.client()
		if err != nil {
			return err
		}
		planned, err := conn.Rollouts().PlanUpdate(c.Context(), &pb.PlanUpdateRequest{Spec: spec})
		if err != nil {
			return err
		}
		return a.printPlan(spec, planned)
	}
	return c
}

// printPlan writes the numbers, and for people the VMs in their order below them.
func (a *app) printPlan(spec *pb.PoolSpec, p *pb.PlanUpdateResponse) error {
	if err := a.print(p, planTable(spec, p)); err != nil {
		return err
	}
	if a.output != "table" && a.output != "wide" {
		return nil // the answer itself says the rest
	}
	if len(p.GetVmIdsInOrder()) > 0 {
		order := table{columns: []string{"ORDER", "VM"}}
		for i, id := range p.GetVmIdsInOrder() {
			order.add(number(i+1), id)
		}
		if err := a.result([]byte("\n")); err != nil {
			return err
		}
		if err := order.write(a.out, false); err != nil {
			return fmt.Errorf("write the result: %w", err)
		}
	}
	if p.GetFromHash() == "" {
		a.note("pool %s does not exist: this is what its creation would do", title(&pb.PoolRef{Namespace: spec.GetNamespace(), Name: spec.GetName()}))
	}
	for _, sentence := range p.GetExplanations() {
		a.note("%s", sentence)
	}
	return nil
}

func planTable(spec *pb.PoolSpec, p *pb.PlanUpdateResponse) table {
	t := table{
		columns: []string{"NAMESPACE", "NAME", "HASH_CHANGES", "FROM", "TO", "REPLACED", "BATCHES", "LOWEST_AVAILABLE", "ESTIMATE"},
		extra:   []string{"FROM_HASH", "TO_HASH"},
	}
	estimate := ""
	if p.GetEstimate() != nil {
		estimate = short(p.GetEstimate().AsDuration())
	}
	t.add(spec.GetNamespace(), spec.GetName(), yesNo(p.GetHashChanges()), prefix(p.GetFromHash()), prefix(p.GetToHash()),
		number(len(p.GetVmIdsInOrder())), number(p.GetBatches()), number(p.GetLowestAvailable()), estimate,
		p.GetFromHash(), p.GetToHash())
	return t
}

func prefix(hash string) string { return strings.ToValidUTF8(hash[:min(len(hash), shownHash)], "") }
