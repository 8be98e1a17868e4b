// Package zklock provides distributed locks on Apache ZooKeeper. The locks use the znodes of Apache Curator, so a Go program
// can queue for the same lock as a Java service.
//
//	client, err := zklock.Connect(ctx, "localhost:2181")
//	if err != nil {
//		return err
//	}
//	defer client.Close()
//	lock, err := client.Mutex("/locks/nightly-report")
//	if err != nil {
//		return err
//	}
//	hold, err := lock.Acquire(ctx)
//	if err != nil {
//		return err
//	}
//	defer hold.Release()
//	work, cancel := hold.Context(ctx) // ends when the hold is no longer safe
//	defer cancel()
//	return report(work, hold.FencingToken())
//
// # Holds
//
// Each successful acquire returns its own [Hold]. A hold belongs neither to a goroutine nor to a thread: any goroutine may use it
// and release it. Two goroutines that acquire the same lock exclude each other. A lock is re-entrant only through
// [Hold.Acquire], which acquires a lock for the owner of an existing hold.
//
// A hold is safe only while its ZooKeeper session is known to be alive. The package uses the clock of this machine to
// decide whether a hold is safe ([Hold.IsHeld], [Hold.Lost]). A lock cannot stop a program that continues after it has
// lost the lock. However, a data store that compares fencing tokens can refuse such a program's writes
// ([Hold.FencingToken]).
//
// # Waiting
//
// Each call that waits takes a [context.Context]. If the context ends during an acquire, the package cancels the acquire, and the
// acquire leaves the lock's queue. If the context ends during [Connect], the package stops connecting. If the context ends during
// any other call, the call returns, but its request may still take effect. For example, a release always takes effect, and
// [Client.SetSharedCount] may still set the count. A waiting goroutine needs no thread and no descriptor.
//
// [Hold.Release] and [Client.Close] take no context. Each of these calls ends within a limit of its own.
//
// # Errors
//
// Each error of this package contains a [Status]. Each status is also an error, so a program can test for a status with
// errors.Is:
//
//	if errors.Is(err, zklock.ErrTimeout) { ... }
//
// If a try finds that the lock is not free, the error is also [ErrLocked].
//
// If the context caused the error, errors.Is(err, context.DeadlineExceeded) or errors.Is(err, context.Canceled) is also true.
// If the context has a cause, errors.Is also finds this cause ([context.Cause]).
//
// A nil pointer to a [Client], [Lock], [Semaphore] or [Hold] acts like a closed object, and so does a zero value of these types.
// A method that returns an error fails with ErrClosed, except for Close. Any other method returns the same as for a closed object:
// for example, [Hold.IsHeld] returns false, and the channel of [Hold.Lost] is closed.
//
// Several goroutines may call any function or method at the same time.
package zklock
