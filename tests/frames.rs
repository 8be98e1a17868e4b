//! Frames: watches that are restored in several requests, and requests that are too large for a server.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that fails is a test that fails")]

mod common;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use common::{SOON, client, client_with, path, raw, wait_for_queue};
use zklock::{Client, Lock};
use zklock_rig::{Direction, Proxy, Verdict, ZooKeeper, wait_until};

const SET_WATCHES: i32 = 101;

/// Holds of `client` whose watches take several requests to restore: `count` paths of 500 bytes.
fn long_holds(client: &Client, count: usize) -> Vec<Lock> {
    let parent = path("holds");
    let locks: Vec<Lock> =
        (0..count).map(|number| client.mutex(&format!("{parent}/{number}-{}", "x".repeat(500))).unwrap()).collect();
    locks.iter().for_each(|lock| lock.acquire(Some(SOON)).unwrap());
    locks
}

/// The number that a frame begins with (xid), and the one after it (of a request: the operation).
fn head(frame: &[u8]) -> (i32, i32) {
    let number = |at: usize| i32::from_be_bytes(frame[at..at + 4].try_into().unwrap());
    (number(0), number(4))
}

/// Resets the first connection on which a request to restore watches is answered, right behind that answer. Gives the number of
/// such requests that the server had been sent by then.
fn cut_after_first_restored(proxy: &Proxy) -> Arc<AtomicUsize> {
    let sent = Arc::new(AtomicUsize::new(0));
    let (counted, mut restores, mut is_cut) = (Arc::clone(&sent), BTreeSet::new(), false);
    proxy.hook(move |way, frame| {
        // The handshake has no head.
        if is_cut || frame.len() < 16 {
            return Verdict::Forward;
        }
        let (xid, op) = head(frame);
        match way {
            Direction::ToServer if op == SET_WATCHES => {
                restores.insert(xid);
                counted.fetch_add(1, Ordering::SeqCst);
            }
            Direction::ToClient if restores.contains(&xid) => {
                is_cut = true;
                return Verdict::CutAfter;
            }
            _ => {}
        }
        Verdict::Forward
    });
    sent
}

/// What changed while the connection was away is reported by the server when the watches are restored, and again if that connection
/// breaks as well, though its first answers were later than the change.
#[test]
fn a_connection_that_breaks_between_restored_watches_loses_no_wake_up() {
    let server = ZooKeeper::start();
    let (proxy, semaphore) = (Proxy::start(&server.address()), path("semaphore"));
    let (behind, direct) = (client_with(&proxy.address(), SOON), client(&server.address()));
    let mut raw = raw(&server);
    let holds = long_holds(&behind, 300);
    let lease = direct.semaphore(&semaphore, 1).unwrap().acquire(1, Some(SOON)).unwrap();
    thread::scope(|scope| {
        let waiting = behind.semaphore(&semaphore, 1).unwrap();
        let waiter = scope.spawn(move || waiting.acquire(1, Some(SOON * 2)).map(drop));
        wait_for_queue(&mut raw, &format!("{semaphore}/leases"), 2);
        // Each hold, and the leases.
        wait_until(SOON, || behind.metrics().unwrap().watches > 300);
        proxy.refuse(true);
        proxy.cut();
        lease.release().unwrap();
        let sent = cut_after_first_restored(&proxy);
        proxy.refuse(false);
        waiter.join().unwrap().unwrap();
        assert!(sent.load(Ordering::SeqCst) > 1, "the watches were to be restored in several requests");
    });
    assert!(holds.iter().all(|hold| hold.is_held().unwrap()));
}
