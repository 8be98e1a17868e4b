//! What goes over the wire: round trips and server work are the cost of a lock, so they are counted.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that fails is a test that fails")]

mod common;

use std::sync::{Arc, Mutex, OnceLock};
use std::thread;
use std::time::Duration;

use common::{SOON, client, path, status, wait_for_waiters};
use zklock::{Client, Status};
use zklock_rig::{Direction, Proxy, Verdict, ZooKeeper};

const CREATE_CONTAINER: i32 = 19;
const CREATE: i32 = 15;
const LIST: i32 = 12;
const READ: i32 = 4;
const DELETE: i32 = 2;
const REMOVE_WATCHES: i32 = 18;

/// A server that sweeps no directory away in the middle of a test.
fn server() -> &'static ZooKeeper {
    static SERVER: OnceLock<ZooKeeper> = OnceLock::new();
    SERVER.get_or_init(|| ZooKeeper::options().container_sweep_ms(3_600_000).start())
}

/// The requests of one client, as its server sees them. Heartbeats are left out.
struct Traffic {
    client: Client,
    seen: Arc<Mutex<Vec<i32>>>,
    _proxy: Proxy,
}

impl Traffic {
    fn new(server: &ZooKeeper) -> Self {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let record = Arc::clone(&seen);
        let proxy = Proxy::start(&server.address());
        proxy.hook(move |way, frame: &mut Vec<u8>| {
            if way == Direction::ToServer && frame.len() != 45 {
                let op = i32::from_be_bytes(frame[4..8].try_into().unwrap());
                if op != 9 && op != 11 {
                    record.lock().unwrap().push(op);
                }
            }
            Verdict::Forward
        });
        Self { client: client(&proxy.address()), seen, _proxy: proxy }
    }

    fn take(&self) -> Vec<i32> {
        std::mem::take(&mut *self.seen.lock().unwrap())
    }
}

#[test]
fn a_free_lock_costs_one_round_trip_and_its_release_another() {
    let traffic = Traffic::new(server());
    let lock = traffic.client.mutex(&path("free")).unwrap();
    lock.acquire(None).unwrap();
    // The first time, the directory and its parent are missing; all is made in a second round trip.
    assert_eq!(traffic.take(), [CREATE, LIST, CREATE_CONTAINER, CREATE_CONTAINER, CREATE, LIST]);
    lock.release().unwrap();
    assert_eq!(traffic.take(), [DELETE]);
    for _ in 0..3 {
        lock.acquire(None).unwrap();
        assert_eq!(traffic.take(), [CREATE, LIST]);
        lock.acquire(None).unwrap();
        lock.release().unwrap();
        assert_eq!(traffic.take(), [0; 0], "re-entry is local");
        lock.release().unwrap();
        assert_eq!(traffic.take(), [DELETE]);
    }
}

#[test]
fn the_hand_over_needs_no_list() {
    let server = server();
    let (path, traffic, holder) = (path("hand-over"), Traffic::new(server), client(&server.address()));
    let (held, waiting) = (holder.mutex(&path).unwrap(), traffic.client.mutex(&path).unwrap());
    held.acquire(None).unwrap();
    thread::scope(|scope| {
        let waiter = scope.spawn(|| waiting.acquire(Some(SOON)).and_then(|()| waiting.release()));
        wait_for_waiters(&held, 2);
        held.release().unwrap();
        waiter.join().unwrap().unwrap();
    });
    assert_eq!(traffic.take(), [CREATE, LIST, READ, READ, DELETE]);
}

#[test]
fn a_release_wakes_one_waiter_and_one_only() {
    let server = server();
    let (path, holder) = (path("herd"), client(&server.address()));
    let held = holder.mutex(&path).unwrap();
    held.acquire(None).unwrap();
    let waiters: Vec<Traffic> = (0..6).map(|_| Traffic::new(server)).collect();
    let locks: Vec<_> = waiters.iter().map(|traffic| traffic.client.mutex(&path).unwrap()).collect();
    thread::scope(|scope| {
        for (number, lock) in locks.iter().enumerate() {
            scope.spawn(|| lock.acquire(Some(SOON)).and_then(|()| lock.release()).unwrap());
            wait_for_waiters(&held, number + 2);
        }
        held.release().unwrap();
    });
    let joined = [CREATE, LIST, READ, READ];
    assert_eq!(waiters[0].take(), [&joined[..], &[DELETE]].concat());
    for traffic in &waiters[1..] {
        // Two were ahead or more when it joined: it looks once when the nearest is gone.
        assert_eq!(traffic.take(), [&joined[..], &[LIST, DELETE]].concat());
    }
}

#[test]
fn a_time_out_takes_its_watch_along() {
    let server = server();
    let (path, traffic, holder) = (path("time-out"), Traffic::new(server), client(&server.address()));
    let (held, waiting) = (holder.mutex(&path).unwrap(), traffic.client.mutex(&path).unwrap());
    held.acquire(None).unwrap();
    assert_eq!(status(waiting.acquire(Some(Duration::from_millis(200)))), Status::Timeout);
    wait_for_waiters(&held, 1);
    assert_eq!(traffic.take(), [CREATE, LIST, READ, READ, REMOVE_WATCHES, DELETE]);
    assert_eq!(status(waiting.acquire(Some(Duration::ZERO))), Status::Timeout);
    wait_for_waiters(&held, 1);
    assert_eq!(traffic.take(), [CREATE, LIST, DELETE], "one look sets no watch");
}
