package hostd

import "errors"

var (
	// ErrStateDirInUse: another host daemon holds the lock of the state folder.
	ErrStateDirInUse = errors.New("state folder in use")
	// ErrOptions: the options contradict themselves or name what does not exist.
	ErrOptions = errors.New("cannot run a host with these options")
)
