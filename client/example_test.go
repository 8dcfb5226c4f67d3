package client_test

import (
	"context"
	"fmt"
	"os"
	"time"

	"poolmgr/client"
)

// A job in a VM of its own: claimed within a minute, kept alive while the command runs, and given back.
func Example() {
	ctx := context.Background()
	c, err := client.Dial("127.0.0.1:7070")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()
	lease, err := c.Claim(ctx, client.ClaimOptions{Pool: "quickstart", Wait: time.Minute, Consumer: "example"})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() {
		if err := lease.Release(ctx); err != nil {
			fmt.Println(err)
		}
	}()
	code, err := lease.Exec(ctx, client.Command{Name: "uname", Args: []string{"-a"}, Stdout: os.Stdout})
	fmt.Println(code, err)
}

// Every event of every pool, from the oldest that is kept; breaks of the connection do not show.
func ExampleClient_Follow() {
	c, err := client.Dial("127.0.0.1:7070")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()
	for event, err := range c.Follow(context.Background(), client.EventOptions{}) {
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(event.GetId(), event.GetType(), event.GetPoolName())
	}
}
