//go:build cgo && linux

package zklock

/*
#include <stdlib.h>
#include <zklock.h>
*/
import "C"

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"time"
	"unsafe"
)

// Status is the reason why a call failed. A Status is also an error, so errors.Is can compare an error with a Status.
type Status int

// The statuses. Their values are equal to the C library's ZKL_E_* constants.
const (
	ErrInvalid     Status = C.ZKL_E_INVALID     // an argument is not valid
	ErrTimeout     Status = C.ZKL_E_TIMEOUT     // the deadline has passed
	ErrCanceled    Status = C.ZKL_E_CANCELED    // the operation was canceled
	ErrNotOwner    Status = C.ZKL_E_NOT_OWNER   // the hold was already released
	ErrLost        Status = C.ZKL_E_LOST        // the hold was lost
	ErrDeadlock    Status = C.ZKL_E_DEADLOCK    // the operation would wait for itself
	ErrClosed      Status = C.ZKL_E_CLOSED      // the client or the lock is closed
	ErrConnection  Status = C.ZKL_E_CONNECTION  // no server answers
	ErrAuth        Status = C.ZKL_E_AUTH        // a server refused the credentials or a certificate
	ErrDenied      Status = C.ZKL_E_DENIED      // an access control list does not allow the operation
	ErrForked      Status = C.ZKL_E_FORKED      // the client belongs to the parent of this process
	ErrBuffer      Status = C.ZKL_E_BUFFER      // a buffer is too small
	ErrExhausted   Status = C.ZKL_E_EXHAUSTED   // a limit of the process or of the client is reached
	ErrForeign     Status = C.ZKL_E_FOREIGN     // another program uses the path in another way
	ErrServer      Status = C.ZKL_E_SERVER      // a server refused a request
	ErrInternal    Status = C.ZKL_E_INTERNAL    // a defect in the library
	ErrUnsupported Status = C.ZKL_E_UNSUPPORTED // the lock or the server does not support the call
	ErrPending     Status = C.ZKL_E_PENDING     // the operation is still running
)

// Error returns a short text that describes the status.
func (s Status) Error() string {
	return C.GoString(C.zkl_strerror(C.zkl_status(s)))
}

// Error is the error that a failed call returns. The message names the lock or the value, and states the reason.
type Error struct {
	// Status is the reason for the failure, for use by programs.
	Status Status
	// Message describes the reason for the failure, for people.
	Message string
	// contextErr is the error of the context if the context ended the call, or else nil. contextCause is the cause of the
	// context, if it is known.
	contextErr, contextCause error
	// isLocked is true if a try has found that another participant holds the lock or waits for it.
	isLocked bool
}

// ErrLocked is also the error of TryAcquire, besides ErrTimeout, if another participant holds the lock or waits for it, or if too
// few leases are free.
var ErrLocked = errors.New("zklock: the lock is not free")

func (e *Error) Error() string {
	return "zklock: " + e.Message
}

// With Unwrap, errors.Is finds the status. If the context ended the call, errors.Is also finds the error and the cause
// of the context.
func (e *Error) Unwrap() []error {
	all := []error{e.Status}
	for _, err := range []error{e.contextErr, e.contextCause} {
		if err != nil {
			all = append(all, err)
		}
	}
	if e.isLocked {
		all = append(all, ErrLocked)
	}
	return all
}

// Timeout reports whether the deadline of the context ended the call, as in net.Error.
func (e *Error) Timeout() bool {
	return errors.Is(e.contextErr, context.DeadlineExceeded)
}

// newError makes the error for a status of the library. A handle of the library is valid until the program closes its object.
func newError(status C.zkl_status, message string) *Error {
	if status == C.ZKL_E_HANDLE {
		status = C.ZKL_E_CLOSED
		message = "the client, lock or leases were closed, or never made: " + message
	}
	return &Error{Status: Status(status), Message: message}
}

// endOf returns the error of an operation. The context may have ended the operation.
func endOf(ctx context.Context, err *Error) error {
	switch err.Status {
	case ErrTimeout, ErrConnection, ErrCanceled:
		// The library may notice the deadline before the context does. The context has no cause before its end.
		deadline, hasDeadline := ctx.Deadline()
		if hasDeadline && !time.Now().Before(deadline) {
			err.contextErr = context.DeadlineExceeded
			select {
			case <-ctx.Done():
			case <-time.After(graceAfterDeadline):
			}
		}
		if ctx.Err() != nil {
			err.contextErr, err.contextCause = ctx.Err(), context.Cause(ctx)
		}
		if err.Status == ErrCanceled && err.Timeout() {
			err.Status = ErrTimeout
		}
	}
	return err
}

// contextEnded returns the error of a call whose context has ended before its operation.
func contextEnded(ctx context.Context, what string) error {
	return endOf(ctx, &Error{Status: ErrCanceled, Message: what + ": " + context.Cause(ctx).Error()})
}

// naming adds a path to a message that does not contain it. The library does not know the path of a lock that was freed.
func naming(what string, err error) error {
	var failure *Error
	if errors.As(err, &failure) && !strings.Contains(failure.Message, what) {
		failure.Message = what + ": " + failure.Message
	}
	return err
}

// call makes one call of the C library, and returns its error. The message of the error belongs to the thread, so the goroutine
// stays on this thread until it has copied the message.
func call(make func() C.zkl_status) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	status := make()
	if status == C.ZKL_OK {
		return nil
	}
	return newError(status, C.GoString(C.zkl_last_error_message()))
}

// newText copies a string for a call of the library. The library requires that each string ends with a NUL. The caller must
// free the copy.
func newText(name, text string) (*C.char, error) {
	if at := strings.IndexByte(text, 0); at >= 0 {
		message := fmt.Sprintf("%s %q contains a NUL at position %d", name, text, at)
		return nil, &Error{Status: ErrInvalid, Message: message}
	}
	return C.CString(text), nil
}

func free(text *C.char) {
	C.free(unsafe.Pointer(text))
}

// readText calls a function of the C library that writes a text to a buffer.
func readText(read func(buf *C.char, size C.size_t, needed *C.size_t) C.zkl_status) (string, error) {
	size := C.size_t(256)
	for {
		buf := (*C.char)(C.malloc(size))
		var needed C.size_t
		err := call(func() C.zkl_status { return read(buf, size, &needed) })
		text := ""
		if err == nil {
			text = C.GoString(buf)
		}
		free(buf)
		if !errors.Is(err, ErrBuffer) {
			return text, err
		}
		// The text may grow between two calls.
		size = 2 * needed
	}
}
