//go:build cgo && linux

package zklock_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"zklock"
)

func Example() {
	ctx := context.Background()
	client, err := zklock.Connect(ctx, shared.address, zklock.WithSessionTimeout(10*time.Second))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer client.Close()
	lock, err := client.Mutex("/examples/nightly-report")
	if err != nil {
		fmt.Println(err)
		return
	}
	hold, err := lock.Acquire(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer hold.Release()
	work, cancel := hold.Context(ctx) // ends when the hold is no longer safe
	defer cancel()
	fmt.Println(work.Err(), hold.IsHeld(), hold.FencingToken() > 0)
	// Output: <nil> true true
}

func ExampleLock_TryAcquire() {
	ctx := context.Background()
	client, err := zklock.Connect(ctx, shared.address)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer client.Close()
	lock, err := client.Mutex("/examples/try")
	if err != nil {
		fmt.Println(err)
		return
	}
	first, err := lock.TryAcquire(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer first.Release()
	_, err = lock.TryAcquire(ctx)
	fmt.Println(errors.Is(err, zklock.ErrLocked))
	// Output: true
}

func ExampleLock_Acquire_deadline() {
	client, err := zklock.Connect(context.Background(), shared.address)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer client.Close()
	lock, err := client.Mutex("/examples/deadline")
	if err != nil {
		fmt.Println(err)
		return
	}
	holder, err := lock.Acquire(context.Background())
	if err != nil {
		fmt.Println(err)
		return
	}
	defer holder.Release()
	ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
	defer cancel()
	_, err = lock.Acquire(ctx)
	fmt.Println(errors.Is(err, zklock.ErrTimeout), errors.Is(err, context.DeadlineExceeded))
	// Output: true true
}

func ExampleSemaphore() {
	ctx := context.Background()
	client, err := zklock.Connect(ctx, shared.address)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer client.Close()
	pool, err := client.Semaphore("/examples/pool", 5)
	if err != nil {
		fmt.Println(err)
		return
	}
	leases, err := pool.Acquire(ctx, 2)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(leases.State())
	leases.Release()
	fmt.Println(leases.State())
	// Output:
	// held
	// free
}
