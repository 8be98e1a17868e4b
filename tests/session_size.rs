//! The transaction that ends a session carries the paths of all its nodes. One that is too long for its server keeps that server from
//! starting again, so a client limits what its session has, and empties a large session before it ends it.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that fails is a test that fails")]

mod common;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{SOON, client, path, raw, status};
use zklock::{Client, Config, Leases, Result, Semaphore, Status};
use zklock_rig::{Direction, Proxy, Verdict, ZooKeeper, wait_until};

/// What the servers of these tests take at once. They read transactions of up to twice that length.
const JUTE_MAXBUFFER: usize = 65_536;
const MULTI: i32 = 14;
const CLOSE_SESSION: i32 = -11;
/// So many leases at a time go into one frame.
const LEASES: u32 = 200;

fn server() -> ZooKeeper {
    ZooKeeper::options().jvm_argument(&format!("-Djute.maxbuffer={JUTE_MAXBUFFER}")).start()
}

fn limited(servers: &str, max_path_bytes: usize, session_timeout: Duration) -> Client {
    let mut config = Config::new();
    config.set_max_path_bytes(max_path_bytes).unwrap();
    config.set_session_timeout(session_timeout).unwrap();
    Client::connect(servers, &config).unwrap()
}

/// What the transaction that ends a session carries for each of its leases.
fn path_bytes(path: &str) -> usize {
    4 + path.len() + "/leases/".len() + "_c_01234567-89ab-cdef-0123-456789abcdef-".len() + "lease-0123456789".len()
}

/// Acquires leases until they take that many bytes, or until that fails.
fn fill(semaphore: &Semaphore, bytes: usize) -> (Vec<Leases>, Result<()>) {
    let mut held = Vec::new();
    while held.len() * LEASES as usize * path_bytes(semaphore.path()) < bytes {
        match semaphore.acquire(LEASES, Some(SOON)) {
            Ok(leases) => held.push(leases),
            Err(error) => return (held, Err(error)),
        }
    }
    (held, Ok(()))
}

/// The requests that a client sends through a proxy from now on, but for heartbeats: what each is, and how long.
fn record(proxy: &Proxy) -> Arc<Mutex<Vec<(i32, usize)>>> {
    const HEARTBEAT: usize = 45;
    let seen = Arc::new(Mutex::new(Vec::new()));
    let record = Arc::clone(&seen);
    proxy.hook(move |way, frame: &mut Vec<u8>| {
        if way == Direction::ToServer && frame.len() != HEARTBEAT {
            record.lock().unwrap().push((i32::from_be_bytes(frame[4..8].try_into().unwrap()), frame.len()));
        }
        Verdict::Forward
    });
    seen
}

/// Waits until nobody is in the inner mutex any more: it is given back in the background.
fn wait_for_inner_mutex(server: &ZooKeeper, path: &str) {
    let mut raw = raw(server);
    wait_until(SOON, || raw.children(&format!("{path}/locks")).unwrap().is_empty());
}

/// The server starts again, and has none of these nodes.
fn check_restart(server: &ZooKeeper, path: &str) {
    wait_until(SOON, || raw(server).children(&format!("{path}/leases")).unwrap_or_default().is_empty());
    server.restart();
    client(&server.address()).semaphore(path, 1).unwrap().acquire(1, Some(SOON)).unwrap().release().unwrap();
}

/// The program was told to take much more than its server bears.
#[test]
fn a_large_session_is_emptied_before_it_is_closed() {
    let server = server();
    let proxy = Proxy::start(&server.address());
    let client = limited(&proxy.address(), 8 * JUTE_MAXBUFFER, Duration::from_secs(10));
    let semaphore = client.semaphore(&path("emptied"), 100_000).unwrap();
    let (held, filled) = fill(&semaphore, 4 * JUTE_MAXBUFFER);
    filled.unwrap();
    wait_for_inner_mutex(&server, semaphore.path());
    let seen = record(&proxy);
    client.close().unwrap();
    drop(held);
    check_restart(&server, semaphore.path());
    let mut seen = seen.lock().unwrap().clone();
    assert_eq!(seen.pop().map(|(op, _)| op), Some(CLOSE_SESSION), "{seen:?}");
    assert!(seen.len() > 8 && seen.iter().all(|&(op, length)| op == MULTI && length < JUTE_MAXBUFFER / 2), "{seen:?}");
}

#[test]
fn a_small_session_is_closed_in_one_request() {
    let server = ZooKeeper::shared();
    let proxy = Proxy::start(&server.address());
    let client = client(&proxy.address());
    let semaphore = client.semaphore(&path("small"), 200).unwrap();
    let held = semaphore.acquire(LEASES, Some(SOON)).unwrap();
    wait_for_inner_mutex(server, semaphore.path());
    let seen = record(&proxy);
    client.close().unwrap();
    drop(held);
    let ops: Vec<i32> = seen.lock().unwrap().iter().map(|&(op, _)| op).collect();
    assert_eq!(ops, [CLOSE_SESSION]);
}

#[test]
fn what_exceeds_the_limit_is_exhausted_and_nothing_else_is() {
    let server = server();
    let client = limited(&server.address(), JUTE_MAXBUFFER, Duration::from_secs(10));
    let semaphore = client.semaphore(&path("limited"), 100_000).unwrap();
    let (mut held, filled) = fill(&semaphore, 2 * JUTE_MAXBUFFER);
    let error = filled.unwrap_err();
    assert_eq!(error.status(), Status::Exhausted);
    for part in [&format!("allows {JUTE_MAXBUFFER}"), "session.max_path_bytes", "jute.maxbuffer", "another client"] {
        assert!(error.message().contains(part), "{part}: {error}");
    }
    // As many as fit are held, and nothing of the refused ones is left.
    let each = LEASES as usize * path_bytes(semaphore.path());
    assert_eq!(held.len(), JUTE_MAXBUFFER / each);
    wait_for_inner_mutex(&server, semaphore.path());
    assert_eq!(
        raw(&server).children(&format!("{}/leases", semaphore.path())).unwrap().len(),
        held.len() * LEASES as usize
    );
    // Others go on: what fits, what was given back, and another client.
    let lock = client.mutex(&path("beside")).unwrap();
    lock.acquire(Some(SOON)).unwrap();
    assert!(lock.is_held().unwrap());
    held.pop().unwrap().release().unwrap();
    held.push(semaphore.acquire(LEASES, Some(SOON)).unwrap());
    assert_eq!(status(semaphore.acquire(LEASES, Some(SOON)).map(drop)), Status::Exhausted);
    common::client(&server.address())
        .semaphore(semaphore.path(), 100_000)
        .unwrap()
        .acquire(LEASES, Some(SOON))
        .unwrap();
    client.close().unwrap();
    check_restart(&server, semaphore.path());
}

#[test]
fn a_full_session_that_expires_is_no_danger() {
    let server = server();
    let proxy = Proxy::start(&server.address());
    let client = limited(&proxy.address(), JUTE_MAXBUFFER, Duration::from_secs(2));
    let semaphore = client.semaphore(&path("expires"), 100_000).unwrap();
    let (held, filled) = fill(&semaphore, 2 * JUTE_MAXBUFFER);
    assert_eq!(status(filled), Status::Exhausted);
    proxy.black_hole(true);
    check_restart(&server, semaphore.path());
    // The next session begins with nothing.
    drop(held);
    proxy.black_hole(false);
    let (held, filled) = fill(&semaphore, 2 * JUTE_MAXBUFFER);
    assert_eq!(status(filled), Status::Exhausted);
    assert_eq!(held.len(), JUTE_MAXBUFFER / (LEASES as usize * path_bytes(semaphore.path())));
}

/// Who releases without waiting and acquires again has room, once the node before is gone.
#[test]
fn nodes_on_their_way_out_delay_others_and_do_not_exhaust_them() {
    let server = ZooKeeper::shared();
    let path = path("turns");
    let each = 4 + path.len() + "/_c_01234567-89ab-cdef-0123-456789abcdef-lock-0123456789".len();
    let client = limited(&server.address(), each * 20, Duration::from_secs(10));
    let locks: Vec<_> =
        (0..20).map(|number| client.mutex(&path.replace("turns", &format!("tu{number:03}"))).unwrap()).collect();
    locks.iter().for_each(|lock| lock.acquire(Some(SOON)).unwrap());
    let more = client.mutex(&path).unwrap();
    assert_eq!(status(more.acquire(Some(SOON))), Status::Exhausted);
    for _ in 0..20 {
        for lock in &locks {
            lock.release_nowait().unwrap();
            lock.acquire(Some(SOON)).unwrap();
        }
    }
}

/// A server refuses to delete a node, so there will be no room: whoever waits for it is told so.
#[test]
fn a_node_that_can_not_be_deleted_keeps_its_room() {
    const DELETE: i32 = 2;
    const NO_AUTH: i32 = -102;
    let server = ZooKeeper::shared();
    let proxy = Proxy::start(&server.address());
    let client = limited(&proxy.address(), 1024, Duration::from_secs(10));
    let directory = path("kept");
    let names: Vec<String> = (10..30).map(|number| format!("{directory}/{number}")).collect();
    let room = 1024 / (names[0].len() + 60);
    let locks: Vec<_> = names[..=room].iter().map(|name| client.mutex(name).unwrap()).collect();
    locks[..room].iter().for_each(|lock| lock.acquire(Some(SOON)).unwrap());
    // Deletes do not arrive, and are answered with a refusal.
    let refused = Arc::new(Mutex::new(Vec::new()));
    proxy.hook(move |way, frame: &mut Vec<u8>| {
        let number = |at: usize| i32::from_be_bytes(frame[at..at + 4].try_into().unwrap());
        let mut refused = refused.lock().unwrap();
        match way {
            Direction::ToServer if frame.len() > 8 && number(4) == DELETE => {
                refused.push(number(0));
                // A read of a node that is always there, which is answered in its turn.
                let mut read = [&frame[..4], &3_i32.to_be_bytes(), &1_i32.to_be_bytes(), b"/\0"].concat();
                std::mem::swap(frame, &mut read);
            }
            Direction::ToClient if frame.len() >= 16 && refused.contains(&number(0)) => {
                frame.truncate(16);
                frame[12..].copy_from_slice(&NO_AUTH.to_be_bytes());
            }
            _ => {}
        }
        Verdict::Forward
    });
    locks[0].release_nowait().unwrap();
    assert_eq!(status(locks[room].acquire(None)), Status::Exhausted);
    proxy.unhook();
    // The library goes on trying, and then there is room.
    wait_until(SOON, || locks[room].acquire(None).is_ok());
}
