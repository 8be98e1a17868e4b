//! The semaphore mutex: not re-entrant, and anybody may release it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use zklock::{LockState, Owner, Status};
use zklock_rig::{ZooKeeper, wait_until};

use crate::common::{SOON, client, client_with, ends_at, path, queue, raw, status, wait_for_waiters};

const NOW: Option<Duration> = Some(Duration::ZERO);

#[test]
fn it_can_be_held_once() {
    let server = ZooKeeper::shared();
    let (path, mut raw, client) = (path("once"), raw(server), client(&server.address()));
    let lock = client.semaphore_mutex(&path).unwrap();
    lock.acquire(NOW).unwrap();
    assert!(lock.is_held().unwrap() && lock.is_held_in_process().unwrap());
    assert_eq!(lock.state().unwrap(), LockState::Held);
    assert!(lock.fencing_token().unwrap() > 0 && lock.remaining().unwrap() > Duration::ZERO);
    let limit = Duration::from_millis(150);
    assert_eq!(ends_at(limit, || status(lock.acquire(Some(limit)))), Status::Timeout, "not even by its holder");
    assert_eq!(status(lock.acquire(NOW)), Status::Timeout);
    lock.release().unwrap();
    assert_eq!(status(lock.release()), Status::NotOwner);
    assert_eq!(lock.state().unwrap(), LockState::Free);
    assert_eq!(lock.participants().unwrap(), []);
    wait_until(SOON, || queue(&mut raw, &format!("{path}/locks")).is_empty());
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
            assert!(!lock.is_held().unwrap(), "it was another thread that acquired it");
            assert!(lock.is_held_in_process().unwrap());
            lock.release().unwrap();
        });
    });
    assert!(!lock.is_held().unwrap());
    lock.acquire(NOW).unwrap();
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
                    lock.acquire(Some(SOON)).unwrap();
                    assert!(!inside.swap(true, Ordering::SeqCst));
                    inside.store(false, Ordering::SeqCst);
                    lock.release().unwrap();
                }
            });
        }
    });
}

#[test]
fn its_queue_is_in_order_and_can_be_seen() {
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
    wait_until(SOON, || lock.state().unwrap() == LockState::Lost);
    assert_eq!(status(lock.acquire(NOW)), Status::Lost, "it has to be released first");
    assert_eq!(status(lock.release()), Status::Lost);
    lock.acquire(NOW).unwrap();
    lock.close().unwrap();
    assert_eq!(status(lock.acquire(NOW)), Status::Closed);
    wait_until(SOON, || queue(&mut raw, &format!("{path}/leases")).is_empty());
}

/// Anybody may release it, but who lost it does not release the next one's hold without knowing.
#[test]
fn who_lost_it_does_not_take_it_from_the_next() {
    let server = ZooKeeper::shared();
    let (path, mut raw, client) = (path("next"), raw(server), client(&server.address()));
    let lock = client.semaphore_mutex(&path).unwrap();
    lock.acquire(None).unwrap();
    let node = lock.node_paths().unwrap().remove(0);
    assert_eq!(raw.delete(&node), 0);
    wait_until(SOON, || lock.state().unwrap() == LockState::Lost);
    thread::scope(|scope| {
        scope.spawn(|| lock.acquire(Some(SOON)).unwrap());
    });
    assert!(lock.is_held_in_process().unwrap());
    assert_eq!(status(lock.release()), Status::Lost);
    assert!(lock.is_held_in_process().unwrap(), "it is another's");
    lock.release().unwrap();
    assert_eq!(queue(&mut raw, &format!("{path}/leases")), Vec::<String>::new());
}

/// An owner that waits for its own lock may get it while its first hold is lost and not yet released: then it has two.
#[test]
fn an_owners_second_hold_is_not_taken_for_its_first() {
    let server = ZooKeeper::shared();
    let (path, mut raw, second) = (path("twice"), raw(server), Duration::from_secs(1));
    let clients = [client_with(&server.address(), second * 3), client(&server.address())];
    let [lock, other] = clients.each_ref().map(|client| client.semaphore_mutex(&path).unwrap());
    // Something else keeps the session's lease.
    let kept = clients[0].mutex(&crate::common::path("kept")).unwrap();
    kept.acquire(NOW).unwrap();
    let (owner, leases) = (Owner::Custom(7), format!("{path}/leases"));
    lock.start_acquire(owner, None).unwrap().wait().unwrap();
    let first_node = format!("{leases}/{}", queue(&mut raw, &leases)[0]);
    let waiting = lock.start_acquire(owner, None).unwrap();
    wait_until(SOON, || queue(&mut raw, &leases).len() == 2);
    assert_eq!(raw.delete(&first_node), 0);
    waiting.wait().unwrap();
    wait_until(SOON, || !lock.is_held_by(owner).unwrap());
    thread::sleep(second);
    assert!(!lock.is_held_by(owner).unwrap() && lock.is_held_in_process().unwrap(), "the first is lost for good");
    let second_node = format!("{leases}/{}", queue(&mut raw, &leases)[0]);
    assert_eq!(raw.delete(&second_node), 0);
    other.acquire(Some(SOON)).unwrap();
    wait_until(second * 3, || !lock.is_held_in_process().unwrap());
    for _ in 0..2 {
        assert_eq!(status(lock.release_as(owner)), Status::Lost);
    }
    assert_eq!(status(lock.release_as(owner)), Status::NotOwner);
    assert!(kept.is_held().unwrap() && other.is_held().unwrap());
}
