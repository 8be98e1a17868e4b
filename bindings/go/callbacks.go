//go:build cgo && linux

package zklock

/*
#include "callbacks.h"
*/
import "C"

import (
	"log/slog"
	"runtime/cgo"
	"sync"
	"time"
)

//export zklockOnEvent
func zklockOnEvent(handle C.uintptr_t, event *C.zkl_event) {
	cgo.Handle(handle).Value().(*callQueue[Event]).push(eventOf(event))
}

//export zklockOnRevocation
func zklockOnRevocation(handle C.uintptr_t) {
	go cgo.Handle(handle).Value().(func())()
}

//export zklockOnLog
func zklockOnLog(handle C.uintptr_t, line *C.zkl_log) {
	cgo.Handle(handle).Value().(*callQueue[slog.Record]).push(recordOf(line))
}

//export zklockOnWaiting
func zklockOnWaiting(handle C.uintptr_t, wait *C.zkl_wait) {
	list := cgo.Handle(handle).Value().(*[]Wait)
	*list = append(*list, waitOf(wait))
}

//export zklockDrop
func zklockDrop(handle C.uintptr_t) {
	value := cgo.Handle(handle).Value()
	cgo.Handle(handle).Delete()
	if queue, ok := value.(interface{ close() }); ok {
		queue.close()
	}
}

// A callQueue calls a function of the program on a goroutine of its own, one call at a time. The function may therefore wait for
// locks, and does not delay the library.
type callQueue[T any] struct {
	handle  func(T)
	limit   int
	mutex   sync.Mutex
	changed *sync.Cond
	items   []T
	closed  bool
	// ended is closed after the last call. It is nil before the start.
	ended chan struct{}
}

// newCallQueue makes a queue that drops items beyond the limit. If the limit is 0, the queue drops no items. The queue
// makes no calls before its start.
func newCallQueue[T any](limit int, handle func(T)) *callQueue[T] {
	queue := &callQueue[T]{handle: handle, limit: limit}
	queue.changed = sync.NewCond(&queue.mutex)
	return queue
}

// start starts the calls, and adds the given items before all others. A queue that was closed makes no calls.
func (q *callQueue[T]) start(first []T) {
	q.mutex.Lock()
	defer q.mutex.Unlock()
	if !q.closed {
		q.items = append(first, q.items...)
		q.ended = make(chan struct{})
		go q.serve()
	}
}

func (q *callQueue[T]) push(item T) {
	q.mutex.Lock()
	if q.limit == 0 || len(q.items) < q.limit {
		q.items = append(q.items, item)
	}
	q.mutex.Unlock()
	q.changed.Signal()
}

func (q *callQueue[T]) close() {
	q.mutex.Lock()
	q.closed = true
	q.mutex.Unlock()
	q.changed.Signal()
}

// takeAll removes and returns the items for which no call has begun.
func (q *callQueue[T]) takeAll() []T {
	q.mutex.Lock()
	defer q.mutex.Unlock()
	items := q.items
	q.items = nil
	return items
}

// waitForEnd waits until the last call of a closed queue has returned, or until the limit.
func (q *callQueue[T]) waitForEnd(limit <-chan time.Time) {
	q.mutex.Lock()
	ended := q.ended
	q.mutex.Unlock()
	if ended == nil {
		return
	}
	select {
	case <-ended:
	case <-limit:
	}
}

// serve calls the function for all items, and ends after the queue was closed.
func (q *callQueue[T]) serve() {
	defer close(q.ended)
	for {
		q.mutex.Lock()
		for len(q.items) == 0 && !q.closed {
			q.changed.Wait()
		}
		if len(q.items) == 0 {
			q.mutex.Unlock()
			return
		}
		item := q.items[0]
		q.items = q.items[1:]
		q.mutex.Unlock()
		q.handle(item)
	}
}
