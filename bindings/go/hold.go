//go:build cgo && linux

package zklock

/*
#include <zklock.h>
*/
import "C"

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// Hold is a lock, or leases of a semaphore, that this program holds. Any goroutine may use a hold. After a release, the hold is not
// safe any more, and every further release fails with ErrNotOwner. A hold refers only to the acquire from which it comes.
//
// The garbage collector releases no hold. The program must release each hold, or close the client.
type Hold struct {
	hold *C.zkl_hold
	path string
	// lock is nil for a hold of leases. The reference keeps the lock open.
	lock *Lock
	// owner is 0 for a hold of leases, because leases have no owner.
	owner       uint64
	token, pass int64
	released    atomic.Bool
	loss        loss
}

// newHold returns the hold of an acquire that has succeeded, and frees the operation.
func newHold(acquiring *operation, path string, lock *Lock, owner uint64) (*Hold, error) {
	defer acquiring.free()
	h := &Hold{path: path, lock: lock, owner: owner}
	changing <- struct{}{}
	defer func() { <-changing }()
	if err := call(func() C.zkl_status { return C.zkl_op_hold(acquiring.op, &h.hold) }); err != nil {
		return nil, err
	}
	// The view fails only if the program has closed the lock or the client meanwhile. Release reports this.
	info := C.zkl_hold_info{size: C.uint32_t(C.sizeof_zkl_hold_info)}
	C.zkl_hold_view(h.hold, &info)
	h.token, h.pass = int64(info.token), int64(info.fencing_pass)
	runtime.SetFinalizer(h, (*Hold).freeIfEnded)
	return h, nil
}

// freeIfEnded frees the handle of a hold that has ended with its lock or its client.
func (h *Hold) freeIfEnded() {
	info := C.zkl_hold_info{size: C.uint32_t(C.sizeof_zkl_hold_info)}
	if !h.released.Load() && C.zkl_hold_view(h.hold, &info) != C.ZKL_OK {
		C.zkl_hold_release_nowait(h.hold)
	}
}

// Acquire acquires a lock for the owner of this hold. The owner can re-enter a lock that it holds, and can acquire the read side
// of a read/write lock while it holds the write side. The program must release each hold. Leases have no owner: their hold cannot
// acquire a lock, and the call then fails with ErrInvalid.
func (h *Hold) Acquire(ctx context.Context, lock *Lock) (*Hold, error) {
	switch {
	case h == nil || h.hold == nil:
		return nil, notAcquired()
	case h.released.Load():
		return nil, alreadyReleased(h.path)
	case h.lock == nil:
		return nil, &Error{Status: ErrInvalid, Message: h.path + ": leases have no owner that could acquire a lock"}
	}
	return lock.acquireAs(ctx, h.owner, false)
}

// Release releases the hold, and waits for at most the session timeout for the servers to confirm the release. The release takes
// effect at once, even if Release returns an error. If the hold was already lost, Release returns ErrLost. In this case, another
// program may have held the lock since the loss.
func (h *Hold) Release() error {
	return h.ReleaseContext(context.Background())
}

// ReleaseContext releases the hold, and waits for the servers until the context ends.
func (h *Hold) ReleaseContext(ctx context.Context) error {
	if h == nil || h.hold == nil {
		return notAcquired()
	}
	if !h.released.CompareAndSwap(false, true) {
		return alreadyReleased(h.path)
	}
	err := runToEnd(ctx, h.path, "the release is not confirmed yet", func(out **C.zkl_op) C.zkl_status {
		return C.zkl_hold_release_start(h.hold, out)
	})
	h.loss.released(err)
	return err
}

// runToEnd starts a release or the end of a run, and waits for its end. A context that has ended does not prevent the operation. The
// string unconfirmed describes an operation that is still running at the end of the context.
func runToEnd(ctx context.Context, path, unconfirmed string, start func(out **C.zkl_op) C.zkl_status) error {
	ending, err := startOperation(context.Background(), path, start)
	if err != nil {
		return err
	}
	defer ending.free()
	hasEnded, err := ending.wait(ctx)
	if err != nil {
		return err
	}
	if !hasEnded {
		return contextEnded(ctx, path+": "+unconfirmed)
	}
	return naming(path, ending.result(ctx))
}

// orZero returns the object, or a zero value if the pointer is nil.
func orZero[T any](object *T) *T {
	if object == nil {
		return new(T)
	}
	return object
}

func notAcquired() error {
	return &Error{Status: ErrClosed, Message: "this Hold was not made by an acquire"}
}

func alreadyReleased(path string) error {
	return &Error{Status: ErrNotOwner, Message: path + ": the hold was already released"}
}

// IsHeld reports whether the hold is certainly safe at this moment.
func (h *Hold) IsHeld() bool {
	h = orZero(h)
	defer runtime.KeepAlive(h)
	return !h.released.Load() && C.zkl_hold_is_held(h.hold) == 1
}

// State returns the state of the hold.
func (h *Hold) State() LockState {
	info, status := orZero(h).view()
	if status != C.ZKL_OK {
		return lockState(C.int32_t(status))
	}
	return lockState(info.state)
}

// view returns the state and the remaining time of the hold at one moment.
func (h *Hold) view() (C.zkl_hold_info, C.zkl_status) {
	defer runtime.KeepAlive(h)
	info := C.zkl_hold_info{size: C.uint32_t(C.sizeof_zkl_hold_info), state: C.ZKL_LOCK_FREE}
	if h.released.Load() {
		return info, C.ZKL_OK
	}
	return info, C.zkl_hold_view(h.hold, &info)
}

// FencingToken returns the fencing token of the hold. Every later hold of the lock has a greater token, except after a local
// hand-over ([Hold.FencingPass]), and except for a hold that re-enters the lock: both keep the token. A store can refuse a write
// whose token is smaller than the token of an earlier write. The token is known from the acquire on, also after a loss. If the
// program has closed the client during the acquire, the token is 0. A store must refuse the token 0.
//
// If a program acquires the read lock for the owner of the write lock, the token of the read lock can be greater than the token of
// the next writer. Send the token of the write lock instead.
//
// For a multi-lock, the token is the smallest token of its members. If one transaction acquired all members, they have the same token.
// Otherwise, acquire each member again for the owner of this hold ([Hold.Acquire]), and send each store the token of the member that
// protects it.
//
// The token of leases grows with every acquire of the semaphore. Several owners can hold leases at the same time, so these tokens
// only show the order of the acquires. They are not for a store that refuses smaller tokens: the store would refuse the writes of
// valid holders. If a store must refuse late writes, use a mutex for each slot.
func (h *Hold) FencingToken() int64 {
	return orZero(h).token
}

// FencingPass returns the number of local hand-overs of this hold's node that occurred before this hold began. All holds under
// one node have the same fencing token. If the program uses [Lock.SetLocalHandover], a store must therefore also refuse a write
// with the same token but a smaller fencing pass than an earlier write.
func (h *Hold) FencingPass() int64 {
	return orZero(h).pass
}

// Remaining returns the time for which the hold stays safe even if no server answers, or 0 if it is not safe.
func (h *Hold) Remaining() time.Duration {
	info, _ := orZero(h).view()
	return time.Duration(info.remaining_ms) * time.Millisecond
}

// NodePaths returns the paths of the nodes of this hold: one node, the node of each member of a multi-lock, or a node for each
// lease. If the hold was lost, the call fails with ErrLost.
func (h *Hold) NodePaths() ([]string, error) {
	h = orZero(h)
	defer runtime.KeepAlive(h)
	if h.released.Load() {
		return nil, alreadyReleased(h.path)
	}
	var paths []string
	for {
		path, err := readText(func(buf *C.char, size C.size_t, needed *C.size_t) C.zkl_status {
			return C.zkl_hold_node_path(h.hold, C.size_t(len(paths)), buf, size, needed)
		})
		if errors.Is(err, ErrInvalid) && len(paths) > 0 {
			return paths, nil
		}
		if err != nil {
			return nil, err
		}
		paths = append(paths, path)
	}
}

// Lost returns a channel that is closed as soon as the hold is no longer safe. A hold is no longer safe if it is lost, or if the
// servers have not answered for so long that the hold may be lost. A hold is also no longer safe after the program has closed the
// client or the lock. The channel stays closed even if the hold becomes safe again. A release does not close the channel.
func (h *Hold) Lost() <-chan struct{} {
	h = orZero(h)
	h.watch()
	return h.loss.lost
}

func (h *Hold) watch() {
	defer runtime.KeepAlive(h)
	h.loss.watch(&h.released, func(out **C.zkl_op) C.zkl_status {
		return C.zkl_hold_wait_lost_start(h.hold, out)
	})
}

// Context returns a context that ends as soon as the hold is no longer safe, or when the hold is released. If the hold is no
// longer safe, context.Cause returns ErrLost. If the hold was released, context.Cause returns ErrNotOwner. If the channel of
// [Hold.Lost] is closed, the context has already ended. The program should call the cancel function after its work.
func (h *Hold) Context(parent context.Context) (context.Context, context.CancelFunc) {
	h = orZero(h)
	h.watch()
	return h.loss.context(parent, &h.released, h.IsHeld)
}

// Lock returns the lock of the hold, or nil for a hold of leases.
func (h *Hold) Lock() *Lock {
	return orZero(h).lock
}

// Path returns the path of the lock or of the semaphore.
func (h *Hold) Path() string {
	return orZero(h).path
}

// loss reports the loss of a hold. The first call of watch starts to wait for the loss.
type loss struct {
	watching  sync.Once
	reporting sync.Once
	// The channel lost is closed at a loss. The channel ended is closed at a loss or at a release.
	lost, ended chan struct{}
	mutex       sync.Mutex
	// op waits for the loss. op is nil before the wait begins and after the wait has ended.
	op *C.zkl_op
}

func (l *loss) watch(released *atomic.Bool, start func(out **C.zkl_op) C.zkl_status) {
	l.watching.Do(func() {
		l.lost, l.ended = make(chan struct{}), make(chan struct{})
		var op *C.zkl_op
		err := call(func() C.zkl_status { return start(&op) })
		if err == nil {
			l.op = op
			onEnd := func() {
				l.end(C.zkl_op_result(op) != C.ZKL_E_NOT_OWNER)
				l.freeOp()
			}
			// The first call must report a loss that has already occurred.
			if C.zkl_op_wait(op, 0) != C.ZKL_E_PENDING {
				onEnd()
				return
			}
			if err = notify(op, onEnd); err != nil {
				l.freeOp()
			}
		}
		if err != nil {
			l.end(!released.Load() && !errors.Is(err, ErrNotOwner))
		}
	})
}

// released reports that the release of the hold has ended with err. If the owner has another hold of the lock, the library does
// not end the wait for the loss.
func (l *loss) released(err error) {
	l.watching.Do(func() { l.lost, l.ended = make(chan struct{}), make(chan struct{}) })
	l.end(errors.Is(err, ErrLost) || errors.Is(err, ErrClosed))
	l.mutex.Lock()
	defer l.mutex.Unlock()
	if l.op != nil {
		C.zkl_op_cancel(l.op)
	}
}

func (l *loss) freeOp() {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	C.zkl_op_free(l.op)
	l.op = nil
}

func (l *loss) end(isLost bool) {
	l.reporting.Do(func() {
		if isLost {
			close(l.lost)
		}
		close(l.ended)
	})
}

// context returns a context that ends with the hold.
func (l *loss) context(parent context.Context, released *atomic.Bool, isHeld func() bool) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(parent)
	cause := func() error {
		select {
		case <-l.lost:
			return ErrLost
		default:
			return ErrNotOwner
		}
	}
	held := isHeld()
	select {
	case <-l.ended:
		// The hold may be safe again.
		cancel(cause())
		return ctx, func() {}
	default:
	}
	if !held {
		if released.Load() {
			cancel(ErrNotOwner)
		} else {
			cancel(ErrLost)
		}
		return ctx, func() {}
	}
	go func() {
		select {
		case <-l.ended:
			cancel(cause())
		case <-ctx.Done():
		}
	}()
	return ctx, func() { cancel(context.Canceled) }
}
