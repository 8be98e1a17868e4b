//! Revocation: a participant asks the holder to release the lock.

use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Duration;

use zklock::{Lock, Owner, Status};
use zklock_test_support::ZooKeeper;

use crate::common::{TEST_TIMEOUT, client, path, raw, status, wait_for_queue, wait_for_waiters};

const TRY_ONCE: Option<Duration> = Some(Duration::ZERO);

fn revocation_requests(lock: &Lock) -> Receiver<String> {
    let (sender, receiver) = mpsc::channel();
    lock.set_revocable(Some(move |node: &str| sender.send(node.to_owned()).unwrap())).unwrap();
    receiver
}

/// Curator: `TestInterProcessMutex.testRevoking`.
#[test]
fn revoke_calls_the_holders_callback() {
    let server = ZooKeeper::shared();
    let (path, one, two) = (path("revoke"), client(&server.address()), client(&server.address()));
    let (held, wanted) = (one.mutex(&path).unwrap(), two.mutex(&path).unwrap());
    let requests = revocation_requests(&held);
    held.acquire(None).unwrap();
    thread::scope(|scope| {
        let waiter = scope.spawn(|| wanted.acquire(Some(TEST_TIMEOUT)).and_then(|()| wanted.release()));
        wait_for_waiters(&held, 2);
        let holder = wanted.participants().unwrap().remove(0);
        two.revoke(&holder.node_path).unwrap();
        assert_eq!(requests.recv_timeout(TEST_TIMEOUT).unwrap(), holder.node_path);
        assert!(held.is_held().unwrap(), "it is a request");
        held.release().unwrap();
        waiter.join().unwrap().unwrap();
    });
    // A revocation request for a node that does not exist succeeds.
    two.revoke(&format!("{path}/nobody")).unwrap();
    assert_eq!(status(two.revoke("nobody")), Status::Invalid);
    assert!(requests.try_recv().is_err());
}

#[test]
fn each_revocation_request_calls_the_callback_once() {
    let server = ZooKeeper::shared();
    let (path, client, mut raw) = (path("again"), client(&server.address()), raw(server));
    let lock = client.mutex(&path).unwrap();
    let requests = revocation_requests(&lock);
    for _ in 0..2 {
        // The handler remains after the release. Curator removes it at the release.
        lock.acquire(TRY_ONCE).unwrap();
        let node = lock.node_paths().unwrap().remove(0);
        for _ in 0..2 {
            assert_eq!(raw.set_data(&node, b"other"), 0);
            assert_eq!(raw.set_data(&node, b"__REVOKE__"), 0);
            assert_eq!(requests.recv_timeout(TEST_TIMEOUT).unwrap(), node);
        }
        lock.release().unwrap();
    }
    lock.set_revocable(None::<fn(&str)>).unwrap();
    lock.acquire(TRY_ONCE).unwrap();
    client.revoke(&lock.node_paths().unwrap()[0]).unwrap();
    lock.release().unwrap();
    assert!(requests.recv_timeout(Duration::from_millis(100)).is_err(), "the handler was dropped");
}

/// Curator reads the node when it sets its watch, but ignores the data.
#[test]
fn earlier_revocation_request_reaches_a_later_callback() {
    let server = ZooKeeper::shared();
    let (path, client) = (path("before"), client(&server.address()));
    let lock = client.mutex(&path).unwrap();
    lock.acquire(TRY_ONCE).unwrap();
    let node = lock.node_paths().unwrap().remove(0);
    client.revoke(&node).unwrap();
    assert_eq!(revocation_requests(&lock).recv_timeout(TEST_TIMEOUT).unwrap(), node);
    lock.release().unwrap();
}

#[test]
fn revoke_reaches_a_waiter() {
    let server = ZooKeeper::shared();
    let (path, one, two) = (path("waiter"), client(&server.address()), client(&server.address()));
    let (held, waiting) = (one.mutex(&path).unwrap(), two.mutex(&path).unwrap());
    held.acquire(None).unwrap();
    let requests = revocation_requests(&waiting);
    thread::scope(|scope| {
        let waiter = scope.spawn(|| waiting.acquire(None));
        wait_for_waiters(&held, 2);
        let node = held.participants().unwrap().remove(1).node_path;
        one.revoke(&node).unwrap();
        assert_eq!(requests.recv_timeout(TEST_TIMEOUT).unwrap(), node);
        waiting.cancel().unwrap();
        assert_eq!(status(waiter.join().unwrap()), Status::Canceled);
    });
    held.release().unwrap();
}

#[test]
fn revoke_of_any_node_reaches_a_semaphore_waiter() {
    let server = ZooKeeper::shared();
    let client = client(&server.address());
    let semaphore = client.semaphore(&path("waits"), 1).unwrap();
    let held = semaphore.acquire(1, TRY_ONCE).unwrap();
    let (sender, requests) = mpsc::channel();
    thread::scope(|scope| {
        let waiters = [(); 2].map(|()| scope.spawn(|| semaphore.acquire(1, None)));
        zklock_test_support::wait_until(TEST_TIMEOUT, || semaphore.participants().unwrap().len() == 3);
        semaphore.set_revocable(Some(move |node: &str| sender.send(node.to_owned()).unwrap())).unwrap();
        // One acquire waits for a lease and has a lease node. The other waits for the inner mutex.
        for waiter in semaphore.participants().unwrap().into_iter().skip(1) {
            client.revoke(&waiter.node_path).unwrap();
            assert_eq!(requests.recv_timeout(TEST_TIMEOUT).unwrap(), waiter.node_path);
        }
        semaphore.cancel().unwrap();
        for waiter in waiters {
            assert_eq!(waiter.join().unwrap().err().unwrap().status(), Status::Canceled);
        }
    });
    held.release().unwrap();
}

#[test]
fn every_recipe_can_be_revoked() {
    let server = ZooKeeper::shared();
    let client = client(&server.address());
    let rw = client.rwlock(&path("rw")).unwrap();
    let semaphore_mutex = client.semaphore_mutex(&path("sm")).unwrap();
    for lock in [&rw.read, &rw.write, &semaphore_mutex] {
        let requests = revocation_requests(lock);
        lock.acquire(TRY_ONCE).unwrap();
        let node = lock.node_paths().unwrap().remove(0);
        client.revoke(&node).unwrap();
        assert_eq!(requests.recv_timeout(TEST_TIMEOUT).unwrap(), node);
        lock.release().unwrap();
    }
    let semaphore = client.semaphore(&path("leases"), 3).unwrap();
    let (sender, requests) = mpsc::channel();
    semaphore.set_revocable(Some(move |node: &str| sender.send(node.to_owned()).unwrap())).unwrap();
    let leases = semaphore.acquire(2, TRY_ONCE).unwrap();
    for node in leases.node_paths().unwrap() {
        client.revoke(&node).unwrap();
        assert_eq!(requests.recv_timeout(TEST_TIMEOUT).unwrap(), node);
    }
    leases.release().unwrap();
    let locks = [client.mutex(&path("a")).unwrap(), client.mutex(&path("b")).unwrap()];
    let multi = Lock::multi(&locks.each_ref()).unwrap();
    let requests = revocation_requests(&multi);
    multi.acquire(TRY_ONCE).unwrap();
    for node in multi.node_paths().unwrap() {
        client.revoke(&node).unwrap();
        assert_eq!(requests.recv_timeout(TEST_TIMEOUT).unwrap(), node);
    }
    multi.release().unwrap();
}

#[test]
fn revoke_after_a_reconnect_reaches_the_holder() {
    let server = ZooKeeper::start();
    let (path, client) = (path("reconnect"), client(&server.address()));
    let lock = client.mutex(&path).unwrap();
    let requests = revocation_requests(&lock);
    lock.acquire(None).unwrap();
    let node = lock.node_paths().unwrap().remove(0);
    server.restart();
    let other = crate::common::client(&server.address());
    other.revoke(&node).unwrap();
    assert_eq!(requests.recv_timeout(TEST_TIMEOUT).unwrap(), node);
    lock.release().unwrap();
}

/// All nodes of a waiting multi-lock belong to one contender.
#[test]
fn removing_one_members_callback_keeps_the_others() {
    let server = ZooKeeper::shared();
    let (holder, client, mut raw) = (client(&server.address()), client(&server.address()), raw(server));
    let paths = [path("deaf"), path("listens")];
    let taken = holder.mutex(&paths[1]).unwrap();
    taken.acquire(None).unwrap();
    let [deaf, listens] = paths.each_ref().map(|path| client.mutex(path).unwrap());
    let multi = Lock::multi(&[&deaf, &listens]).unwrap();
    let requests = revocation_requests(&listens);
    let waiting = multi.start_acquire(Owner::current_thread(), None).unwrap();
    wait_for_queue(&mut raw, &paths[1], 2);
    deaf.set_revocable(None::<fn(&str)>).unwrap();
    taken.release().unwrap();
    waiting.wait().unwrap().leave_to_owner();
    let node = listens.node_paths().unwrap().remove(0);
    holder.revoke(&node).unwrap();
    assert_eq!(requests.recv_timeout(TEST_TIMEOUT).unwrap(), node);
}
