//! Holds, and waits for a loss that are not read by a thread: each of them concerns one hold, and no later hold.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use zklock::{Client, Config, Listen, Lock, LockState, Operation, Owner, Status};
use zklock_test_support::{ZooKeeper, wait_until};

use crate::common::{OwnerCalls as _, TEST_TIMEOUT, client, path, status};

const TRY_ONCE: Option<Duration> = Some(Duration::ZERO);

#[test]
fn a_hold_releases_no_later_hold_of_its_owner() {
    let server = ZooKeeper::shared();
    let (client, other) = (client(&server.address()), client(&server.address()));
    let path = path("later");
    let (lock, rival) = (client.mutex(&path).unwrap(), other.mutex(&path).unwrap());
    let hold = lock.hold_as(Owner::current_thread(), None).unwrap();
    let token = lock.fencing_token().unwrap();
    lock.release().unwrap();
    let later = lock.hold_as(Owner::current_thread(), None).unwrap();
    assert_eq!((hold.state().unwrap(), hold.is_held().unwrap()), (LockState::Free, false));
    assert_eq!((hold.token(), hold.remaining().unwrap()), (token, Duration::ZERO));
    assert_eq!(status(hold.check()), Status::NotOwner);
    assert_eq!(status(hold.node_paths()), Status::NotOwner);
    assert_eq!(status(hold.wait_lost(TRY_ONCE)), Status::NotOwner);
    assert_eq!(status(hold.listen(Listen::All, |_| ()).map(drop)), Status::NotOwner);
    assert_eq!(status(hold.release()), Status::NotOwner);
    assert!(later.is_held().unwrap() && later.token() > token);
    assert_eq!(status(rival.acquire(TRY_ONCE)), Status::Timeout);
    later.release().unwrap();
}

#[test]
fn an_acquire_that_is_dropped_after_its_success_releases_no_later_hold_of_its_owner() {
    let server = ZooKeeper::shared();
    let client = client(&server.address());
    let owner = Owner::task(1);
    for lock in [client.mutex(&path("dropped")).unwrap(), client.semaphore_mutex(&path("dropped-semaphore")).unwrap()] {
        let acquiring = lock.start_acquire(owner, None).unwrap();
        wait_until(TEST_TIMEOUT, || acquiring.is_over());
        lock.release_as(owner).unwrap();
        lock.acquire_as(owner, None).unwrap();
        drop(acquiring);
        assert!(lock.is_held_as(owner).unwrap());
        lock.release_as(owner).unwrap();
        // Without a release by the program, the drop releases the lock.
        let acquiring = lock.start_acquire(owner, None).unwrap();
        wait_until(TEST_TIMEOUT, || acquiring.is_over());
        drop(acquiring);
        assert_eq!(lock.state_as(owner).unwrap(), LockState::Free);
    }
}

/// Any thread may release a semaphore mutex, so between two calls of one thread another thread may get the lock.
#[test]
fn holds_in_many_threads_release_only_themselves() {
    const ROUNDS: u32 = 40;
    let server = ZooKeeper::shared();
    let client = client(&server.address());
    let lock = client.semaphore_mutex(&path("many-holds")).unwrap();
    let holders = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for round in 0..ROUNDS {
                    let hold = lock.hold(Some(TEST_TIMEOUT)).unwrap();
                    assert_eq!(holders.fetch_add(1, Ordering::SeqCst), 0, "two threads hold the lock");
                    holders.fetch_sub(1, Ordering::SeqCst);
                    if round % 2 == 0 {
                        // Any thread may release a semaphore mutex. The hold then has nothing to release.
                        lock.release_nowait().unwrap();
                    }
                    drop(hold);
                }
            });
        }
    });
}

#[test]
fn a_hold_of_a_semaphore_mutex_releases_no_hold_of_another_owner() {
    let server = ZooKeeper::shared();
    let client = client(&server.address());
    let lock = client.semaphore_mutex(&path("semaphore-mutex")).unwrap();
    let first = lock.hold(None).unwrap();
    lock.release().unwrap();
    let second = lock.hold(None).unwrap();
    drop(first);
    assert!(second.is_held().unwrap());
    assert_eq!(status(lock.acquire(TRY_ONCE)), Status::Timeout);
    second.release().unwrap();
}

#[test]
fn a_hold_of_a_multi_lock_releases_only_the_holds_with_which_it_began() {
    let server = ZooKeeper::shared();
    let client = client(&server.address());
    let (a, b) = (client.mutex(&path("part-a")).unwrap(), client.mutex(&path("part-b")).unwrap());
    let multi = Lock::multi(&[&a, &b]).unwrap();
    let hold = multi.hold_as(Owner::current_thread(), None).unwrap();
    b.release().unwrap();
    b.acquire(None).unwrap();
    assert_eq!(hold.state().unwrap(), LockState::Free);
    assert_eq!(status(hold.release()), Status::NotOwner);
    assert_eq!((a.state().unwrap(), b.state().unwrap()), (LockState::Free, LockState::Held));
    b.release().unwrap();
}

#[test]
fn a_hold_releases_the_members_of_a_multi_lock_that_was_closed() {
    let server = ZooKeeper::shared();
    let (client, other) = (client(&server.address()), client(&server.address()));
    for in_steps in [false, true] {
        let (a, b) = (client.mutex(&path("closed-a")).unwrap(), client.semaphore_mutex(&path("closed-b")).unwrap());
        let multi = if in_steps { Lock::multi(&[&a, &b]) } else { Lock::multi(&[&a]) }.unwrap();
        let hold = multi.hold(None).unwrap();
        multi.close().unwrap();
        assert_eq!(status(hold.release()), Status::Closed);
        let rival = other.mutex(a.path()).unwrap();
        rival.acquire(Some(TEST_TIMEOUT)).unwrap();
        b.acquire(Some(TEST_TIMEOUT)).unwrap();
    }
}

#[test]
fn a_multi_lock_releases_no_semaphore_mutex_of_another_owner() {
    let server = ZooKeeper::shared();
    let client = client(&server.address());
    let (a, b) = (client.mutex(&path("mixed-a")).unwrap(), client.semaphore_mutex(&path("mixed-b")).unwrap());
    let multi = Lock::multi(&[&a, &b]).unwrap();
    let (one, two) = (Owner::task(1), Owner::task(2));
    multi.acquire_as(one, None).unwrap();
    assert_eq!(status(multi.release_as(two)), Status::NotOwner);
    assert!(multi.is_held_as(one).unwrap());
    // Another owner may release a semaphore mutex itself, and then has its own hold.
    b.release_as(two).unwrap();
    b.acquire_as(two, None).unwrap();
    assert_eq!(status(multi.release_as(one)), Status::NotOwner);
    assert!(!a.is_held_as(one).unwrap() && b.is_held_as(two).unwrap());
    b.release_as(two).unwrap();
    // A multi-lock of semaphore mutexes is like a semaphore mutex.
    let all = Lock::multi(&[&b]).unwrap();
    all.acquire_as(one, None).unwrap();
    all.release_as(two).unwrap();
    assert_eq!(all.state_in_process().unwrap(), LockState::Free);
}

#[test]
fn participants_and_nodes_of_a_multi_lock_are_in_the_order_of_its_members() {
    let server = ZooKeeper::shared();
    let client = client(&server.address());
    let (a, b) = (client.semaphore_mutex(&path("order-a")).unwrap(), client.mutex(&path("order-b")).unwrap());
    let multi = Lock::multi(&[&a, &b]).unwrap();
    multi.acquire(None).unwrap();
    let nodes = multi.node_paths().unwrap();
    assert!(nodes[0].starts_with(a.path()) && nodes[1].starts_with(b.path()), "{nodes:?}");
    let participants: Vec<_> = multi.participants().unwrap().into_iter().map(|found| found.node_path).collect();
    assert_eq!(participants, nodes);
    multi.release().unwrap();
}

#[test]
fn a_wait_for_a_loss_calls_each_hook_once_and_no_hook_when_it_is_dropped() {
    let server = ZooKeeper::shared();
    let client = client(&server.address());
    let lock = client.mutex(&path("hooks")).unwrap();
    let hold = lock.hold(None).unwrap();
    let wait = lock.start_wait_lost(hold.owner()).unwrap();
    let calls = Arc::new(AtomicUsize::new(0));
    let count = || {
        let calls = Arc::clone(&calls);
        move || {
            calls.fetch_add(1, Ordering::SeqCst);
        }
    };
    wait.on_done(count()).unwrap();
    wait.on_done(count()).unwrap();
    let dropped = lock.start_wait_lost(hold.owner()).unwrap();
    dropped.on_done(count()).unwrap();
    drop(dropped);
    assert_eq!(calls.load(Ordering::SeqCst), 0);
    hold.release().unwrap();
    wait_until(TEST_TIMEOUT, || calls.load(Ordering::SeqCst) == 2);
    assert_eq!(status(wait.wait_for(Duration::ZERO).unwrap()), Status::NotOwner);
    wait.on_done(count()).unwrap();
    assert_eq!(calls.load(Ordering::SeqCst), 3);
}

/// Without this order, the drop of the hold waited for the signal that the drop of the wait had locked.
#[test]
fn the_hook_of_a_wait_for_a_loss_may_own_the_hold() {
    let server = ZooKeeper::shared();
    let client = client(&server.address());
    let lock = client.mutex(&path("owning-hook")).unwrap();
    let hold = lock.hold(None).unwrap();
    let wait = lock.start_wait_lost(hold.owner()).unwrap();
    wait.on_done(move || drop(hold)).unwrap();
    drop(wait);
    lock.acquire(Some(TEST_TIMEOUT)).unwrap();
}

/// The children of the directory do not change during the test, so the call is still running when the handler waits.
#[test]
fn a_handler_must_not_wait_for_other_participants_through_a_call() {
    let server = ZooKeeper::shared();
    let (sender, results) = std::sync::mpsc::channel();
    let (changing, unchanged) = (path("handler"), path("handler-unchanged"));
    let awaited: Arc<OnceLock<(Client, String, i64)>> = Arc::default();
    let of_handler = Arc::clone(&awaited);
    let config = Config::new().on_event(move |_| {
        if let Some((client, path, zxid)) = of_handler.get() {
            let wait = client.start_await_children(path, *zxid, Some(TEST_TIMEOUT)).and_then(Operation::wait);
            let _ = sender.send(wait.map(drop));
        }
    });
    let client = Client::connect(&server.address(), &config).unwrap();
    let (lock, kept) = (client.mutex(&changing).unwrap(), client.mutex(&unchanged).unwrap());
    lock.acquire(None).unwrap();
    kept.acquire(None).unwrap();
    let zxid = client.children(&unchanged).unwrap().unwrap().zxid;
    awaited.set((client.clone(), unchanged, zxid)).unwrap();
    lock.release().unwrap();
    assert_eq!(status(results.recv_timeout(TEST_TIMEOUT).unwrap()), Status::Deadlock);
    client.close().unwrap();
}

#[test]
fn an_acquire_in_progress_keeps_the_members_of_its_multi_lock_open() {
    let server = ZooKeeper::shared();
    let (client, other) = (client(&server.address()), client(&server.address()));
    for in_steps in [false, true] {
        let rival = other.mutex(&path("kept")).unwrap();
        rival.acquire(None).unwrap();
        let (a, b) = (client.mutex(rival.path()).unwrap(), client.semaphore_mutex(&path("kept-b")).unwrap());
        let multi = if in_steps { Lock::multi(&[&a, &b]) } else { Lock::multi(&[&a]) }.unwrap();
        let acquiring = multi.start_acquire(Owner::task(1), None).unwrap();
        drop((multi, a, b));
        rival.release().unwrap();
        let hold = acquiring.wait().unwrap();
        assert_eq!(status(rival.acquire(TRY_ONCE)), Status::Timeout);
        // The hold is the last user of the lock objects, so its drop closes them.
        drop(hold);
        rival.acquire(Some(TEST_TIMEOUT)).unwrap();
    }
}

#[test]
fn try_hold_returns_nothing_if_the_lock_is_busy() {
    let server = ZooKeeper::shared();
    let client = client(&server.address());
    let lock = client.mutex(&path("try")).unwrap();
    let hold = lock.try_hold().unwrap().unwrap();
    assert!(lock.try_hold().unwrap().is_none());
    hold.check().unwrap();
    hold.release().unwrap();
    assert_eq!(status(hold.release()), Status::NotOwner);
    assert!(lock.try_hold().unwrap().is_some());
}

/// Every way to ask an operation for its result gives the same hold, which ends with its last value.
#[test]
fn an_operation_gives_one_hold() {
    let server = ZooKeeper::shared();
    let client = client(&server.address());
    let lock = client.mutex(&path("one")).unwrap();
    let acquiring = lock.start_acquire(Owner::unique(), None).unwrap();
    let (first, second) = std::thread::scope(|scope| {
        let other = scope.spawn(|| acquiring.wait_for(TEST_TIMEOUT).unwrap().unwrap());
        (acquiring.wait_for(TEST_TIMEOUT).unwrap().unwrap(), other.join().unwrap())
    });
    assert_eq!(first.token(), second.token());
    drop(acquiring);
    drop(first);
    assert!(second.is_held().unwrap());
    drop(second.clone());
    assert!(second.is_held().unwrap());
    drop(second);
    assert_eq!(lock.state_in_process().unwrap(), LockState::Free);
}

/// The owner keeps a hold that the program leaves to it.
#[test]
fn a_hold_can_be_left_to_its_owner() {
    let server = ZooKeeper::shared();
    let client = client(&server.address());
    let lock = client.mutex(&path("left")).unwrap();
    let owner = lock.hold(None).unwrap().leave_to_owner();
    assert!(lock.is_held_as(owner).unwrap());
    lock.release_as(owner).unwrap();
    assert_eq!(status(lock.release_as(owner)), Status::NotOwner);
}
