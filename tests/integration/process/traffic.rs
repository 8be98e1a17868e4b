//! The requests that each operation sends. Round trips and server work are the main cost of a lock, so these tests
//! count them.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a failing test may panic")]

#[path = "../common.rs"]
mod common;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use common::{
    OwnerCalls as _, TEST_TIMEOUT, client, client_with, path, server_without_sweeps, status, wait_for_waiters,
};
use zklock::{Client, Hold, Lock, Owner, Semaphore, Status};
use zklock_test_support::{Direction, Proxy, Verdict, ZooKeeper, request_type, wait_until};

const CREATE_CONTAINER: i32 = 19;
const CREATE: i32 = 15;
const LIST: i32 = 12;
const READ: i32 = 4;
const SYNC: i32 = 9;
const PING: i32 = 11;
const MULTI: i32 = 14;
const DELETE: i32 = 2;
const REMOVE_WATCHES: i32 = 18;
const ADD_WATCH: i32 = 106;

/// A pause between two cycles, so that the directory does not count as heavily used.
const CACHE_COOLDOWN: Duration = Duration::from_millis(300);

/// The session timeout of the recorded clients. Their heartbeats are transactions, and the first one is due after a
/// sixth of this time, when each test has ended.
const SESSION_TIMEOUT: Duration = Duration::from_secs(120);

/// The requests of one client, as its server receives them. Handshakes, pings and syncs are left out.
struct RequestRecorder {
    client: Client,
    seen: Arc<Mutex<Vec<i32>>>,
    proxy: Proxy,
}

impl RequestRecorder {
    fn new(server: &ZooKeeper) -> Self {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let record = Arc::clone(&seen);
        let proxy = Proxy::start(&server.address());
        proxy.hook(move |way, frame: &mut Vec<u8>| {
            if way == Direction::ToServer {
                let op = request_type(frame).filter(|op| ![SYNC, PING].contains(op));
                record.lock().unwrap().extend(op);
            }
            Verdict::Forward
        });
        Self { client: client_with(&proxy.address(), SESSION_TIMEOUT), seen, proxy }
    }

    /// Creates another client. Its requests are recorded together with those of the first one.
    fn another(&self) -> Client {
        client_with(&self.proxy.address(), SESSION_TIMEOUT)
    }

    fn take(&self) -> Vec<i32> {
        std::mem::take(&mut *self.seen.lock().unwrap())
    }
}

#[test]
fn a_free_lock_costs_one_round_trip_and_its_release_another() {
    let recorder = RequestRecorder::new(server_without_sweeps());
    let lock = recorder.client.mutex(&path("free")).unwrap();
    lock.acquire(None).unwrap();
    // At first the directory and its parent are missing. A second round trip creates both and the node.
    assert_eq!(recorder.take(), [CREATE, LIST, CREATE_CONTAINER, CREATE_CONTAINER, CREATE, LIST]);
    lock.release().unwrap();
    assert_eq!(recorder.take(), [DELETE]);
    for _ in 0..3 {
        thread::sleep(CACHE_COOLDOWN);
        lock.acquire(None).unwrap();
        assert_eq!(recorder.take(), [CREATE, LIST]);
        lock.acquire(None).unwrap();
        lock.release().unwrap();
        assert_eq!(recorder.take(), [0; 0], "re-entry needs no request");
        lock.release().unwrap();
        assert_eq!(recorder.take(), [DELETE]);
    }
}

fn cycle(lock: &Lock) {
    lock.acquire(Some(TEST_TIMEOUT)).and_then(|()| lock.release()).unwrap();
}

#[test]
fn uncontended_cycles_need_no_list_and_receive_no_events() {
    let recorder = RequestRecorder::new(server_without_sweeps());
    let lock = recorder.client.mutex(&path("alone")).unwrap();
    (0..100).for_each(|_| cycle(&lock));
    let sent = recorder.take();
    assert!(sent.ends_with(&[CREATE, DELETE].repeat(90)), "create and delete, and nothing else: {sent:?}");
    assert!(!sent.contains(&ADD_WATCH), "{sent:?}");
    // No client needs the watch on the directory any more.
    wait_until(TEST_TIMEOUT, || recorder.take() == [REMOVE_WATCHES]);
}

#[test]
fn shared_directory_is_cached_instead_of_listed() {
    let server = server_without_sweeps();
    let (path, recorder, other) = (path("shared"), RequestRecorder::new(server), client(&server.address()));
    let (lock, others) = (recorder.client.mutex(&path).unwrap(), other.mutex(&path).unwrap());
    for _ in 0..100 {
        cycle(&lock);
        cycle(&others);
    }
    let sent = recorder.take();
    assert_eq!(sent.iter().filter(|op| **op == ADD_WATCH).count(), 1, "{sent:?}");
    assert!(sent.ends_with(&[CREATE, DELETE].repeat(80)), "create and delete, and nothing else: {sent:?}");
    // After the other client has gone, the client needs fewer requests.
    (0..100).for_each(|_| cycle(&lock));
    let sent = recorder.take();
    assert!(sent.contains(&REMOVE_WATCHES) && sent.ends_with(&[CREATE, DELETE].repeat(30)), "{sent:?}");
    wait_until(TEST_TIMEOUT, || recorder.take() == [REMOVE_WATCHES]);
}

#[test]
fn waiters_of_one_client_share_the_cache() {
    let recorder = RequestRecorder::new(server_without_sweeps());
    let path = path("one client");
    let locks: Vec<_> = (0..8).map(|_| recorder.client.mutex(&path).unwrap()).collect();
    let counter = AtomicU64::new(0);
    thread::scope(|scope| {
        for lock in &locks {
            scope.spawn(|| {
                for _ in 0..50 {
                    lock.acquire(Some(TEST_TIMEOUT)).unwrap();
                    let before = counter.load(Ordering::Relaxed);
                    counter.store(before + 1, Ordering::Relaxed);
                    lock.release().unwrap();
                }
            });
        }
    });
    assert_eq!(counter.into_inner(), 400);
    // A waiter that has waited for some time also reads the holder.
    let sent: Vec<i32> = recorder.take().into_iter().filter(|op| *op != READ).collect();
    assert!(sent.len() < 900, "{} requests for 400 cycles: {sent:?}", sent.len());
}

#[test]
fn cached_waiter_reads_the_holder_once_for_its_timeout_message() {
    let server = server_without_sweeps();
    let (path, recorder, holder) = (path("mirrored wait"), RequestRecorder::new(server), client(&server.address()));
    let (held, waiting) = (holder.mutex(&path).unwrap(), recorder.client.mutex(&path).unwrap());
    held.set_data(Some(b"the holder")).unwrap();
    // On a busy machine, the cycles may be too slow for a cache.
    wait_until(TEST_TIMEOUT, || {
        for _ in 0..8 {
            cycle(&waiting);
            cycle(&held);
        }
        recorder.take().contains(&ADD_WATCH)
    });
    held.acquire(None).unwrap();
    let error = waiting.acquire(Some(Duration::from_secs(2))).unwrap_err();
    assert_eq!(error.status(), Status::Timeout);
    assert!(
        error.to_string().contains(&format!("session {:#x}, data \"the holder\"", holder.session_id().unwrap())),
        "{error}"
    );
    assert!(recorder.take().starts_with(&[CREATE, READ]), "an acquire with timeout 0 sets no watch");
}

/// Returns whether an acquire has received the answers to all its first requests. The last of them reads the node
/// ahead.
fn has_read_its_predecessor(lock: &Lock) -> bool {
    lock.waiting().unwrap().iter().any(|waiting| waiting.session_id != 0)
}

#[test]
fn the_hand_over_needs_no_list() {
    let server = server_without_sweeps();
    let (path, recorder, holder) = (path("hand-over"), RequestRecorder::new(server), client(&server.address()));
    let (held, waiting) = (holder.mutex(&path).unwrap(), recorder.client.mutex(&path).unwrap());
    held.acquire(None).unwrap();
    thread::scope(|scope| {
        let waiter = scope.spawn(|| waiting.acquire(Some(TEST_TIMEOUT)).and_then(|()| waiting.release()));
        wait_until(TEST_TIMEOUT, || has_read_its_predecessor(&waiting));
        held.release().unwrap();
        waiter.join().unwrap().unwrap();
    });
    assert_eq!(recorder.take(), [CREATE, LIST, READ, READ, DELETE]);
}

#[test]
fn a_release_wakes_one_waiter_and_one_only() {
    let server = server_without_sweeps();
    let (path, holder) = (path("herd"), client(&server.address()));
    let held = holder.mutex(&path).unwrap();
    held.acquire(None).unwrap();
    let waiters: Vec<RequestRecorder> = (0..6).map(|_| RequestRecorder::new(server)).collect();
    let locks: Vec<_> = waiters.iter().map(|recorder| recorder.client.mutex(&path).unwrap()).collect();
    thread::scope(|scope| {
        for lock in &locks {
            scope.spawn(|| lock.acquire(Some(TEST_TIMEOUT)).and_then(|()| lock.release()).unwrap());
            wait_until(TEST_TIMEOUT, || has_read_its_predecessor(lock));
        }
        held.release().unwrap();
    });
    let joined = [CREATE, LIST, READ, READ];
    assert_eq!(waiters[0].take(), [&joined[..], &[DELETE]].concat());
    for recorder in &waiters[1..] {
        // At least two nodes were ahead when it joined, so it lists once when the nearest of them is gone.
        assert_eq!(recorder.take(), [&joined[..], &[LIST, DELETE]].concat());
    }
}

#[test]
fn timed_out_acquire_removes_its_watch() {
    let server = server_without_sweeps();
    let (path, recorder, holder) = (path("time-out"), RequestRecorder::new(server), client(&server.address()));
    let (held, waiting) = (holder.mutex(&path).unwrap(), recorder.client.mutex(&path).unwrap());
    held.acquire(None).unwrap();
    assert_eq!(status(waiting.acquire(Some(Duration::from_secs(1)))), Status::Timeout);
    wait_for_waiters(&held, 1);
    assert_eq!(recorder.take(), [CREATE, LIST, READ, READ, REMOVE_WATCHES, DELETE]);
    assert_eq!(status(waiting.acquire(Some(Duration::ZERO))), Status::Timeout);
    wait_for_waiters(&held, 1);
    assert_eq!(recorder.take(), [LIST, READ], "an acquire with timeout 0 creates no node and sets no watch");
}

#[test]
fn timeout_zero_behind_a_holder_lists_and_reads_the_node_ahead() {
    let server = server_without_sweeps();
    let (recorder, holder) = (RequestRecorder::new(server), client(&server.address()));
    let check = |held: &Lock, tried: &Lock, names: &str| {
        held.acquire(Some(TEST_TIMEOUT)).unwrap();
        for _ in 0..20 {
            let error = tried.acquire(Some(Duration::ZERO)).unwrap_err();
            assert_eq!(error.status(), Status::Timeout);
            assert!(error.message().contains(names) && error.message().contains(held.path()), "{error}");
        }
        assert_eq!(recorder.take(), [[LIST, READ]; 20].concat());
        held.release().unwrap();
        tried.acquire(Some(Duration::ZERO)).unwrap();
        assert_eq!(recorder.take(), [LIST, CREATE, LIST]);
        tried.release().unwrap();
        assert_eq!(recorder.take(), [DELETE]);
    };
    let of_both = |name: &str| {
        let path = path(name);
        [&holder, &recorder.client].map(|client| client.rwlock(&path).unwrap())
    };
    let path = path("tried");
    let [held, tried] = [&holder, &recorder.client].map(|client| client.mutex(&path).unwrap());
    check(&held, &tried, "held by");
    let [held, tried] = of_both("writer behind writer");
    check(&held.write, &tried.write, "held by");
    let [held, tried] = of_both("writer behind reader");
    check(&held.read, &tried.write, "held by");
    let [held, tried] = of_both("reader behind writer");
    check(&held.write, &tried.read, "1 ahead in the queue, the nearest is");
    // A reader does not exclude another reader.
    let [held, tried] = of_both("reader beside reader");
    held.read.acquire(Some(TEST_TIMEOUT)).unwrap();
    tried.read.acquire(Some(Duration::ZERO)).unwrap();
    assert_eq!(recorder.take(), [LIST, CREATE, LIST]);
}

#[test]
fn timeout_zero_on_a_multi_lock_lists_each_directory_and_creates_missing_ones() {
    let server = server_without_sweeps();
    let (recorder, holder) = (RequestRecorder::new(server), client(&server.address()));
    let paths = [path("one of two"), path("other of two")];
    let [held, tried] =
        [&holder, &recorder.client].map(|client| paths.each_ref().map(|path| client.mutex(path).unwrap()));
    let multi = Lock::multi(&tried.each_ref()).unwrap();
    held[1].acquire(Some(TEST_TIMEOUT)).unwrap();
    for _ in 0..20 {
        assert_eq!(status(multi.acquire(Some(Duration::ZERO))), Status::Timeout);
    }
    assert_eq!(recorder.take(), [[LIST, LIST, READ]; 20].concat());
    held[1].release().unwrap();
    // This acquire also creates the first directory, which no earlier attempt has created.
    multi.acquire(Some(Duration::ZERO)).unwrap();
    let seen = recorder.take();
    assert!(seen.starts_with(&[LIST, LIST, CREATE_CONTAINER]) && seen.ends_with(&[MULTI, LIST, LIST]), "{seen:?}");
    assert_eq!(status(held[0].acquire(Some(Duration::ZERO))), Status::Timeout);
}

/// If the client knows the state of a directory, a single attempt needs no list.
#[test]
fn timeout_zero_in_a_known_empty_directory_costs_one_round_trip() {
    let server = server_without_sweeps();
    let (path, recorder, other) = (path("known"), RequestRecorder::new(server), client(&server.address()));
    let (lock, others) = (recorder.client.mutex(&path).unwrap(), other.mutex(&path).unwrap());
    let win = || lock.acquire(Some(Duration::ZERO)).and_then(|()| lock.release()).unwrap();
    let costs_one = || {
        recorder.take();
        win();
        recorder.take() == [CREATE, DELETE]
    };
    // The client is alone in the directory.
    wait_until(TEST_TIMEOUT, costs_one);
    // The client has a directory cache and has received the event of the other node's end.
    wait_until(TEST_TIMEOUT, || {
        cycle(&others);
        lock.participants().unwrap().is_empty() && costs_one()
    });
    // If the cache shows a node ahead, the client asks the server, because the cache may briefly show a node after its
    // deletion.
    others.acquire(Some(TEST_TIMEOUT)).unwrap();
    wait_for_waiters(&lock, 1);
    recorder.take();
    assert_eq!(status(lock.acquire(Some(Duration::ZERO))), Status::Timeout);
    assert_eq!(recorder.take(), [LIST, READ]);
}

/// One client holds the lock, a writer is next, and fifty readers are behind it. A release wakes only those that are
/// granted the lock.
#[test]
fn release_wakes_only_the_granted_waiters() {
    const READERS: usize = 50;
    let server = server_without_sweeps();
    let (path, holder, recorder) = (path("readers"), client(&server.address()), RequestRecorder::new(server));
    let held = holder.rwlock(&path).unwrap();
    let writer = recorder.client.rwlock(&path).unwrap();
    let readers: Vec<_> = (0..READERS).map(|_| recorder.another().rwlock(&path).unwrap()).collect();
    held.write.acquire(None).unwrap();
    let waiting = writer.write.start_acquire(Owner::task(0), Some(TEST_TIMEOUT)).unwrap();
    let wait_for = |lock: &Lock| wait_until(TEST_TIMEOUT, || has_read_its_predecessor(lock));
    wait_for(&writer.write);
    let reading: Vec<_> =
        readers.iter().map(|rw| rw.read.start_acquire(Owner::task(0), Some(TEST_TIMEOUT)).unwrap()).collect();
    readers.iter().for_each(|rw| wait_for(&rw.read));
    let joined = [CREATE, LIST, READ, READ];
    assert_eq!(recorder.take().len(), joined.len() * (READERS + 1));

    held.write.release().unwrap();
    let _ = waiting.wait().unwrap().leave_to_owner();
    // The writer checks whether the holder has kept a read lock in the position of its write lock. The readers wait for
    // the writer and receive no event.
    assert_eq!(recorder.take(), [LIST]);
    assert!(readers.iter().all(|rw| !rw.read.is_held_in_process().unwrap()));

    writer.write.release_as(Owner::task(0)).unwrap();
    reading.into_iter().for_each(|reading| _ = reading.wait().unwrap().leave_to_owner());
    // Two writers were ahead when the readers joined, so each reader lists once to check whether the other writer has
    // gone too.
    assert_eq!(recorder.take(), [&[DELETE][..], &[LIST; READERS]].concat());
    readers.iter().for_each(|rw| rw.read.release_as(Owner::task(0)).unwrap());
    assert_eq!(recorder.take(), [DELETE; READERS]);
}

#[test]
fn request_counts_of_read_write_locks_multi_locks_and_semaphores() {
    let (server, recorder) = (server_without_sweeps(), RequestRecorder::new(server_without_sweeps()));
    let client = &recorder.client;
    // A read lock under the owner's write lock.
    let rw = client.rwlock(&path("nested")).unwrap();
    rw.write.acquire(None).unwrap();
    recorder.take();
    rw.read.acquire(None).unwrap();
    assert_eq!(recorder.take(), [CREATE, LIST]);
    rw.read.release().unwrap();
    rw.write.release().unwrap();
    assert_eq!(recorder.take(), [DELETE, DELETE]);
    // Two locks in one transaction.
    let locks = [client.mutex(&path("a")).unwrap(), client.mutex(&path("b")).unwrap()];
    let multi = Lock::multi(&locks.each_ref()).unwrap();
    for round in 0..2 {
        multi.acquire(None).unwrap();
        let seen = recorder.take();
        assert!(round == 0 || seen == [MULTI, LIST, LIST], "{seen:?}");
        multi.release().unwrap();
        assert_eq!(recorder.take(), [DELETE, DELETE]);
    }
    // Leases take two round trips. The client releases the inner mutex in the background.
    let semaphore = client.semaphore(&path("leases"), 3).unwrap();
    for round in 0..2 {
        let leases = semaphore.acquire(2, None).unwrap();
        wait_until(TEST_TIMEOUT, || recorder.seen.lock().unwrap().last() == Some(&DELETE));
        let seen = recorder.take();
        assert!(round == 0 || seen == [CREATE, LIST, MULTI, LIST, REMOVE_WATCHES, DELETE], "{seen:?}");
        leases.release().unwrap();
        assert_eq!(recorder.take(), [DELETE, DELETE]);
    }
    // A single attempt without a free lease writes nothing.
    let all = server_side(server, &semaphore);
    assert_eq!(semaphore.acquire(1, Some(Duration::ZERO)).err().unwrap().status(), Status::Timeout);
    assert_eq!(recorder.take(), [LIST]);
    drop(all);
}

/// Another client acquires all leases of a semaphore.
fn server_side(server: &ZooKeeper, semaphore: &Semaphore) -> Hold {
    let path = semaphore.path().to_owned();
    client(&server.address()).semaphore(&path, 3).unwrap().acquire(3, Some(TEST_TIMEOUT)).unwrap()
}
