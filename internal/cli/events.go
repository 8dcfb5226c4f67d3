package cli

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	pb "poolmgr/api/poolmgr/v1alpha1"
	"poolmgr/client"
)

// eventFormat lines up the columns of events, which cannot be measured before they come.
const eventFormat = "%-6v  %-20s  %-26s  %-24s  %-24s  %s\n"

func (a *app) eventCommands() *cobra.Command {
	return group("events", "Follow what happens", a.eventsTail())
}

func (a *app) eventsTail() *cobra.Command {
	c := &cobra.Command{
		Use: "tail", Short: "Print events, and go on as they happen", Args: none,
		Long: "Begins after the event --after, or with the oldest that is kept. Resumes by itself when the daemon restarts.\n" +
			"Follows one pool, one namespace with --namespace alone, or every pool. -o json prints one object a line.",
	}
	pool := c.Flags().String("pool", "", "only the events of this pool")
	after := c.Flags().Int64("after", 0, "id of the last event that you have seen")
	types := c.Flags().StringSlice("types", nil, "only these types, such as VM_CLAIMED,VM_RELEASED")
	once := c.Flags().Bool("no-follow", false, "end after what has happened so far")
	c.RunE = func(c *cobra.Command, _ []string) error {
		options := client.EventOptions{Pool: a.filter(*pool), After: *after, NoFollow: *once}
		var err error
		if options.Types, err = eventTypes(*types); err != nil {
			return err
		}
		return a.tail(c.Context(), options, a.onlyNamespace(c, *pool))
	}
	return c
}

// eventTypes reads the names of types.
func eventTypes(names []string) ([]pb.EventType, error) {
	var types []pb.EventType
	for _, name := range names {
		value, known := pb.EventType_value[strings.ToUpper(strings.TrimSpace(name))]
		if !known || value == 0 {
			all := slices.DeleteFunc(slices.Sorted(maps.Keys(pb.EventType_value)), func(n string) bool { return pb.EventType_value[n] == 0 })
			return nil, usagef("--types: unknown event type %q; there are %s", name, strings.Join(all, ", "))
		}
		types = append(types, pb.EventType(value))
	}
	return types, nil
}

// tail prints events until there are no more, or until a signal says that it is enough: that is its usual end.
func (a *app) tail(ctx context.Context, o client.EventOptions, narrow bool) error {
	conn, err := a.client()
	if err != nil {
		return err
	}
	if a.output == "table" || a.output == "wide" {
		fmt.Fprintf(a.out, eventFormat, "ID", "TIME", "TYPE", "POOL", "VM", "PAYLOAD")
	}
	for event, err := range conn.Follow(ctx, o) {
		var stopped interrupted
		switch {
		case errors.As(err, &stopped):
			return exitError{exitOK}
		case err != nil:
			return err
		case narrow && event.GetPoolNamespace() != a.namespace:
			continue
		}
		if err := a.printEvent(event); err != nil {
			return err
		}
	}
	return nil
}

func (a *app) printEvent(e *pb.Event) error {
	switch a.output {
	case "json":
		text, err := jsonText(e)
		if err != nil {
			return err
		}
		return a.result(append(text, '\n'))
	case "yaml":
		text, err := yamlText(e)
		if err != nil {
			return err
		}
		return a.result(append([]byte("---\n"), text...))
	}
	pool := ""
	if e.GetPoolName() != "" {
		pool = e.GetPoolNamespace() + "/" + e.GetPoolName()
	}
	_, err := fmt.Fprintf(a.out, eventFormat, e.GetId(), e.GetCreatedAt().AsTime().Format("2006-01-02T15:04:05Z"), e.GetType(),
		cell(pool), cell(e.GetVmUid()), cell(e.GetPayloadJson()))
	if err != nil {
		return fmt.Errorf("write the event: %w", err)
	}
	return nil
}
