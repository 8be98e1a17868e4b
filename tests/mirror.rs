//! Directories that are mirrored, on real servers: that nobody is overtaken whom the mirror can't show, and what becomes of it where
//! servers don't know how, connections break, or too many take part. (`traffic.rs` counts what it saves.)

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that fails is a test that fails")]

mod common;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use common::{SOON, client, path, queue, raw, status, wait_for_queue};
use zklock::{Client, Limits, Lock, LockState, Status};
use zklock_rig::{Direction, Options, Proxy, Verdict, ZooKeeper, flags, wait_until};

const ADD_WATCH: i32 = 106;
const LIST: i32 = 12;

/// More than it takes for a directory that several use to be mirrored, and for one that nobody else uses to be watched.
const WARM: usize = 8;

/// A server that sweeps no directory away in the middle of a test.
fn patient() -> Options {
    ZooKeeper::options().container_sweep_ms(3_600_000)
}

fn cycle(lock: &Lock) {
    lock.acquire(Some(SOON)).and_then(|()| lock.release()).unwrap();
}

fn cycles(locks: &[&Lock], count: usize) {
    (0..count).for_each(|_| locks.iter().for_each(|lock| cycle(lock)));
}

/// A proxy that notes each request's type, and does something about it.
fn watched(
    server: &ZooKeeper,
    mut act: impl FnMut(i32, &mut Vec<u8>) -> Verdict + Send + 'static,
) -> (Proxy, Arc<Mutex<Vec<i32>>>) {
    let (proxy, seen) = (Proxy::start(&server.address()), Arc::new(Mutex::new(Vec::new())));
    let note = Arc::clone(&seen);
    proxy.hook(move |way, frame: &mut Vec<u8>| {
        if way != Direction::ToServer || frame.len() == 45 {
            return Verdict::Forward;
        }
        let op = i32::from_be_bytes(frame[4..8].try_into().unwrap());
        note.lock().unwrap().push(op);
        act(op, frame)
    });
    (proxy, seen)
}

fn count(seen: &Mutex<Vec<i32>>, op: i32) -> usize {
    seen.lock().unwrap().iter().filter(|seen| **seen == op).count()
}

#[test]
fn who_may_not_be_read_is_not_passed_by() {
    // The second hides what happens to such a node from those who watch the directory, and the first may.
    for (server, is_shared) in
        [(patient().start(), true), (patient().newest().start(), true), (patient().newest().start(), false)]
    {
        let (path, [client, another], mut other) =
            (path("hidden"), [(); 2].map(|()| client(&server.address())), raw(&server));
        let (lock, others) = (client.mutex(&path).unwrap(), another.mutex(&path).unwrap());
        cycles(&[&lock, &others][..if is_shared { 2 } else { 1 }], WARM);
        assert!(server.watch_count() > 0, "something is watched");
        let hidden = other.create_unreadable(&format!("{path}/hidden-lock-"), flags::EPHEMERAL_SEQUENTIAL).unwrap();
        let refused = status(lock.acquire(Some(Duration::from_millis(300))));
        assert!(matches!(refused, Status::Denied | Status::Timeout), "{refused:?}");
        other.delete(&hidden);
        lock.acquire(Some(SOON)).unwrap();
    }
}

#[test]
fn a_directory_that_was_made_anew_counts_anew() {
    let server = patient().start();
    let (path, client, mut other) = (path("anew"), client(&server.address()), raw(&server));
    let lock = client.mutex(&path).unwrap();
    cycles(&[&lock], WARM);
    assert_eq!(server.watch_count(), 1, "who is alone watches the directory");
    assert_eq!(other.delete(&path), 0);
    other.create(&path, &[], flags::PERSISTENT).unwrap();
    let numbered = format!("{path}/other-lock-");
    let nodes: Vec<String> =
        (0..WARM).map(|_| other.create(&numbered, &[], flags::EPHEMERAL_SEQUENTIAL).unwrap()).collect();
    nodes.iter().rev().skip(1).for_each(|node| assert_eq!(other.delete(node), 0));
    // The next number is the one behind our last one, and yet somebody is there.
    let error = lock.acquire(Some(Duration::from_millis(300))).unwrap_err();
    assert_eq!(error.status(), Status::Timeout);
    assert!(error.to_string().contains(&nodes[WARM - 1]), "{error}");
}

/// What a list said may be old news when it is read: then nothing is known of the directory that is watched from then on.
#[test]
fn a_directory_that_was_made_anew_before_it_was_watched_is_not_taken_for_the_old_one() {
    let server = patient().start();
    let (path, mut other, proxy) =
        (path("made anew before it is watched"), raw(&server), Proxy::start(&server.address()));
    let (client, lists) = (client(&proxy.address()), AtomicUsize::new(0));
    let lock = client.mutex(&path).unwrap();
    let (is_held_back, (go_on, wait)) = (Arc::new(AtomicBool::new(false)), mpsc::channel::<()>());
    let (held_back, mut xid) = (Arc::clone(&is_held_back), None);
    // The first acquire lists twice, since there is no directory yet; the third is the one that finds itself alone in one used hard.
    proxy.hook(move |way, frame: &mut Vec<u8>| {
        let number = |at: usize| i32::from_be_bytes(frame[at..at + 4].try_into().unwrap());
        let is_list = way == Direction::ToServer && frame.len() != 45 && number(4) == LIST;
        if is_list && lists.fetch_add(1, Ordering::SeqCst) == 3 {
            xid = Some(number(0));
        } else if way == Direction::ToClient && Some(number(0)) == xid {
            held_back.store(true, Ordering::SeqCst);
            wait.recv().unwrap();
        }
        Verdict::Forward
    });
    cycles(&[&lock], 2);
    thread::scope(|scope| {
        let cycle = scope.spawn(|| lock.acquire(Some(SOON)).map(|()| status(lock.release())));
        wait_until(SOON, || is_held_back.load(Ordering::SeqCst));
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
    assert_eq!(status(lock.acquire(Some(Duration::from_millis(300)))), Status::Timeout);
}

#[test]
fn who_was_there_before_and_may_not_be_read_keeps_nobody_for_ever() {
    for server in [patient().start(), patient().newest().start()] {
        let (path, client, mut other) = (path("hidden before"), client(&server.address()), raw(&server));
        let locks: Vec<Lock> = (0..4).map(|_| client.mutex(&path).unwrap()).collect();
        cycle(&locks[0]);
        let hidden = other.create_unreadable(&format!("{path}/hidden-lock-"), flags::EPHEMERAL_SEQUENTIAL).unwrap();
        thread::scope(|scope| {
            let waiting: Vec<_> = locks
                .iter()
                .map(|lock| {
                    scope.spawn(move || match lock.acquire(Some(SOON)) {
                        // Who can't read the one ahead is told so.
                        Err(error) if error.status() == Status::Denied => {}
                        result => result.and_then(|()| lock.release()).unwrap(),
                    })
                })
                .collect();
            thread::sleep(Duration::from_millis(300));
            other.delete(&hidden);
            let deleted = Instant::now();
            waiting.into_iter().for_each(|waiting| waiting.join().unwrap());
            assert!(deleted.elapsed() < Duration::from_secs(3));
        });
    }
}

#[test]
fn servers_that_do_not_know_such_watches_are_asked_once() {
    // What a server before 3.6 makes of it.
    let server = ZooKeeper::start();
    let (proxy, seen) = watched(&server, |op, frame| {
        if op == ADD_WATCH {
            frame[4..8].copy_from_slice(&4242_i32.to_be_bytes());
        }
        Verdict::Forward
    });
    let (path, clients) = (path("old server"), [client(&proxy.address()), client(&server.address())]);
    let locks = clients.each_ref().map(|client| client.mutex(&path).unwrap());
    cycles(&[&locks[0], &locks[1]], 30);
    assert_eq!(count(&seen, ADD_WATCH), 1);
    assert!(count(&seen, LIST) >= 30, "everybody lists");
}

#[test]
fn servers_that_hang_up_over_them_are_asked_three_times() {
    let server = ZooKeeper::start();
    let (proxy, seen) = watched(&server, |op, _| if op == ADD_WATCH { Verdict::CutBefore } else { Verdict::Forward });
    let (path, clients) = (path("touchy server"), [client(&proxy.address()), client(&server.address())]);
    let locks = clients.each_ref().map(|client| client.mutex(&path).unwrap());
    cycles(&[&locks[0], &locks[1]], 60);
    assert_eq!(count(&seen, ADD_WATCH), 3);
}

#[test]
fn where_many_sessions_queue_there_is_none() {
    const SESSIONS: usize = 16;
    let server = ZooKeeper::start();
    let (path, (proxy, seen)) = (path("crowd"), watched(&server, |_, _| Verdict::Forward));
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
                    lock.acquire(Some(SOON)).unwrap();
                    assert!(!inside.swap(true, Ordering::SeqCst), "two are in");
                    inside.store(false, Ordering::SeqCst);
                    lock.release().unwrap();
                }
            });
        }
        holder.release().unwrap();
    });
    let (asked, cycles) = (count(&seen, ADD_WATCH), SESSIONS * 20);
    assert!(asked <= 2 * SESSIONS, "{asked} mirrors were begun for {cycles} cycles");
    assert!(count(&seen, LIST) > cycles / 2, "most have listed");
    // The mirrors of the last ones, once few are left, go soon.
    wait_until(SOON, || server.watch_count() == 0);
}

#[test]
fn connections_that_break_cost_nobody_his_turn_and_let_in_no_two() {
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
                    lock.acquire(Some(SOON)).unwrap();
                    assert!(!inside.swap(true, Ordering::SeqCst), "two are in");
                    inside.store(false, Ordering::SeqCst);
                    done.fetch_add(1, Ordering::SeqCst);
                    lock.release().unwrap();
                }
            });
        }
        for round in 0..30 {
            let before = done.load(Ordering::SeqCst);
            proxies[round % 2].cut();
            wait_until(SOON, || done.load(Ordering::SeqCst) > before + 20);
        }
        running.store(false, Ordering::SeqCst);
    });
    drop(clients);
    assert_eq!(raw(&server).children(&path).unwrap_or_default(), [""; 0]);
}

/// A mirror is given up because of the event that the node ahead is gone. The contender looks for its place before it hears that there is
/// no mirror any more.
#[test]
fn a_node_whose_mirror_ends_with_the_node_ahead_is_watched() {
    // A hold, and a contender that still waits.
    for is_first in [true, false] {
        let server = patient().start();
        let (path, mut other, (proxy, seen)) =
            (path("crowded out"), raw(&server), watched(&server, |_, _| Verdict::Forward));
        let client = client(&proxy.address());
        let lock = client.mutex(&path).unwrap();
        // Another client uses the directory too, and this one uses it heavily.
        cycle(&lock);
        let numbered = format!("{path}/other-lock-");
        let others: Vec<String> =
            (0..2).map(|_| other.create(&numbered, &[], flags::EPHEMERAL_SEQUENTIAL).unwrap()).collect();
        for _ in 0..WARM {
            assert_eq!(status(lock.acquire(Some(Duration::from_millis(1)))), Status::Timeout);
        }
        wait_for_queue(&mut other, &path, 2);
        if is_first {
            assert_eq!(other.delete(&others[0]), 0);
        }
        thread::scope(|scope| {
            let acquire = scope.spawn(|| lock.acquire(Some(SOON)));
            wait_for_queue(&mut other, &path, if is_first { 2 } else { 3 });
            let own = queue(&mut other, &path).pop().unwrap();
            let waits_for = |node: &str| lock.waiting().unwrap().iter().any(|one| one.ahead.as_deref() == Some(node));
            wait_until(SOON, || waits_for(&others[1]));
            assert!(count(&seen, ADD_WATCH) > 0, "there was a mirror");
            // The last change that the mirror bears.
            (0..Limits::default().mirror.noise).for_each(|_| assert_eq!(other.set_data(&others[1], &[]), 0));
            assert_eq!(other.delete(&others[1]), 0);
            if is_first {
                wait_until(SOON, || lock.is_held_in_process().unwrap());
            } else {
                wait_until(SOON, || waits_for(&others[0]));
            }
            assert_eq!(other.delete(&format!("{path}/{own}")), 0);
            // The hold is lost, and a new node takes the place of the one that waited.
            if is_first {
                wait_until(SOON, || lock.state().unwrap() == LockState::Lost);
            } else {
                wait_for_queue(&mut other, &path, 2);
                assert_eq!(other.delete(&others[0]), 0);
            }
            acquire.join().unwrap().unwrap();
        });
    }
}
