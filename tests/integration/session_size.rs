//! The transaction that ends a session contains the paths of all its nodes. If this transaction is too long for its
//! server, the server cannot start again. A client therefore limits the nodes of its session, and deletes the nodes of
//! a large session before it closes the session.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::{TEST_TIMEOUT, client, client_with, path, raw, status};
use zklock::{Client, Config, Hold, Result, Semaphore, Status};
use zklock_test_support::{Direction, Proxy, Verdict, ZooKeeper, request_type, wait_until, xid};

/// The frame limit of the servers in these tests. They can read transactions of up to twice this length.
const JUTE_MAXBUFFER: usize = 65_536;
const MULTI: i32 = 14;
const CLOSE_SESSION: i32 = -11;
/// The number of leases that fit into one frame.
const LEASES: i32 = 200;

/// The session timeout of clients whose requests are recorded. The first heartbeat is due after a sixth of this time.
const LONG_SESSION: Duration = Duration::from_secs(120);

fn server() -> ZooKeeper {
    ZooKeeper::options().jvm_argument(&format!("-Djute.maxbuffer={JUTE_MAXBUFFER}")).start()
}

fn limited(servers: &str, max_path_bytes: usize, session_timeout: Duration) -> Client {
    let config = Config::new().max_path_bytes(max_path_bytes).session_timeout(session_timeout);
    Client::connect(servers, &config).unwrap()
}

/// The number of bytes that the transaction contains for each lease.
fn path_bytes(path: &str) -> usize {
    4 + path.len() + "/leases/".len() + "_c_01234567-89ab-cdef-0123-456789abcdef-".len() + "lease-0123456789".len()
}

/// Acquires leases until their paths take this number of bytes, or until an acquire fails.
fn fill(semaphore: &Semaphore, bytes: usize) -> (Vec<Hold>, Result<()>) {
    let mut held = Vec::new();
    while held.len() * LEASES.unsigned_abs() as usize * path_bytes(semaphore.path()) < bytes {
        match semaphore.acquire(LEASES, Some(TEST_TIMEOUT)) {
            Ok(leases) => held.push(leases),
            Err(error) => return (held, Err(error)),
        }
    }
    (held, Ok(()))
}

/// Records the type and the length of each request that a client sends through a proxy from now on.
fn record(proxy: &Proxy) -> Arc<Mutex<Vec<(i32, usize)>>> {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let record = Arc::clone(&seen);
    proxy.hook(move |way, frame: &mut Vec<u8>| {
        if way == Direction::ToServer {
            record.lock().unwrap().extend(request_type(frame).map(|op| (op, frame.len())));
        }
        Verdict::Forward
    });
    seen
}

/// Waits until the inner mutex is free. The client releases it in the background.
fn wait_for_inner_mutex(server: &ZooKeeper, path: &str) {
    let mut raw = raw(server);
    wait_until(TEST_TIMEOUT, || raw.children(&format!("{path}/locks")).unwrap_or_default().is_empty());
}

/// Asserts that the nodes are gone and that the server can restart.
fn check_restart(server: &ZooKeeper, path: &str) {
    wait_until(TEST_TIMEOUT, || raw(server).children(&format!("{path}/leases")).unwrap_or_default().is_empty());
    server.restart();
    client(&server.address()).semaphore(path, 1).unwrap().acquire(1, Some(TEST_TIMEOUT)).unwrap().release().unwrap();
}

/// The limit of the client is set much higher than the limit of the server.
#[test]
fn a_large_session_is_emptied_before_it_is_closed() {
    let server = server();
    let proxy = Proxy::start(&server.address());
    let client = limited(&proxy.address(), 8 * JUTE_MAXBUFFER, LONG_SESSION);
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
    let client = client_with(&proxy.address(), LONG_SESSION);
    let semaphore = client.semaphore(&path("small"), 200).unwrap();
    let held = semaphore.acquire(LEASES, Some(TEST_TIMEOUT)).unwrap();
    wait_for_inner_mutex(server, semaphore.path());
    let seen = record(&proxy);
    client.close().unwrap();
    drop(held);
    let ops: Vec<i32> = seen.lock().unwrap().iter().map(|&(op, _)| op).collect();
    assert_eq!(ops, [CLOSE_SESSION]);
}

#[test]
fn acquire_beyond_the_path_limit_returns_exhausted() {
    let server = server();
    let client = limited(&server.address(), JUTE_MAXBUFFER, Duration::from_secs(10));
    let semaphore = client.semaphore(&path("limited"), 100_000).unwrap();
    let (mut held, filled) = fill(&semaphore, 2 * JUTE_MAXBUFFER);
    let error = filled.unwrap_err();
    assert_eq!(error.status(), Status::Exhausted);
    for part in [&format!("allows {JUTE_MAXBUFFER}"), "session.max_path_bytes", "jute.maxbuffer", "another client"] {
        assert!(error.message().contains(part), "{part}: {error}");
    }
    // The client holds as many leases as fit. The failed acquire has left no node behind.
    let each = LEASES.unsigned_abs() as usize * path_bytes(semaphore.path());
    assert_eq!(held.len(), JUTE_MAXBUFFER / each);
    wait_for_inner_mutex(&server, semaphore.path());
    assert_eq!(
        raw(&server).children(&format!("{}/leases", semaphore.path())).unwrap().len(),
        held.len() * LEASES.unsigned_abs() as usize
    );
    // Other acquires succeed: a small one, one after a release, and one of another client.
    let lock = client.mutex(&path("beside")).unwrap();
    lock.acquire(Some(TEST_TIMEOUT)).unwrap();
    assert!(lock.is_held().unwrap());
    held.pop().unwrap().release().unwrap();
    held.push(semaphore.acquire(LEASES, Some(TEST_TIMEOUT)).unwrap());
    assert_eq!(status(semaphore.acquire(LEASES, Some(TEST_TIMEOUT)).map(drop)), Status::Exhausted);
    let other = crate::common::client(&server.address()).semaphore(semaphore.path(), 100_000).unwrap();
    drop(other.acquire(LEASES, Some(TEST_TIMEOUT)).unwrap());
    client.close().unwrap();
    check_restart(&server, semaphore.path());
}

#[test]
fn expiry_of_a_full_session_keeps_the_server_restartable() {
    let server = server();
    let proxy = Proxy::start(&server.address());
    let client = limited(&proxy.address(), JUTE_MAXBUFFER, Duration::from_secs(2));
    let semaphore = client.semaphore(&path("expires"), 100_000).unwrap();
    let (held, filled) = fill(&semaphore, 2 * JUTE_MAXBUFFER);
    assert_eq!(status(filled), Status::Exhausted);
    proxy.black_hole(true);
    check_restart(&server, semaphore.path());
    // The next session starts with no nodes.
    drop(held);
    proxy.black_hole(false);
    let (held, filled) = fill(&semaphore, 2 * JUTE_MAXBUFFER);
    assert_eq!(status(filled), Status::Exhausted);
    assert_eq!(held.len(), JUTE_MAXBUFFER / (LEASES.unsigned_abs() as usize * path_bytes(semaphore.path())));
}

/// A program that releases without waiting and acquires again gets room when the previous node is gone.
#[test]
fn acquire_waits_for_pending_deletes_instead_of_exhausted() {
    let server = ZooKeeper::shared();
    let path = path("turns");
    let each = 4 + path.len() + "/_c_01234567-89ab-cdef-0123-456789abcdef-lock-0123456789".len();
    let client = limited(&server.address(), each * 20, Duration::from_secs(10));
    let locks: Vec<_> =
        (0..20).map(|number| client.mutex(&path.replace("turns", &format!("tu{number:03}"))).unwrap()).collect();
    locks.iter().for_each(|lock| lock.acquire(Some(TEST_TIMEOUT)).unwrap());
    let more = client.mutex(&path).unwrap();
    assert_eq!(status(more.acquire(Some(TEST_TIMEOUT))), Status::Exhausted);
    for _ in 0..20 {
        for lock in &locks {
            lock.release_nowait().unwrap();
            lock.acquire(Some(TEST_TIMEOUT)).unwrap();
        }
    }
}

/// A server refuses to delete a node, so there will never be room. The acquire that waits for room fails.
#[test]
fn undeletable_node_keeps_its_path_bytes() {
    const DELETE: i32 = 2;
    const NO_AUTH: i32 = -102;
    let server = ZooKeeper::shared();
    let proxy = Proxy::start(&server.address());
    let client = limited(&proxy.address(), 1024, Duration::from_secs(10));
    let directory = path("kept");
    let names: Vec<String> = (10..30).map(|number| format!("{directory}/{number}")).collect();
    let room = 1024 / (names[0].len() + 60);
    let locks: Vec<_> = names[..=room].iter().map(|name| client.mutex(name).unwrap()).collect();
    locks[..room].iter().for_each(|lock| lock.acquire(Some(TEST_TIMEOUT)).unwrap());
    // Deletes do not reach the server. The proxy answers them with an error.
    let refused = Arc::new(Mutex::new(Vec::new()));
    proxy.hook(move |way, frame: &mut Vec<u8>| {
        let mut refused = refused.lock().unwrap();
        match way {
            Direction::ToServer if request_type(frame) == Some(DELETE) => {
                refused.push(xid(frame));
                // The proxy sends a read of the root node instead, so that the reply comes in order.
                let mut read = [&frame[..4], &3_i32.to_be_bytes(), &1_i32.to_be_bytes(), b"/\0"].concat();
                std::mem::swap(frame, &mut read);
            }
            Direction::ToClient if refused.contains(&xid(frame)) => {
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
    // The library keeps trying, and later there is room.
    wait_until(TEST_TIMEOUT, || locks[room].acquire(None).is_ok());
}
