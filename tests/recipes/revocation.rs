//! Revocation: asking for a lock back.

use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Duration;

use zklock::{Lock, Owner, Status};
use zklock_rig::ZooKeeper;

use crate::common::{SOON, client, path, raw, status, wait_for_queue, wait_for_waiters};

const NOW: Option<Duration> = Some(Duration::ZERO);

fn told(lock: &Lock) -> Receiver<String> {
    let (told, receiver) = mpsc::channel();
    lock.set_revocable(Some(move |node: &str| told.send(node.to_owned()).unwrap())).unwrap();
    receiver
}

/// Curator: `TestInterProcessMutex.testRevoking`.
#[test]
fn the_holder_is_asked_and_gives_it_up() {
    let server = ZooKeeper::shared();
    let (path, one, two) = (path("revoke"), client(&server.address()), client(&server.address()));
    let (held, wanted) = (one.mutex(&path).unwrap(), two.mutex(&path).unwrap());
    let asked = told(&held);
    held.acquire(None).unwrap();
    thread::scope(|scope| {
        let waiter = scope.spawn(|| wanted.acquire(Some(SOON)).and_then(|()| wanted.release()));
        wait_for_waiters(&held, 2);
        let holder = wanted.participants().unwrap().remove(0);
        two.revoke(&holder.node_path).unwrap();
        assert_eq!(asked.recv_timeout(SOON).unwrap(), holder.node_path);
        assert!(held.is_held().unwrap(), "it is a request");
        held.release().unwrap();
        waiter.join().unwrap().unwrap();
    });
    // Who has gone has given it up.
    two.revoke(&format!("{path}/nobody")).unwrap();
    assert_eq!(status(two.revoke("nobody")), Status::Invalid);
    assert!(asked.try_recv().is_err());
}

#[test]
fn every_time_that_it_is_asked_and_only_then() {
    let server = ZooKeeper::shared();
    let (path, client, mut raw) = (path("again"), client(&server.address()), raw(server));
    let lock = client.mutex(&path).unwrap();
    let asked = told(&lock);
    for _ in 0..2 {
        // The handler stays: Curator's goes with the release.
        lock.acquire(NOW).unwrap();
        let node = lock.node_paths().unwrap().remove(0);
        for _ in 0..2 {
            assert_eq!(raw.set_data(&node, b"other"), 0);
            assert_eq!(raw.set_data(&node, b"__REVOKE__"), 0);
            assert_eq!(asked.recv_timeout(SOON).unwrap(), node);
        }
        lock.release().unwrap();
    }
    lock.set_revocable(None::<fn(&str)>).unwrap();
    lock.acquire(NOW).unwrap();
    client.revoke(&lock.node_paths().unwrap()[0]).unwrap();
    lock.release().unwrap();
    assert!(asked.recv_timeout(Duration::from_millis(100)).is_err(), "and the handler is gone");
}

/// Curator reads the node once when it sets its watch, and does not look at what it read.
#[test]
fn what_was_asked_before_anybody_listened_is_heard() {
    let server = ZooKeeper::shared();
    let (path, client) = (path("before"), client(&server.address()));
    let lock = client.mutex(&path).unwrap();
    lock.acquire(NOW).unwrap();
    let node = lock.node_paths().unwrap().remove(0);
    client.revoke(&node).unwrap();
    assert_eq!(told(&lock).recv_timeout(SOON).unwrap(), node);
    lock.release().unwrap();
}

#[test]
fn a_waiter_is_asked_too() {
    let server = ZooKeeper::shared();
    let (path, one, two) = (path("waiter"), client(&server.address()), client(&server.address()));
    let (held, waiting) = (one.mutex(&path).unwrap(), two.mutex(&path).unwrap());
    held.acquire(None).unwrap();
    let asked = told(&waiting);
    thread::scope(|scope| {
        let waiter = scope.spawn(|| waiting.acquire(None));
        wait_for_waiters(&held, 2);
        let node = held.participants().unwrap().remove(1).node_path;
        one.revoke(&node).unwrap();
        assert_eq!(asked.recv_timeout(SOON).unwrap(), node);
        waiting.cancel().unwrap();
        assert_eq!(status(waiter.join().unwrap()), Status::Canceled);
    });
    held.release().unwrap();
}

#[test]
fn whoever_waits_for_leases_is_asked_by_any_of_his_nodes() {
    let server = ZooKeeper::shared();
    let client = client(&server.address());
    let semaphore = client.semaphore(&path("waits"), 1).unwrap();
    let held = semaphore.acquire(1, NOW).unwrap();
    let (sender, asked) = mpsc::channel();
    thread::scope(|scope| {
        let waiters = [(); 2].map(|()| scope.spawn(|| semaphore.acquire(1, None)));
        zklock_rig::wait_until(SOON, || semaphore.participants().unwrap().len() == 3);
        semaphore.set_revocable(Some(move |node: &str| sender.send(node.to_owned()).unwrap())).unwrap();
        // One waits for a lease by its node, and the other for the inner mutex.
        for waiter in semaphore.participants().unwrap().into_iter().skip(1) {
            client.revoke(&waiter.node_path).unwrap();
            assert_eq!(asked.recv_timeout(SOON).unwrap(), waiter.node_path);
        }
        semaphore.cancel().unwrap();
        for waiter in waiters {
            assert_eq!(waiter.join().unwrap().err().unwrap().status(), Status::Canceled);
        }
    });
    held.release().unwrap();
}

#[test]
fn of_every_recipe() {
    let server = ZooKeeper::shared();
    let client = client(&server.address());
    let rw = client.rwlock(&path("rw")).unwrap();
    let semaphore_mutex = client.semaphore_mutex(&path("sm")).unwrap();
    for lock in [&rw.read, &rw.write, &semaphore_mutex] {
        let asked = told(lock);
        lock.acquire(NOW).unwrap();
        let node = lock.node_paths().unwrap().remove(0);
        client.revoke(&node).unwrap();
        assert_eq!(asked.recv_timeout(SOON).unwrap(), node);
        lock.release().unwrap();
    }
    let semaphore = client.semaphore(&path("leases"), 3).unwrap();
    let (sender, asked) = mpsc::channel();
    semaphore.set_revocable(Some(move |node: &str| sender.send(node.to_owned()).unwrap())).unwrap();
    let leases = semaphore.acquire(2, NOW).unwrap();
    for node in leases.node_paths().unwrap() {
        client.revoke(&node).unwrap();
        assert_eq!(asked.recv_timeout(SOON).unwrap(), node);
    }
    leases.release().unwrap();
    let locks = [client.mutex(&path("a")).unwrap(), client.mutex(&path("b")).unwrap()];
    let multi = Lock::multi(&locks.each_ref()).unwrap();
    let asked = told(&multi);
    multi.acquire(NOW).unwrap();
    for node in multi.node_paths().unwrap() {
        client.revoke(&node).unwrap();
        assert_eq!(asked.recv_timeout(SOON).unwrap(), node);
    }
    multi.release().unwrap();
}

#[test]
fn after_a_reconnect() {
    let server = ZooKeeper::start();
    let (path, client) = (path("reconnect"), client(&server.address()));
    let lock = client.mutex(&path).unwrap();
    let asked = told(&lock);
    lock.acquire(None).unwrap();
    let node = lock.node_paths().unwrap().remove(0);
    server.restart();
    let other = crate::common::client(&server.address());
    other.revoke(&node).unwrap();
    assert_eq!(asked.recv_timeout(SOON).unwrap(), node);
    lock.release().unwrap();
}

/// All nodes of a multi-lock that waits are one contender's.
#[test]
fn a_handler_that_goes_does_not_take_that_of_another_lock_along() {
    let server = ZooKeeper::shared();
    let (holder, client, mut raw) = (client(&server.address()), client(&server.address()), raw(server));
    let paths = [path("deaf"), path("listens")];
    let taken = holder.mutex(&paths[1]).unwrap();
    taken.acquire(None).unwrap();
    let [deaf, listens] = paths.each_ref().map(|path| client.mutex(path).unwrap());
    let multi = Lock::multi(&[&deaf, &listens]).unwrap();
    let asked = told(&listens);
    let waiting = multi.start_acquire(Owner::current_thread(), None).unwrap();
    wait_for_queue(&mut raw, &paths[1], 2);
    deaf.set_revocable(None::<fn(&str)>).unwrap();
    taken.release().unwrap();
    waiting.wait().unwrap();
    let node = listens.node_paths().unwrap().remove(0);
    holder.revoke(&node).unwrap();
    assert_eq!(asked.recv_timeout(SOON).unwrap(), node);
}
