//go:build cgo && linux

package zklock_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"zklock"
)

var daily = zklock.RunOptions{Zone: "UTC"}

func pastRuns(t *testing.T, client *zklock.Client, path string) []zklock.PastRun {
	t.Helper()
	runs, err := client.PastRuns(testContext(t), path)
	if err != nil {
		t.Fatal(err)
	}
	return runs
}

// beginRun begins a run, and checks whether the job runs.
func beginRun(t *testing.T, hold *zklock.Hold, options zklock.RunOptions, runs bool) *zklock.Run {
	t.Helper()
	run, err := hold.BeginRun(testContext(t), "day", options)
	if err != nil || (run != nil) != runs {
		t.Fatal(run, err)
	}
	return run
}

func TestJobRunsOnceInAPeriod(t *testing.T) {
	client, path := connect(t, shared.address), freshPath()
	hold := acquire(t, newMutex(t, client, path))
	run := beginRun(t, hold, daily, true)
	begun := pastRuns(t, client, path)[0]
	if begun.Result != zklock.RunRunning || !begun.Ended.IsZero() || begun.Token != hold.FencingToken() {
		t.Fatal(begun)
	}
	if begun.Started.Sub(begun.Period) >= 24*time.Hour || !strings.HasPrefix(begun.NodePath, path) || begun.Owner == "" {
		t.Fatal(begun)
	}
	if err := run.Fail(testContext(t), "exit code 3"); err != nil {
		t.Fatal(err)
	}
	if err := run.Succeed(testContext(t)); !errors.Is(err, zklock.ErrInvalid) {
		t.Fatal(err)
	}
	beginRun(t, hold, daily, false)
	retry := zklock.RunOptions{Zone: "UTC", RetryFailed: true}
	if err := beginRun(t, hold, retry, true).TakeBack(testContext(t)); err != nil {
		t.Fatal(err)
	}
	run = beginRun(t, hold, retry, true)
	// A context that has ended does not prevent the record.
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	if err := run.Succeed(ended); err != nil && !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	waitUntil(t, func() bool { return pastRuns(t, client, path)[0].Result == zklock.RunSucceeded })
	beginRun(t, hold, retry, false)
	last := pastRuns(t, client, path)
	if len(last) != 2 || last[0].Failure != "" || last[0].Ended.Before(last[0].Started) {
		t.Fatal(last)
	}
	if last[1].Result.String() != "failed" || last[1].Failure != "exit code 3" {
		t.Fatal(last)
	}
	release(t, hold)
}

func TestRunOfAReleasedHoldIsNoSuccess(t *testing.T) {
	client, path := connect(t, shared.address), freshPath()
	hold := acquire(t, newMutex(t, client, path))
	run := beginRun(t, hold, daily, true)
	release(t, hold)
	if err := run.Succeed(testContext(t)); !errors.Is(err, zklock.ErrNotOwner) {
		t.Fatal(err)
	}
	if _, err := hold.BeginRun(testContext(t), "day", daily); !errors.Is(err, zklock.ErrNotOwner) {
		t.Fatal(err)
	}
	if runs := pastRuns(t, client, path); runs[0].Result != zklock.RunRunning {
		t.Fatal(runs)
	}
}

func TestWrongArgumentsOfRuns(t *testing.T) {
	client, path := connect(t, shared.address), freshPath()
	hold := acquire(t, newMutex(t, client, path))
	for _, each := range []struct{ period, zone, message string }{
		{"noon", "", "period is \"noon\"; expected minute"},
		{"d\x00y", "", "contains a NUL"},
		{"d\xff", "", "period is not UTF-8"},
		{"day", "Mars/Base", "zone is \"Mars/Base\"; expected the name"},
		{"day", "U\x00C", "contains a NUL"},
	} {
		_, err := hold.BeginRun(testContext(t), each.period, zklock.RunOptions{Zone: each.zone})
		if !errors.Is(err, zklock.ErrInvalid) || !strings.Contains(err.Error(), each.message) {
			t.Errorf("%q, %q: %v", each.period, each.zone, err)
		}
	}
	canceled, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := hold.BeginRun(canceled, "day", daily); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	run := beginRun(t, hold, daily, true)
	// A text that the library refuses does not end the run.
	for _, text := range []string{"\xff", "a\x00b"} {
		if err := run.Fail(testContext(t), text); !errors.Is(err, zklock.ErrInvalid) {
			t.Error(err)
		}
	}
	if err := run.Succeed(testContext(t)); err != nil {
		t.Error(err)
	}
	release(t, hold)
	var none *zklock.Run
	if err := none.Succeed(testContext(t)); !errors.Is(err, zklock.ErrInvalid) {
		t.Error(err)
	}
	var noHold *zklock.Hold
	if _, err := noHold.BeginRun(testContext(t), "day", daily); !errors.Is(err, zklock.ErrClosed) {
		t.Error(err)
	}
	lock, err := client.RWLock(path)
	if err != nil {
		t.Fatal(err)
	}
	reader := acquire(t, lock.Read)
	if _, err := reader.BeginRun(testContext(t), "day", daily); !errors.Is(err, zklock.ErrInvalid) {
		t.Error(err)
	}
	release(t, reader)
}
