package image

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// packageSource fetches packages of the distribution without installing them.
type packageSource interface {
	// dependency returns the package with that prefix that meta depends on.
	dependency(ctx context.Context, meta, prefix string) (string, error)
	// unpack fetches a package and unpacks it into dir, which it makes.
	unpack(ctx context.Context, name, dir string) error
}

// apt is the packageSource of Debian and its kin.
type apt struct{ log *slog.Logger }

func (a apt) dependency(ctx context.Context, meta, prefix string) (string, error) {
	name, err := a.findDependency(ctx, meta, prefix)
	if err == nil || errors.Is(err, exec.ErrNotFound) {
		return name, err
	}
	if err := a.update(ctx); err != nil {
		return "", err
	}
	return a.findDependency(ctx, meta, prefix)
}

func (a apt) findDependency(ctx context.Context, meta, prefix string) (string, error) {
	out, err := command(ctx, "", "apt-cache", "depends", "--important", meta)
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(out) {
		if name, ok := strings.CutPrefix(strings.TrimSpace(line), "Depends: "); ok && strings.HasPrefix(name, prefix) {
			return name, nil
		}
	}
	return "", fmt.Errorf("%w: package %s depends on no %s…", ErrNotBuildable, meta, prefix)
}

func (a apt) unpack(ctx context.Context, name, dir string) error {
	downloads := dir + ".download"
	if err := os.MkdirAll(downloads, 0o755); err != nil {
		return fmt.Errorf("make a folder to download into: %w", err)
	}
	defer discard(downloads)
	// As root, apt would download as a user who cannot enter our folder.
	download := []string{"-q", "-o", "APT::Sandbox::User=root", "download", name}
	_, err := command(ctx, downloads, "apt-get", download...)
	if err != nil && !errors.Is(err, exec.ErrNotFound) && ctx.Err() == nil {
		if err := a.update(ctx); err != nil {
			return err
		}
		_, err = command(ctx, downloads, "apt-get", download...)
	}
	if err != nil {
		return err
	}
	found, err := filepath.Glob(filepath.Join(downloads, "*.deb"))
	if err != nil || len(found) != 1 {
		return fmt.Errorf("%w: apt-get download %s left %d files instead of one", ErrNotBuildable, name, len(found))
	}
	_, err = command(ctx, "", "dpkg", "-x", found[0], dir)
	return err
}

// update refreshes the lists of packages, which a fresh machine may not have
// and an old one may have from before a package was replaced.
func (a apt) update(ctx context.Context) error {
	a.log.Info("refreshing the package lists with apt-get update")
	_, err := command(ctx, "", "apt-get", "-q", "update")
	return err
}

// command runs a program and returns its output; its error is one line that
// holds the program's own last word and what to do.
func command(ctx context.Context, dir, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "LC_ALL=C", "DEBIAN_FRONTEND=noninteractive")
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	if err == nil {
		return stdout.String(), nil
	}
	if ctx.Err() != nil {
		return "", fmt.Errorf("run %s: %w", name, context.Cause(ctx))
	}
	if errors.Is(err, exec.ErrNotFound) {
		return "", fmt.Errorf("%w: there is no %s here; %s is built from Debian's packages: use a Debian machine, or file: images: %w",
			ErrNotBuildable, name, Base, err)
	}
	return "", fmt.Errorf("%w: `%s %s` failed (%s); check the network and the machine's apt sources, and run it by hand: %w",
		ErrNotBuildable, name, strings.Join(args, " "), lastLine(stderr.String()), err)
}

func lastLine(text string) string {
	text = strings.TrimSpace(text)
	return text[strings.LastIndexByte(text, '\n')+1:]
}
