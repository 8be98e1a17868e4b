//! Frames: watches that are restored in several requests, and requests that are too large for a server.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that fails is a test that fails")]

mod common;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use common::{SOON, client, client_with, path, queue, raw, wait_for_queue};
use zklock::{Client, Config, Event, Lock, LockState, Status};
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
/// such requests that clients had sent by then.
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

/// When the watches are restored, the server reports all changes that the client missed. If that connection breaks as well, the next one
/// reports them again, though answers on the broken connection were later than the changes.
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

/// Small enough that the creates of a thousand leases do not fit.
const SMALL_FRAMES: usize = 65_536;
const CREATE: i32 = 15;
const MULTI: i32 = 14;

fn server_with_small_frames(limit: usize) -> ZooKeeper {
    ZooKeeper::options().jvm_argument(&format!("-Djute.maxbuffer={limit}")).start()
}

/// A client, and the states of its holds that it has reported.
fn watchful_client(server: &ZooKeeper) -> (Client, Arc<Mutex<BTreeSet<String>>>) {
    let seen = Arc::new(Mutex::new(BTreeSet::new()));
    let (told, mut config) = (Arc::clone(&seen), Config::new());
    config.set_event_handler(move |event| {
        if let Event::Lock { state, .. } = event {
            told.lock().unwrap().insert(format!("{state:?}"));
        }
    });
    (Client::connect(&server.address(), &config).unwrap(), seen)
}

/// Everything else of the client goes on: a hold that it had before, and the cycles of another mutex.
#[test]
fn a_request_too_large_for_the_server_fails_alone() {
    let server = server_with_small_frames(SMALL_FRAMES);
    let (client, seen) = watchful_client(&server);
    let (held, busy, many) = (path("held"), path("busy"), path("many"));
    let held = client.mutex(&held).unwrap();
    held.acquire(Some(SOON)).unwrap();
    let semaphore = client.semaphore(&many, 1000).unwrap();
    let (is_over, cycles) = (AtomicBool::new(false), AtomicUsize::new(0));
    thread::scope(|scope| {
        let busy = client.mutex(&busy).unwrap();
        let (is_over, cycles) = (&is_over, &cycles);
        let other = scope.spawn(move || {
            while !is_over.load(Ordering::SeqCst) {
                busy.acquire(Some(SOON)).unwrap();
                busy.release().unwrap();
                cycles.fetch_add(1, Ordering::SeqCst);
            }
        });
        let before = client.metrics().unwrap().connections_lost;
        let refused = semaphore.acquire(1000, None).map(drop).unwrap_err();
        assert_eq!(refused.status(), Status::Exhausted, "{refused}");
        assert!(
            refused.message().contains("jute.maxbuffer") && refused.message().contains("3 connections"),
            "{refused}"
        );
        let lost = client.metrics().unwrap().connections_lost - before;
        assert_eq!(lost, 3, "each of its attempts costs one connection");
        // For a while it is known, and costs none.
        assert_eq!(semaphore.acquire(1000, None).map(drop).unwrap_err().status(), Status::Exhausted);
        assert_eq!(client.metrics().unwrap().connections_lost - before, lost);
        // A request that fits is sent.
        semaphore.acquire(100, Some(SOON)).unwrap().release().unwrap();
        let done = cycles.load(Ordering::SeqCst);
        wait_until(SOON, || cycles.load(Ordering::SeqCst) > done + 10);
        is_over.store(true, Ordering::SeqCst);
        other.join().unwrap();
    });
    wait_until(SOON, || held.state().unwrap() == LockState::Held);
    let seen = seen.lock().unwrap().clone();
    assert!(!seen.contains("Uncertain") && !seen.contains("Lost"), "{seen:?}");
    let mut raw = raw(&server);
    for directory in [format!("{many}/leases"), format!("{many}/locks")] {
        wait_until(SOON, || queue(&mut raw, &directory).is_empty());
    }
}

#[test]
fn data_too_large_for_the_server_is_refused() {
    let server = server_with_small_frames(SMALL_FRAMES);
    let (client, path) = (client(&server.address()), path("data"));
    let lock = client.mutex(&path).unwrap();
    lock.set_data(Some(&vec![b'x'; 2 * SMALL_FRAMES])).unwrap();
    let refused = lock.acquire(Some(SOON)).unwrap_err();
    assert_eq!(refused.status(), Status::Exhausted, "{refused}");
    lock.set_data(Some(b"x")).unwrap();
    lock.acquire(Some(SOON)).unwrap();
    lock.release().unwrap();
}

/// Connections break on it twice, for another reason: it is sent once more, and is not refused.
#[test]
fn a_large_request_survives_two_lost_connections() {
    let server = ZooKeeper::shared();
    let (proxy, path) = (Proxy::start(&server.address()), path("survivor"));
    let client = client(&proxy.address());
    let semaphore = client.semaphore(&path, 1000).unwrap();
    semaphore.acquire(1, Some(SOON)).unwrap().release().unwrap();
    let (cuts, counted) = (Arc::new(AtomicUsize::new(0)), AtomicUsize::new(0));
    let told = Arc::clone(&cuts);
    proxy.hook(move |way, frame| {
        let is_large = way == Direction::ToServer && frame.len() > 10_000 && matches!(head(frame).1, CREATE | MULTI);
        if is_large && counted.fetch_add(1, Ordering::SeqCst) < 2 {
            told.fetch_add(1, Ordering::SeqCst);
            return Verdict::CutBefore;
        }
        Verdict::Forward
    });
    semaphore.acquire(1000, Some(SOON)).unwrap().release().unwrap();
    assert_eq!(cuts.load(Ordering::SeqCst), 2);
    wait_until(SOON, || queue(&mut raw(server), &format!("{path}/leases")).is_empty());
}

/// The request is in flight while the server stops, and when it stops again.
#[test]
fn a_large_request_survives_restarts_of_its_server() {
    let server = ZooKeeper::options().on_disk().start();
    let client = client_with(&server.address(), SOON);
    let semaphore = client.semaphore(&path("restarts"), 1000).unwrap();
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let (semaphore, is_over) = (&semaphore, &is_over);
        let cycles = scope.spawn(move || {
            let mut count = 0;
            while !is_over.load(Ordering::SeqCst) {
                semaphore.acquire(1000, Some(SOON * 2)).unwrap().release().unwrap();
                count += 1;
            }
            count
        });
        (0..3).for_each(|_| server.restart());
        is_over.store(true, Ordering::SeqCst);
        assert!(cycles.join().unwrap() > 0);
    });
}

/// The requests that restore watches are larger than the server accepts: they are sent again in smaller ones.
#[test]
fn watches_are_restored_in_requests_that_the_server_accepts() {
    let server = server_with_small_frames(8_192);
    let proxy = Proxy::start(&server.address());
    let client = client_with(&proxy.address(), SOON);
    let holds = long_holds(&client, 100);
    wait_until(SOON, || server.watch_count() >= 100);
    proxy.cut();
    wait_until(SOON, || server.watch_count() == 0);
    wait_until(SOON, || server.watch_count() >= 100);
    wait_until(SOON, || holds.iter().all(|hold| hold.state().unwrap() == LockState::Held));
}
