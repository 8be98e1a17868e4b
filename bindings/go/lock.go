//go:build cgo && linux

package zklock

/*
#include <stdlib.h>
#include "callbacks.h"
*/
import "C"

import (
	"context"
	"errors"
	"runtime"
	"runtime/cgo"
	"sync"
	"sync/atomic"
	"unsafe"
)

// Lock is a mutex, one side of a read/write lock, a semaphore mutex, or a multi-lock. Any number of goroutines may share a Lock.
// These goroutines exclude each other.
type Lock struct {
	lock *C.zkl_lock
	path string
	free func()
	// members keeps the locks of a multi-lock alive, because the garbage collector closes a lock that the program has dropped.
	members []*Lock
}

// RWLock is a read/write lock. Any number of readers may hold Read at once, and one writer may hold Write alone.
type RWLock struct {
	Read, Write *Lock
}

// lastOwner is the owner number of the latest hold. Each hold has an owner of its own.
var lastOwner atomic.Uint64

// Mutex returns a mutex on a path, like Curator's InterProcessMutex. The call sends no request.
func (c *Client) Mutex(path string) (*Lock, error) {
	return c.newLock(path, func(path *C.char, out **C.zkl_lock) C.zkl_status { return C.zkl_mutex_new(c.handle(), path, out) })
}

// SemaphoreMutex returns a semaphore mutex on a path, like Curator's InterProcessSemaphoreMutex. A semaphore mutex is not
// re-entrant: if the program acquires it for the owner of a hold ([Hold.Acquire]), the call waits until that hold ends. The call
// SemaphoreMutex sends no request.
func (c *Client) SemaphoreMutex(path string) (*Lock, error) {
	return c.newLock(path, func(path *C.char, out **C.zkl_lock) C.zkl_status {
		return C.zkl_semaphore_mutex_new(c.handle(), path, out)
	})
}

// RWLock returns a read/write lock on a path, like Curator's InterProcessReadWriteLock. The call sends no request.
func (c *Client) RWLock(path string) (*RWLock, error) {
	var read *C.zkl_lock
	write, err := c.newLock(path, func(path *C.char, out **C.zkl_lock) C.zkl_status {
		return C.zkl_rwlock_new(c.handle(), path, &read, out)
	})
	if err != nil {
		return nil, err
	}
	return &RWLock{Read: c.addLock(read, path), Write: write}, nil
}

func (c *Client) newLock(path string, make func(path *C.char, out **C.zkl_lock) C.zkl_status) (*Lock, error) {
	name, err := newText("path", path)
	if err != nil {
		return nil, err
	}
	defer free(name)
	var lock *C.zkl_lock
	if err := call(func() C.zkl_status { return make(name, &lock) }); err != nil {
		return nil, err
	}
	return c.addLock(lock, path), nil
}

func (c *Client) addLock(lock *C.zkl_lock, path string) *Lock {
	return freeIfForgotten(&Lock{lock: lock, path: path, free: c.freeOnClose(func() { C.zkl_lock_free(lock) })})
}

// freeIfForgotten frees the lock when the program has dropped it, unless the lock has a hold: the garbage collector releases no
// hold. A method that passes the handle to the library must keep the lock alive until the library returns.
func freeIfForgotten(lock *Lock) *Lock {
	runtime.SetFinalizer(lock, func(lock *Lock) {
		if state := C.zkl_lock_state_in_process(lock.lock); state < 0 || state == C.ZKL_LOCK_FREE {
			_ = lock.Close()
		}
	})
	return lock
}

// Multi returns a lock that acquires all given locks or none. Mutexes and read/write locks of one client join their queues in one
// transaction. The multi-lock acquires all remaining locks, for example semaphore mutexes, one by one.
//
// Two locks of one client must not have the same path. A multi-lock must also not contain two locks that have the same path and
// belong to different clients of one ensemble: such a multi-lock would wait for itself.
func Multi(locks ...*Lock) (*Lock, error) {
	return newMulti(locks, func(handles **C.zkl_lock, count C.size_t, out **C.zkl_lock) C.zkl_status {
		return C.zkl_multi_new(handles, count, out)
	})
}

// MultiInOrder returns a lock that acquires the given locks one after the other, like Curator's InterProcessMultiLock. All programs
// must list the locks in the same order, because otherwise they can wait for each other. All other rules of [Multi] also apply.
func MultiInOrder(locks ...*Lock) (*Lock, error) {
	return newMulti(locks, func(handles **C.zkl_lock, count C.size_t, out **C.zkl_lock) C.zkl_status {
		return C.zkl_multi_new_in_order(handles, count, out)
	})
}

func newMulti(locks []*Lock, make func(handles **C.zkl_lock, count C.size_t, out **C.zkl_lock) C.zkl_status) (*Lock, error) {
	if len(locks) == 0 {
		return nil, &Error{Status: ErrInvalid, Message: "a multi-lock of no locks; expected at least one lock"}
	}
	handles := unsafe.Slice((**C.zkl_lock)(C.malloc(C.size_t(len(locks))*C.size_t(unsafe.Sizeof(uintptr(0))))), len(locks))
	defer C.free(unsafe.Pointer(&handles[0]))
	path := ""
	for at, lock := range locks {
		if lock == nil {
			return nil, &Error{Status: ErrInvalid, Message: "a lock of the multi-lock is nil"}
		}
		handles[at] = lock.handle()
		if at > 0 {
			path += ", "
		}
		path += lock.Path()
	}
	var multi *C.zkl_lock
	if err := call(func() C.zkl_status { return make(&handles[0], C.size_t(len(locks)), &multi) }); err != nil {
		return nil, err
	}
	free := sync.OnceFunc(func() { C.zkl_lock_free(multi) })
	return freeIfForgotten(&Lock{lock: multi, path: path, free: free, members: append([]*Lock(nil), locks...)}), nil
}

// Path returns the path of the lock, or the paths of the locks of a multi-lock.
func (l *Lock) Path() string {
	if l == nil {
		return ""
	}
	return l.path
}

// handle returns the handle of the library. The handle is nil for a lock that no client made. The library refuses a nil handle.
func (l *Lock) handle() *C.zkl_lock {
	if l == nil {
		return nil
	}
	return l.lock
}

// Close frees the lock. Calls that wait for the lock fail with ErrClosed, and the library releases the holds of the lock. When a
// program closes a client, the client closes its locks. A program therefore needs this method only for locks that it no longer
// uses, and that have a hold. The garbage collector frees other locks that the program has dropped.
//
// Closing a multi-lock does not release its holds, because a hold of a multi-lock consists of holds of its members.
// [Hold.Release] still releases the holds of the members, and then returns ErrClosed. Closing a member also closes the
// multi-lock.
//
// The call always returns nil. The result makes the lock an io.Closer.
func (l *Lock) Close() error {
	if l != nil && l.free != nil {
		l.free()
	}
	return nil
}

// Acquire waits until the caller holds the lock, or until the context ends. Each call returns a new hold with a separate owner.
// If this program already has another hold of the lock, Acquire therefore waits until that hold ends.
func (l *Lock) Acquire(ctx context.Context) (*Hold, error) {
	return l.acquireAs(ctx, lastOwner.Add(1), false)
}

// TryAcquire acquires the lock if it is free now. If another participant holds the lock or waits for it, the call fails with
// ErrLocked, which is also ErrTimeout. The message then names the nearest node ahead in the queue. This node belongs to the holder
// only if the message says "held by"; otherwise, its owner may also wait. For a semaphore mutex, the message can instead say that
// the lease is in use. If no server answers within one second, or before the deadline of the context, the call fails with
// ErrConnection.
func (l *Lock) TryAcquire(ctx context.Context) (*Hold, error) {
	return l.acquireAs(ctx, lastOwner.Add(1), true)
}

// Do acquires the lock, calls work, and releases the lock. The context that the function work receives ends as soon as the hold
// is no longer safe. Do returns the errors of work and of the release.
func (l *Lock) Do(ctx context.Context, work func(ctx context.Context, hold *Hold) error) (err error) {
	hold, err := l.Acquire(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, hold.Release()) }()
	safe, cancel := hold.Context(ctx)
	defer cancel()
	return work(safe, hold)
}

func (l *Lock) acquireAs(ctx context.Context, owner uint64, tryOnce bool) (*Hold, error) {
	acquiring, err := acquire(ctx, l.Path(), tryOnce, func(out **C.zkl_op) C.zkl_status {
		return C.zkl_acquire_start(l.handle(), C.uint64_t(owner), acquireTimeout(ctx, tryOnce), out)
	})
	if err != nil {
		return nil, err
	}
	return newHold(acquiring, l.Path(), l, owner)
}

// SetData sets the data of the nodes that later acquires of this lock create. By default, the data is the address of this host.
func (l *Lock) SetData(data []byte) error {
	defer runtime.KeepAlive(l)
	bytes := C.CBytes(data)
	defer C.free(bytes)
	return call(func() C.zkl_status { return C.zkl_lock_set_data(l.handle(), bytes, C.size_t(len(data))) })
}

// SetLocalHandover allows goroutines of this program to pass a mutex to each other under the same node, at most maxPasses times
// in a row.
func (l *Lock) SetLocalHandover(maxPasses int) error {
	defer runtime.KeepAlive(l)
	count, err := int32Of("maxPasses", maxPasses)
	if err != nil {
		return err
	}
	return call(func() C.zkl_status { return C.zkl_mutex_set_local_handover(l.handle(), count) })
}

// OnRevocation sets a function that the client calls on a new goroutine when another program asks the holder to release the lock.
// With nil, the call removes the function.
func (l *Lock) OnRevocation(handler func()) error {
	defer runtime.KeepAlive(l)
	return setRevocable(handler, func(handle C.uintptr_t) C.zkl_status {
		return C.zklock_go_set_revocable(l.handle(), handle)
	})
}

func setRevocable(handler func(), set func(handle C.uintptr_t) C.zkl_status) error {
	if handler == nil {
		return call(func() C.zkl_status { return set(0) })
	}
	handle := cgo.NewHandle(handler)
	err := call(func() C.zkl_status { return set(C.uintptr_t(handle)) })
	if err != nil {
		handle.Delete()
	}
	return err
}

// Participants asks the servers who holds the lock and who waits for it, in the order of the queue. For a read lock, the list
// contains only readers, and for a write lock only writers.
func (l *Lock) Participants(ctx context.Context) ([]Participant, error) {
	defer runtime.KeepAlive(l)
	return runForParticipants(ctx, l.Path(), func(out **C.zkl_op) C.zkl_status { return C.zkl_participants_start(l.handle(), out) })
}

// Queue asks the servers for all participants of a lock, readers and writers together.
func (l *Lock) Queue(ctx context.Context) ([]Participant, error) {
	defer runtime.KeepAlive(l)
	return runForParticipants(ctx, l.Path(), func(out **C.zkl_op) C.zkl_status { return C.zkl_queue_start(l.handle(), out) })
}

// Waiting returns this program's pending acquires of this lock, and the reason why each acquire waits. The call sends no request.
func (l *Lock) Waiting() ([]Wait, error) {
	defer runtime.KeepAlive(l)
	return waitingOf(func(handle C.uintptr_t) C.zkl_status { return C.zklock_go_waiting(l.handle(), handle) })
}

func waitingOf(read func(handle C.uintptr_t) C.zkl_status) ([]Wait, error) {
	var list []Wait
	handle := cgo.NewHandle(&list)
	defer handle.Delete()
	err := call(func() C.zkl_status { return read(C.uintptr_t(handle)) })
	return list, err
}
