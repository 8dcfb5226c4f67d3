package engine

import "errors"

// The sentinels of a Log's answers.
var (
	// ErrCorrupt: the log's content is not what the engine knows it to be: a row has another version than the one that
	// a commit names, or a row points to one that does not exist. It is a bug or a damaged file.
	ErrCorrupt = errors.New("the stored rows are not what they should be (this is a bug, or the file is damaged)")

	// errLater: the verb must wait for the next commit, because the present one removes a row of the same key.
	errLater = errors.New("not in this commit")
)
