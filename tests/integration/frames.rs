//! Frames: watches that are restored in several requests, and requests that exceed the frame limit of the server.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::thread;

use crate::common::{LONG_SESSION, TEST_TIMEOUT, client, client_with, path, queue, raw, wait_for_queue};
use zklock::{Client, Config, Event, Lock, LockState, Status};
use zklock_test_support::{Direction, Proxy, Verdict, ZooKeeper, request_type, wait_until, xid};

const SET_WATCHES: i32 = 101;

/// Creates `count` holds on paths of 500 bytes. The client needs several requests to restore their watches.
fn long_holds(client: &Client, count: usize) -> Vec<Lock> {
    let parent = path("holds");
    let locks: Vec<Lock> =
        (0..count).map(|number| client.mutex(&format!("{parent}/{number}-{}", "x".repeat(500))).unwrap()).collect();
    locks.iter().for_each(|lock| lock.acquire(Some(TEST_TIMEOUT)).unwrap());
    locks
}

/// Resets the first connection on which a request to restore watches is answered, directly after that answer. Returns
/// the number of such requests that clients have sent.
fn cut_after_first_restored(proxy: &Proxy) -> Arc<AtomicUsize> {
    let sent = Arc::new(AtomicUsize::new(0));
    let (counted, mut restores, mut is_cut) = (Arc::clone(&sent), BTreeSet::new(), false);
    proxy.hook(move |way, frame| {
        if is_cut {
            return Verdict::Forward;
        }
        match way {
            Direction::ToServer if request_type(frame) == Some(SET_WATCHES) => {
                restores.insert(xid(frame));
                counted.fetch_add(1, Ordering::SeqCst);
            }
            Direction::ToClient if restores.contains(&xid(frame)) => {
                is_cut = true;
                return Verdict::CutAfter;
            }
            _ => {}
        }
        Verdict::Forward
    });
    sent
}

/// When a client restores its watches, the server reports all changes that the client missed. If this connection breaks
/// too, the next server must report them again, even if replies on the broken connection had later zxids than the
/// changes.
#[test]
fn connection_loss_between_set_watches_requests_loses_no_event() {
    let server = ZooKeeper::start();
    let (proxy, semaphore) = (Proxy::start(&server.address()), path("semaphore"));
    let (behind, direct) = (client_with(&proxy.address(), LONG_SESSION), client(&server.address()));
    let mut raw = raw(&server);
    let holds = long_holds(&behind, 300);
    let lease = direct.semaphore(&semaphore, 1).unwrap().acquire(1, Some(TEST_TIMEOUT)).unwrap();
    thread::scope(|scope| {
        let waiting = behind.semaphore(&semaphore, 1).unwrap();
        let waiter = scope.spawn(move || waiting.acquire(1, Some(TEST_TIMEOUT * 2)).map(drop));
        wait_for_queue(&mut raw, &format!("{semaphore}/leases"), 2);
        // The client watches each hold and the leases.
        wait_until(TEST_TIMEOUT, || behind.metrics().unwrap().watches > 300);
        proxy.refuse(true);
        proxy.cut();
        lease.release().unwrap();
        let sent = cut_after_first_restored(&proxy);
        proxy.refuse(false);
        waiter.join().unwrap().unwrap();
        assert!(sent.load(Ordering::SeqCst) > 1, "the client must restore the watches in several requests");
    });
    assert!(holds.iter().all(|hold| hold.is_held().unwrap()));
}

/// A frame limit below the size of the creates of a thousand leases.
const SMALL_FRAMES: usize = 65_536;
const CREATE: i32 = 15;
const MULTI: i32 = 14;

fn server_with_small_frames(limit: usize) -> ZooKeeper {
    ZooKeeper::options().jvm_argument(&format!("-Djute.maxbuffer={limit}")).start()
}

/// Creates a client and records the states of its holds that events report.
fn watchful_client(server: &ZooKeeper) -> (Client, Arc<Mutex<BTreeSet<String>>>) {
    let seen = Arc::new(Mutex::new(BTreeSet::new()));
    let told = Arc::clone(&seen);
    let config = Config::new().on_event(move |event| {
        if let Event::Lock { state, .. } = event {
            told.lock().unwrap().insert(format!("{state:?}"));
        }
    });
    (Client::connect(&server.address(), &config).unwrap(), seen)
}

/// Everything else on the client continues: an earlier hold, and the cycles of another mutex.
#[test]
fn a_request_too_large_for_the_server_fails_alone() {
    let server = server_with_small_frames(SMALL_FRAMES);
    let (client, seen) = watchful_client(&server);
    let (held, busy, many) = (path("held"), path("busy"), path("many"));
    let held = client.mutex(&held).unwrap();
    held.acquire(Some(TEST_TIMEOUT)).unwrap();
    let semaphore = client.semaphore(&many, 1000).unwrap();
    let (is_over, cycles) = (AtomicBool::new(false), AtomicUsize::new(0));
    thread::scope(|scope| {
        let busy = client.mutex(&busy).unwrap();
        let (is_over, cycles) = (&is_over, &cycles);
        let other = scope.spawn(move || {
            while !is_over.load(Ordering::SeqCst) {
                busy.acquire(Some(TEST_TIMEOUT)).unwrap();
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
        assert!(refused.message().contains("the largest request that they answered has "), "{refused}");
        // The client remembers the refused size, so that this acquire costs no connection.
        assert_eq!(semaphore.acquire(1000, None).map(drop).unwrap_err().status(), Status::Exhausted);
        assert_eq!(client.metrics().unwrap().connections_lost - before, lost);
        // The client sends a request that fits.
        semaphore.acquire(100, Some(TEST_TIMEOUT)).unwrap().release().unwrap();
        let done = cycles.load(Ordering::SeqCst);
        wait_until(TEST_TIMEOUT, || cycles.load(Ordering::SeqCst) > done + 10);
        is_over.store(true, Ordering::SeqCst);
        other.join().unwrap();
    });
    wait_until(TEST_TIMEOUT, || held.state().unwrap() == LockState::Held);
    let seen = seen.lock().unwrap().clone();
    assert!(!seen.contains("Uncertain") && !seen.contains("Lost"), "{seen:?}");
    let mut raw = raw(&server);
    for directory in [format!("{many}/leases"), format!("{many}/locks")] {
        wait_until(TEST_TIMEOUT, || queue(&mut raw, &directory).is_empty());
    }
}

#[test]
fn data_too_large_for_the_server_is_refused() {
    let server = server_with_small_frames(SMALL_FRAMES);
    let (client, path) = (client(&server.address()), path("data"));
    let lock = client.mutex(&path).unwrap();
    lock.set_data(Some(&vec![b'x'; 2 * SMALL_FRAMES])).unwrap();
    let refused = lock.acquire(Some(TEST_TIMEOUT)).unwrap_err();
    assert_eq!(refused.status(), Status::Exhausted, "{refused}");
    lock.set_data(Some(b"x")).unwrap();
    lock.acquire(Some(TEST_TIMEOUT)).unwrap();
    lock.release().unwrap();
}

/// Connections break twice during the request for another reason. The client sends the request again and does not
/// reject it.
#[test]
fn a_large_request_survives_two_lost_connections() {
    let server = ZooKeeper::shared();
    let (proxy, path) = (Proxy::start(&server.address()), path("survivor"));
    let client = client(&proxy.address());
    let semaphore = client.semaphore(&path, 1000).unwrap();
    semaphore.acquire(1, Some(TEST_TIMEOUT)).unwrap().release().unwrap();
    let (cuts, counted) = (Arc::new(AtomicUsize::new(0)), AtomicUsize::new(0));
    let told = Arc::clone(&cuts);
    proxy.hook(move |way, frame| {
        let is_write = || matches!(request_type(frame), Some(CREATE | MULTI));
        let is_large = way == Direction::ToServer && frame.len() > 10_000 && is_write();
        if is_large && counted.fetch_add(1, Ordering::SeqCst) < 2 {
            told.fetch_add(1, Ordering::SeqCst);
            return Verdict::CutBefore;
        }
        Verdict::Forward
    });
    semaphore.acquire(1000, Some(TEST_TIMEOUT)).unwrap().release().unwrap();
    assert_eq!(cuts.load(Ordering::SeqCst), 2);
    wait_until(TEST_TIMEOUT, || queue(&mut raw(server), &format!("{path}/leases")).is_empty());
}

/// The request is in flight when the server stops, and again when it stops a second time.
#[test]
fn a_large_request_survives_restarts_of_its_server() {
    let server = ZooKeeper::options().on_disk().start();
    let proxy = Proxy::start(&server.address());
    let client = client_with(&proxy.address(), LONG_SESSION);
    let semaphore = client.semaphore(&path("restarts"), 1000).unwrap();
    let (sender, in_flight) = mpsc::channel();
    let mut dropped = 0;
    proxy.hook(move |way, frame| {
        let is_write = || matches!(request_type(frame), Some(CREATE | MULTI));
        if way == Direction::ToServer && frame.len() > 10_000 && is_write() && dropped < 2 {
            dropped += 1;
            sender.send(()).unwrap();
            return Verdict::Drop;
        }
        Verdict::Forward
    });
    thread::scope(|scope| {
        let acquiring = scope.spawn(|| semaphore.acquire(1000, Some(TEST_TIMEOUT * 2)).map(drop));
        for _ in 0..2 {
            in_flight.recv_timeout(TEST_TIMEOUT).unwrap();
            server.restart();
        }
        acquiring.join().unwrap().unwrap();
    });
}

/// The requests that restore watches exceed the frame limit of the server. The client sends them again in smaller
/// parts.
#[test]
fn watches_are_restored_in_requests_that_the_server_accepts() {
    let server = server_with_small_frames(8_192);
    let proxy = Proxy::start(&server.address());
    let client = client_with(&proxy.address(), LONG_SESSION);
    let holds = long_holds(&client, 100);
    wait_until(TEST_TIMEOUT, || server.watch_count() >= 100);
    proxy.cut();
    wait_until(TEST_TIMEOUT, || server.watch_count() == 0);
    wait_until(TEST_TIMEOUT, || server.watch_count() >= 100);
    wait_until(TEST_TIMEOUT, || holds.iter().all(|hold| hold.state().unwrap() == LockState::Held));
}
