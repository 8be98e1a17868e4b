//! The mutex under failures: servers that stop, pause and restart, connections that break at the worst moment, sessions
//! that end, nodes that are deleted, and processes that end or are paused. All tests use real servers.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::{
    TEST_TIMEOUT, assert_ends_at_limit, assert_not_late, assert_times_out, client, client_with, create_directory, path,
    queue, raw, server_without_sweeps, slack, status, timed, wait_for_queue, wait_for_waiters,
};
use zklock::{Client, ClientState, Config, Event, Lock, LockState, Status};
use zklock_test_support::{
    Direction, Port, Proxy, RawClient, Verdict, ZooKeeper, is_connect_request, pause, resume, wait_until,
};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

// Servers.

#[test]
fn connect_without_server_fails_with_connection_error_at_its_timeout() {
    let nobody = Port::reserve();
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let config = Config::new().connect_timeout(700 * MS);
    for servers in [nobody.address(), silent.local_addr().unwrap().to_string(), "no-such-host.invalid:2181".into()] {
        let error = assert_ends_at_limit(700 * MS, || Client::connect(&servers, &config)).err().unwrap();
        assert_eq!(error.status(), Status::Connection, "{error}");
        assert!(error.message().contains(&servers), "{error}");
    }
}

#[test]
fn a_stopped_or_frozen_server_does_not_stop_a_deadline() {
    let server = ZooKeeper::start();
    let client = client(&server.address());
    let lock = client.mutex(&path("stopped")).unwrap();
    lock.acquire(None).unwrap();
    lock.release().unwrap();
    let in_time = |what: &str| {
        for limit in [150 * MS, 700 * MS] {
            assert_eq!(status(assert_ends_at_limit(limit, || lock.acquire(Some(limit)))), Status::Connection, "{what}");
        }
        let (result, took) = timed(|| lock.acquire(Some(Duration::ZERO)));
        assert_eq!(status(result), Status::Connection, "{what}");
        // An attempt waits for the server for one second.
        assert_not_late(took, SECOND);
    };
    server.pause();
    in_time("frozen");
    server.resume();
    lock.acquire(Some(TEST_TIMEOUT)).unwrap();
    lock.release().unwrap();
    server.stop();
    in_time("stopped");
    server.restart();
    lock.acquire(Some(TEST_TIMEOUT)).unwrap();
    lock.release().unwrap();
    wait_until(TEST_TIMEOUT, || lock.participants().is_ok_and(|found| found.is_empty()));
}

#[test]
fn a_restart_keeps_the_holder_and_the_place_of_a_waiter() {
    let server = ZooKeeper::start();
    let path = path("restart");
    let (one, two, three) = (client(&server.address()), client(&server.address()), client(&server.address()));
    let (held, next, last) = (one.mutex(&path).unwrap(), two.mutex(&path).unwrap(), three.mutex(&path).unwrap());
    held.acquire(None).unwrap();
    let token = held.fencing_token().unwrap();
    let order = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for (name, lock, length) in [("next", &next, 2), ("last", &last, 3)] {
            let order = &order;
            scope.spawn(move || {
                lock.acquire(None).unwrap();
                order.lock().unwrap().push(name);
                lock.release().unwrap();
            });
            wait_for_waiters(&held, length);
        }
        server.stop();
        wait_until(TEST_TIMEOUT, || held.state().unwrap() != LockState::Held);
        assert_eq!(held.state().unwrap(), LockState::Suspended);
        assert!(held.is_held().unwrap(), "safe while the lease runs");
        server.restart();
        wait_until(TEST_TIMEOUT, || held.state().unwrap() == LockState::Held);
        assert_eq!(held.fencing_token().unwrap(), token);
        assert_eq!(order.lock().unwrap().len(), 0);
        held.release().unwrap();
    });
    assert_eq!(*order.lock().unwrap(), ["next", "last"]);
    assert_eq!(queue(&mut raw(&server), &path), Vec::<String>::new());
}

#[test]
fn a_frozen_server_makes_holds_suspended_then_uncertain_and_held_again() {
    let server = ZooKeeper::start();
    let (events, handler) = recorder();
    let config = Config::new().session_timeout(12 * SECOND).on_event(handler);
    let client = Client::connect(&server.address(), &config).unwrap();
    let lock = client.mutex(&path("states")).unwrap();
    lock.acquire(None).unwrap();
    assert!(lock.remaining().unwrap() > 6 * SECOND);
    server.pause();
    wait_until(TEST_TIMEOUT, || lock.state().unwrap() == LockState::Suspended);
    wait_until(TEST_TIMEOUT, || lock.state().unwrap() == LockState::Uncertain);
    assert!(!lock.is_held().unwrap());
    assert_eq!(lock.remaining().unwrap(), Duration::ZERO);
    // The pause was shorter than the session timeout, so the session still exists.
    server.resume();
    wait_until(TEST_TIMEOUT, || lock.state().unwrap() == LockState::Held);
    lock.release().unwrap();
    client.close().unwrap();
    let states: Vec<_> = events.lock().unwrap().iter().filter_map(lock_change).collect();
    let expected = [LockState::Held, LockState::Suspended, LockState::Uncertain, LockState::Held, LockState::Free];
    let expected: Vec<_> = [LockState::Free].iter().chain(&expected).copied().zip(expected).collect();
    assert_eq!(states, expected);
}

// Connections.

#[test]
fn a_lost_reply_to_the_create_leaves_one_node() {
    for cut in [Verdict::CutBefore, Verdict::CutAfter] {
        let server = ZooKeeper::shared();
        let path = path("lost-create");
        let cuts = Arc::new(AtomicUsize::new(0));
        let seen = Arc::clone(&cuts);
        let proxy = Proxy::start(&server.address());
        // CutBefore on the way to the client drops the reply. CutAfter on the way to the server delivers the request.
        let direction = if matches!(cut, Verdict::CutBefore) { Direction::ToClient } else { Direction::ToServer };
        proxy.hook(move |way, frame: &mut Vec<u8>| {
            let create = frame.windows(5).any(|w| w == b"lock-");
            if way == direction && create && seen.fetch_add(1, Ordering::SeqCst) == 0 { cut } else { Verdict::Forward }
        });
        let client = client(&proxy.address());
        let lock = client.mutex(&path).unwrap();
        create_directory(server, &path);
        lock.acquire(Some(TEST_TIMEOUT)).unwrap();
        assert!(cuts.load(Ordering::SeqCst) > 0, "the fault happened");
        let mut raw = raw(server);
        let nodes = queue(&mut raw, &path);
        assert_eq!(nodes.len(), 1, "{cut:?}: {nodes:?}");
        assert_eq!(raw.stat(&format!("{path}/{}", nodes[0])).unwrap().czxid, lock.fencing_token().unwrap());
        lock.release().unwrap();
        wait_for_queue(&mut raw, &path, 0);
    }
}

/// Acquires and releases a lock, with and without an existing directory. The connection is cut before or after each
/// frame in turn, in each direction. Every run must succeed and leave no node behind.
#[test]
fn acquire_and_release_survive_a_cut_at_any_frame() {
    let server = server_without_sweeps();
    let mut raw = raw(server);
    for way in [Direction::ToServer, Direction::ToClient] {
        for verdict in [Verdict::CutBefore, Verdict::CutAfter] {
            for missing in [true, false] {
                // Frame 0 is the handshake. A cycle that has to create directories has ten more frames.
                for target in 1..=10 {
                    let path = path("any-frame");
                    if !missing {
                        create_directory(server, &path);
                    }
                    let proxy = Proxy::start(&server.address());
                    let mut count = 0;
                    proxy.hook(move |direction, _: &mut Vec<u8>| {
                        if direction != way {
                            return Verdict::Forward;
                        }
                        count += 1;
                        if count == target + 1 { verdict } else { Verdict::Forward }
                    });
                    let what = format!("{verdict:?} frame {target} {way:?}, missing: {missing}");
                    let client = client(&proxy.address());
                    let lock = client.mutex(&path).unwrap();
                    let acquired = lock.acquire(Some(TEST_TIMEOUT));
                    assert!(acquired.is_ok(), "{what}: {acquired:?}");
                    assert_eq!(queue(&mut raw, &path).len(), 1, "{what}");
                    assert!(lock.is_held().unwrap(), "{what}");
                    let released = lock.release();
                    assert!(released.is_ok(), "{what}: {released:?}");
                    assert_eq!(queue(&mut raw, &path), Vec::<String>::new(), "{what}");
                }
            }
        }
    }
}

/// The same for a waiter that gets the lock, and for a waiter that times out.
#[test]
fn waiting_acquire_survives_a_cut_at_any_frame() {
    let server = server_without_sweeps();
    let mut raw = raw(server);
    let holder = client(&server.address());
    for way in [Direction::ToServer, Direction::ToClient] {
        for verdict in [Verdict::CutBefore, Verdict::CutAfter] {
            for target in 1..=8 {
                let path = path("any-frame-of-a-wait");
                let held = holder.mutex(&path).unwrap();
                held.acquire(None).unwrap();
                let proxy = Proxy::start(&server.address());
                let mut count = 0;
                proxy.hook(move |direction, _: &mut Vec<u8>| {
                    count += usize::from(direction == way);
                    if direction == way && count == target + 1 { verdict } else { Verdict::Forward }
                });
                let what = format!("{verdict:?} frame {target} {way:?}");
                let waiting = client(&proxy.address());
                let lock = waiting.mutex(&path).unwrap();
                let gave_up = lock.acquire(Some(60 * MS));
                assert!(gave_up.is_err(), "{what}");
                wait_for_queue(&mut raw, &path, 1);
                thread::scope(|scope| {
                    let waiter = scope.spawn(|| lock.acquire(Some(TEST_TIMEOUT)).and_then(|()| lock.release()));
                    wait_for_queue(&mut raw, &path, 2);
                    held.release().unwrap();
                    let served = waiter.join().unwrap();
                    assert!(served.is_ok(), "{what}: {served:?}");
                });
                wait_for_queue(&mut raw, &path, 0);
            }
        }
    }
}

#[test]
fn a_caller_that_gave_up_before_the_reply_leaves_nothing() {
    let server = ZooKeeper::shared();
    let (path, mut raw) = (path("given-up"), raw(server));
    create_directory(server, &path);
    let proxy = Proxy::start(&server.address());
    let client = client(&proxy.address());
    let lock = client.mutex(&path).unwrap();
    let (let_pass, passes) = mpsc::channel::<()>();
    proxy.hook(move |way, frame: &mut Vec<u8>| {
        if way == Direction::ToClient && frame.windows(5).any(|w| w == b"lock-") {
            let _ = passes.recv();
        }
        Verdict::Forward
    });
    assert_eq!(status(lock.acquire(Some(150 * MS))), Status::Connection);
    wait_for_queue(&mut raw, &path, 1);
    drop(let_pass);
    wait_for_queue(&mut raw, &path, 0);
    // This reply arrives after all replies that were held back.
    assert_eq!(lock.participants().unwrap(), []);
    // The same without any reply: the reply to the create and all later replies are lost.
    let (deaf, hears) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let (falls_deaf, heard) = (Arc::clone(&deaf), Arc::clone(&hears));
    proxy.hook(move |way, frame: &mut Vec<u8>| {
        let create = frame.windows(5).any(|w| w == b"lock-");
        falls_deaf.fetch_or(way == Direction::ToClient && create, Ordering::SeqCst);
        let lost = way == Direction::ToClient && falls_deaf.load(Ordering::SeqCst) && !heard.load(Ordering::SeqCst);
        if lost { Verdict::Drop } else { Verdict::Forward }
    });
    assert_eq!(status(lock.acquire(Some(300 * MS))), Status::Connection);
    assert!(deaf.load(Ordering::SeqCst), "the fault happened");
    wait_for_queue(&mut raw, &path, 1);
    hears.store(true, Ordering::SeqCst);
    proxy.cut();
    wait_for_queue(&mut raw, &path, 0);
    lock.acquire(Some(TEST_TIMEOUT)).unwrap();
    lock.release().unwrap();
}

#[test]
fn a_delete_is_repeated_until_it_is_confirmed() {
    for verdict in [Verdict::CutBefore, Verdict::CutAfter] {
        let server = ZooKeeper::shared();
        let (path, mut raw) = (path("delete"), raw(server));
        let armed = Arc::new(AtomicBool::new(false));
        let cut = Arc::clone(&armed);
        let proxy = Proxy::start(&server.address());
        proxy.hook(move |way, frame: &mut Vec<u8>| {
            let delete = frame.get(4..8) == Some(&2_i32.to_be_bytes());
            let hit = way == Direction::ToServer && delete && cut.swap(false, Ordering::SeqCst);
            if hit { verdict } else { Verdict::Forward }
        });
        let client = client(&proxy.address());
        let lock = client.mutex(&path).unwrap();
        lock.acquire(None).unwrap();
        armed.store(true, Ordering::SeqCst);
        lock.release().unwrap();
        assert!(!armed.load(Ordering::SeqCst), "the fault happened");
        assert_eq!(queue(&mut raw, &path), Vec::<String>::new(), "{verdict:?}");
    }
}

#[test]
fn waiters_survive_cuts_and_keep_their_order() {
    let server = ZooKeeper::shared();
    let path = path("cuts");
    let proxy = Proxy::start(&server.address());
    let (direct, cut) = (client(&server.address()), client(&proxy.address()));
    let (held, waiting) = (direct.mutex(&path).unwrap(), cut.mutex(&path).unwrap());
    held.acquire(None).unwrap();
    let served = AtomicUsize::new(0);
    thread::scope(|scope| {
        for number in 0..4 {
            let (served, waiting) = (&served, &waiting);
            scope.spawn(move || {
                waiting.acquire(None).unwrap();
                assert_eq!(served.fetch_add(1, Ordering::SeqCst), number);
                waiting.release().unwrap();
            });
            wait_for_waiters(&held, number + 2);
        }
        let before = held.participants().unwrap();
        for _ in 0..5 {
            let accepted = proxy.accepted_count();
            proxy.cut();
            wait_until(TEST_TIMEOUT, || {
                proxy.accepted_count() > accepted && cut.state().unwrap() == ClientState::Connected
            });
        }
        assert_eq!(held.participants().unwrap(), before, "no waiter has lost its place");
        held.release().unwrap();
    });
    assert_eq!(served.load(Ordering::SeqCst), 4);
}

#[test]
fn a_holder_that_left_while_a_waiter_was_cut_off_is_noticed() {
    let server = ZooKeeper::shared();
    let path = path("cut-off");
    let proxy = Proxy::start(&server.address());
    let (direct, cut) = (client(&server.address()), client(&proxy.address()));
    let (held, waiting) = (direct.mutex(&path).unwrap(), cut.mutex(&path).unwrap());
    held.acquire(None).unwrap();
    thread::scope(|scope| {
        let waiter = scope.spawn(|| waiting.acquire(Some(TEST_TIMEOUT)).and_then(|()| waiting.release()));
        wait_for_waiters(&held, 2);
        proxy.refuse(true);
        proxy.cut();
        wait_until(TEST_TIMEOUT, || cut.state().unwrap() == ClientState::Suspended);
        held.release().unwrap();
        proxy.refuse(false);
        waiter.join().unwrap().unwrap();
    });
}

#[test]
fn a_dead_connection_is_noticed_well_inside_the_session_timeout() {
    let server = ZooKeeper::shared();
    let (path, mut raw) = (path("black-hole"), raw(server));
    let (hole, way_out) = (Proxy::start(&server.address()), Proxy::start(&server.address()));
    way_out.refuse(true);
    // The session lease is two thirds of the timeout. The client needs half of the lease to notice the failure, and
    // then it has another server to connect to.
    let client = client_with(&format!("{},{}", hole.address(), way_out.address()), 12 * SECOND);
    let lock = client.mutex(&path).unwrap();
    lock.acquire(None).unwrap();
    way_out.refuse(false);
    hole.black_hole(true);
    wait_until(TEST_TIMEOUT, || {
        assert!(lock.is_held().unwrap(), "the hold was safe all the time");
        way_out.accepted_count() > 0 && lock.state().unwrap() == LockState::Held
    });
    assert_eq!(queue(&mut raw, &path).len(), 1);
    lock.release().unwrap();
}

// Sessions.

#[test]
fn session_expiry_while_holding_reports_lost() {
    let server = ZooKeeper::shared();
    let path = path("expired-holding");
    let (proxy, keys) = session_recording_proxy(server);
    let (events, handler) = recorder();
    let config = Config::new().on_event(handler);
    let holder = Client::connect(&proxy.address(), &config).unwrap();
    let other = client(&server.address());
    let (held, next) = (holder.mutex(&path).unwrap(), other.mutex(&path).unwrap());
    held.acquire(None).unwrap();
    held.acquire(None).unwrap();
    let session = holder.session_id().unwrap();
    kill_session(server, &keys, session);
    wait_until(TEST_TIMEOUT, || held.state().unwrap() == LockState::Lost);
    assert!(!held.is_held().unwrap());
    assert!(!held.is_held_in_process().unwrap());
    assert_eq!(status(held.fencing_token()), Status::Lost);
    assert_eq!(status(held.acquire(None)), Status::Lost, "sticky: no re-entry");
    next.acquire(Some(TEST_TIMEOUT)).unwrap();
    next.release().unwrap();
    assert_eq!(status(held.release()), Status::Lost);
    assert_eq!(status(held.release()), Status::Lost);
    assert_eq!(status(held.release()), Status::NotOwner);
    wait_until(TEST_TIMEOUT, || holder.state().unwrap() == ClientState::Connected);
    assert_ne!(holder.session_id().unwrap(), session);
    held.acquire(Some(TEST_TIMEOUT)).unwrap();
    held.release().unwrap();
    holder.close().unwrap();
    let events = events.lock().unwrap();
    assert!(events.iter().any(|event| matches!(event, Event::Lock { state: LockState::Lost, .. })));
    assert!(events.iter().any(|event| matches!(event, Event::Client { state: ClientState::Lost, .. })));
}

#[test]
fn session_expiry_while_waiting_rejoins_the_queue() {
    let server = ZooKeeper::shared();
    let path = path("expired-waiting");
    let (proxy, keys) = session_recording_proxy(server);
    let (holder, other) = (client(&server.address()), client(&proxy.address()));
    let (held, waiting) = (holder.mutex(&path).unwrap(), other.mutex(&path).unwrap());
    held.acquire(None).unwrap();
    thread::scope(|scope| {
        let waiter = scope.spawn(|| waiting.acquire(Some(TEST_TIMEOUT)));
        wait_for_waiters(&held, 2);
        let before = held.participants().unwrap().remove(1);
        kill_session(server, &keys, other.session_id().unwrap());
        wait_until(TEST_TIMEOUT, || {
            held.participants().unwrap().get(1).is_some_and(|now| now.session_id != before.session_id)
        });
        assert_eq!(held.participants().unwrap().len(), 2);
        held.release().unwrap();
        waiter.join().unwrap().unwrap();
    });
}

/// CURATOR-604: the session of a waiter is replaced while its old node still exists. Curator takes the old node for its
/// own when its turn comes. Another client is granted the lock as soon as the server deletes that node.
#[test]
fn curator_604_node_of_an_expired_session_is_not_adopted() {
    let server = ZooKeeper::shared();
    let (path, mut raw) = (path("curator-604"), raw(server));
    let proxy = Proxy::start(&server.address());
    let replace = Arc::new(AtomicBool::new(false));
    let replacing = Arc::clone(&replace);
    proxy.hook(move |way, frame: &mut Vec<u8>| {
        // This connect request asks for an existing session. With id 0 it gets a new session.
        if way == Direction::ToServer
            && is_connect_request(frame)
            && frame[16..24] != [0; 8]
            && replacing.swap(false, Ordering::SeqCst)
        {
            frame[16..24].fill(0);
            frame[28..44].fill(0);
        }
        Verdict::Forward
    });
    let (a, b, c) = (client(&server.address()), client(&proxy.address()), client(&server.address()));
    let (lock_a, lock_b, lock_c) = (a.mutex(&path).unwrap(), b.mutex(&path).unwrap(), c.mutex(&path).unwrap());
    let inside = AtomicUsize::new(0);
    lock_a.acquire(None).unwrap();
    let first_session = b.session_id().unwrap();
    let enter = |lock: &Lock| {
        lock.acquire(Some(TEST_TIMEOUT)).unwrap();
        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two owners hold the lock");
        let session = lock.participants().unwrap()[0].session_id;
        thread::sleep(300 * MS);
        assert!(lock.is_held().unwrap());
        inside.fetch_sub(1, Ordering::SeqCst);
        lock.release().unwrap();
        session
    };
    thread::scope(|scope| {
        let waiter_b = scope.spawn(|| enter(&lock_b));
        wait_for_queue(&mut raw, &path, 2);
        let old_node = queue(&mut raw, &path)[1].clone();
        let waiter_c = scope.spawn(|| enter(&lock_c));
        wait_for_queue(&mut raw, &path, 3);
        replace.store(true, Ordering::SeqCst);
        proxy.cut();
        wait_until(TEST_TIMEOUT, || !replace.load(Ordering::SeqCst) && b.session_id().unwrap() != first_session);
        lock_a.release().unwrap();
        assert_ne!(waiter_b.join().unwrap(), first_session, "granted on a node of the new session");
        waiter_c.join().unwrap();
        assert!(!queue(&mut raw, &path).contains(&old_node), "the new session deleted the old node");
    });
}

#[test]
fn a_holder_whose_session_is_replaced_is_lost_and_its_node_removed() {
    let server = ZooKeeper::shared();
    let (path, mut raw) = (path("replaced"), raw(server));
    let proxy = Proxy::start(&server.address());
    let client = client_with(&proxy.address(), 30 * SECOND);
    let lock = client.mutex(&path).unwrap();
    lock.acquire(None).unwrap();
    proxy.hook(|way, frame: &mut Vec<u8>| {
        if way == Direction::ToServer && is_connect_request(frame) {
            frame[16..24].fill(0);
            frame[28..44].fill(0);
        }
        Verdict::Forward
    });
    proxy.cut();
    wait_until(TEST_TIMEOUT, || lock.state().unwrap() == LockState::Lost);
    // This is long before the old session expires.
    wait_for_queue(&mut raw, &path, 0);
    assert_eq!(status(lock.release()), Status::Lost);
}

// Operators.

#[test]
fn a_deleted_node_is_noticed_by_waiter_and_holder() {
    let server = ZooKeeper::shared();
    let (path, mut raw) = (path("operator"), raw(server));
    let (one, two) = (client_with(&server.address(), 6 * SECOND), client(&server.address()));
    let (held, waiting) = (one.mutex(&path).unwrap(), two.mutex(&path).unwrap());
    held.acquire(None).unwrap();
    thread::scope(|scope| {
        let waiter = scope.spawn(|| waiting.acquire(Some(TEST_TIMEOUT)).and_then(|()| waiting.release()));
        wait_for_waiters(&held, 2);
        let before = queue(&mut raw, &path);
        assert_eq!(raw.delete(&format!("{path}/{}", before[1])), 0);
        wait_until(TEST_TIMEOUT, || queue(&mut raw, &path).get(1).is_some_and(|node| *node != before[1]));
        assert_eq!(raw.delete(&format!("{path}/{}", before[0])), 0);
        let start = Instant::now();
        wait_until(TEST_TIMEOUT, || held.state().unwrap() == LockState::Lost);
        // A heartbeat is a sixth of the session timeout.
        assert_not_late(start.elapsed(), 3 * SECOND);
        waiter.join().unwrap().unwrap();
    });
    assert_eq!(status(held.release()), Status::Lost);
}

/// A multi-lock is first in one queue and has not yet listed the other queue when its connection breaks. Before it
/// reconnects, an operator deletes its node in the first queue.
#[test]
fn a_multi_lock_whose_node_is_deleted_while_it_is_cut_off_joins_again() {
    let server = server_without_sweeps();
    let root = path("deleted-part");
    let paths = [format!("{root}/a"), format!("{root}/b")];
    paths.iter().for_each(|path| create_directory(server, path));
    let mut raw = raw(server);
    raw.create(&format!("{}/marker", paths[1]), b"", 0).unwrap();
    let proxy = Proxy::start(&server.address());
    let client = client(&proxy.address());
    let parts = paths.each_ref().map(|path| client.mutex(path).unwrap());
    let multi = Lock::multi(&parts.each_ref()).unwrap();
    // The list of the second queue is lost, and no later frame arrives.
    let [is_cut_off, is_over] = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
    let (cut_off, over) = (Arc::clone(&is_cut_off), Arc::clone(&is_over));
    proxy.hook(move |way, frame: &mut Vec<u8>| {
        if way == Direction::ToClient && frame.windows(6).any(|bytes| bytes == b"marker") {
            cut_off.store(true, Ordering::SeqCst);
        }
        let passes = over.load(Ordering::SeqCst) || !cut_off.load(Ordering::SeqCst);
        if passes { Verdict::Forward } else { Verdict::CutBefore }
    });
    thread::scope(|scope| {
        scope.spawn(|| {
            wait_until(TEST_TIMEOUT, || is_cut_off.load(Ordering::SeqCst));
            let nodes = queue(&mut raw, &paths[0]);
            assert_eq!(raw.delete(&format!("{}/{}", paths[0], nodes[0])), 0);
            is_over.store(true, Ordering::SeqCst);
        });
        multi.acquire(Some(TEST_TIMEOUT)).unwrap();
    });
    for (path, part) in paths.iter().zip(&parts) {
        assert_eq!(queue(&mut raw, path).iter().filter(|name| *name != "marker").count(), 1, "{path}");
        assert!(part.is_held().unwrap());
    }
    multi.release().unwrap();
}

#[test]
fn release_after_node_deletion_returns_lost() {
    let server = ZooKeeper::shared();
    let (path, mut raw) = (path("late"), raw(server));
    let client = client(&server.address());
    let lock = client.mutex(&path).unwrap();
    lock.acquire(None).unwrap();
    let node = queue(&mut raw, &path).remove(0);
    assert_eq!(raw.delete(&format!("{path}/{node}")), 0);
    assert_eq!(status(lock.release()), Status::Lost);
    lock.acquire(None).unwrap();
    lock.release().unwrap();
}

#[test]
fn sequence_numbers_near_their_end_are_refused() {
    let server = ZooKeeper::shared();
    let path = path("exhausted");
    create_directory(server, &path);
    let proxy = Proxy::start(&server.address());
    proxy.hook(|way, frame: &mut Vec<u8>| {
        // This is the reply to the create. Only this reply has a length before the path.
        if way == Direction::ToClient
            && frame.len() > 60
            && frame.get(20..26) == Some(b"/test-")
            && let Some(at) = frame.windows(5).position(|w| w == b"lock-")
        {
            frame[at + 5..at + 15].copy_from_slice(b"2147483647");
        }
        Verdict::Forward
    });
    let client = client(&proxy.address());
    let error = client.mutex(&path).unwrap().acquire(None).unwrap_err();
    assert_eq!(error.status(), Status::Exhausted, "{error}");
    assert!(error.message().contains("2147483647"), "{error}");
}

#[test]
fn a_server_without_containers_gets_plain_parents() {
    let server = ZooKeeper::options().container_sweep_ms(50).start();
    let mut raw = raw(&server);
    let proxy = Proxy::start(&server.address());
    proxy.hook(|way, frame: &mut Vec<u8>| {
        // Replace createContainer (19) by an unknown operation. An old server does not know createContainer either.
        if way == Direction::ToServer && frame.get(4..8) == Some(&19_i32.to_be_bytes()) {
            frame[4..8].copy_from_slice(&999_i32.to_be_bytes());
        }
        Verdict::Forward
    });
    let client = client(&proxy.address());
    let lock = client.mutex("/plain/parent").unwrap();
    lock.acquire(Some(TEST_TIMEOUT)).unwrap();
    lock.release().unwrap();
    assert!(raw.children("/plain/parent").is_some());
    client.shared_count_set("/plain/counts/of/this/set", 3).unwrap();
    assert_eq!(client.shared_count_get("/plain/counts/of/this/set").unwrap(), 3);
    let pool = client.semaphore_counted("/plain/pool", "/plain/counts/of/that/pool", 2).unwrap();
    assert_eq!(pool.acquire(2, Some(TEST_TIMEOUT)).unwrap().quantity(), 2);
}

/// One lost connection does not show that the servers support no containers, however many directories are missing.
#[test]
fn a_cut_while_directories_are_created_makes_no_plain_parents() {
    let server = ZooKeeper::options().container_sweep_ms(50).start();
    let mut raw = raw(&server);
    let proxy = Proxy::start(&server.address());
    let mut is_cut = false;
    proxy.hook(move |way, frame: &mut Vec<u8>| {
        let is_create_container = way == Direction::ToServer && frame.get(4..8) == Some(&19_i32.to_be_bytes());
        if is_create_container && !std::mem::replace(&mut is_cut, true) {
            return Verdict::CutBefore;
        }
        Verdict::Forward
    });
    let client = client(&proxy.address());
    let lock = client.mutex("/cut/a/b/c").unwrap();
    lock.acquire(Some(TEST_TIMEOUT)).unwrap();
    assert!(raw.children("/cut/a/b").is_some());
    lock.release().unwrap();
    // The servers delete empty containers, but no plain node.
    wait_until(TEST_TIMEOUT, || raw.children("/cut").is_none());
}

#[test]
fn refused_credentials_return_auth_error() {
    let server = ZooKeeper::shared();
    let config = Config::new().add_auth("no-such-scheme", b"x").connect_timeout(3 * TEST_TIMEOUT);
    let (result, took) = timed(|| Client::connect(&server.address(), &config));
    let error = result.err().unwrap();
    assert_eq!(error.status(), Status::Auth, "{error}");
    assert!(took < TEST_TIMEOUT, "{took:?}");
    // This server does not answer the authentication request.
    let proxy = Proxy::start(&server.address());
    proxy.hook(
        |_, frame: &mut Vec<u8>| {
            if frame.get(..4) == Some(&(-4_i32).to_be_bytes()) { Verdict::Drop } else { Verdict::Forward }
        },
    );
    let config = Config::new().connect_timeout(300 * MS).add_auth("digest", b"user:secret");
    let error = assert_ends_at_limit(300 * MS, || Client::connect(&proxy.address(), &config)).err().unwrap();
    assert_eq!(error.status(), Status::Connection, "{error}");
    let config = Config::new().add_auth("digest", b"user:secret");
    let client = Client::connect(&server.address(), &config).unwrap();
    client.mutex(&path("digest")).unwrap().acquire(Some(TEST_TIMEOUT)).unwrap();
}

#[test]
fn reconnects_to_a_server_without_sessions_back_off() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let tries = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&tries);
    thread::spawn(move || {
        for stream in listener.incoming() {
            counted.fetch_add(1, Ordering::SeqCst);
            let mut stream = stream.unwrap();
            let _ = stream.read(&mut [0; 64]);
            // The reply "expired", for a client that has no session.
            let _ = stream.write_all(&[&[0, 0, 0, 37][..], &[0; 16], &[0, 0, 0, 16], &[0; 17]].concat());
        }
    });
    let config = Config::new().connect_timeout(SECOND);
    assert_eq!(Client::connect(&address, &config).err().unwrap().status(), Status::Connection);
    assert!(tries.load(Ordering::SeqCst) < 20, "{tries:?} connections in a second");
}

#[test]
fn closing_while_others_call_answers_all_of_them() {
    let server = ZooKeeper::shared();
    let path = path("closing");
    for _ in 0..50 {
        let client = client(&server.address());
        let lock = client.mutex(&path).unwrap();
        let start = Instant::now();
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| while lock.participants().is_ok() {});
                scope.spawn(|| while lock.acquire(None).and_then(|()| lock.release()).is_ok() {});
                scope.spawn(|| client.close());
            }
        });
        assert_not_late(start.elapsed(), 4 * SECOND);
    }
}

#[test]
fn connect_to_faulty_servers_fails_cleanly() {
    let replies: [&[u8]; 7] = [
        b"\xff\xff\xff\xff",
        b"\x7f\xff\xff\xff",
        b"\x00\x00\x00\x00",
        b"\x00\x00\x00\x10\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\xff\xff\xff\x89",
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        // A session, and then a reply without a request.
        b"\x00\x00\x00\x25\x00\x00\x00\x00\x00\x00\x27\x10\x00\x00\x00\x00\x00\x00\x00\x01\x00\x00\x00\x10aaaaaaaaaaaaaaaa\x00\
          \x00\x00\x00\x10\x00\x00\x00\x63\x00\x00\x00\x00\x00\x00\x00\x01\x00\x00\x00\x00",
        // A session whose password has a length of two gigabytes.
        b"\x00\x00\x00\x14\x00\x00\x00\x00\x00\x00\x27\x10\x00\x00\x00\x00\x00\x00\x00\x01\x7f\xff\xff\xff",
    ];
    let config = Config::new().connect_timeout(400 * MS);
    for reply in replies {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        thread::spawn(move || {
            for stream in listener.incoming().take(100) {
                let mut stream = stream.unwrap();
                let _ = stream.read(&mut [0; 64]);
                let _ = stream.write_all(reply);
                thread::sleep(20 * MS);
            }
        });
        let (result, took) = timed(|| {
            let client = Client::connect(&address, &config)?;
            client.mutex("/a")?.acquire(Some(400 * MS))
        });
        assert_eq!(status(result), Status::Connection, "{reply:?}");
        assert_not_late(took, 4 * SECOND);
    }
}

// Processes.

/// Not a test: the next tests run this function as a separate process. It holds a lock and answers questions.
#[test]
#[ignore = "run by other tests"]
fn child() {
    let (servers, path) = (std::env::var("TEST_ZKLOCK_SERVERS").unwrap(), std::env::var("TEST_ZKLOCK_PATH").unwrap());
    let client = client_with(&servers, 4 * SECOND);
    let lock = client.mutex(&path).unwrap();
    lock.acquire(None).unwrap();
    println!("\nholding");
    for line in std::io::stdin().lines() {
        match line.unwrap().as_str() {
            "is_held" => println!("\n{}", lock.is_held().unwrap()),
            other => panic!("{other}"),
        }
    }
}

#[test]
fn waiter_acquires_within_session_timeout_plus_one_second_of_a_kill() {
    let server = ZooKeeper::shared();
    let acquire_after_kill = || {
        let path = path("killed");
        let mut child = Holder::start(server, &path);
        let client = client(&server.address());
        let lock = client.mutex(&path).unwrap();
        assert_times_out(Duration::ZERO, |limit| lock.acquire(Some(limit)));
        child.process.kill().unwrap();
        let (result, took) = timed(|| lock.acquire(Some(TEST_TIMEOUT)));
        result.unwrap();
        lock.release().unwrap();
        took
    };
    // The session ends up to half a second late, because the server counts in ticks. The session timeout is four
    // seconds.
    assert!((0..3).any(|_| acquire_after_kill() < 4 * SECOND + slack()), "late every time");
}

#[test]
fn paused_process_reports_lost_on_its_first_query() {
    let server = ZooKeeper::shared();
    let path = path("stopped-process");
    let mut child = Holder::start(server, &path);
    assert_eq!(child.query("is_held"), "true");
    child.pause();
    let client = client(&server.address());
    let lock = client.mutex(&path).unwrap();
    lock.acquire(Some(TEST_TIMEOUT)).unwrap();
    child.resume();
    assert_eq!(child.query("is_held"), "false");
    lock.release().unwrap();
}

#[test]
fn process_paused_beyond_its_lease_is_not_held_without_server() {
    let server = ZooKeeper::shared();
    let path = path("stopped-lease");
    let proxy = Proxy::start(&server.address());
    let mut child = Holder::start_at(&proxy.address(), &path);
    child.pause();
    proxy.black_hole(true);
    thread::sleep(4 * SECOND);
    child.resume();
    assert_eq!(child.query("is_held"), "false");
}

struct Holder {
    process: Child,
    output: BufReader<std::process::ChildStdout>,
}

impl Holder {
    fn start(server: &ZooKeeper, path: &str) -> Self {
        Self::start_at(&server.address(), path)
    }

    fn start_at(servers: &str, path: &str) -> Self {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "failures::child", "--ignored", "--nocapture", "--test-threads=1"])
            .env("TEST_ZKLOCK_SERVERS", servers)
            .env("TEST_ZKLOCK_PATH", path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(process.stdout.take().unwrap());
        let mut holder = Self { process, output };
        holder.read_until("holding");
        holder
    }

    fn query(&mut self, question: &str) -> String {
        writeln!(self.process.stdin.as_mut().unwrap(), "{question}").unwrap();
        loop {
            let line = self.line();
            if line == "true" || line == "false" {
                return line;
            }
        }
    }

    fn read_until(&mut self, wanted: &str) {
        while self.line() != wanted {}
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        assert_ne!(self.output.read_line(&mut line).unwrap(), 0, "the process ended");
        line.trim().to_owned()
    }

    fn pause(&self) {
        pause(self.process.id() as i32);
    }

    fn resume(&self) {
        resume(self.process.id() as i32);
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

// Helpers.

type Keys = Arc<Mutex<Vec<(i64, Vec<u8>)>>>;

/// A proxy that records the ids and passwords of the sessions that are created through it.
fn session_recording_proxy(server: &ZooKeeper) -> (Proxy, Keys) {
    let keys = Keys::default();
    let seen = Arc::clone(&keys);
    let proxy = Proxy::start(&server.address());
    proxy.hook(move |way, frame: &mut Vec<u8>| {
        // A connect response: protocol, timeout, id, the length of the password (16), the password, and a flag.
        if way == Direction::ToClient && frame.len() == 37 && frame.get(16..20) == Some(&16_i32.to_be_bytes()) {
            let id = i64::from_be_bytes(frame[8..16].try_into().unwrap());
            seen.lock().unwrap().push((id, frame[20..36].to_vec()));
        }
        Verdict::Forward
    });
    (proxy, keys)
}

/// Closes a session from outside, as an operator could.
fn kill_session(server: &ZooKeeper, keys: &Keys, session: i64) {
    let password = keys.lock().unwrap().iter().find(|(id, _)| *id == session).unwrap().1.clone();
    RawClient::close_session(&server.address(), session, &password);
}

type Events = Arc<Mutex<Vec<Event>>>;

fn recorder() -> (Events, impl Fn(&Event) + Send + Sync) {
    let events = Events::default();
    let kept = Arc::clone(&events);
    (events, move |event: &Event| kept.lock().unwrap().push(event.clone()))
}

fn lock_change(event: &Event) -> Option<(LockState, LockState)> {
    match event {
        Event::Lock { state, previous, .. } => Some((*previous, *state)),
        _ => None,
    }
}
