package pool

import (
	"errors"
	"fmt"
	"strings"
)

// Code classifies an error for callers; the server maps it to gRPC and HTTP in one place.
type Code string

// The codes, with gRPC's words.
const (
	CodeInvalid            Code = "INVALID_ARGUMENT"
	CodeNotFound           Code = "NOT_FOUND"
	CodeAlreadyExists      Code = "ALREADY_EXISTS"
	CodeFailedPrecondition Code = "FAILED_PRECONDITION"
	CodeExhausted          Code = "RESOURCE_EXHAUSTED"
	CodeAborted            Code = "ABORTED"
	CodeUnavailable        Code = "UNAVAILABLE"
	CodeOutOfRange         Code = "OUT_OF_RANGE"
	CodeInternal           Code = "INTERNAL"
	CodeUnimplemented      Code = "UNIMPLEMENTED"
	CodeDeadline           Code = "DEADLINE_EXCEEDED"
)

// Error is a refusal meant for people: a code and a sentence that says what was wrong and what to do about it.
type Error struct {
	Code    Code
	Message string
	Err     error  // cause, for logs; not shown to callers
	Faults  Faults // for CodeInvalid: each faulty field
}

func (e *Error) Error() string {
	if e.Err != nil {
		return e.Message + ": " + e.Err.Error()
	}
	return e.Message
}

func (e *Error) Unwrap() error { return e.Err }

// Errorf makes an Error with a formatted sentence.
func Errorf(code Code, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...)}
}

// CodeOf is the code of the first Error in err's chain, and CodeInternal where there is none.
func CodeOf(err error) Code {
	var e *Error
	if errors.As(err, &e) {
		return e.Code
	}
	return CodeInternal
}

// Fault is one thing wrong with a spec, at a field path as the API names it ("microvm_template.vcpu").
type Fault struct {
	Field   string
	Message string
}

// Faults is every fault of a spec at once; it is an error when it is not empty.
type Faults []Fault

func (f Faults) Error() string {
	lines := make([]string, len(f))
	for i, fault := range f {
		lines[i] = fault.Field + ": " + fault.Message
	}
	return "invalid pool spec: " + strings.Join(lines, "; ")
}

// Err is nil without faults, and otherwise an INVALID_ARGUMENT Error that lists and carries them all.
func (f Faults) Err() error {
	if len(f) == 0 {
		return nil
	}
	return &Error{Code: CodeInvalid, Message: f.Error(), Faults: f}
}
