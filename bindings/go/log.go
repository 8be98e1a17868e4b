//go:build cgo && linux

package zklock

/*
#include "callbacks.h"
*/
import "C"

import (
	"context"
	"log/slog"
	"runtime"
	"runtime/cgo"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"
)

// maxLines is the largest number of lines that wait for a logger. The package drops further lines.
const maxLines = 4096

// drainTimeout is the longest time for which SetLogger(nil) waits for the delivery of queued lines.
const drainTimeout = 2 * time.Second

// current has the lines for the present logger. It is nil if the library writes no log. The mutex also orders the calls
// of the library.
var current struct {
	mutex sync.Mutex
	lines *logQueue
}

// SetLogger writes the log of the library to a logger, for all clients of this program. The library writes only lines
// whose level the logger accepts at the time of this call. The logger runs on a separate goroutine. If the logger is
// nil, the library writes no log.
//
// When SetLogger returns, the previous logger receives no more lines, and is not running unless it called SetLogger
// itself. A new logger receives the lines that are still queued. If the logger is nil, SetLogger first waits for up to
// two seconds until the previous logger has received the queued lines. SetLogger has no time limit for a call of the
// previous logger that is already running, so a logger must not wait for another goroutine that calls SetLogger.
func SetLogger(logger *slog.Logger) error {
	level, handle, next := C.int32_t(C.ZKL_LOG_OFF), cgo.Handle(0), (*logQueue)(nil)
	if logger != nil {
		level = levelOf(logger)
		next = newLogQueue(logger)
		handle = cgo.NewHandle(next.callQueue)
	}
	current.mutex.Lock()
	err := call(func() C.zkl_status { return C.zklock_go_set_log(level, C.uintptr_t(handle)) })
	if err != nil {
		current.mutex.Unlock()
		if logger != nil {
			handle.Delete()
		}
		return err
	}
	previous := current.lines
	current.lines = next
	current.mutex.Unlock()
	var remaining []slog.Record
	if previous != nil {
		remaining = previous.stop(logger == nil)
	}
	if next != nil {
		next.start(remaining)
	}
	return nil
}

// levelOf returns the most detailed level of the library that the logger accepts.
func levelOf(logger *slog.Logger) C.int32_t {
	level := C.int32_t(C.ZKL_LOG_ERROR)
	for each, slogLevel := range slogLevels {
		if logger.Enabled(context.Background(), slogLevel) && each > level {
			level = each
		}
	}
	return level
}

// A logQueue has the lines that wait for one logger.
type logQueue struct {
	*callQueue[slog.Record]
	// thread is the thread on which the logger runs, or 0 while it does not run. The goroutine of a logger that is running
	// has this thread for itself, so the thread identifies the goroutine.
	thread atomic.Int64
}

func newLogQueue(logger *slog.Logger) *logQueue {
	queue := &logQueue{}
	queue.callQueue = newCallQueue(maxLines, func(record slog.Record) {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		queue.thread.Store(int64(syscall.Gettid()))
		defer queue.thread.Store(0)
		if ctx := context.Background(); logger.Enabled(ctx, record.Level) {
			_ = logger.Handler().Handle(ctx, record)
		}
	})
	return queue
}

// stop ends the calls of the logger, and returns the lines that remain. If isDraining is true, the method first waits
// until the logger has received these lines. If the logger itself calls SetLogger, the method waits for nothing.
func (q *logQueue) stop(isDraining bool) []slog.Record {
	q.close()
	isOwn := q.thread.Load() == int64(syscall.Gettid())
	if isDraining && !isOwn {
		q.waitForEnd(time.After(drainTimeout))
	}
	remaining := q.takeAll()
	if !isOwn {
		q.waitForEnd(nil)
	}
	return remaining
}

// levelTrace is the level of the most detailed lines. The package slog has no name for it.
const levelTrace = slog.LevelDebug - 4

var slogLevels = map[C.int32_t]slog.Level{
	C.ZKL_LOG_ERROR: slog.LevelError,
	C.ZKL_LOG_WARN:  slog.LevelWarn,
	C.ZKL_LOG_INFO:  slog.LevelInfo,
	C.ZKL_LOG_DEBUG: slog.LevelDebug,
	C.ZKL_LOG_TRACE: levelTrace,
}

// recordOf copies a line of the log.
func recordOf(line *C.zkl_log) slog.Record {
	record := slog.NewRecord(time.Unix(0, int64(line.time_ns)), slogLevels[line.level], C.GoString(line.message), 0)
	record.AddAttrs(slog.String("target", C.GoString(line.target)))
	if line.field_count > 0 {
		for _, field := range unsafe.Slice(line.fields, int(line.field_count)) {
			record.AddAttrs(slog.String(C.GoString(field.name), C.GoString(field.value)))
		}
	}
	return record
}
