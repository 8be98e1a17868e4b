//! The thread that waits reads the socket itself: whatever ends its wait finds it there, and when it goes the socket is read all the same.

#![allow(clippy::unwrap_used, reason = "a test that fails is a test that fails")]

mod common;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use common::{SOON, client, client_with, path, status, wait_for_waiters};
use zklock::{ClientState, Owner, Status};
use zklock_rig::{ZooKeeper, wait_until};

/// Long enough to tell apart who was woken and who found out by himself.
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
            // It has nothing to read any more.
            thread::sleep(Duration::from_millis(50));
            let start = Instant::now();
            end();
            let result = waiter.join().unwrap();
            assert!(start.elapsed() < SOON, "{result:?} after {:?}", start.elapsed());
            wait_for_waiters(&held, 1);
            result
        })
    };
    assert_eq!(wait(&|| lock.cancel().unwrap()), Err(Status::Canceled));
    // While another call of the same client is answered.
    let asks_and_cancels = || {
        client.get_count(&common::path("no-count")).unwrap_err();
        lock.cancel().unwrap();
    };
    assert_eq!(wait(&asks_and_cancels), Err(Status::Canceled));

    let start = Instant::now();
    assert_eq!(status(lock.acquire(Some(Duration::from_millis(300)))), Status::Timeout);
    assert!((Duration::from_millis(300)..SOON).contains(&start.elapsed()));

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
    let acquiring = alone.start_acquire(Owner::Custom(7), None).unwrap();
    acquiring.on_done(move || say.send(()).unwrap()).unwrap();
    thread::scope(|scope| {
        let reader = scope.spawn(|| waited_for.acquire(Some(LONG)));
        wait_for_waiters(&held[0], 2);
        held[1].release().unwrap();
        hear.recv_timeout(SOON).unwrap();
        waited_for.cancel().unwrap();
        reader.join().unwrap().unwrap_err();
    });
    // Nobody reads for himself any more: the I/O thread hears of it.
    assert_eq!(acquiring.wait_for(Duration::ZERO), Some(Ok(())));
    let again = waited_for.start_acquire(Owner::Custom(7), None).unwrap();
    let (say, hear) = mpsc::channel();
    again.on_done(move || say.send(()).unwrap()).unwrap();
    held[0].release().unwrap();
    hear.recv_timeout(SOON).unwrap();
}

/// Two threads take their turns at one socket, some ten thousand of them.
#[test]
fn two_threads_take_the_socket_from_each_other() {
    let client = client(&ZooKeeper::shared().address());
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let lock = client.mutex(&path("reader")).unwrap();
                for cycle in 0..TURNS / 4 {
                    // Where an answer stayed in the socket, it would be there until the next heartbeat.
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
fn a_connection_that_breaks_under_the_reader_is_followed_by_another() {
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
        wait_until(SOON, || holder.state().unwrap() == ClientState::Connected);
        wait_until(SOON, || client.state().unwrap() == ClientState::Connected);
        held.release().unwrap();
        waiter.join().unwrap().unwrap();
    });
}

/// The child has a copy of the forking thread alone, and of a client that is being read. It gets FORKED, and the reader goes on.
#[test]
fn a_fork_beside_a_reader_touches_nothing() {
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
        // SAFETY: the child does nothing but call functions that a forked child may call, and exits.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let is_forked = |result: zklock::Result<()>| result.is_err_and(|error| error.status() == Status::Forked);
            let is_right = is_forked(lock.acquire(None)) && is_forked(lock.cancel()) && is_forked(client.close());
            // SAFETY: no precondition.
            unsafe { libc::_exit(i32::from(!is_right)) };
        }
        let mut status = -1;
        // SAFETY: the status is valid for writing.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0);
        assert!(!is_in.load(Ordering::SeqCst));
        held.release().unwrap();
    });
    assert!(is_in.load(Ordering::SeqCst));
}
