package guest

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"poolmgr/internal/microvm/guest/wire"
)

const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// command prepares a command. Its errors are set-up failures; a program that
// is not there shows when it is started.
func command(req wire.Exec) (*exec.Cmd, error) {
	account, err := findAccount(req.User)
	if err != nil {
		return nil, err
	}
	cwd := req.Cwd
	if cwd == "" {
		cwd = "/"
	}
	if info, err := os.Stat(cwd); err != nil {
		return nil, fmt.Errorf("working directory: %w", err)
	} else if !info.IsDir() {
		return nil, fmt.Errorf("working directory %s is not a directory", cwd)
	}
	env := environment(account, req.Env)
	name, args := req.Cmd, req.Args
	if req.Shell {
		name, args = "sh", append([]string{"-c", req.Cmd, "sh"}, req.Args...)
	}
	path, lookErr := lookPath(name, env["PATH"])
	cmd := &exec.Cmd{
		Path: path,
		Err:  lookErr, // returned by Start
		Args: append([]string{name}, args...),
		Dir:  cwd,
		SysProcAttr: &syscall.SysProcAttr{
			Setpgid:    true, // killed as a group
			Credential: account.credential,
		},
	}
	for _, key := range slices.Sorted(maps.Keys(env)) {
		cmd.Env = append(cmd.Env, key+"="+env[key])
	}
	return cmd, nil
}

// lookPath finds a program as a shell does; a name with a slash is a path.
func lookPath(name, path string) (string, error) {
	if strings.Contains(name, "/") {
		return name, nil
	}
	for _, dir := range filepath.SplitList(path) {
		if dir == "" {
			continue // the current directory; nobody means that here
		}
		file := filepath.Join(dir, name)
		if info, err := os.Stat(file); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return file, nil
		}
	}
	return "", &exec.Error{Name: name, Err: exec.ErrNotFound}
}

func environment(a account, extra map[string]string) map[string]string {
	env := map[string]string{"PATH": defaultPath, "HOME": a.home, "USER": a.name, "LOGNAME": a.name}
	maps.Copy(env, extra)
	return env
}

// account is the user that a command runs as.
type account struct {
	name, home string
	credential *syscall.Credential // nil keeps the agent's own
}

// findAccount looks a user up by name, then by number. A number without an
// account is fine, as in containers; it has no home.
func findAccount(name string) (account, error) {
	if name == "" || name == "root" || name == "0" {
		return account{name: "root", home: "/root"}, nil
	}
	u, err := user.Lookup(name)
	var unknown user.UnknownUserError
	if errors.As(err, &unknown) {
		id, numErr := strconv.ParseUint(name, 10, 32)
		if numErr != nil {
			return account{}, fmt.Errorf("user %q does not exist", name)
		}
		if u, err = user.LookupId(name); err != nil {
			return account{name: name, home: "/", credential: &syscall.Credential{Uid: uint32(id), Gid: uint32(id)}}, nil
		}
	}
	if err != nil {
		return account{}, fmt.Errorf("look up user %q: %w", name, err)
	}
	return accountOf(u)
}

func accountOf(u *user.User) (account, error) {
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	if err != nil {
		return account{}, fmt.Errorf("user %q has the number %q: %w", u.Username, u.Uid, err)
	}
	gid, err := strconv.ParseUint(u.Gid, 10, 32)
	if err != nil {
		return account{}, fmt.Errorf("user %q has the group %q: %w", u.Username, u.Gid, err)
	}
	credential := &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	ids, err := u.GroupIds()
	if err != nil {
		return account{}, fmt.Errorf("groups of user %q: %w", u.Username, err)
	}
	for _, id := range ids {
		if n, err := strconv.ParseUint(id, 10, 32); err == nil {
			credential.Groups = append(credential.Groups, uint32(n))
		}
	}
	return account{name: u.Username, home: u.HomeDir, credential: credential}, nil
}
