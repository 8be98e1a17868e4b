//! A thread that waits for a reply reads the socket itself. Every event that ends its wait must reach it there, and
//! when it has stopped, another thread must read the socket.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use crate::common::{TEST_TIMEOUT, client, client_with, path, status, wait_for_waiters};
use zklock::{ClientState, Owner, Status};
use zklock_test_support::{ZooKeeper, wait_until};

/// A long time limit. If a wait ends much earlier, another thread has woken the waiting thread.
const LONG: Duration = Duration::from_secs(60);

#[test]
fn whatever_ends_a_wait_wakes_the_reader_at_once() {
    let server = &ZooKeeper::shared().address();
    let (holder, client) = (client(server), client(server));
    let path = path("reader");
    let held = holder.mutex(&path).unwrap();
    held.acquire(None).unwrap();
    let lock = client.mutex(&path).unwrap();

    let wait = |end: &dyn Fn()| {
        thread::scope(|scope| {
            let waiter = scope.spawn(|| lock.acquire(Some(LONG)).map_err(|error| error.status()));
            wait_for_waiters(&held, 2);
            // There is nothing left to read.
            thread::sleep(Duration::from_millis(50));
            let start = Instant::now();
            end();
            let result = waiter.join().unwrap();
            assert!(start.elapsed() < TEST_TIMEOUT, "{result:?} after {:?}", start.elapsed());
            wait_for_waiters(&held, 1);
            result
        })
    };
    assert_eq!(wait(&|| lock.cancel().unwrap()), Err(Status::Canceled));
    // At the same time, the client receives the reply to another call.
    let asks_and_cancels = || {
        client.shared_count_get(&crate::common::path("no-count")).unwrap_err();
        lock.cancel().unwrap();
    };
    assert_eq!(wait(&asks_and_cancels), Err(Status::Canceled));

    let start = Instant::now();
    assert_eq!(status(lock.acquire(Some(Duration::from_secs(1)))), Status::Timeout);
    assert!((Duration::from_secs(1)..TEST_TIMEOUT).contains(&start.elapsed()));

    assert_eq!(wait(&|| client.close().unwrap()), Err(Status::Closed));
}

#[test]
fn an_operation_that_nobody_waits_for_goes_on_beside_a_reader_and_after_it() {
    let server = &ZooKeeper::shared().address();
    let (holder, client) = (client(server), client(server));
    let paths = [path("reader"), path("reader")];
    let held = paths.each_ref().map(|path| holder.mutex(path).unwrap());
    held.iter().for_each(|held| held.acquire(None).unwrap());
    let [waited_for, alone] = paths.each_ref().map(|path| client.mutex(path).unwrap());
    let (say, hear) = mpsc::channel();
    let acquiring = alone.start_acquire(Owner::task(7), None).unwrap();
    acquiring.on_done(move || say.send(()).unwrap()).unwrap();
    thread::scope(|scope| {
        let reader = scope.spawn(|| waited_for.acquire(Some(LONG)));
        wait_for_waiters(&held[0], 2);
        held[1].release().unwrap();
        hear.recv_timeout(TEST_TIMEOUT).unwrap();
        waited_for.cancel().unwrap();
        reader.join().unwrap().unwrap_err();
    });
    // No calling thread reads the socket any more, so the I/O thread must.
    assert!(acquiring.wait_for(Duration::ZERO).unwrap().unwrap().is_held().unwrap());
    let again = waited_for.start_acquire(Owner::task(7), None).unwrap();
    let (say, hear) = mpsc::channel();
    again.on_done(move || say.send(()).unwrap()).unwrap();
    held[0].release().unwrap();
    hear.recv_timeout(TEST_TIMEOUT).unwrap();
}

/// Two threads alternate at one socket, some ten thousand times.
#[test]
fn two_threads_alternate_as_reader() {
    // A heartbeat is a sixth of the session timeout.
    let client = client_with(&ZooKeeper::shared().address(), Duration::from_secs(120));
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let lock = client.mutex(&path("reader")).unwrap();
                for cycle in 0..TURNS / 4 {
                    // If a reply were left in the socket, it would stay there until the next heartbeat.
                    let start = Instant::now();
                    lock.acquire(Some(LONG)).unwrap();
                    lock.release().unwrap();
                    assert!(start.elapsed() < Duration::from_secs(5), "cycle {cycle}: {:?}", start.elapsed());
                }
            });
        }
    });
}

const TURNS: usize = 20_000;

#[test]
fn connection_loss_during_a_read_reconnects() {
    let server = ZooKeeper::start();
    let holder = client_with(&server.address(), Duration::from_secs(20));
    let client = client_with(&server.address(), Duration::from_secs(20));
    let path = path("reader");
    let held = holder.mutex(&path).unwrap();
    held.acquire(None).unwrap();
    let lock = client.mutex(&path).unwrap();
    thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            lock.acquire(Some(LONG))?;
            lock.release()
        });
        wait_for_waiters(&held, 2);
        server.restart();
        wait_until(TEST_TIMEOUT, || holder.state().unwrap() == ClientState::Connected);
        wait_until(TEST_TIMEOUT, || client.state().unwrap() == ClientState::Connected);
        held.release().unwrap();
        waiter.join().unwrap().unwrap();
    });
}

/// The child has a copy of the forking thread only, and of a client whose socket another thread was reading. Calls in
/// the child fail with FORKED, and the reader in the parent continues.
#[test]
fn fork_during_a_read_returns_forked_in_the_child() {
    let server = &ZooKeeper::shared().address();
    let (holder, client) = (client(server), client(server));
    let path = path("reader");
    let held = holder.mutex(&path).unwrap();
    held.acquire(None).unwrap();
    let lock = client.mutex(&path).unwrap();
    let is_in = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            lock.acquire(Some(LONG)).unwrap();
            is_in.store(true, Ordering::SeqCst);
            lock.release().unwrap();
        });
        wait_for_waiters(&held, 2);
        // SAFETY: The child only calls functions that a forked child may call, and exits.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let is_forked = |result: zklock::Result<()>| result.is_err_and(|error| error.status() == Status::Forked);
            let is_right = is_forked(lock.acquire(None)) && is_forked(lock.cancel()) && is_forked(client.close());
            // SAFETY: The call has no preconditions.
            unsafe { libc::_exit(i32::from(!is_right)) };
        }
        let mut status = -1;
        // SAFETY: The status is valid for writes.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0);
        assert!(!is_in.load(Ordering::SeqCst));
        held.release().unwrap();
    });
    assert!(is_in.load(Ordering::SeqCst));
}
