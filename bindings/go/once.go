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
	"runtime"
	"sync/atomic"
	"time"
)

// Run is a run of a job that has begun ([Hold.BeginRun]). The program ends the run with Succeed, Fail or TakeBack, before it
// releases the hold. A run that the program does not end counts as interrupted, as after the death of the process. Any goroutine
// may use a run.
type Run struct {
	run   *C.zkl_run
	path  string
	ended atomic.Bool
}

// RunOptions are the options of [Hold.BeginRun].
type RunOptions struct {
	// Zone is the time zone of hours, days, weeks and months, for example "Europe/Berlin". With "", the time zone is that of this
	// host.
	Zone string
	// RetryFailed makes the job run again if its last run in this period failed or was interrupted.
	RetryFailed bool
}

// RunResult says how a run has ended.
type RunResult int

// The results of a run.
const (
	RunRunning   RunResult = C.ZKL_RUN_RUNNING   // the run has not ended, or it was interrupted
	RunSucceeded RunResult = C.ZKL_RUN_SUCCEEDED // the job succeeded
	RunFailed    RunResult = C.ZKL_RUN_FAILED    // the job failed
)

func (r RunResult) String() string {
	return nameOf(map[RunResult]string{RunRunning: "running", RunSucceeded: "succeeded", RunFailed: "failed"}, r)
}

// PastRun is one run of a job, as the record of runs contains it.
type PastRun struct {
	// Period is the beginning of the period.
	Period time.Time
	// Started is the beginning of the run, according to the clock of the host that ran it.
	Started time.Time
	// Ended is the end of the run, or the zero time if no end is recorded.
	Ended  time.Time
	Result RunResult
	// Failure says how the job failed. It is "" unless the result is RunFailed.
	Failure string
	// Owner is the process that ran the job, in the form user@host:pid.
	Owner string
	// Token is the fencing token of the hold.
	Token int64
	// NodePath is the first node of the hold, or "" if the node is not known. The node exists only while the run holds its lock.
	NodePath string
}

func pastRunOf(each *C.zkl_past_run) PastRun {
	run := PastRun{
		Period:   time.UnixMilli(int64(each.period_ms)),
		Started:  time.UnixMilli(int64(each.started_ms)),
		Result:   RunResult(each.result),
		Failure:  C.GoString(each.failure),
		Owner:    C.GoString(each.owner),
		Token:    int64(each.token),
		NodePath: C.GoString(each.node_path),
	}
	if each.ended_ms >= 0 {
		run.Ended = time.UnixMilli(int64(each.ended_ms))
	}
	return run
}

// BeginRun begins a run of the job of this lock, unless the job has already run in this period. The result is nil if the job has
// already run. Many programs can start a job, and one of them then runs it in each period. The record of runs is the data of the
// node PATH-runs, which the command zklock run --once-per also uses. For a multi-lock, PATH is the path of its first member lock.
// The servers write the record only while this hold exists.
//
// The period is minute, hour, day, week, month, @hourly, @daily, @midnight, @weekly, @monthly, or a time in whole seconds such as
// 30m or 2h. All programs that start the job must use the same period, the same zone and the same kind of lock.
//
// The call fails with ErrInvalid if several participants can hold the lock at the same time, for example a read lock, if an
// argument is not valid, or if the node of the record contains other data. It fails with ErrLost if the hold was lost, and with
// ErrForeign if the last run still holds another kind of lock on this path. If the context ends first, the library removes the run
// from the record.
func (h *Hold) BeginRun(ctx context.Context, period string, options RunOptions) (*Run, error) {
	switch {
	case h == nil || h.hold == nil:
		return nil, notAcquired()
	case h.released.Load():
		return nil, alreadyReleased(h.path)
	}
	defer runtime.KeepAlive(h)
	length, err := newText("period", period)
	if err != nil {
		return nil, err
	}
	defer free(length)
	zone, err := newText("zone", options.Zone)
	if err != nil {
		return nil, err
	}
	defer free(zone)
	zoneOrNil, flags := zone, C.uint32_t(0)
	if options.Zone == "" {
		zoneOrNil = nil
	}
	if options.RetryFailed {
		flags = C.ZKL_ONCE_RETRY_FAILED
	}
	var begun *C.zkl_run
	err = run(ctx, h.path, func(out **C.zkl_op) C.zkl_status {
		return C.zkl_hold_begin_run_start(h.hold, length, zoneOrNil, flags, out)
	}, func(op *C.zkl_op) error {
		return call(func() C.zkl_status { return C.zkl_op_run(op, &begun) })
	})
	if err != nil || begun == nil {
		return nil, err
	}
	r := &Run{run: begun, path: h.path}
	runtime.SetFinalizer(r, func(r *Run) { C.zkl_run_free(r.run) })
	return r, nil
}

// Succeed records that the job succeeded, and waits for the servers until the context ends. The run has then ended, even if the call
// fails. A context that has ended does not prevent the record. The call fails with ErrLost if the hold was lost: the run then counts
// as interrupted, because another program may have run the job since. The call fails with ErrNotOwner if the program has already
// released the hold, and with ErrForeign if another program has changed the record.
func (r *Run) Succeed(ctx context.Context) error {
	return r.end(ctx, func(out **C.zkl_op) C.zkl_status { return C.zkl_run_finish_start(r.run, nil, out) })
}

// Fail records that the job failed. The text says how, for people, and the record contains at most its first 1,000 characters. In all
// other respects, Fail works like Succeed.
func (r *Run) Fail(ctx context.Context, how string) error {
	text, err := newText("failure", how)
	if err != nil {
		return err
	}
	defer free(text)
	return r.end(ctx, func(out **C.zkl_op) C.zkl_status { return C.zkl_run_finish_start(r.run, text, out) })
}

// TakeBack removes the run from the record, because the job never started. The job can then still run in this period. In all other
// respects, TakeBack works like Succeed.
func (r *Run) TakeBack(ctx context.Context) error {
	return r.end(ctx, func(out **C.zkl_op) C.zkl_status { return C.zkl_run_take_back_start(r.run, out) })
}

func (r *Run) end(ctx context.Context, start func(out **C.zkl_op) C.zkl_status) error {
	if r == nil || r.run == nil {
		return &Error{Status: ErrInvalid, Message: "this Run was not made by BeginRun"}
	}
	if !r.ended.CompareAndSwap(false, true) {
		return &Error{Status: ErrInvalid, Message: r.path + ": the run has already ended"}
	}
	defer runtime.KeepAlive(r)
	err := runToEnd(ctx, r.path, "the end of the run is not confirmed yet", start)
	if errors.Is(err, ErrInvalid) {
		// The library has refused the text.
		r.ended.Store(false)
	}
	return err
}

// PastRuns reads the last runs of the job of a lock, from the newest to the oldest. The record contains at most ten runs. The call
// fails with ErrInvalid if the node of the record contains other data.
func (c *Client) PastRuns(ctx context.Context, path string) ([]PastRun, error) {
	name, err := newText("path", path)
	if err != nil {
		return nil, err
	}
	defer free(name)
	return runForList(ctx, path, func(out **C.zkl_op) C.zkl_status {
		return C.zkl_past_runs_start(c.handle(), name, out)
	}, func(op *C.zkl_op, index C.size_t) (run PastRun, err error) {
		var each *C.zkl_past_run
		if err = call(func() C.zkl_status { return C.zkl_op_past_run(op, index, &each) }); err == nil {
			run = pastRunOf(each)
		}
		return run, err
	})
}
