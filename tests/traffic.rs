//! What goes over the wire: round trips and server work are the cost of a lock, so they are counted.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that fails is a test that fails")]

mod common;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;
use std::time::Duration;

use common::{SOON, client, path, status, wait_for_waiters};
use zklock::{Client, Leases, Lock, Owner, Semaphore, Status};
use zklock_rig::{Direction, Proxy, Verdict, ZooKeeper, wait_until};

const CREATE_CONTAINER: i32 = 19;
const CREATE: i32 = 15;
const LIST: i32 = 12;
const READ: i32 = 4;
const MULTI: i32 = 14;
const DELETE: i32 = 2;
const REMOVE_WATCHES: i32 = 18;
const ADD_WATCH: i32 = 106;

/// Between two cycles of a directory that is not used hard.
const NOT_HOT: Duration = Duration::from_millis(300);

/// A server that sweeps no directory away in the middle of a test.
fn server() -> &'static ZooKeeper {
    static SERVER: OnceLock<ZooKeeper> = OnceLock::new();
    SERVER.get_or_init(|| ZooKeeper::options().container_sweep_ms(3_600_000).start())
}

/// The requests of one client, as its server sees them. Heartbeats are left out.
struct Traffic {
    client: Client,
    seen: Arc<Mutex<Vec<i32>>>,
    proxy: Proxy,
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
        Self { client: client(&proxy.address()), seen, proxy }
    }

    /// One more client, whose requests are seen along with the first's.
    fn another(&self) -> Client {
        client(&self.proxy.address())
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
        thread::sleep(NOT_HOT);
        lock.acquire(None).unwrap();
        assert_eq!(traffic.take(), [CREATE, LIST]);
        lock.acquire(None).unwrap();
        lock.release().unwrap();
        assert_eq!(traffic.take(), [0; 0], "re-entry is local");
        lock.release().unwrap();
        assert_eq!(traffic.take(), [DELETE]);
    }
}

fn cycle(lock: &Lock) {
    lock.acquire(Some(SOON)).and_then(|()| lock.release()).unwrap();
}

#[test]
fn who_is_alone_in_a_directory_needs_no_lists_and_hears_of_nothing() {
    let traffic = Traffic::new(server());
    let lock = traffic.client.mutex(&path("alone")).unwrap();
    (0..100).for_each(|_| cycle(&lock));
    let sent = traffic.take();
    assert!(sent.ends_with(&[CREATE, DELETE].repeat(90)), "create and delete, and nothing else: {sent:?}");
    assert!(!sent.contains(&ADD_WATCH), "{sent:?}");
    // Nobody needs the watch on the directory any more.
    wait_until(SOON, || traffic.take() == [REMOVE_WATCHES]);
}

#[test]
fn a_directory_that_others_use_too_is_mirrored_and_not_listed() {
    let server = server();
    let (path, traffic, other) = (path("shared"), Traffic::new(server), client(&server.address()));
    let (lock, others) = (traffic.client.mutex(&path).unwrap(), other.mutex(&path).unwrap());
    for _ in 0..100 {
        cycle(&lock);
        cycle(&others);
    }
    let sent = traffic.take();
    assert_eq!(sent.iter().filter(|op| **op == ADD_WATCH).count(), 1, "{sent:?}");
    assert!(sent.ends_with(&[CREATE, DELETE].repeat(80)), "create and delete, and nothing else: {sent:?}");
    // Once the other has gone, less will do.
    (0..100).for_each(|_| cycle(&lock));
    let sent = traffic.take();
    assert!(sent.contains(&REMOVE_WATCHES) && sent.ends_with(&[CREATE, DELETE].repeat(30)), "{sent:?}");
    wait_until(SOON, || traffic.take() == [REMOVE_WATCHES]);
}

#[test]
fn the_waiters_of_one_client_need_no_lists_and_no_watches_of_their_own() {
    let traffic = Traffic::new(server());
    let path = path("one client");
    let locks: Vec<_> = (0..8).map(|_| traffic.client.mutex(&path).unwrap()).collect();
    let counter = AtomicU64::new(0);
    thread::scope(|scope| {
        for lock in &locks {
            scope.spawn(|| {
                for _ in 0..50 {
                    lock.acquire(Some(SOON)).unwrap();
                    let before = counter.load(Ordering::Relaxed);
                    counter.store(before + 1, Ordering::Relaxed);
                    lock.release().unwrap();
                }
            });
        }
    });
    assert_eq!(counter.into_inner(), 400);
    let sent = traffic.take();
    assert!(sent.len() < 900, "{} requests for 400 cycles: {sent:?}", sent.len());
}

#[test]
fn who_waits_behind_a_mirror_knows_for_whom_after_a_while() {
    let server = server();
    let (path, traffic, holder) = (path("mirrored wait"), Traffic::new(server), client(&server.address()));
    let (held, waiting) = (holder.mutex(&path).unwrap(), traffic.client.mutex(&path).unwrap());
    held.set_data(Some(b"the holder")).unwrap();
    for _ in 0..8 {
        cycle(&waiting);
        cycle(&held);
    }
    assert!(traffic.take().contains(&ADD_WATCH));
    held.acquire(None).unwrap();
    let error = waiting.acquire(Some(Duration::from_millis(400))).unwrap_err();
    assert_eq!(error.status(), Status::Timeout);
    assert!(
        error.to_string().contains(&format!("session {:#x}, \"the holder\"", holder.session_id().unwrap())),
        "{error}"
    );
    assert!(traffic.take().starts_with(&[CREATE, READ]), "one look, without a watch");
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
    assert_eq!(traffic.take(), [LIST], "one look writes nothing and sets no watch");
}

#[test]
fn a_try_that_cannot_win_writes_nothing() {
    let server = server();
    let (traffic, holder) = (Traffic::new(server), client(&server.address()));
    let check = |held: &Lock, tried: &Lock, names: &str| {
        held.acquire(Some(SOON)).unwrap();
        for _ in 0..20 {
            let error = tried.acquire(Some(Duration::ZERO)).unwrap_err();
            assert_eq!(error.status(), Status::Timeout);
            assert!(error.message().contains(names) && error.message().contains(held.path()), "{error}");
        }
        assert_eq!(traffic.take(), [LIST; 20]);
        held.release().unwrap();
        tried.acquire(Some(Duration::ZERO)).unwrap();
        assert_eq!(traffic.take(), [LIST, CREATE, LIST]);
        tried.release().unwrap();
        assert_eq!(traffic.take(), [DELETE]);
    };
    let of_both = |name: &str| {
        let path = path(name);
        [&holder, &traffic.client].map(|client| client.rwlock(&path).unwrap())
    };
    let path = path("tried");
    let [held, tried] = [&holder, &traffic.client].map(|client| client.mutex(&path).unwrap());
    check(&held, &tried, "held by");
    let [held, tried] = of_both("writer behind writer");
    check(&held.write, &tried.write, "held by");
    let [held, tried] = of_both("writer behind reader");
    check(&held.read, &tried.write, "held by");
    let [held, tried] = of_both("reader behind writer");
    check(&held.write, &tried.read, "1 ahead, the nearest is");
    // Readers do not keep readers out.
    let [held, tried] = of_both("reader beside reader");
    held.read.acquire(Some(SOON)).unwrap();
    tried.read.acquire(Some(Duration::ZERO)).unwrap();
    assert_eq!(traffic.take(), [LIST, CREATE, LIST]);
}

#[test]
fn a_try_of_several_locks_looks_at_each_and_makes_what_is_missing() {
    let server = server();
    let (traffic, holder) = (Traffic::new(server), client(&server.address()));
    let paths = [path("one of two"), path("other of two")];
    let [held, tried] =
        [&holder, &traffic.client].map(|client| paths.each_ref().map(|path| client.mutex(path).unwrap()));
    let multi = Lock::multi(&tried.each_ref()).unwrap();
    held[1].acquire(Some(SOON)).unwrap();
    for _ in 0..20 {
        assert_eq!(status(multi.acquire(Some(Duration::ZERO))), Status::Timeout);
    }
    assert_eq!(traffic.take(), [LIST; 40]);
    held[1].release().unwrap();
    // The first directory is missing until then.
    multi.acquire(Some(Duration::ZERO)).unwrap();
    let seen = traffic.take();
    assert!(seen.starts_with(&[LIST, LIST, CREATE_CONTAINER]) && seen.ends_with(&[MULTI, LIST, LIST]), "{seen:?}");
    assert_eq!(status(held[0].acquire(Some(Duration::ZERO))), Status::Timeout);
}

/// What a client knows of a directory spares a try its look.
#[test]
fn a_try_where_nobody_else_is_known_to_be_costs_one_round_trip() {
    let server = server();
    let (path, traffic, other) = (path("known"), Traffic::new(server), client(&server.address()));
    let (lock, others) = (traffic.client.mutex(&path).unwrap(), other.mutex(&path).unwrap());
    let win = || lock.acquire(Some(Duration::ZERO)).and_then(|()| lock.release()).unwrap();
    let costs_one = || {
        traffic.take();
        win();
        traffic.take() == [CREATE, DELETE]
    };
    // Alone.
    wait_until(SOON, costs_one);
    // With a mirror, once the other's end has been heard of.
    wait_until(SOON, || {
        cycle(&others);
        lock.participants().unwrap().is_empty() && costs_one()
    });
    // If the mirror shows a contender ahead, the client asks: the mirror may show a node for a moment after its deletion.
    others.acquire(Some(SOON)).unwrap();
    wait_for_waiters(&lock, 1);
    traffic.take();
    assert_eq!(status(lock.acquire(Some(Duration::ZERO))), Status::Timeout);
    assert_eq!(traffic.take(), [LIST]);
}

/// One holds, a writer is next, and fifty readers are behind it. Whoever can't get in yet is not woken.
#[test]
fn a_release_wakes_those_who_get_in_and_nobody_else() {
    const READERS: usize = 50;
    let server = server();
    let (path, holder, traffic) = (path("readers"), client(&server.address()), Traffic::new(server));
    let held = holder.rwlock(&path).unwrap();
    let writer = traffic.client.rwlock(&path).unwrap();
    let readers: Vec<_> = (0..READERS).map(|_| traffic.another().rwlock(&path).unwrap()).collect();
    held.write.acquire(None).unwrap();
    let waiting = writer.write.start_acquire(Owner::Custom(0), Some(SOON)).unwrap();
    let waits = |count| wait_until(SOON, || held.read.queue().unwrap().len() == count);
    waits(2);
    let reading: Vec<_> =
        readers.iter().map(|rw| rw.read.start_acquire(Owner::Custom(0), Some(SOON)).unwrap()).collect();
    waits(2 + READERS);
    let joined = [CREATE, LIST, READ, READ];
    wait_until(SOON, || traffic.seen.lock().unwrap().len() == joined.len() * (READERS + 1));
    traffic.take();

    held.write.release().unwrap();
    waiting.wait().unwrap();
    // It looks whether a read lock was left in the place of the write lock; the readers, who wait for it, hear nothing.
    assert_eq!(traffic.take(), [LIST]);
    assert!(readers.iter().all(|rw| !rw.read.is_held_in_process().unwrap()));

    writer.write.release_as(Owner::Custom(0)).unwrap();
    reading.into_iter().for_each(|reading| reading.wait().unwrap());
    // Two writers were ahead when they joined, so each looks once whether the other has gone as well.
    assert_eq!(traffic.take(), [&[DELETE][..], &[LIST; READERS]].concat());
    readers.iter().for_each(|rw| rw.read.release_as(Owner::Custom(0)).unwrap());
    assert_eq!(traffic.take(), [DELETE; READERS]);
}

#[test]
fn what_the_other_recipes_cost() {
    let (server, traffic) = (server(), Traffic::new(server()));
    let client = &traffic.client;
    // A read lock under an own write lock.
    let rw = client.rwlock(&path("nested")).unwrap();
    rw.write.acquire(None).unwrap();
    traffic.take();
    rw.read.acquire(None).unwrap();
    assert_eq!(traffic.take(), [CREATE, LIST]);
    rw.read.release().unwrap();
    rw.write.release().unwrap();
    assert_eq!(traffic.take(), [DELETE, DELETE]);
    // Two locks in one transaction.
    let locks = [client.mutex(&path("a")).unwrap(), client.mutex(&path("b")).unwrap()];
    let multi = Lock::multi(&locks.each_ref()).unwrap();
    for round in 0..2 {
        multi.acquire(None).unwrap();
        let seen = traffic.take();
        assert!(round == 0 || seen == [MULTI, LIST, LIST], "{seen:?}");
        multi.release().unwrap();
        assert_eq!(traffic.take(), [DELETE, DELETE]);
    }
    // Leases: two round trips, and the inner mutex is given back in the background.
    let semaphore = client.semaphore(&path("leases"), 3).unwrap();
    for round in 0..2 {
        let leases = semaphore.acquire(2, None).unwrap();
        wait_until(SOON, || traffic.seen.lock().unwrap().last() == Some(&DELETE));
        let seen = traffic.take();
        assert!(round == 0 || seen == [CREATE, LIST, MULTI, LIST, REMOVE_WATCHES, DELETE], "{seen:?}");
        leases.release().unwrap();
        assert_eq!(traffic.take(), [DELETE, DELETE]);
    }
    // A look where there is no room writes nothing.
    let all = server_side(server, &semaphore);
    assert_eq!(semaphore.acquire(1, Some(Duration::ZERO)).err().unwrap().status(), Status::Timeout);
    assert_eq!(traffic.take(), [LIST]);
    drop(all);
}

/// All the leases of a semaphore, in the hands of somebody else.
fn server_side(server: &ZooKeeper, semaphore: &Semaphore) -> Leases {
    let path = semaphore.path().to_owned();
    client(&server.address()).semaphore(&path, 3).unwrap().acquire(3, Some(SOON)).unwrap()
}
