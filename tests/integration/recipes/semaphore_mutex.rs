//! The semaphore mutex: it is not re-entrant, and any thread may release it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use zklock::{LockState, Owner, Status};
use zklock_test_support::{ZooKeeper, wait_until};

use crate::common::{
    OwnerCalls as _, TEST_TIMEOUT, assert_times_out, client, client_with, path, queue, raw, status, wait_for_waiters,
};

const TRY_ONCE: Option<Duration> = Some(Duration::ZERO);

#[test]
fn second_acquire_of_the_owner_waits() {
    let server = ZooKeeper::shared();
    let (path, mut raw, client) = (path("once"), raw(server), client(&server.address()));
    let lock = client.semaphore_mutex(&path).unwrap();
    lock.acquire(TRY_ONCE).unwrap();
    assert!(lock.is_held().unwrap() && lock.is_held_in_process().unwrap());
    assert_eq!(lock.state().unwrap(), LockState::Held);
    assert!(lock.fencing_token().unwrap() > 0 && lock.remaining().unwrap() > Duration::ZERO);
    // The holder cannot re-enter a semaphore mutex.
    assert_times_out(Duration::from_secs(1), |limit| lock.acquire(Some(limit)));
    assert_times_out(Duration::ZERO, |limit| lock.acquire(Some(limit)));
    lock.release().unwrap();
    assert_eq!(status(lock.release()), Status::NotOwner);
    assert_eq!(lock.state().unwrap(), LockState::Free);
    assert_eq!(lock.participants().unwrap(), []);
    wait_until(TEST_TIMEOUT, || queue(&mut raw, &format!("{path}/locks")).is_empty());
    assert_eq!(queue(&mut raw, &format!("{path}/leases")), Vec::<String>::new());
}

#[test]
fn any_thread_may_release_it() {
    let server = ZooKeeper::shared();
    let client = client(&server.address());
    let lock = client.semaphore_mutex(&path("any-thread")).unwrap();
    lock.acquire(None).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            assert!(!lock.is_held().unwrap(), "another thread acquired the lock");
            assert!(lock.is_held_in_process().unwrap());
            lock.release().unwrap();
        });
    });
    assert!(!lock.is_held().unwrap());
    lock.acquire(TRY_ONCE).unwrap();
    lock.release_nowait().unwrap();
}

/// Curator: `TestInterProcessSemaphoreMutex.test2Clients`.
#[test]
fn two_clients_take_turns() {
    let server = ZooKeeper::shared();
    let (path, inside) = (path("turns"), AtomicBool::new(false));
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let client = client(&server.address());
                let lock = client.semaphore_mutex(&path).unwrap();
                for _ in 0..20 {
                    lock.acquire(Some(TEST_TIMEOUT)).unwrap();
                    assert!(!inside.swap(true, Ordering::SeqCst));
                    inside.store(false, Ordering::SeqCst);
                    lock.release().unwrap();
                }
            });
        }
    });
}

#[test]
fn waiters_are_listed_and_served_in_order() {
    let server = ZooKeeper::shared();
    let (path, client) = (path("order"), client(&server.address()));
    let lock = client.semaphore_mutex(&path).unwrap();
    let order = std::sync::Mutex::new(Vec::new());
    lock.set_data(Some(b"mine")).unwrap();
    lock.acquire(None).unwrap();
    thread::scope(|scope| {
        for at in 0..4 {
            let (lock, order) = (&lock, &order);
            scope.spawn(move || {
                lock.acquire(None).unwrap();
                order.lock().unwrap().push(at);
                lock.release().unwrap();
            });
            wait_for_waiters(lock, at + 2);
        }
        let seen = lock.participants().unwrap();
        assert_eq!(seen.iter().map(|seen| seen.holds).collect::<Vec<_>>(), [true, false, false, false, false]);
        assert_eq!(seen[0].data, b"mine");
        assert_eq!(seen[0].node_path, lock.node_paths().unwrap()[0]);
        lock.release().unwrap();
    });
    assert_eq!(*order.lock().unwrap(), [0, 1, 2, 3]);
}

#[test]
fn cancel_close_and_loss() {
    let server = ZooKeeper::shared();
    let (path, mut raw, client) = (path("loss"), raw(server), client(&server.address()));
    let lock = client.semaphore_mutex(&path).unwrap();
    lock.acquire(None).unwrap();
    thread::scope(|scope| {
        let waiter = scope.spawn(|| lock.acquire(None));
        wait_for_waiters(&lock, 2);
        lock.cancel().unwrap();
        assert_eq!(status(waiter.join().unwrap()), Status::Canceled);
    });
    let node = lock.node_paths().unwrap().remove(0);
    assert_eq!(raw.delete(&node), 0);
    wait_until(TEST_TIMEOUT, || lock.state().unwrap() == LockState::Lost);
    assert_eq!(status(lock.acquire(TRY_ONCE)), Status::Lost, "the program must release the lock first");
    assert_eq!(status(lock.release()), Status::Lost);
    lock.acquire(TRY_ONCE).unwrap();
    lock.close().unwrap();
    assert_eq!(status(lock.acquire(TRY_ONCE)), Status::Closed);
    wait_until(TEST_TIMEOUT, || queue(&mut raw, &format!("{path}/leases")).is_empty());
}

/// Any owner may release the lock, but an owner that has lost it does not release the hold of the next owner.
#[test]
fn release_of_a_lost_hold_keeps_the_next_owners_hold() {
    let server = ZooKeeper::shared();
    let (path, mut raw, client) = (path("next"), raw(server), client(&server.address()));
    let lock = client.semaphore_mutex(&path).unwrap();
    lock.acquire(None).unwrap();
    let node = lock.node_paths().unwrap().remove(0);
    assert_eq!(raw.delete(&node), 0);
    wait_until(TEST_TIMEOUT, || lock.state().unwrap() == LockState::Lost);
    thread::scope(|scope| {
        scope.spawn(|| lock.acquire(Some(TEST_TIMEOUT)).unwrap());
    });
    assert!(lock.is_held_in_process().unwrap());
    assert_eq!(status(lock.release()), Status::Lost);
    assert!(lock.is_held_in_process().unwrap(), "another client holds the lock");
    lock.release().unwrap();
    assert_eq!(queue(&mut raw, &format!("{path}/leases")), Vec::<String>::new());
}

/// An owner that waits for its own lock may get it while its first hold is lost but not yet released. It then has two
/// holds.
#[test]
fn lost_first_hold_and_second_hold_of_one_owner_stay_separate() {
    let server = ZooKeeper::shared();
    let (path, mut raw, second) = (path("twice"), raw(server), Duration::from_secs(1));
    let clients = [client_with(&server.address(), second * 3), client(&server.address())];
    let [lock, other] = clients.each_ref().map(|client| client.semaphore_mutex(&path).unwrap());
    // Another hold keeps the session lease.
    let kept = clients[0].mutex(&crate::common::path("kept")).unwrap();
    kept.acquire(TRY_ONCE).unwrap();
    let (owner, leases) = (Owner::task(7), format!("{path}/leases"));
    lock.acquire_as(owner, None).unwrap();
    let first_node = format!("{leases}/{}", queue(&mut raw, &leases)[0]);
    let waiting = lock.start_acquire(owner, None).unwrap();
    wait_until(TEST_TIMEOUT, || queue(&mut raw, &leases).len() == 2);
    assert_eq!(raw.delete(&first_node), 0);
    waiting.wait().unwrap().leave_to_owner();
    wait_until(TEST_TIMEOUT, || !lock.is_held_as(owner).unwrap());
    thread::sleep(second);
    assert!(!lock.is_held_as(owner).unwrap() && lock.is_held_in_process().unwrap(), "the first hold is lost");
    let second_node = format!("{leases}/{}", queue(&mut raw, &leases)[0]);
    assert_eq!(raw.delete(&second_node), 0);
    other.acquire(Some(TEST_TIMEOUT)).unwrap();
    wait_until(second * 3, || !lock.is_held_in_process().unwrap());
    for _ in 0..2 {
        assert_eq!(status(lock.release_as(owner)), Status::Lost);
    }
    assert_eq!(status(lock.release_as(owner)), Status::NotOwner);
    assert!(kept.is_held().unwrap() && other.is_held().unwrap());
}
