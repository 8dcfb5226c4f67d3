package e2e

import (
	"encoding/xml"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	pb "poolmgr/api/poolmgr/v1alpha1"
)

// The picture of docs/rollouts.md is made by
//
//	go test ./test/e2e -run TestRolloutPicture -picture "$PWD/docs/rollout.svg"
var pictureFile = flag.String("picture", "", "write the picture of a rollout to this file")

// moment is what a pool was made of at one time.
type moment struct {
	at       time.Duration // since the update
	old, new int           // available VMs of the old and of the new template
}

// TestRolloutPicture draws a rollout as it happened: old and new VMs over time, and the floor that they never go below.
func TestRolloutPicture(t *testing.T) {
	const size, budget = 12, 3
	policy := fmt.Sprintf("rollout_policy: {count: %d}", budget)
	d := startPoolmgrd(t, "--db", filepath.Join(t.TempDir(), "poolmgr.db"), "--embedded-host", "simulated",
		"--host-boot-delay", "1s", "--host-boot-jitter", "500ms")
	d.ok("pool", "create", "--spec-file", versionSpec(t, "web", size, 1, policy))
	d.ok("pool", "wait", "web", "--available", fmt.Sprint(size), "--timeout", "1m")
	d.rolledOut("web")
	moments := d.record(t, versionSpec(t, "web", size, 2, policy), size)
	for _, m := range moments {
		if m.old+m.new < size-budget {
			t.Errorf("%d available %s after the update, the budget of %d demands %d", m.old+m.new, m.at, budget, size-budget)
		}
	}
	picture := drawRollout(moments, size, size-budget)
	for dec := xml.NewDecoder(strings.NewReader(picture)); ; {
		if _, err := dec.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatalf("the picture is not XML: %v", err)
		}
	}
	if *pictureFile != "" {
		if err := os.WriteFile(*pictureFile, []byte(picture), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// record updates the pool "web" and writes down every change of its make-up until all of its VMs are new.
func (d *daemon) record(t *testing.T, spec string, size int) []moment {
	t.Helper()
	conn, err := grpc.NewClient(d.addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	moments := []moment{{old: size}}
	d.ok("pool", "update", "--spec-file", spec)
	began := time.Now()
	eventually(t, "every VM is new", time.Minute, func() bool {
		list, err := pb.NewVMAdminClient(conn).ListVMs(t.Context(), &pb.ListVMsRequest{})
		if err != nil {
			t.Fatal(err)
		}
		now, last := moment{at: time.Since(began)}, moments[len(moments)-1]
		for _, v := range list.GetVms() {
			switch {
			case v.GetPhase() != pb.VMPhase_AVAILABLE:
			case v.GetRevision() == 1:
				now.old++
			default:
				now.new++
			}
		}
		if now.old != last.old || now.new != last.new {
			moments = append(moments, now)
		}
		return now.new == size
	})
	return moments
}

// The picture's measures, in pixels.
const (
	pictureWidth, pictureHeight = 640, 240
	plotLeft, plotTop           = 40, 34
	plotWidth, plotHeight       = pictureWidth - plotLeft - 16, pictureHeight - plotTop - 34
)

// drawRollout draws the old VMs on top of the new ones over time, as areas with steps, and lines at the size and the floor.
func drawRollout(moments []moment, size, floor int) string {
	end := moments[len(moments)-1].at * 11 / 10
	x := func(at time.Duration) float64 { return plotLeft + plotWidth*at.Seconds()/end.Seconds() }
	y := func(n int) float64 { return plotTop + plotHeight - plotHeight*float64(n)/float64(size+1) }
	area := func(height func(moment) int) string {
		path := fmt.Sprintf("M%.1f %.1f", x(0), y(0))
		for _, m := range moments {
			path += fmt.Sprintf("H%.1fV%.1f", x(m.at), y(height(m)))
		}
		return path + fmt.Sprintf("H%.1fV%.1fZ", x(end), y(0))
	}
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	line(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="12" fill="#444" role="img">`, pictureWidth, pictureHeight)
	line(`<title>Available VMs during a rollout of %d VMs with a budget of %d</title>`, size, size-floor)
	line(`<rect width="100%%" height="100%%" fill="#fff"/>`)
	line(`<path d="%s" fill="#b9c3cf"/>`, area(func(m moment) int { return m.old + m.new }))
	line(`<path d="%s" fill="#3a8f5c"/>`, area(func(m moment) int { return m.new }))
	for _, mark := range []struct {
		n     int
		label string
	}{{size, "size"}, {floor, "size - budget"}} {
		line(`<path d="M%d %.1fH%d" stroke="#c0392b" stroke-dasharray="4 3"/>`, plotLeft, y(mark.n), plotLeft+plotWidth)
		line(`<text x="%d" y="%.1f" text-anchor="end">%d</text>`, plotLeft-6, y(mark.n)+4, mark.n)
		line(`<text x="%d" y="%.1f" fill="#c0392b">%s</text>`, plotLeft+6, y(mark.n)-4, mark.label)
	}
	line(`<path d="M%d %dV%.1fH%d" fill="none" stroke="#444"/>`, plotLeft, plotTop-10, y(0), plotLeft+plotWidth)
	line(`<text x="%d" y="%.1f" text-anchor="end">0</text>`, plotLeft-6, y(0)+4)
	for at := time.Duration(0); at <= end; at += 2 * time.Second {
		line(`<text x="%.1f" y="%.1f" text-anchor="middle">%.0f s</text>`, x(at), y(0)+18, at.Seconds())
	}
	line(`<rect x="%d" y="6" width="12" height="12" fill="#b9c3cf"/><text x="%d" y="16">available, old template</text>`, plotLeft, plotLeft+18)
	line(`<rect x="%d" y="6" width="12" height="12" fill="#3a8f5c"/><text x="%d" y="16">available, new template</text>`, plotLeft+170, plotLeft+188)
	line(`</svg>`)
	return b.String()
}
