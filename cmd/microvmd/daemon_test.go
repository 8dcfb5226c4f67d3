package main

import (
	"context"
	"log/slog"
	"net"
	"testing"

	"poolmgr/internal/microvm/hostd"
)

func TestDaemonRunsUntilItsContextEnds(t *testing.T) {
	for name, listen := range map[string]string{"IPv4": "127.0.0.1:0", "by name": "localhost:0"} {
		ctx, cancel := context.WithCancel(within(t))
		d := Daemon{Options: hostd.DefaultOptions(), Listen: listen, Logger: slog.New(slog.DiscardHandler)}
		d.Options.Backend = hostd.BackendSimulated
		d.Ready = func(addr net.Addr) {
			conn, err := net.Dial("tcp", addr.String())
			if err != nil {
				t.Errorf("%s: it is ready and not there: %v", name, err)
			} else {
				conn.Close()
			}
			cancel()
		}
		if err := d.Run(ctx); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestOnlyLoopbackWithoutInsecure(t *testing.T) {
	for listen, allowed := range map[string]bool{
		"127.0.0.1:9090": true, "127.8.8.8:1": true, "[::1]:9090": true, "localhost:9090": true,
		":9090": false, "0.0.0.0:9090": false, "[::]:9090": false, "10.0.0.1:9090": false, "host.example:9090": false,
	} {
		d := Daemon{Listen: listen}
		if err := d.checkListen(); (err == nil) != allowed {
			t.Errorf("--listen %s: %v", listen, err)
		}
		d.Insecure = true
		if err := d.checkListen(); err != nil {
			t.Errorf("--listen %s --insecure: %v", listen, err)
		}
	}
}
