package zklock

/*
#include "callbacks.h"
*/
import "C"

import (
	"context"
	"log/slog"
	"runtime/cgo"
	"time"
	"unsafe"
)

// maxLines is the largest number of lines that wait for a logger. The package drops further lines.
const maxLines = 4096

// SetLogger writes the log of the library to a logger, for all clients of this program. The library writes only lines whose
// level the logger accepts at the time of this call. The logger runs on a separate goroutine. If the logger is nil, the
// library writes no log.
func SetLogger(logger *slog.Logger) error {
	if logger == nil {
		return call(func() C.zkl_status { return C.zklock_go_set_log(C.ZKL_LOG_OFF, 0) })
	}
	ctx, level := context.Background(), C.int32_t(C.ZKL_LOG_ERROR)
	for each, slogLevel := range slogLevels {
		if logger.Enabled(ctx, slogLevel) && each > level {
			level = each
		}
	}
	lines := newCallQueue(maxLines, func(record slog.Record) {
		if logger.Enabled(ctx, record.Level) {
			_ = logger.Handler().Handle(ctx, record)
		}
	})
	handle := cgo.NewHandle(lines)
	err := call(func() C.zkl_status { return C.zklock_go_set_log(level, C.uintptr_t(handle)) })
	if err != nil {
		zklockDrop(C.uintptr_t(handle))
	}
	return err
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
