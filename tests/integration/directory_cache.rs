//! Directory caches on real servers. A client must not overtake a node that its cache cannot show. The tests also cover
//! servers without persistent watches, broken connections, and directories with too many participants. (`traffic.rs`
//! counts the requests that a cache saves.)

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::{
    TEST_TIMEOUT, assert_not_late, client, client_with, path, queue, raw, status, wait_for_queue, wait_for_waiters,
};
use zklock::{Client, Lock, LockState, Status};
use zklock_core::limits::Limits;
use zklock_test_support::{Direction, Options, Proxy, Verdict, ZooKeeper, flags, request_type, wait_until, xid};

const ADD_WATCH: i32 = 106;
const LIST: i32 = 12;

/// More cycles than the client needs to start a cache, or to watch a directory that no other client uses.
const CYCLES_UNTIL_CACHED: usize = 8;

/// A server that does not delete empty directories during a test.
fn server_without_container_checks() -> Options {
    ZooKeeper::options().container_sweep_ms(3_600_000)
}

fn cycle(lock: &Lock) {
    lock.acquire(Some(TEST_TIMEOUT)).and_then(|()| lock.release()).unwrap();
}

fn cycles(locks: &[&Lock], count: usize) {
    (0..count).for_each(|_| locks.iter().for_each(|lock| cycle(lock)));
}

/// Uses the locks until the server has a number of watches that `is_enough` accepts. On a busy machine, the cycles may
/// be too slow for a cache.
fn cycle_until_watched(server: &ZooKeeper, locks: &[&Lock], is_enough: impl Fn(usize) -> bool) {
    wait_until(TEST_TIMEOUT, || {
        cycles(locks, CYCLES_UNTIL_CACHED);
        is_enough(server.watch_count())
    });
}

/// A proxy that records the type of each request and calls `act` with it.
fn counting_proxy(
    server: &ZooKeeper,
    mut act: impl FnMut(i32, &mut Vec<u8>) -> Verdict + Send + 'static,
) -> (Proxy, Arc<Mutex<Vec<i32>>>) {
    let (proxy, seen) = (Proxy::start(&server.address()), Arc::new(Mutex::new(Vec::new())));
    let note = Arc::clone(&seen);
    proxy.hook(move |way, frame: &mut Vec<u8>| {
        let Some(op) = request_type(frame).filter(|_| way == Direction::ToServer) else {
            return Verdict::Forward;
        };
        note.lock().unwrap().push(op);
        act(op, frame)
    });
    (proxy, seen)
}

fn count(seen: &Mutex<Vec<i32>>, op: i32) -> usize {
    seen.lock().unwrap().iter().filter(|seen| **seen == op).count()
}

#[test]
fn unreadable_node_ahead_is_not_overtaken() {
    // The newest ZooKeeper does not report changes of such a node to clients that watch the directory. Debian's
    // ZooKeeper may also hide them.
    for (server, is_shared) in [
        (server_without_container_checks().start(), true),
        (server_without_container_checks().newest().start(), true),
        (server_without_container_checks().newest().start(), false),
    ] {
        let (path, [client, another], mut other) =
            (path("hidden"), [(); 2].map(|()| client(&server.address())), raw(&server));
        let (lock, others) = (client.mutex(&path).unwrap(), another.mutex(&path).unwrap());
        cycle_until_watched(&server, &[&lock, &others][..if is_shared { 2 } else { 1 }], |watches| watches > 0);
        let hidden = other.create_unreadable(&format!("{path}/hidden-lock-"), flags::EPHEMERAL_SEQUENTIAL).unwrap();
        let refused = status(lock.acquire(Some(Duration::from_secs(1))));
        assert!(matches!(refused, Status::Denied | Status::Timeout), "{refused:?}");
        other.delete(&hidden);
        lock.acquire(Some(TEST_TIMEOUT)).unwrap();
    }
}

/// A heartbeat, which would notice the deletion later, takes longer than the test.
#[test]
fn a_holder_is_watched_after_the_end_of_its_cache() {
    let server = server_without_container_checks().start();
    let (path, mut other) = (path("ended"), raw(&server));
    let [one, two] = [(); 2].map(|()| client_with(&server.address(), Duration::from_secs(600)));
    let (held, another) = (one.mutex(&path).unwrap(), two.mutex(&path).unwrap());
    // On a busy machine, a cache can end between its last use and the acquire. It does not end during the hold.
    wait_until(TEST_TIMEOUT, || {
        cycles(&[&held, &another], CYCLES_UNTIL_CACHED);
        held.acquire(Some(TEST_TIMEOUT)).unwrap();
        let is_cached = server.watch_count() >= 2;
        if !is_cached {
            held.release().unwrap();
        }
        is_cached
    });
    let node = format!("{path}/{}", queue(&mut other, &path)[0]);
    for _ in 0..=Limits::default().directory_cache.max_foreign_changes {
        other.create(&format!("{path}/change"), &[], flags::PERSISTENT).unwrap();
        assert_eq!(other.delete(&format!("{path}/change")), 0);
    }
    assert_eq!(other.delete(&node), 0);
    wait_until(TEST_TIMEOUT, || held.state().unwrap() == LockState::Lost);
}

#[test]
fn recreated_directory_invalidates_the_cache() {
    let server = server_without_container_checks().start();
    let (path, client, mut other) = (path("anew"), client(&server.address()), raw(&server));
    let lock = client.mutex(&path).unwrap();
    // A client without competitors watches the directory.
    cycle_until_watched(&server, &[&lock], |watches| watches == 1);
    assert_eq!(other.delete(&path), 0);
    other.create(&path, &[], flags::PERSISTENT).unwrap();
    let numbered = format!("{path}/other-lock-");
    let nodes: Vec<String> =
        (0..CYCLES_UNTIL_CACHED).map(|_| other.create(&numbered, &[], flags::EPHEMERAL_SEQUENTIAL).unwrap()).collect();
    nodes.iter().rev().skip(1).for_each(|node| assert_eq!(other.delete(node), 0));
    // The next sequence number follows our last one, but the directory contains another participant.
    let error = lock.acquire(Some(Duration::from_secs(1))).unwrap_err();
    assert_eq!(error.status(), Status::Timeout);
    assert!(error.to_string().contains(&nodes[CYCLES_UNTIL_CACHED - 1]), "{error}");
}

/// A list may be outdated when the client reads it. The client must then not rely on it for the directory that it
/// starts to watch.
#[test]
fn directory_recreated_before_its_watch_is_not_cached() {
    let server = server_without_container_checks().start();
    let (path, mut other, proxy) =
        (path("made anew before it is watched"), raw(&server), Proxy::start(&server.address()));
    let (client, lists) = (client(&proxy.address()), AtomicUsize::new(0));
    let lock = client.mutex(&path).unwrap();
    let (is_held_back, (go_on, wait)) = (Arc::new(AtomicBool::new(false)), mpsc::channel::<()>());
    let (held_back, mut list_xid) = (Arc::clone(&is_held_back), None);
    // The first acquire sends two lists, because the directory does not exist yet. At the third acquire, the client is
    // the only user of a directory that it uses often.
    proxy.hook(move |way, frame: &mut Vec<u8>| {
        let is_list = way == Direction::ToServer && request_type(frame) == Some(LIST);
        if is_list && lists.fetch_add(1, Ordering::SeqCst) == 3 {
            list_xid = Some(xid(frame));
        } else if way == Direction::ToClient && Some(xid(frame)) == list_xid {
            held_back.store(true, Ordering::SeqCst);
            wait.recv().unwrap();
        }
        Verdict::Forward
    });
    cycles(&[&lock], 2);
    thread::scope(|scope| {
        let cycle = scope.spawn(|| lock.acquire(Some(TEST_TIMEOUT)).map(|()| status(lock.release())));
        wait_until(TEST_TIMEOUT, || is_held_back.load(Ordering::SeqCst));
        let own = other.children(&path).unwrap();
        assert_eq!(own.len(), 1);
        other.delete(&format!("{path}/{}", own[0]));
        assert_eq!(other.delete(&path), 0);
        other.create(&path, &[], flags::PERSISTENT).unwrap();
        let numbered = format!("{path}/other-lock-");
        let nodes = (0..3).map(|_| other.create(&numbered, &[], flags::EPHEMERAL_SEQUENTIAL).unwrap());
        let nodes: Vec<String> = nodes.collect();
        nodes.iter().rev().skip(1).for_each(|node| assert_eq!(other.delete(node), 0));
        assert!(own[0].ends_with(&nodes[2][nodes[2].len() - 10..]), "the same number: {own:?}, {nodes:?}");
        go_on.send(()).unwrap();
        assert_eq!(cycle.join().unwrap().unwrap(), Status::Lost);
    });
    assert_eq!(status(lock.acquire(Some(Duration::from_secs(1)))), Status::Timeout);
}

#[test]
fn waiters_proceed_after_an_older_unreadable_node_is_deleted() {
    for server in [server_without_container_checks().start(), server_without_container_checks().newest().start()] {
        let (path, client, mut other) = (path("hidden before"), client(&server.address()), raw(&server));
        let locks: Vec<Lock> = (0..4).map(|_| client.mutex(&path).unwrap()).collect();
        cycle(&locks[0]);
        let hidden = other.create_unreadable(&format!("{path}/hidden-lock-"), flags::EPHEMERAL_SEQUENTIAL).unwrap();
        thread::scope(|scope| {
            let waiting: Vec<_> = locks
                .iter()
                .map(|lock| {
                    scope.spawn(move || match lock.acquire(Some(TEST_TIMEOUT)) {
                        // A waiter that cannot read the node ahead fails with DENIED.
                        Err(error) if error.status() == Status::Denied => {}
                        result => result.and_then(|()| lock.release()).unwrap(),
                    })
                })
                .collect();
            thread::sleep(Duration::from_millis(300));
            other.delete(&hidden);
            let deleted = Instant::now();
            waiting.into_iter().for_each(|waiting| waiting.join().unwrap());
            assert_not_late(deleted.elapsed(), Duration::from_secs(2));
        });
    }
}

#[test]
fn add_watch_is_tried_once_on_servers_without_it() {
    let server = ZooKeeper::start();
    // A server before 3.6 does not know this operation either. The server answers it, and then closes the connection.
    let (proxy, seen) = counting_proxy(&server, |op, frame| {
        if op == ADD_WATCH {
            frame[4..8].copy_from_slice(&4242_i32.to_be_bytes());
        }
        Verdict::Forward
    });
    let path = path("old server");
    let clients = [client(&proxy.address()), client(&server.address())];
    let locks = clients.each_ref().map(|client| client.mutex(&path).unwrap());
    wait_until(TEST_TIMEOUT, || {
        cycles(&[&locks[0], &locks[1]], 30);
        count(&seen, ADD_WATCH) > 0
    });
    cycles(&[&locks[0], &locks[1]], 30);
    assert_eq!(count(&seen, ADD_WATCH), 1);
    assert!(count(&seen, LIST) >= 30, "every client sends a list");
}

#[test]
fn add_watch_is_tried_three_times_on_servers_that_disconnect() {
    let server = ZooKeeper::start();
    let (proxy, seen) =
        counting_proxy(&server, |op, _| if op == ADD_WATCH { Verdict::CutBefore } else { Verdict::Forward });
    let (path, clients) = (path("touchy server"), [client(&proxy.address()), client(&server.address())]);
    let locks = clients.each_ref().map(|client| client.mutex(&path).unwrap());
    wait_until(TEST_TIMEOUT, || {
        cycles(&[&locks[0], &locks[1]], CYCLES_UNTIL_CACHED);
        count(&seen, ADD_WATCH) == 3
    });
    cycles(&[&locks[0], &locks[1]], 30);
    assert_eq!(count(&seen, ADD_WATCH), 3);
}

#[test]
fn directory_used_by_many_clients_is_not_cached() {
    const SESSIONS: usize = 16;
    let server = ZooKeeper::start();
    let (path, (proxy, seen)) = (path("crowd"), counting_proxy(&server, |_, _| Verdict::Forward));
    let clients: Vec<Client> = (0..SESSIONS).map(|_| client(&proxy.address())).collect();
    let holder = clients[0].mutex(&path).unwrap();
    holder.acquire(None).unwrap();
    let inside = AtomicBool::new(false);
    thread::scope(|scope| {
        for client in &clients {
            let (path, inside) = (&path, &inside);
            scope.spawn(move || {
                let lock = client.mutex(path).unwrap();
                for _ in 0..20 {
                    lock.acquire(Some(TEST_TIMEOUT)).unwrap();
                    assert!(!inside.swap(true, Ordering::SeqCst), "two owners hold the lock");
                    inside.store(false, Ordering::SeqCst);
                    lock.release().unwrap();
                }
            });
        }
        holder.release().unwrap();
    });
    let (asked, cycles) = (count(&seen, ADD_WATCH), SESSIONS * 20);
    assert!(asked <= 2 * SESSIONS, "{asked} directory caches were started in {cycles} cycles");
    assert!(count(&seen, LIST) > cycles / 2, "most clients have sent a list");
    // When few participants are left, their clients soon end the caches.
    wait_until(TEST_TIMEOUT, || server.watch_count() == 0);
}

#[test]
fn cached_queue_stays_exclusive_and_live_across_cuts() {
    let server = ZooKeeper::start();
    let (path, proxies) = (path("cut"), [(); 2].map(|()| Proxy::start(&server.address())));
    let clients = proxies.each_ref().map(|proxy| client(&proxy.address()));
    let (inside, running, done) = (AtomicBool::new(false), AtomicBool::new(true), AtomicUsize::new(0));
    thread::scope(|scope| {
        for client in clients.iter().flat_map(|client| [client; 4]) {
            let (path, inside, running, done) = (&path, &inside, &running, &done);
            scope.spawn(move || {
                let lock = client.mutex(path).unwrap();
                while running.load(Ordering::SeqCst) {
                    lock.acquire(Some(TEST_TIMEOUT)).unwrap();
                    assert!(!inside.swap(true, Ordering::SeqCst), "two owners hold the lock");
                    inside.store(false, Ordering::SeqCst);
                    done.fetch_add(1, Ordering::SeqCst);
                    lock.release().unwrap();
                }
            });
        }
        for round in 0..30 {
            let before = done.load(Ordering::SeqCst);
            proxies[round % 2].cut();
            wait_until(TEST_TIMEOUT, || done.load(Ordering::SeqCst) > before + 20);
        }
        running.store(false, Ordering::SeqCst);
    });
    drop(clients);
    assert_eq!(raw(&server).children(&path).unwrap_or_default(), [""; 0]);
}

/// The event that the node ahead is gone ends the directory cache. The contender looks up its position before it learns
/// that the cache has ended.
#[test]
fn waiter_sets_its_watch_if_the_cache_ends_with_the_node_ahead() {
    // First for a holder, then for a contender that still waits.
    for is_first in [true, false] {
        let server = server_without_container_checks().start();
        let (path, mut other, (proxy, seen)) =
            (path("crowded out"), raw(&server), counting_proxy(&server, |_, _| Verdict::Forward));
        let client = client(&proxy.address());
        let lock = client.mutex(&path).unwrap();
        // Another client uses the directory too, and this client uses it often.
        cycle(&lock);
        let numbered = format!("{path}/other-lock-");
        let others: Vec<String> =
            (0..2).map(|_| other.create(&numbered, &[], flags::EPHEMERAL_SEQUENTIAL).unwrap()).collect();
        wait_until(TEST_TIMEOUT, || {
            // Only frequent use begins a cache, so there is no pause between the calls.
            for _ in 0..CYCLES_UNTIL_CACHED {
                lock.acquire(Some(Duration::from_millis(1))).unwrap_err();
            }
            count(&seen, ADD_WATCH) > 0
        });
        // The nodes of the failed calls are gone. Only the client's own connection tells this for certain: any other
        // connection may overtake a request that the client has just sent.
        wait_for_waiters(&lock, 2);
        if is_first {
            assert_eq!(other.delete(&others[0]), 0);
        }
        thread::scope(|scope| {
            let acquire = scope.spawn(|| lock.acquire(Some(TEST_TIMEOUT)));
            wait_for_queue(&mut other, &path, if is_first { 2 } else { 3 });
            let own = queue(&mut other, &path).pop().unwrap();
            let waits_for = |node: &str| lock.waiting().unwrap().iter().any(|one| one.ahead.as_deref() == Some(node));
            wait_until(TEST_TIMEOUT, || waits_for(&others[1]));
            // The last change that the cache tolerates.
            (0..Limits::default().directory_cache.max_foreign_changes)
                .for_each(|_| assert_eq!(other.set_data(&others[1], &[]), 0));
            assert_eq!(other.delete(&others[1]), 0);
            if is_first {
                wait_until(TEST_TIMEOUT, || lock.is_held_in_process().unwrap());
            } else {
                wait_until(TEST_TIMEOUT, || waits_for(&others[0]));
            }
            assert_eq!(other.delete(&format!("{path}/{own}")), 0);
            // The hold is lost, or a new node replaces the node of the waiting contender.
            if is_first {
                wait_until(TEST_TIMEOUT, || lock.state_in_process().unwrap() == LockState::Lost);
            } else {
                wait_for_queue(&mut other, &path, 2);
                assert_eq!(other.delete(&others[0]), 0);
            }
            acquire.join().unwrap().unwrap();
        });
    }
}
