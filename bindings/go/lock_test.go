//go:build cgo && linux

package zklock_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"zklock"
	"zklock/zklocktest"
)

func TestGoroutinesExcludeEachOtherAndTokensGrow(t *testing.T) {
	lock := newMutex(t, connect(t, shared.address), freshPath())
	var inside atomic.Int32
	var lastToken int64
	var group sync.WaitGroup
	for range make([]struct{}, 8) {
		group.Add(1)
		go func() {
			defer group.Done()
			for range make([]struct{}, 25) {
				hold, err := lock.Acquire(testContext(t))
				if err != nil {
					t.Error(err)
					return
				}
				if inside.Add(1) != 1 || !hold.IsHeld() || hold.FencingToken() <= lastToken {
					t.Errorf("two holders, or token %d after %d", hold.FencingToken(), lastToken)
				}
				lastToken = hold.FencingToken()
				inside.Add(-1)
				if err := hold.Release(); err != nil {
					t.Error(err)
				}
			}
		}()
	}
	group.Wait()
}

func TestDeadlineOfTheContextEndsAnAcquire(t *testing.T) {
	lock := newMutex(t, connect(t, shared.address), freshPath())
	hold := acquire(t, lock)
	ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer cancel()
	began := time.Now()
	other, err := lock.Acquire(ctx)
	if other != nil || !errors.Is(err, zklock.ErrTimeout) || !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("%v, %v", other, err)
	}
	if took := time.Since(began); took < 300*time.Millisecond {
		t.Fatalf("ended after %v", took)
	}
	if !strings.Contains(err.Error(), lock.Path()) {
		t.Fatalf("the message does not name the lock: %v", err)
	}
	if _, err := lock.Acquire(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
	release(t, hold)
}

func TestCanceledContextLeavesTheQueue(t *testing.T) {
	lock := newMutex(t, connect(t, shared.address), freshPath())
	hold := acquire(t, lock)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() {
		_, err := lock.Acquire(ctx)
		ended <- err
	}()
	waitUntil(t, func() bool { return len(participants(t, lock)) == 2 })
	cancel()
	err := <-ended
	if !errors.Is(err, zklock.ErrCanceled) || !errors.Is(err, context.Canceled) || errors.Is(err, zklock.ErrTimeout) {
		t.Fatal(err)
	}
	waitUntil(t, func() bool { return len(participants(t, lock)) == 1 })
	release(t, hold)
	if _, err := lock.Acquire(ctx); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
}

func TestErrorsContainTheCauseOfTheContext(t *testing.T) {
	lock := newMutex(t, connect(t, shared.address), freshPath())
	hold := acquire(t, lock)
	cause := errors.New("the shift is over")
	check := func(err, status, contextErr error) {
		t.Helper()
		if !errors.Is(err, status) || !errors.Is(err, contextErr) || !errors.Is(err, cause) {
			t.Errorf("%v; expected %v, %v and the cause", err, status, contextErr)
		}
	}
	canceled, cancel := context.WithCancelCause(context.Background())
	ended := make(chan error)
	go func() {
		_, err := lock.Acquire(canceled)
		ended <- err
	}()
	waitUntil(t, func() bool { return len(participants(t, lock)) == 2 })
	cancel(cause)
	check(<-ended, zklock.ErrCanceled, context.Canceled)
	_, err := lock.Acquire(canceled)
	check(err, zklock.ErrCanceled, context.Canceled)
	_, err = zklock.Connect(canceled, shared.address)
	check(err, zklock.ErrCanceled, context.Canceled)
	// Either the library or the context notices the deadline first.
	for range make([]struct{}, 20) {
		short, cancelShort := context.WithTimeoutCause(context.Background(), 20*time.Millisecond, cause)
		_, err := lock.Acquire(short)
		if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, cause) {
			t.Error(err)
		}
		_, err = lock.TryAcquire(short)
		check(err, zklock.ErrConnection, context.DeadlineExceeded)
		cancelShort()
	}
	// A cause that is a deadline does not make the error a timeout.
	canceled, cancel = context.WithCancelCause(context.Background())
	cancel(context.DeadlineExceeded)
	var timeout interface{ Timeout() bool }
	if _, err := lock.TryAcquire(canceled); !errors.Is(err, zklock.ErrCanceled) || !errors.As(err, &timeout) || timeout.Timeout() {
		t.Error(err)
	}
	release(t, hold)
}

var _ = []io.Closer{(*zklock.Client)(nil), (*zklock.Lock)(nil), (*zklock.Semaphore)(nil)}

func TestTryAcquire(t *testing.T) {
	lock := newMutex(t, connect(t, shared.address), freshPath())
	hold, err := lock.TryAcquire(testContext(t))
	if hold == nil || err != nil {
		t.Fatal(hold, err)
	}
	if second, err := lock.TryAcquire(testContext(t)); second != nil || !errors.Is(err, zklock.ErrLocked) || !errors.Is(err, zklock.ErrTimeout) || errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(second, err)
	}
	release(t, hold)
	if err := hold.Release(); !errors.Is(err, zklock.ErrNotOwner) {
		t.Fatal(err)
	}
}

// If no server was asked, nobody knows whether the lock is free, so the status is not ErrTimeout.
func TestTryAcquireWithAnEndedContext(t *testing.T) {
	client := connect(t, shared.address)
	readers, err := client.RWLock(freshPath())
	if err != nil {
		t.Fatal(err)
	}
	writers, err := client.RWLock(freshPath())
	if err != nil {
		t.Fatal(err)
	}
	semaphoreMutex, err := client.SemaphoreMutex(freshPath())
	if err != nil {
		t.Fatal(err)
	}
	multi, err := zklock.Multi(newMutex(t, client, freshPath()), newMutex(t, client, freshPath()))
	if err != nil {
		t.Fatal(err)
	}
	defer multi.Close()
	semaphore, err := client.Semaphore(freshPath(), 1)
	if err != nil {
		t.Fatal(err)
	}
	tries := map[string]func(ctx context.Context) error{
		"semaphore": func(ctx context.Context) error { _, err := semaphore.TryAcquire(ctx, 1); return err },
	}
	for name, lock := range map[string]*zklock.Lock{
		"mutex": newMutex(t, client, freshPath()), "read lock": readers.Read, "write lock": writers.Write,
		"semaphore mutex": semaphoreMutex, "multi-lock": multi,
	} {
		tries[name] = func(lock *zklock.Lock) func(ctx context.Context) error {
			return func(ctx context.Context) error { _, err := lock.TryAcquire(ctx); return err }
		}(lock)
	}
	check := func(name string, err error, status, cause error) {
		t.Helper()
		if !errors.Is(err, status) || !errors.Is(err, cause) {
			t.Errorf("%s: %v; expected %v", name, err, status)
		}
	}
	canceled, cancel := context.WithCancel(context.Background())
	cancel()
	past, cancel := context.WithDeadline(context.Background(), time.Now().Add(-time.Second))
	defer cancel()
	for name, try := range tries {
		check(name, try(past), zklock.ErrConnection, context.DeadlineExceeded)
		check(name, try(canceled), zklock.ErrCanceled, context.Canceled)
		free := zklock.OccupyStarts()
		soon, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
		check(name, try(soon), zklock.ErrConnection, context.DeadlineExceeded)
		cancel()
		later, cancel := context.WithCancel(context.Background())
		time.AfterFunc(20*time.Millisecond, cancel)
		check(name, try(later), zklock.ErrCanceled, context.Canceled)
		free()
		if err := try(testContext(t)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestHoldReentersItsLock(t *testing.T) {
	lock := newMutex(t, connect(t, shared.address), freshPath())
	outer := acquire(t, lock)
	inner, err := outer.Acquire(testContext(t), lock)
	if err != nil {
		t.Fatal(err)
	}
	work, cancel := inner.Context(context.Background())
	defer cancel()
	release(t, inner)
	<-work.Done()
	if cause := context.Cause(work); cause != zklock.ErrNotOwner {
		t.Fatal(cause)
	}
	// The watches of inner holds end with these holds. Otherwise, the memory of the program would grow.
	before := zklock.PendingNotices()
	for range make([]struct{}, 20) {
		inner, err := outer.Acquire(testContext(t), lock)
		if err != nil {
			t.Fatal(err)
		}
		inner.Lost()
		release(t, inner)
	}
	waitUntil(t, func() bool { return zklock.PendingNotices() <= before })
	if !outer.IsHeld() || outer.State() != zklock.LockHeld {
		t.Fatal(outer.State())
	}
	release(t, outer)
	if outer.IsHeld() || outer.State() != zklock.LockFree || outer.Remaining() != 0 {
		t.Fatal(outer.State(), outer.Remaining())
	}
}

func TestWriterBecomesReader(t *testing.T) {
	client := connect(t, shared.address)
	lock, err := client.RWLock(freshPath())
	if err != nil {
		t.Fatal(err)
	}
	write := acquire(t, lock.Write)
	read, err := write.Acquire(testContext(t), lock.Read)
	if err != nil {
		t.Fatal(err)
	}
	if list, err := lock.Read.Queue(testContext(t)); err != nil || len(list) != 2 {
		t.Fatal(list, err)
	}
	release(t, write)
	second := acquire(t, lock.Read)
	if blocked, err := lock.Write.TryAcquire(testContext(t)); blocked != nil || !errors.Is(err, zklock.ErrLocked) || !errors.Is(err, zklock.ErrTimeout) || errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(blocked, err)
	}
	release(t, read)
	release(t, second)
}

func TestSemaphores(t *testing.T) {
	client := connect(t, shared.address)
	semaphore, err := client.Semaphore(freshPath(), 3)
	if err != nil {
		t.Fatal(err)
	}
	two, err := semaphore.Acquire(testContext(t), 2)
	if err != nil || !two.IsHeld() || two.State() != zklock.LockHeld || two.FencingToken() == 0 || two.Remaining() <= 0 {
		t.Fatal(two, err)
	}
	if none, err := semaphore.TryAcquire(testContext(t), 2); none != nil || !errors.Is(err, zklock.ErrLocked) || !errors.Is(err, zklock.ErrTimeout) || errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(none, err)
	}
	if _, err := semaphore.Acquire(testContext(t), 4); !errors.Is(err, zklock.ErrInvalid) {
		t.Fatal(err)
	}
	if _, err := semaphore.Acquire(testContext(t), 1<<40); !errors.Is(err, zklock.ErrInvalid) {
		t.Fatal(err)
	}
	if list, err := semaphore.Participants(testContext(t)); err != nil || len(list) != 2 || !list[0].Holds {
		t.Fatal(list, err)
	}
	if err := two.Release(); err != nil {
		t.Fatal(err)
	}
	if err := two.Release(); !errors.Is(err, zklock.ErrNotOwner) {
		t.Fatal(err)
	}
	three, err := semaphore.TryAcquire(testContext(t), 3)
	if err != nil || three == nil {
		t.Fatal(three, err)
	}
	semaphore.Close()
}

func TestSemaphoreWithASharedCount(t *testing.T) {
	client, path := connect(t, shared.address), freshPath()
	semaphore, err := client.SemaphoreCounted(testContext(t), path, path+"-count", 1)
	if err != nil {
		t.Fatal(err)
	}
	one, err := semaphore.Acquire(testContext(t), 1)
	if err != nil {
		t.Fatal(err)
	}
	if none, err := semaphore.TryAcquire(testContext(t), 1); none != nil || !errors.Is(err, zklock.ErrLocked) || !errors.Is(err, zklock.ErrTimeout) || errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(none, err)
	}
	if count, err := client.SharedCount(testContext(t), path+"-count"); count != 1 || err != nil {
		t.Fatal(count, err)
	}
	if err := client.SetSharedCount(testContext(t), path+"-count", 2); err != nil {
		t.Fatal(err)
	}
	other, err := semaphore.Acquire(testContext(t), 1)
	if err != nil {
		t.Fatal(err)
	}
	for _, leases := range []*zklock.Hold{one, other} {
		if err := leases.Release(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestMultiLockAcquiresAllOrNothing(t *testing.T) {
	client := connect(t, shared.address)
	first, second := newMutex(t, client, freshPath()), newMutex(t, client, freshPath())
	for _, make := range []func(...*zklock.Lock) (*zklock.Lock, error){zklock.Multi, zklock.MultiInOrder} {
		multi, err := make(first, second)
		if err != nil {
			t.Fatal(err)
		}
		hold := acquire(t, second)
		if none, err := multi.TryAcquire(testContext(t)); none != nil || !errors.Is(err, zklock.ErrLocked) || !errors.Is(err, zklock.ErrTimeout) || errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(none, err)
		}
		if free, err := first.TryAcquire(testContext(t)); free == nil || err != nil {
			t.Fatal(free, err)
		} else {
			release(t, free)
		}
		release(t, hold)
		all := acquire(t, multi)
		if none, err := first.TryAcquire(testContext(t)); none != nil || !errors.Is(err, zklock.ErrLocked) || !errors.Is(err, zklock.ErrTimeout) || errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(none, err)
		}
		release(t, all)
		multi.Close()
	}
	for _, locks := range [][]*zklock.Lock{{}, {nil}, {first, first}} {
		if multi, err := zklock.Multi(locks...); !errors.Is(err, zklock.ErrInvalid) {
			t.Fatal(multi, err)
		}
	}
}

// A program often closes a multi-lock before it releases its hold: deferred calls run in reverse order.
func TestHoldOfAClosedMultiLockIsReleased(t *testing.T) {
	client, other := connect(t, shared.address), connect(t, shared.address)
	for _, make := range []func(...*zklock.Lock) (*zklock.Lock, error){zklock.Multi, zklock.MultiInOrder} {
		first, second := newMutex(t, client, freshPath()), newMutex(t, client, freshPath())
		multi, err := make(first, second)
		if err != nil {
			t.Fatal(err)
		}
		hold := acquire(t, multi)
		member, err := hold.Acquire(testContext(t), first)
		if err != nil {
			t.Fatal(err)
		}
		multi.Close()
		if !member.IsHeld() {
			t.Fatal("Close has released a hold of a member")
		}
		<-hold.Lost()
		if err := hold.Release(); !errors.Is(err, zklock.ErrClosed) {
			t.Fatal(err)
		}
		if !member.IsHeld() {
			t.Fatal("the release of the multi-lock has released another hold of its owner")
		}
		release(t, member)
		for _, lock := range []*zklock.Lock{first, second} {
			release(t, acquire(t, newMutex(t, other, lock.Path())))
		}
	}
}

// A release that ran twice would also release the other hold of the owner.
func TestReleaseDuringCloseOfAMultiLockReleasesOnce(t *testing.T) {
	client := connect(t, shared.address)
	first, second := newMutex(t, client, freshPath()), newMutex(t, client, freshPath())
	multi, err := zklock.Multi(first, second)
	if err != nil {
		t.Fatal(err)
	}
	hold := acquire(t, multi)
	member, err := hold.Acquire(testContext(t), first)
	if err != nil {
		t.Fatal(err)
	}
	released := make(chan error, 1)
	zklock.BeforeFree(multi, func() {
		go func() { released <- hold.Release() }()
		select {
		case err := <-released:
			released <- err
		case <-time.After(200 * time.Millisecond):
		}
	})
	multi.Close()
	if err := <-released; err != nil && !errors.Is(err, zklock.ErrClosed) {
		t.Fatal(err)
	}
	if !member.IsHeld() {
		t.Fatal("the release of the multi-lock has released another hold of its owner")
	}
	release(t, acquire(t, newMutex(t, client, second.Path())))
	release(t, member)
}

func TestFirstQueryOfTheChannelReportsAnEarlierLoss(t *testing.T) {
	own := ownServer(t)
	client := connect(t, own.address, zklock.WithSessionTimeout(6*time.Second))
	semaphore, err := client.Semaphore(freshPath(), 20)
	if err != nil {
		t.Fatal(err)
	}
	var holds []*zklock.Hold
	var leases []*zklock.Hold
	for range make([]struct{}, 20) {
		holds = append(holds, acquire(t, newMutex(t, client, freshPath())))
		lease, err := semaphore.Acquire(testContext(t), 1)
		if err != nil {
			t.Fatal(err)
		}
		leases = append(leases, lease)
	}
	own.pause(t)
	for at := range holds {
		waitUntil(t, func() bool { return !holds[at].IsHeld() && !leases[at].IsHeld() })
		for _, lost := range []<-chan struct{}{holds[at].Lost(), leases[at].Lost()} {
			select {
			case <-lost:
			default:
				t.Error("the channel is open although the hold is not safe")
			}
		}
	}
	own.resume(t)
}

func TestLossIsReportedInTime(t *testing.T) {
	own := ownServer(t)
	var mutex sync.Mutex
	var events []zklock.Event
	client := connect(t, own.address, zklock.WithSessionTimeout(6*time.Second), zklock.WithEventHandler(func(event zklock.Event) {
		mutex.Lock()
		defer mutex.Unlock()
		events = append(events, event)
	}))
	hold := acquire(t, newMutex(t, client, freshPath()))
	work, cancel := hold.Context(context.Background())
	defer cancel()
	semaphore, err := client.Semaphore(freshPath(), 1)
	if err != nil {
		t.Fatal(err)
	}
	leases, err := semaphore.Acquire(testContext(t), 1)
	if err != nil {
		t.Fatal(err)
	}
	select {
	case <-hold.Lost():
		t.Fatal("lost while it is held")
	default:
	}
	began := time.Now()
	own.pause(t)
	<-hold.Lost()
	if took := time.Since(began); took > 6*time.Second {
		t.Fatalf("the session may have ended before the report, after %v", took)
	}
	<-leases.Lost()
	<-work.Done()
	if hold.IsHeld() || leases.IsHeld() || context.Cause(work) != zklock.ErrLost {
		t.Fatal(hold.State(), leases.State(), context.Cause(work))
	}
	own.resume(t)
	waitUntil(t, func() bool {
		mutex.Lock()
		defer mutex.Unlock()
		for _, event := range events {
			if event.IsLock && event.Path == hold.Lock().Path() && event.PreviousLock == zklock.LockSuspended {
				return event.Token == hold.FencingToken()
			}
		}
		return false
	})
}

func TestContextAfterALossHasEndedEvenIfTheHoldIsSafeAgain(t *testing.T) {
	own := ownServer(t)
	client := connect(t, own.address, zklock.WithSessionTimeout(6*time.Second))
	hold := acquire(t, newMutex(t, client, freshPath()))
	semaphore, err := client.Semaphore(freshPath(), 1)
	if err != nil {
		t.Fatal(err)
	}
	leases, err := semaphore.Acquire(testContext(t), 1)
	if err != nil {
		t.Fatal(err)
	}
	own.pause(t)
	<-hold.Lost()
	<-leases.Lost()
	own.resume(t)
	// On a very slow machine, the session may end before the server resumes.
	waitUntil(t, func() bool { return hold.IsHeld() && leases.IsHeld() || hold.State() == zklock.LockLost })
	for range make([]struct{}, 20) {
		for _, contextOf := range []func(context.Context) (context.Context, context.CancelFunc){hold.Context, leases.Context} {
			work, cancel := contextOf(context.Background())
			if work.Err() == nil || context.Cause(work) != zklock.ErrLost {
				t.Fatal(work.Err(), context.Cause(work), hold.State(), leases.State())
			}
			cancel()
		}
	}
}

func TestReleaseIsNoLossAndEndsTheContext(t *testing.T) {
	client := connect(t, shared.address)
	lock := newMutex(t, client, freshPath())
	hold := acquire(t, lock)
	lost := hold.Lost()
	work, cancel := hold.Context(context.Background())
	defer cancel()
	release(t, hold)
	<-work.Done()
	if cause := context.Cause(work); cause != zklock.ErrNotOwner {
		t.Fatal(cause)
	}
	late, cancelLate := hold.Context(context.Background())
	defer cancelLate()
	if context.Cause(late) != zklock.ErrNotOwner {
		t.Fatal(context.Cause(late))
	}
	semaphore, err := client.Semaphore(freshPath(), 1)
	if err != nil {
		t.Fatal(err)
	}
	leases, err := semaphore.Acquire(testContext(t), 1)
	if err != nil {
		t.Fatal(err)
	}
	if err := leases.Release(); err != nil {
		t.Fatal(err)
	}
	select {
	case <-lost:
		t.Fatal("a release is reported as a loss")
	case <-leases.Lost():
		t.Fatal("a release of leases is reported as a loss")
	default:
	}
}

func TestContextDuringAReleaseReportsNoLoss(t *testing.T) {
	lock := newMutex(t, connect(t, shared.address), freshPath())
	for range make([]struct{}, 50) {
		hold := acquire(t, lock)
		released := make(chan error)
		go func() { released <- hold.Release() }()
		for hold.State() != zklock.LockFree {
		}
		work, cancel := hold.Context(context.Background())
		<-work.Done()
		if cause := context.Cause(work); cause != zklock.ErrNotOwner {
			t.Error(cause)
		}
		cancel()
		if err := <-released; err != nil {
			t.Fatal(err)
		}
	}
}

// The library lets any owner release a semaphore mutex. A hold that is released twice must not release the next hold.
func TestSecondReleaseDoesNotReleaseAnotherHold(t *testing.T) {
	client := connect(t, shared.address)
	lock, err := client.SemaphoreMutex(freshPath())
	if err != nil {
		t.Fatal(err)
	}
	first := acquire(t, lock)
	release(t, first)
	second := acquire(t, lock)
	if err := first.Release(); !errors.Is(err, zklock.ErrNotOwner) {
		t.Fatal(err)
	}
	if !second.IsHeld() || first.IsHeld() || first.State() != zklock.LockFree || first.Remaining() != 0 {
		t.Fatal(second.State(), first.State())
	}
	release(t, second)
	mutex := newMutex(t, client, freshPath())
	outer := acquire(t, mutex)
	inner, err := outer.Acquire(testContext(t), mutex)
	if err != nil {
		t.Fatal(err)
	}
	release(t, inner)
	if err := inner.Release(); !errors.Is(err, zklock.ErrNotOwner) || inner.IsHeld() || !outer.IsHeld() {
		t.Fatal(err, inner.State(), outer.State())
	}
	release(t, outer)
	if hold, err := outer.Acquire(testContext(t), mutex); !errors.Is(err, zklock.ErrNotOwner) {
		t.Fatal(hold, err)
	}
}

func TestDoReleasesAfterErrorsAndPanics(t *testing.T) {
	lock := newMutex(t, connect(t, shared.address), freshPath())
	failure := errors.New("the work failed")
	err := lock.Do(testContext(t), func(ctx context.Context, hold *zklock.Hold) error {
		if ctx.Err() != nil || !hold.IsHeld() {
			t.Error(ctx.Err(), hold.State())
		}
		return failure
	})
	if !errors.Is(err, failure) {
		t.Fatal(err)
	}
	func() {
		defer func() { _ = recover() }()
		_ = lock.Do(testContext(t), func(context.Context, *zklock.Hold) error { panic("in the work") })
	}()
	release(t, acquire(t, lock))
}

func TestDeadlineOnASilentServerIsADeadline(t *testing.T) {
	own := ownServer(t)
	client := connect(t, own.address, zklock.WithSessionTimeout(20*time.Second))
	lock := newMutex(t, client, freshPath())
	own.pause(t)
	ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer cancel()
	var timeout interface{ Timeout() bool }
	if _, err := lock.Acquire(ctx); !errors.Is(err, context.DeadlineExceeded) || !errors.As(err, &timeout) || !timeout.Timeout() {
		t.Fatal(err)
	}
	if _, err := lock.Participants(ctx); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), lock.Path()) {
		t.Fatal(err)
	}
	again, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer cancel()
	// Nobody knows whether the lock is free, so the status is not ErrTimeout.
	if _, err := lock.TryAcquire(again); !errors.Is(err, zklock.ErrConnection) || !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
	own.resume(t)
}

func TestNilPointersAndZeroValuesActLikeClosedObjects(t *testing.T) {
	testClosed(t, new(zklock.Client), new(zklock.Lock), new(zklock.Semaphore), new(zklock.Hold))
	testClosed(t, nil, nil, nil, nil)
}

func testClosed(t *testing.T, client *zklock.Client, lock *zklock.Lock, semaphore *zklock.Semaphore, hold *zklock.Hold) {
	ctx, real := testContext(t), newMutex(t, connect(t, shared.address), freshPath())
	work := func(context.Context, *zklock.Hold) error { return nil }
	calls := map[string]func() error{
		"Client.Close":            client.Close,
		"Client.Mutex":            func() error { _, err := client.Mutex("/a"); return err },
		"Client.SemaphoreMutex":   func() error { _, err := client.SemaphoreMutex("/a"); return err },
		"Client.RWLock":           func() error { _, err := client.RWLock("/a"); return err },
		"Client.Semaphore":        func() error { _, err := client.Semaphore("/a", 1); return err },
		"Client.SemaphoreCounted": func() error { _, err := client.SemaphoreCounted(ctx, "/a", "/b", 1); return err },
		"Client.Revoke":           func() error { return client.Revoke(ctx, "/a/b") },
		"Client.FenceCheck":       func() error { _, err := client.FenceCheck(ctx, "/a", 1); return err },
		"Client.SharedCount":      func() error { _, err := client.SharedCount(ctx, "/a"); return err },
		"Client.SetSharedCount":   func() error { return client.SetSharedCount(ctx, "/a", 1) },
		"Client.SetServers":       func() error { return client.SetServers("localhost") },
		"Client.Prometheus":       func() error { _, err := client.Prometheus(""); return err },
		"Lock.Acquire":            func() error { _, err := lock.Acquire(ctx); return err },
		"Lock.TryAcquire":         func() error { _, err := lock.TryAcquire(ctx); return err },
		"Lock.Do":                 func() error { return lock.Do(ctx, work) },
		"Lock.Participants":       func() error { _, err := lock.Participants(ctx); return err },
		"Lock.Queue":              func() error { _, err := lock.Queue(ctx); return err },
		"Lock.Waiting":            func() error { _, err := lock.Waiting(); return err },
		"Lock.SetData":            func() error { return lock.SetData(nil) },
		"Lock.SetLocalHandover":   func() error { return lock.SetLocalHandover(1) },
		"Lock.OnRevocation":       func() error { return lock.OnRevocation(func() {}) },
		"RWLock.Read.Acquire":     func() error { _, err := new(zklock.RWLock).Read.Acquire(ctx); return err },
		"Multi":                   func() error { _, err := zklock.Multi(new(zklock.Lock)); return err },
		"Semaphore.Acquire":       func() error { _, err := semaphore.Acquire(ctx, 1); return err },
		"Semaphore.TryAcquire":    func() error { _, err := semaphore.TryAcquire(ctx, 1); return err },
		"Semaphore.Participants":  func() error { _, err := semaphore.Participants(ctx); return err },
		"Semaphore.Waiting":       func() error { _, err := semaphore.Waiting(); return err },
		"Semaphore.SetData":       func() error { return semaphore.SetData(nil) },
		"Semaphore.OnRevocation":  func() error { return semaphore.OnRevocation(func() {}) },
		"Hold.NodePaths":          func() error { _, err := hold.NodePaths(); return err },
		"Hold.Acquire":            func() error { _, err := hold.Acquire(ctx, real); return err },
		"Hold.Release":            hold.Release,
		"Hold.ReleaseContext":     func() error { return hold.ReleaseContext(ctx) },
	}
	for name, call := range calls {
		if err := call(); !errors.Is(err, zklock.ErrClosed) {
			t.Errorf("%s: %v", name, err)
		}
	}
	lock.Close()
	semaphore.Close()
	<-hold.Lost()
	safe, cancel := hold.Context(ctx)
	defer cancel()
	if cause := context.Cause(safe); cause != zklock.ErrLost {
		t.Error(cause)
	}
	if hold.IsHeld() || hold.State() != zklock.LockFree || hold.Remaining() != 0 || hold.Lock() != nil || hold.Path() != "" {
		t.Error(hold.State())
	}
	if hold.FencingToken() != 0 || hold.FencingPass() != 0 {
		t.Error(hold.FencingToken(), hold.FencingPass())
	}
	if client.State() != zklock.ClientClosed || client.SessionID() != 0 || client.String() != "zklock client (closed)" {
		t.Error(client)
	}
	if lock.Path() != "" || semaphore.Path() != "" {
		t.Error(lock.Path(), semaphore.Path())
	}
}

func TestConcurrentCloseWaitsForTheEnd(t *testing.T) {
	client := connect(t, shared.address)
	var group sync.WaitGroup
	for range make([]struct{}, 4) {
		group.Add(1)
		go func() {
			defer group.Done()
			if err := client.Close(); err != nil || client.State() != zklock.ClientClosed {
				t.Error(err, client.State())
			}
		}()
	}
	group.Wait()
}

func TestRevocation(t *testing.T) {
	client := connect(t, shared.address)
	lock := newMutex(t, client, freshPath())
	asked := make(chan struct{}, 1)
	if err := lock.OnRevocation(func() { asked <- struct{}{} }); err != nil {
		t.Fatal(err)
	}
	hold := acquire(t, lock)
	nodes, err := hold.NodePaths()
	if err != nil {
		t.Fatal(err)
	}
	if err := connect(t, shared.address).Revoke(testContext(t), nodes[0]); err != nil {
		t.Fatal(err)
	}
	<-asked
	release(t, hold)
	if err := lock.OnRevocation(nil); err != nil {
		t.Fatal(err)
	}
}

func TestParticipantsAndWaits(t *testing.T) {
	client := connect(t, shared.address)
	lock := newMutex(t, client, freshPath())
	if err := lock.SetData([]byte("host\x00a")); err != nil {
		t.Fatal(err)
	}
	hold := acquire(t, lock)
	list := participants(t, lock)
	nodes, err := hold.NodePaths()
	if err != nil || len(nodes) != 1 || len(list) != 1 || !list[0].Holds || list[0].NodePath != nodes[0] || !bytes.Equal(list[0].Data, []byte("host\x00a")) ||
		list[0].Token != hold.FencingToken() || list[0].SessionID != client.SessionID() {
		t.Fatal(list, nodes, err)
	}
	ctx, cancel := context.WithCancel(testContext(t))
	ended := make(chan error)
	go func() {
		_, err := lock.Acquire(ctx)
		ended <- err
	}()
	waitUntil(t, func() bool {
		waits, err := lock.Waiting()
		return err == nil && len(waits) == 1 && waits[0].For == zklock.WaitsForNode && waits[0].Count == 1 &&
			strings.HasPrefix(waits[0].Ahead, lock.Path()) && waits[0].Left > 0
	})
	if valid, err := client.FenceCheck(testContext(t), lock.Path(), hold.FencingToken()); !valid || err != nil {
		t.Fatal(valid, err)
	}
	if valid, err := client.FenceCheck(testContext(t), lock.Path(), hold.FencingToken()-1); valid || err != nil {
		t.Fatal(valid, err)
	}
	cancel()
	<-ended
	release(t, hold)
}

func TestBadArgumentsAreErrors(t *testing.T) {
	client := connect(t, shared.address)
	for _, path := range []string{"", "locks", "/a//b", "/a/\xff", "/a\x00b", strings.Repeat("/x", 5000)} {
		if _, err := client.Mutex(path); !errors.Is(err, zklock.ErrInvalid) {
			t.Fatalf("%q: %v", path, err)
		}
	}
	for _, count := range []int{0, -1, 1 << 32, 1<<32 + 3} {
		if _, err := client.Semaphore("/s", count); !errors.Is(err, zklock.ErrInvalid) || !strings.Contains(err.Error(), fmt.Sprint(count)) {
			t.Fatal(count, err)
		}
		if _, err := client.SemaphoreCounted(testContext(t), "/s", "/count", count); count != 0 && !errors.Is(err, zklock.ErrInvalid) {
			t.Fatal(count, err)
		}
		if err := newMutex(t, client, "/m").SetLocalHandover(count); count != 0 && !errors.Is(err, zklock.ErrInvalid) {
			t.Fatal(count, err)
		}
	}
	for name, option := range map[string]zklock.Option{
		"session": zklock.WithSessionTimeout(-time.Second),
		"name":    zklock.WithOption("no.such.option", "1"),
		"file":    zklock.WithOptionsFile("/no/such/file"),
		"handler": zklock.WithEventHandler(nil),
		"NUL":     zklock.WithOption("session.timeout", "10000\x00"),
	} {
		if _, err := zklock.Connect(testContext(t), shared.address, option); !errors.Is(err, zklock.ErrInvalid) {
			t.Fatalf("%s: %v", name, err)
		}
	}
	if _, err := zklock.Connect(testContext(t), "host:99999"); !errors.Is(err, zklock.ErrInvalid) {
		t.Fatal(err)
	}
}

func TestConnectEndsWithItsContext(t *testing.T) {
	own := ownServer(t)
	own.pause(t)
	ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
	defer cancel()
	if _, err := zklock.Connect(ctx, own.address); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
	if _, err := zklock.Connect(testContext(t), own.address, zklock.WithConnectTimeout(time.Second)); !errors.Is(err, zklock.ErrConnection) {
		t.Fatal(err)
	}
}

func TestConnectErrorAfterTheContextSaysWhyNoServerAnswered(t *testing.T) {
	// This server closes each connection. The second attempt shows that the client knows the result of the first.
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	ctx, cancel := context.WithCancel(testContext(t))
	go func() {
		for attempts := 1; ; attempts++ {
			connection, err := listener.Accept()
			if err != nil {
				return
			}
			if attempts == 2 {
				cancel()
			}
			connection.Close()
		}
	}()
	address := listener.Addr().String()
	_, err = zklock.Connect(ctx, address)
	if !errors.Is(err, zklock.ErrCanceled) || !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	for _, part := range []string{"context canceled", "no answer from " + address, "closed the connection"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%v; expected %q", err, part)
		}
	}
	short, cancelShort := context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer cancelShort()
	_, err = zklock.Connect(short, address)
	if !errors.Is(err, zklock.ErrTimeout) || !strings.Contains(err.Error(), "no answer from "+address) {
		t.Error(err)
	}
}

func TestClosedClientRefusesCallsAndEndsWaits(t *testing.T) {
	client := connect(t, shared.address)
	lock := newMutex(t, client, freshPath())
	hold := acquire(t, lock)
	lost := hold.Lost()
	ended := make(chan error)
	go func() {
		_, err := lock.Acquire(context.Background())
		ended <- err
	}()
	waitUntil(t, func() bool { return len(participants(t, lock)) == 2 })
	if err := client.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; !errors.Is(err, zklock.ErrClosed) {
		t.Fatal(err)
	}
	<-lost
	if hold.IsHeld() || client.State() != zklock.ClientClosed || client.SessionID() != 0 {
		t.Fatal(hold.State(), client.State())
	}
	if _, err := client.Mutex("/a"); !errors.Is(err, zklock.ErrClosed) {
		t.Fatal(err)
	}
	if err := hold.Release(); !errors.Is(err, zklock.ErrClosed) {
		t.Fatal(err)
	}
	if err := client.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestErrorOfAClosedLockNamesTheLock(t *testing.T) {
	client := connect(t, shared.address)
	lock := newMutex(t, client, freshPath())
	semaphore, err := client.Semaphore(freshPath(), 1)
	if err != nil {
		t.Fatal(err)
	}
	hold := acquire(t, lock)
	lock.Close()
	semaphore.Close()
	_, ofLock := lock.Acquire(testContext(t))
	_, ofQueue := lock.Queue(testContext(t))
	_, ofSemaphore := semaphore.Acquire(testContext(t), 1)
	for _, err := range []error{ofLock, ofQueue, hold.Release()} {
		if !errors.Is(err, zklock.ErrClosed) || strings.Count(err.Error(), lock.Path()) != 1 {
			t.Error(err)
		}
	}
	if !errors.Is(ofSemaphore, zklock.ErrClosed) || !strings.Contains(ofSemaphore.Error(), semaphore.Path()) {
		t.Error(ofSemaphore)
	}
}

func TestLogGoesToSlog(t *testing.T) {
	var mutex sync.Mutex
	var text bytes.Buffer
	writer := writerFunc(func(line []byte) (int, error) {
		mutex.Lock()
		defer mutex.Unlock()
		return text.Write(line)
	})
	if err := zklock.SetLogger(slog.New(slog.NewTextHandler(writer, &slog.HandlerOptions{Level: slog.LevelDebug}))); err != nil {
		t.Fatal(err)
	}
	session := fmt.Sprintf("%x", connect(t, shared.address).SessionID())
	waitUntil(t, func() bool {
		mutex.Lock()
		defer mutex.Unlock()
		return strings.Contains(text.String(), session)
	})
	if err := zklock.SetLogger(nil); err != nil {
		t.Fatal(err)
	}
}

func debugLogger(write func(line string)) *slog.Logger {
	writer := writerFunc(func(line []byte) (int, error) {
		write(string(line))
		return len(line), nil
	})
	return slog.New(slog.NewTextHandler(writer, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

func setLogger(t *testing.T, logger *slog.Logger) {
	t.Helper()
	if err := zklock.SetLogger(logger); err != nil {
		t.Error(err)
	}
}

func TestRemovalOfALoggerWaitsForItsLines(t *testing.T) {
	var removed atomic.Bool
	var mutex sync.Mutex
	var text strings.Builder
	entered, gate, returned := make(chan struct{}), make(chan struct{}), make(chan struct{})
	enter := sync.OnceFunc(func() { close(entered) })
	setLogger(t, debugLogger(func(line string) {
		enter()
		<-gate
		if removed.Load() {
			t.Error("a line after the removal:", line)
		}
		mutex.Lock()
		defer mutex.Unlock()
		text.WriteString(line)
	}))
	client := connect(t, shared.address)
	<-entered
	lock := newMutex(t, client, freshPath())
	release(t, acquire(t, lock))
	go func() {
		setLogger(t, nil)
		removed.Store(true)
		close(returned)
	}()
	select {
	case <-returned:
		t.Error("SetLogger has returned while the logger runs")
	case <-time.After(200 * time.Millisecond):
		// SetLogger waits for the logger.
	}
	close(gate)
	<-returned
	mutex.Lock()
	defer mutex.Unlock()
	if !strings.Contains(text.String(), lock.Path()) {
		t.Errorf("no line about the lock %s in: %s", lock.Path(), text.String())
	}
}

func TestLoggerMayReplaceAndRemoveItself(t *testing.T) {
	client := connect(t, shared.address)
	lock := newMutex(t, client, freshPath())
	entered, gate, removed := make(chan struct{}), make(chan struct{}), make(chan struct{})
	var isReplaced, isRemoved atomic.Bool
	second := debugLogger(func(line string) {
		if isRemoved.Load() {
			t.Error("a line after the removal:", line)
		} else if strings.Contains(line, lock.Path()) {
			setLogger(t, nil)
			isRemoved.Store(true)
			close(removed)
		}
	})
	setLogger(t, debugLogger(func(line string) {
		if isReplaced.Load() {
			t.Error("a line after the replacement:", line)
			return
		}
		close(entered)
		<-gate
		setLogger(t, second)
		isReplaced.Store(true)
	}))
	release(t, acquire(t, newMutex(t, client, freshPath())))
	<-entered
	// The lines of this lock are queued for the first logger. The second logger receives them.
	release(t, acquire(t, lock))
	close(gate)
	<-removed
}

type writerFunc func(line []byte) (int, error)

func (f writerFunc) Write(line []byte) (int, error) { return f(line) }

func TestMetrics(t *testing.T) {
	client := connect(t, shared.address)
	release(t, acquire(t, newMutex(t, client, freshPath())))
	text, err := client.Prometheus(`app="go"`)
	if err != nil || !strings.Contains(text, `app="go"`) || !strings.Contains(text, "zklock_") {
		t.Fatal(text, err)
	}
	if text, err := client.Prometheus(""); err != nil || text == "" {
		t.Fatal(text, err)
	}
	if _, err := client.Prometheus("app"); !errors.Is(err, zklock.ErrInvalid) {
		t.Fatal(err)
	}
}

// A hold must survive the garbage collector, because the program may still work under it.
func TestGarbageCollectionReleasesNothing(t *testing.T) {
	client, path := connect(t, shared.address), freshPath()
	acquire(t, newMutex(t, client, path))
	for range make([]struct{}, 3) {
		runtime.GC()
	}
	if hold, err := newMutex(t, client, path).TryAcquire(testContext(t)); hold != nil || !errors.Is(err, zklock.ErrLocked) || !errors.Is(err, zklock.ErrTimeout) || errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(hold, err)
	}
}

// Ten thousand goroutines wait for a hundred locks. No goroutine needs a thread or a descriptor.
func TestTenThousandGoroutines(t *testing.T) {
	const goroutines, locks = 10_000, 100
	client := connect(t, shared.address, zklock.WithSessionTimeout(40*time.Second))
	all := make([]*zklock.Lock, locks)
	inside := make([]atomic.Int32, locks)
	for at := range all {
		all[at] = newMutex(t, client, freshPath())
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	began := time.Now()
	var group sync.WaitGroup
	var most atomic.Int64
	for task := range make([]struct{}, goroutines) {
		group.Add(1)
		go func(at int) {
			defer group.Done()
			hold, err := all[at].Acquire(ctx)
			if err != nil {
				t.Error(err)
				return
			}
			if inside[at].Add(1) != 1 {
				t.Errorf("two holders of lock %d", at)
			}
			if at == 0 {
				most.Store(max(most.Load(), threads(t)))
			}
			inside[at].Add(-1)
			if err := hold.Release(); err != nil {
				t.Error(err)
			}
		}(task % locks)
	}
	group.Wait()
	t.Logf("%d goroutines on %d locks: %v, at most %d threads", goroutines, locks, time.Since(began), most.Load())
	if most.Load() > 100 {
		t.Errorf("%d threads", most.Load())
	}
}

// Ten thousand goroutines give up at the same time.
func TestTenThousandGoroutinesWithOneDeadline(t *testing.T) {
	const goroutines = 10_000
	client := connect(t, shared.address, zklock.WithSessionTimeout(40*time.Second))
	path := freshPath()
	hold := acquire(t, newMutex(t, client, path))
	lock := newMutex(t, client, path)
	deadline := time.Now().Add(2 * time.Second)
	ctx, cancel := context.WithDeadline(context.Background(), deadline)
	defer cancel()
	var group sync.WaitGroup
	var latest atomic.Int64
	for range make([]struct{}, goroutines) {
		group.Add(1)
		go func() {
			defer group.Done()
			// The server of a busy machine may not have answered the last acquires.
			_, err := lock.Acquire(ctx)
			isLate := errors.Is(err, zklock.ErrTimeout) || errors.Is(err, zklock.ErrConnection)
			if !isLate || !errors.Is(err, context.DeadlineExceeded) {
				t.Error(err)
			}
			latest.Store(max(latest.Load(), int64(time.Since(deadline))))
		}()
	}
	group.Wait()
	release(t, hold)
	// The runtime of Go keeps its threads.
	count := threads(t)
	t.Logf("%d goroutines: the last one %v after the deadline, %d threads", goroutines, time.Duration(latest.Load()), count)
	if count > 100 {
		t.Errorf("%d threads", count)
	}
}

func threads(t *testing.T) int64 {
	entries, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Error(err)
	}
	return int64(len(entries))
}

func TestForgottenLocksAreFreedUnlessTheyAreHeld(t *testing.T) {
	client := connect(t, shared.address)
	path := freshPath()
	// The program keeps no reference to the hold either.
	acquire(t, newMutex(t, client, path))
	for range make([]struct{}, 1000) {
		_, semaphoreErr := client.Semaphore(path+"/semaphore", 1)
		sides, rwErr := client.RWLock(path + "/rw")
		if semaphoreErr != nil || rwErr != nil {
			t.Fatal(semaphoreErr, rwErr)
		}
		if _, err := zklock.Multi(newMutex(t, client, path+"/mutex"), sides.Write); err != nil {
			t.Fatal(err)
		}
	}
	if zklock.HandlesOf(client) < 1000 {
		t.Fatal("the client does not free the handles when it closes")
	}
	waitUntil(t, func() bool {
		runtime.GC()
		return zklock.HandlesOf(client) == 1
	})
	if _, err := newMutex(t, client, path).TryAcquire(testContext(t)); !errors.Is(err, zklock.ErrTimeout) {
		t.Fatalf("the forgotten hold has ended: %v", err)
	}
}

// A program tests what it does after a loss with a server of its own.
func TestZklocktestExpiresTheSessionOfAHold(t *testing.T) {
	server := zklocktest.Start(t)
	client := connect(t, server.Address())
	lock := newMutex(t, client, freshPath())
	hold := acquire(t, lock)
	server.Expire(client.SessionID())
	<-hold.Lost()
	waitUntil(t, func() bool { return hold.State() == zklock.LockLost })
	if err := hold.Release(); !errors.Is(err, zklock.ErrLost) {
		t.Fatal(err)
	}
	server.LoseReply(zklocktest.All, zklocktest.Create2)
	release(t, acquire(t, lock))
}
