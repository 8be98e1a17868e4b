//go:build cgo && linux

package zklock

/*
#include <stdlib.h>
#include "callbacks.h"
*/
import "C"

import (
	"context"
	"fmt"
	"math"
	"runtime"
)

// Semaphore has a limited number of leases, which programs acquire and release. Semaphore works like Curator's
// InterProcessSemaphoreV2.
type Semaphore struct {
	semaphore *C.zkl_semaphore
	path      string
	free      func()
}

// Semaphore returns a semaphore with a fixed number of leases. All programs must use the same number.
func (c *Client) Semaphore(path string, maxLeases int) (*Semaphore, error) {
	name, err := newText("path", path)
	if err != nil {
		return nil, err
	}
	defer free(name)
	count, err := int32Of("maxLeases", maxLeases)
	if err != nil {
		return nil, err
	}
	var semaphore *C.zkl_semaphore
	err = call(func() C.zkl_status { return C.zkl_semaphore_new(c.handle(), name, count, &semaphore) })
	if err != nil {
		return nil, err
	}
	return c.addSemaphore(semaphore, path), nil
}

// SemaphoreCounted returns a semaphore whose number of leases is a shared count. If the node of the count does not exist, the
// call creates the node with the value initial.
func (c *Client) SemaphoreCounted(ctx context.Context, path, countPath string, initial int) (*Semaphore, error) {
	name, err := newText("path", path)
	if err != nil {
		return nil, err
	}
	defer free(name)
	count, err := newText("path of the count", countPath)
	if err != nil {
		return nil, err
	}
	defer free(count)
	leases, err := int32Of("initial", initial)
	if err != nil {
		return nil, err
	}
	var semaphore *C.zkl_semaphore
	err = run(ctx, path, func(out **C.zkl_op) C.zkl_status {
		return C.zkl_semaphore_new_counted_start(c.handle(), name, count, leases, out)
	}, func(op *C.zkl_op) error {
		return call(func() C.zkl_status { return C.zkl_op_semaphore(op, &semaphore) })
	})
	if err != nil {
		return nil, err
	}
	return c.addSemaphore(semaphore, path), nil
}

func (c *Client) addSemaphore(semaphore *C.zkl_semaphore, path string) *Semaphore {
	s := &Semaphore{semaphore: semaphore, path: path, free: c.freeOnClose(func() { C.zkl_semaphore_free(semaphore) })}
	// If the program drops the semaphore, its leases remain held.
	runtime.SetFinalizer(s, (*Semaphore).Close)
	return s
}

// Path returns the path of the semaphore.
func (s *Semaphore) Path() string {
	if s == nil {
		return ""
	}
	return s.path
}

// handle returns the handle of the library. The handle is nil for a semaphore that no client made. The library refuses a nil
// handle.
func (s *Semaphore) handle() *C.zkl_semaphore {
	if s == nil {
		return nil
	}
	return s.semaphore
}

// Close frees the semaphore. Calls that wait for leases fail with ErrClosed. Leases that the program holds remain held, and the
// program must still release them. When a program closes a client, the client closes its semaphores, and the leases end.
//
// The call always returns nil. The result makes the semaphore an io.Closer.
func (s *Semaphore) Close() error {
	if s != nil && s.free != nil {
		s.free()
	}
	return nil
}

// Acquire waits until the caller holds the given number of leases, or until the context ends. Acquire acquires either all of
// these leases or none, and a release of the hold releases all of them.
func (s *Semaphore) Acquire(ctx context.Context, quantity int) (*Hold, error) {
	return s.acquire(ctx, quantity, false)
}

// TryAcquire acquires leases if they are free now. If too few leases are free, the call fails with ErrLocked, which is also
// ErrTimeout. If no server answers within one second, or before the deadline of the context, the call fails with ErrConnection.
func (s *Semaphore) TryAcquire(ctx context.Context, quantity int) (*Hold, error) {
	return s.acquire(ctx, quantity, true)
}

func (s *Semaphore) acquire(ctx context.Context, quantity int, tryOnce bool) (*Hold, error) {
	defer runtime.KeepAlive(s)
	count, err := int32Of("quantity", quantity)
	if err != nil {
		return nil, err
	}
	acquiring, err := acquire(ctx, s.Path(), tryOnce, func(out **C.zkl_op) C.zkl_status {
		return C.zkl_semaphore_acquire_start(s.handle(), count, acquireTimeout(ctx, tryOnce), out)
	})
	if err != nil {
		return nil, err
	}
	return newHold(acquiring, s.Path(), nil, 0)
}

// SetData sets the data of the nodes that later acquires create. By default, the data is the address of this host.
func (s *Semaphore) SetData(data []byte) error {
	defer runtime.KeepAlive(s)
	bytes := C.CBytes(data)
	defer C.free(bytes)
	return call(func() C.zkl_status { return C.zkl_semaphore_set_data(s.handle(), bytes, C.size_t(len(data))) })
}

// OnRevocation sets a function that the client calls on a new goroutine when another program asks a holder to release its leases.
// With nil, the call removes the function.
func (s *Semaphore) OnRevocation(handler func()) error {
	defer runtime.KeepAlive(s)
	return setRevocable(handler, func(handle C.uintptr_t) C.zkl_status {
		return C.zklock_go_semaphore_set_revocable(s.handle(), handle)
	})
}

// Participants asks the servers for the holders of leases and for the programs that wait.
func (s *Semaphore) Participants(ctx context.Context) ([]Participant, error) {
	defer runtime.KeepAlive(s)
	return runForParticipants(ctx, s.Path(), func(out **C.zkl_op) C.zkl_status {
		return C.zkl_semaphore_participants_start(s.handle(), out)
	})
}

// Waiting returns the acquires of this semaphore that wait in this program. The call sends no request.
func (s *Semaphore) Waiting() ([]Wait, error) {
	defer runtime.KeepAlive(s)
	return waitingOf(func(handle C.uintptr_t) C.zkl_status { return C.zklock_go_semaphore_waiting(s.handle(), handle) })
}

// int32Of converts a number to the type of the library.
func int32Of(name string, number int) (C.int32_t, error) {
	if number > math.MaxInt32 || number < math.MinInt32 {
		message := fmt.Sprintf("%s is %d; expected a number from %d to %d", name, number, math.MinInt32, math.MaxInt32)
		return 0, &Error{Status: ErrInvalid, Message: message}
	}
	return C.int32_t(number), nil
}
