//! Servers that answer what no sound server answers, or too much of it, or nothing: the answer is an error for whoever asked, in
//! time, and nothing stays behind.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test that fails is a test that fails"
)]

mod common;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use common::{SOON, client, client_with, path, queue, raw, status, timed};
use zklock::{Client, Config, LockState, Status};
use zklock_rig::{Direction, Proxy, Verdict, ZooKeeper, wait_until};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const CREATE2: i32 = 15;
const LIST: i32 = 12;
const CLOSE: i32 = -11;

#[test]
fn a_close_that_did_not_arrive_is_repeated() {
    let server = ZooKeeper::shared();
    for verdict in [Verdict::CutBefore, Verdict::CutAfter] {
        let proxy = Proxy::start(&server.address());
        let path = path("close");
        let client = client_with(&proxy.address(), 30 * SECOND);
        client.mutex(&path).unwrap().acquire(None).unwrap();
        let cut = AtomicBool::new(false);
        proxy.hook(move |way, frame| {
            let first = way == Direction::ToServer && op(frame) == CLOSE && !cut.swap(true, Ordering::SeqCst);
            if first { verdict } else { Verdict::Forward }
        });
        client.close().unwrap();
        assert_eq!(queue(&mut raw(server), &path), Vec::<String>::new(), "{verdict:?}");
    }
}

#[test]
fn a_resumed_session_with_a_longer_timeout_has_proven_nothing() {
    let server = ZooKeeper::start();
    let proxy = Proxy::start(&server.address());
    let cut_off = Arc::new(AtomicBool::new(false));
    let is_cut_off = Arc::clone(&cut_off);
    proxy.hook(move |way, frame| {
        // The server's sessions have three seconds; that this one is resumed with more is the proxy's doing. Then it is mute.
        if way == Direction::ToServer && is_connect_request(frame) {
            frame[12..16].copy_from_slice(&3_000_i32.to_be_bytes());
        } else if is_cut_off.load(Ordering::SeqCst) {
            if way == Direction::ToServer {
                return Verdict::Drop;
            }
            frame[4..8].copy_from_slice(&12_000_i32.to_be_bytes());
        }
        Verdict::Forward
    });
    let client = client_with(&proxy.address(), 12 * SECOND);
    let held = client.mutex(&path("longer")).unwrap();
    held.acquire(None).unwrap();
    cut_off.store(true, Ordering::SeqCst);
    proxy.cut();
    let start = Instant::now();
    while held.state().unwrap() != LockState::Uncertain {
        assert!(start.elapsed() + held.remaining().unwrap() <= 2 * SECOND, "it takes the lease for longer than it was");
    }
    assert!(proxy.connections() > 1);
}

#[test]
fn an_error_behind_a_node_that_was_made_leaves_no_node() {
    let server = ZooKeeper::shared();
    // SystemError, RuntimeInconsistency, MarshallingError, ThrottledOp, and one that nobody knows.
    for code in [-1, -2, -5, -127, -9999] {
        let proxy = Proxy::start(&server.address());
        let path = path("ambiguous");
        warm_up(server, &path);
        let client = client(&proxy.address());
        rewrite_first_reply(&proxy, CREATE2, move |frame| {
            frame.truncate(16);
            frame[12..16].copy_from_slice(&i32::to_be_bytes(code));
        });
        let lock = client.mutex(&path).unwrap();
        assert_eq!(status(lock.acquire(Some(SOON))), Status::Server, "{code}");
        let mut raw = raw(server);
        wait_until(SOON, || queue(&mut raw, &path).is_empty());
    }
}

#[test]
fn another_nodes_path_in_a_reply_is_not_taken_for_ours() {
    let server = ZooKeeper::shared();
    let proxy = Proxy::start(&server.address());
    let path = path("wrong-path");
    warm_up(server, &path);
    let client = client(&proxy.address());
    rewrite_first_reply(&proxy, CREATE2, |frame| {
        let at = frame.windows(3).position(|word| word == b"_c_").unwrap();
        frame[at + 4] = if frame[at + 4] == b'a' { b'b' } else { b'a' };
    });
    let error = client.mutex(&path).unwrap().acquire(Some(SOON)).unwrap_err();
    assert_eq!(error.status(), Status::Internal, "{error}");
    let mut raw = raw(server);
    wait_until(SOON, || queue(&mut raw, &path).is_empty());
}

#[test]
fn a_list_that_denies_our_node_does_not_make_it_a_ghost() {
    let server = ZooKeeper::shared();
    let proxy = Proxy::start(&server.address());
    let path = path("denied");
    warm_up(server, &path);
    let client = client(&proxy.address());
    rewrite_first_reply(&proxy, LIST, |frame| {
        frame.truncate(16);
        frame[12..16].copy_from_slice(&(-101_i32).to_be_bytes());
    });
    let lock = client.mutex(&path).unwrap();
    lock.acquire(Some(SOON)).unwrap();
    assert_eq!(queue(&mut raw(server), &path).len(), 1);
    lock.release().unwrap();
    assert_eq!(queue(&mut raw(server), &path).len(), 0);
}

#[test]
fn signs_of_life_are_no_answers() {
    let server = ZooKeeper::shared();
    let path = path("signs");
    warm_up(server, &path);
    let (address, connections) = hostile(|mut stream| {
        while stream.write_all(&ping_reply()).is_ok() {
            thread::sleep(200 * MS);
        }
    });
    // Which server comes first is chance: there is none but the bad one at first.
    let proxy = Proxy::start(&address);
    let client = client_with(&format!("{},{}", proxy.address(), proxy.address()), 3 * SECOND);
    let lock = client.mutex(&path).unwrap();
    assert_eq!(status(lock.acquire(Some(4 * SECOND))), Status::Connection);
    assert!(connections.load(Ordering::SeqCst) > 1, "it was kept although it answered nothing");
}

#[test]
fn a_flood_drowns_nobody() {
    let server = ZooKeeper::shared();
    let (bystander, path) = (client(&server.address()), path("flood"));
    let other = bystander.mutex(&path).unwrap();
    let bad_frame = [0x7f, 0xff, 0xff, 0xff].repeat(1 << 18);
    for flood in [ping_reply().repeat(50_000), bad_frame] {
        let (address, _) = hostile(move |mut stream| {
            let start = Instant::now();
            while start.elapsed() < 2 * SECOND && stream.write_all(&flood).is_ok() {}
        });
        let client = Client::connect(&address, &Config::new()).unwrap();
        let lock = client.mutex("/a").unwrap();
        thread::scope(|scope| {
            scope.spawn(|| {
                let (result, took) = timed(|| lock.acquire(Some(200 * MS)));
                assert_eq!(status(result), Status::Connection);
                assert!(took < SECOND, "late, after {took:?}");
            });
            let (result, took) = timed(|| other.acquire(Some(SOON)));
            result.unwrap();
            assert!(took < SECOND, "it waited for another client's server, {took:?}");
            other.release().unwrap();
        });
    }
}

#[test]
fn a_list_too_long_for_a_frame_is_one_callers_trouble() {
    // The directory must outlast the moment in which it is empty.
    let server = ZooKeeper::options().container_sweep_ms(3_600_000).start();
    let proxy = Proxy::start(&server.address());
    let (path, crowded) = (path("calm"), path("crowded"));
    warm_up(&server, &crowded);
    let mut raw = raw(&server);
    for number in 0..17_000 {
        raw.create(&format!("{crowded}/{number:065}"), b"", 0).unwrap();
    }
    let client = client(&proxy.address());
    let (held, wanted) = (client.mutex(&path).unwrap(), client.mutex(&crowded).unwrap());
    held.acquire(None).unwrap();
    let error = wanted.acquire(Some(SOON)).unwrap_err();
    assert_eq!(error.status(), Status::Server, "{error}");
    assert!(error.message().contains(&crowded) && error.message().contains("too long"), "{error}");
    assert_eq!(held.state().unwrap(), LockState::Held);
    assert_eq!(proxy.connections(), 1, "the connection was lost over it");
    wait_until(SOON, || queue(&mut raw, &crowded).iter().all(|name| !name.starts_with("_c_")));
}

#[test]
fn callers_that_give_up_at_once_do_not_pile_up_on_the_server() {
    let server = ZooKeeper::start();
    let path = path("storm");
    let (one, two) = (client(&server.address()), client(&server.address()));
    let (held, wanted) = (one.mutex(&path).unwrap(), two.mutex(&path).unwrap());
    held.acquire(None).unwrap();
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| {
                while !over.load(Ordering::SeqCst) {
                    assert!(wanted.acquire(Some(MS)).is_err());
                }
            });
        }
        let mut raw = raw(&server);
        let start = Instant::now();
        while start.elapsed() < 2 * SECOND {
            // One that holds, those that wait, those on their way out, and what is under way between the two.
            let length = queue(&mut raw, &path).len();
            assert!(length <= 1 + 3 * 16, "{length} nodes");
            assert_eq!(held.state().unwrap(), LockState::Held);
        }
        over.store(true, Ordering::SeqCst);
    });
    let mut raw = raw(&server);
    wait_until(SOON, || queue(&mut raw, &path).len() == 1);
    held.release().unwrap();
    wanted.acquire(Some(SOON)).unwrap();
}

/// The kind of a request.
fn op(frame: &[u8]) -> i32 {
    frame.get(4..8).map_or(0, |bytes| i32::from_be_bytes(bytes.try_into().unwrap()))
}

fn xid(frame: &[u8]) -> i32 {
    frame.get(..4).map_or(0, |bytes| i32::from_be_bytes(bytes.try_into().unwrap()))
}

fn is_connect_request(frame: &[u8]) -> bool {
    frame.len() == 45 && frame[..4] == [0; 4]
}

/// Has the reply to the first request of this kind rewritten.
fn rewrite_first_reply(proxy: &Proxy, kind: i32, rewrite: impl Fn(&mut Vec<u8>) + Send + 'static) {
    let asked = AtomicI32::new(0);
    let mut done = false;
    proxy.hook(move |way, frame| {
        if way == Direction::ToServer && op(frame) == kind && asked.load(Ordering::SeqCst) == 0 {
            asked.store(xid(frame), Ordering::SeqCst);
        } else if way == Direction::ToClient && xid(frame) == asked.load(Ordering::SeqCst) && xid(frame) > 0 && !done {
            done = true;
            rewrite(frame);
        }
        Verdict::Forward
    });
}

/// A server that gives out sessions and then does as it likes; its address, and how many connections it has had.
fn hostile(then: impl Fn(TcpStream) + Send + Sync + Clone + 'static) -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let connections = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&connections);
    thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, then) = (stream.unwrap(), then.clone());
            counter.fetch_add(1, Ordering::SeqCst);
            thread::spawn(move || {
                let mut request = [0; 49];
                if stream.read_exact(&mut request).is_ok() && stream.write_all(&connect_response()).is_ok() {
                    then(stream);
                }
            });
        }
    });
    (address, connections)
}

fn connect_response() -> Vec<u8> {
    let (protocol, timeout, session) = (0_i32.to_be_bytes(), 3_000_i32.to_be_bytes(), 77_i64.to_be_bytes());
    [&37_i32.to_be_bytes()[..], &protocol, &timeout, &session, &16_i32.to_be_bytes(), &[0; 16], &[0]].concat()
}

fn ping_reply() -> Vec<u8> {
    let (xid, zxid, error) = ((-2_i32).to_be_bytes(), 0_i64.to_be_bytes(), 0_i32.to_be_bytes());
    [&16_i32.to_be_bytes()[..], &xid, &zxid, &error].concat()
}

fn warm_up(server: &ZooKeeper, path: &str) {
    let client = client(&server.address());
    let lock = client.mutex(path).unwrap();
    lock.acquire(None).unwrap();
    lock.release().unwrap();
}
