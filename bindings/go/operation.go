//go:build cgo && linux

package zklock

/*
#include <zklock.h>
*/
import "C"

import (
	"context"
	"errors"
	"math"
	"os"
	"runtime"
	"sync"
	"syscall"
	"time"
)

// graceAfterDeadline is the maximum time that a goroutine waits, after the deadline of its context, for the library to end an
// acquire.
const graceAfterDeadline = 100 * time.Millisecond

// directWait is the time in milliseconds for which a goroutine waits in a call of the library. A thread that waits in such a call
// reads the server's answer itself. This read is faster than a wake-up by another thread.
const directWait = 2

var (
	// changing limits the goroutines that start, cancel or free operations, or read a token, at the same time. During a call of the
	// library, a goroutine occupies a thread. Without a limit, ten thousand goroutines that begin or end their waits would therefore
	// create hundreds of threads.
	changing = make(chan struct{}, 2*runtime.NumCPU())
	// direct limits the goroutines that wait in a call of the library.
	direct = make(chan struct{}, runtime.NumCPU())
)

// An operation is a call of the C library that is running.
type operation struct {
	op *C.zkl_op
	// done is closed when the operation has ended. done is nil until the method wait creates the channel.
	done chan struct{}
}

// startOperation starts an operation with one of the zkl_*_start functions. If the context ends before the operation can start,
// the call fails. The string what describes the operation in error messages.
func startOperation(ctx context.Context, what string, start func(out **C.zkl_op) C.zkl_status) (*operation, error) {
	if ctx.Err() != nil {
		return nil, contextEnded(ctx, what)
	}
	select {
	case changing <- struct{}{}:
	case <-ctx.Done():
		return nil, contextEnded(ctx, what)
	}
	defer func() { <-changing }()
	var op *C.zkl_op
	if err := call(func() C.zkl_status { return start(&op) }); err != nil {
		return nil, naming(what, err)
	}
	return &operation{op: op}, nil
}

// run starts an operation and waits for its end. If the operation succeeds, run then calls take with the operation. The function
// take may be nil. The string what describes the operation in error messages. If the context ends first, the operation goes on
// without its caller, as a release does.
func run(ctx context.Context, what string, start func(out **C.zkl_op) C.zkl_status, take func(op *C.zkl_op) error) error {
	o, err := startOperation(ctx, what, start)
	if err != nil {
		return err
	}
	defer o.free()
	hasEnded, err := o.wait(ctx)
	if err != nil {
		return err
	}
	if !hasEnded {
		return contextEnded(ctx, what)
	}
	if err := o.result(ctx); err != nil || take == nil {
		return err
	}
	return take(o.op)
}

// waitOrCancel waits for the end of an acquire or of a connect. If the context ends first, the call cancels the operation. If the
// context has reached its deadline, the call first waits for the grace period. In this period, the library itself ends an
// acquire, and reports which node is ahead in the queue. An operation that is about to succeed may still succeed.
func (o *operation) waitOrCancel(ctx context.Context, grace time.Duration) error {
	hasEnded, err := o.wait(ctx)
	if err != nil {
		return err
	}
	if !hasEnded && errors.Is(ctx.Err(), context.DeadlineExceeded) {
		timer := time.NewTimer(grace)
		defer timer.Stop()
		select {
		case <-o.done:
			hasEnded = true
		case <-timer.C:
		}
	}
	if !hasEnded {
		changing <- struct{}{}
		C.zkl_op_cancel(o.op)
		<-changing
		<-o.done
	}
	return o.result(ctx)
}

// acquire starts an acquire, and waits for its end. If the acquire succeeds, the caller must free the returned operation.
func acquire(ctx context.Context, path string, tryOnce bool, start func(out **C.zkl_op) C.zkl_status) (*operation, error) {
	hasEnded := false
	acquiring, err := startOperation(ctx, path, start)
	if err == nil {
		if err = acquiring.waitOrCancel(ctx, graceOf(tryOnce)); err == nil {
			return acquiring, nil
		}
		hasEnded = C.zkl_op_result(acquiring.op) != C.ZKL_E_CANCELED
		acquiring.free()
	}
	var failure *Error
	if tryOnce && errors.As(err, &failure) {
		switch {
		case !hasEnded && failure.Timeout():
			// ErrTimeout would mean that the lock is not free.
			failure.Status = ErrConnection
			failure.Message = path + ": no answer from a server before the deadline of the context"
		case failure.Status == ErrTimeout:
			failure.isLocked = true
		}
	}
	return nil, err
}

// wait waits until the operation or the context has ended, and reports whether the operation has ended.
func (o *operation) wait(ctx context.Context) (bool, error) {
	select {
	case direct <- struct{}{}:
		C.zkl_op_wait(o.op, directWait)
		<-direct
		// In a callback, the library refuses the wait itself.
		if C.zkl_op_result(o.op) != C.ZKL_E_PENDING {
			return true, nil
		}
	default:
	}
	o.done = make(chan struct{})
	if err := notify(o.op, func() { close(o.done) }); err != nil {
		return false, err
	}
	select {
	case <-o.done:
		return true, nil
	case <-ctx.Done():
		return false, nil
	}
}

// result returns how an operation has ended.
func (o *operation) result(ctx context.Context) error {
	status := C.zkl_op_result(o.op)
	if status == C.ZKL_OK {
		return nil
	}
	return endOf(ctx, newError(status, C.GoString(C.zkl_op_message(o.op))))
}

func (o *operation) free() {
	changing <- struct{}{}
	C.zkl_op_free(o.op)
	<-changing
}

// timeoutOf returns the time until a context's deadline, in milliseconds, rounded up. If the context has no deadline, timeoutOf
// returns -1.
func timeoutOf(ctx context.Context) C.int64_t {
	deadline, ok := ctx.Deadline()
	if !ok {
		return -1
	}
	left := time.Until(deadline)
	if left <= 0 {
		return 0
	}
	return C.int64_t(math.Ceil(float64(left) / float64(time.Millisecond)))
}

// acquireTimeout returns the timeout that an acquire passes to the library.
func acquireTimeout(ctx context.Context, tryOnce bool) C.int64_t {
	if tryOnce {
		return 0
	}
	return timeoutOf(ctx)
}

// graceOf returns the grace period of an acquire. With a timeout of 0, the library does not end the acquire at the deadline.
func graceOf(tryOnce bool) time.Duration {
	if tryOnce {
		return 0
	}
	return graceAfterDeadline
}

// completions is the completion queue of this process.
var completions completionQueue

// A completionQueue reports the ends of all operations. One goroutine, which the poller of the Go runtime wakes, serves the queue,
// so a waiting goroutine needs no thread and no descriptor.
type completionQueue struct {
	mutex sync.Mutex
	// queue never changes after the first call of Connect.
	queue   *C.zkl_completion_queue
	lastKey uint64
	// onDone is nil before the first call of Connect.
	onDone map[uint64]func()
}

// notify calls onDone when an operation has ended. The function onDone must not block.
func notify(op *C.zkl_op, onDone func()) error {
	completions.mutex.Lock()
	completions.lastKey++
	key := completions.lastKey
	completions.onDone[key] = onDone
	completions.mutex.Unlock()
	err := call(func() C.zkl_status { return C.zkl_op_notify(op, completions.queue, C.uint64_t(key)) })
	if err != nil {
		completions.take(key)
	}
	return err
}

// start makes the queue of the library, and the goroutine that reads it, unless they exist. Without a client there are no operations,
// so only Connect calls start. Later operations therefore need no descriptor.
func (c *completionQueue) start() error {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if c.onDone != nil {
		return nil
	}
	var queue *C.zkl_completion_queue
	if err := call(func() C.zkl_status { return C.zkl_completion_queue_new(&queue) }); err != nil {
		return err
	}
	file, err := duplicate(int(C.zkl_completion_queue_fd(queue)))
	if err != nil {
		C.zkl_completion_queue_free(queue)
		return &Error{Status: ErrExhausted, Message: "polling the completion queue: " + err.Error()}
	}
	poller, err := file.SyscallConn()
	if err != nil {
		file.Close()
		C.zkl_completion_queue_free(queue)
		return &Error{Status: ErrInternal, Message: "polling the completion queue: " + err.Error()}
	}
	c.queue, c.onDone = queue, make(map[uint64]func())
	go func() {
		// Read waits until the descriptor is readable, calls the function, and repeats this while the function returns false.
		_ = poller.Read(func(uintptr) bool {
			c.drain()
			return false
		})
	}()
	return nil
}

// duplicate returns a duplicate of a library descriptor. The Go runtime polls the duplicate, and may close the duplicate.
func duplicate(descriptor int) (*os.File, error) {
	syscall.ForkLock.RLock()
	fd, err := syscall.Dup(descriptor)
	if err == nil {
		syscall.CloseOnExec(fd)
	}
	syscall.ForkLock.RUnlock()
	if err != nil {
		return nil, err
	}
	if err := syscall.SetNonblock(fd, true); err != nil {
		syscall.Close(fd)
		return nil, err
	}
	file := os.NewFile(uintptr(fd), "zklock completion queue")
	// Only a file that the runtime polls can have a deadline.
	if err := file.SetReadDeadline(time.Time{}); err != nil {
		file.Close()
		return nil, err
	}
	return file, nil
}

// drain calls the functions of all operations that have ended.
func (c *completionQueue) drain() {
	var keys [256]C.uint64_t
	for {
		var taken C.size_t
		C.zkl_completion_queue_take(c.queue, &keys[0], C.size_t(len(keys)), &taken)
		if taken == 0 {
			return
		}
		for _, key := range keys[:taken] {
			if onDone := c.take(uint64(key)); onDone != nil {
				onDone()
			}
		}
	}
}

// take removes the function of a key.
func (c *completionQueue) take(key uint64) func() {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	onDone := c.onDone[key]
	delete(c.onDone, key)
	return onDone
}
