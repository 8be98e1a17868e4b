//! A real server whose replies are modified on the way to the client. For each modification, the caller gets an error
//! or a timeout, no client holds a lock that it does not own, the client recovers when the server answers correctly
//! again, and no node is left behind.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic, reason = "a failing test may panic")]

#[path = "../common.rs"]
mod common;

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use common::{TEST_TIMEOUT, client_with, path, queue, raw, slack, status, timed};
use zklock::{Client, Config, Lock, LockState, Status};
use zklock_test_support::{Direction, Proxy, ZooKeeper, wait_until};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const LIST: i32 = 12;

/// Modifies a frame on its way to the client. The frame begins with its length.
type Alteration = fn(&mut AlterationState, &[u8]) -> Vec<u8>;

/// Handles a connection to a server that is not a ZooKeeper server.
type FakeServer = fn(TcpStream);

/// The kind of a modification.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AlterationKind {
    Malformed,
    FalseContent,
    Handshake,
}

/// The state of the modifications on one connection.
#[derive(Default)]
struct AlterationState {
    /// The types of the requests by their xids.
    opcodes_by_xid: HashMap<i32, i32>,
    /// Bytes of an earlier frame that a modification repeats or holds back.
    kept_frame: Vec<u8>,
}

const MALFORMED: &[(&str, Alteration)] = &[
    ("negative length", |_, frame| [&(-5_i32).to_be_bytes(), &frame[4..]].concat()),
    ("no length", |_, frame| [&0_i32.to_be_bytes(), &frame[4..]].concat()),
    ("a length that is too small", |_, frame| [&7_i32.to_be_bytes(), &frame[4..]].concat()),
    ("a length that is too large", |_, frame| [&(frame.len() as i32 + 9).to_be_bytes(), &frame[4..]].concat()),
    ("the largest length", |_, frame| [&i32::MAX.to_be_bytes(), &frame[4..]].concat()),
    ("half a record", |_, frame| framed(&frame[4..4 + (frame.len() - 4) / 2])),
    ("only a header", |_, frame| framed(&frame[4..frame.len().min(20)])),
    ("more than a record", |_, frame| framed(&[&frame[4..], &[0; 9]].concat())),
    ("numbers of no request", |_, frame| with_bytes_at(frame, 4, &(xid(frame).wrapping_add(1000)).to_be_bytes())),
    ("everything is a notification", |_, frame| with_bytes_at(frame, 4, &(-1_i32).to_be_bytes())),
    ("everything is a ping", |_, frame| with_bytes_at(frame, 4, &(-2_i32).to_be_bytes())),
    ("everything is about credentials", |_, frame| with_bytes_at(frame, 4, &(-4_i32).to_be_bytes())),
    ("credentials refused", |_, frame| [frame, &error(-4, -115)].concat()),
    ("everything twice", |_, frame| [frame, frame].concat()),
    ("always the one before", |state, frame| std::mem::replace(&mut state.kept_frame, frame.to_vec())),
    ("in pairs, the second first", |state, frame| match state.kept_frame.is_empty() {
        true => {
            state.kept_frame = frame.to_vec();
            Vec::new()
        }
        false => [frame, &std::mem::take(&mut state.kept_frame)].concat(),
    }),
    ("an error that nobody knows", |_, frame| error(xid(frame), -9999)),
    ("an error above zero", |_, frame| error(xid(frame), 12)),
    ("a session that has moved", |_, frame| error(xid(frame), -118)),
    ("texts that are none", |_, frame| replace_bytes(frame, b'c', 0xff)),
    ("stats of zeros", |_, frame| stat(frame, 0)),
    ("stats of minus one", |_, frame| stat(frame, 0xff)),
    ("foreign nodes ahead", |state, frame| {
        list(state, frame, &["_c_00000000-0000-4000-8000-000000000000-lock-0000000000"], 1)
    }),
    ("names without numbers", |state, frame| list(state, frame, &["lock-", "lock-", "_c_-lock-", "lock--1", ""], 1)),
    ("names with paths", |state, frame| list(state, frame, &["../../zookeeper", "/", "a/lock-0000000000"], 1)),
    ("a hundred thousand names", |state, frame| list(state, frame, &["a"], 200_000)),
    ("sixty megabytes", |state, frame| match state.opcodes_by_xid.get(&xid(frame)) {
        Some(&LIST) => [&(60_i32 << 20).to_be_bytes(), &frame[4..20], &vec![0; (60 << 20) - 16][..]].concat(),
        _ => frame.to_vec(),
    }),
    ("events of everything", |_, frame| [events(), frame.to_vec(), events()].concat()),
    ("pings of everything", |_, frame| [error(-2, 0).repeat(1000), frame.to_vec()].concat()),
    ("silence", |_, _| Vec::new()),
];

/// Well-formed but wrong replies: a node was created although the reply denies it, or it has another name. The client
/// cannot detect this, so a node may be left until the session ends. Two halves of frames can form such a reply, whose
/// zxid may be one that no real server has reached.
const FALSE_CONTENT: &[(&str, Alteration)] = &[
    ("a frame is incomplete", |_, frame| frame[..frame.len() / 2].to_vec()),
    ("no node, whatever was asked", |_, frame| error(xid(frame), -101)),
    ("NULs in texts", |_, frame| replace_bytes(frame, b'c', 0)),
    ("sequences that are no numbers", |_, frame| replace_bytes(frame, b'0', b'x')),
    ("other numbers", |_, frame| replace_bytes(frame, b'0', b'9')),
];

/// Modifications of the first frame of a connection, the connect response.
const HANDSHAKES: &[(&str, Alteration)] = &[
    ("a negative time-out", |_, frame| with_bytes_at(frame, 8, &(-1_i32).to_be_bytes())),
    ("the least time-out", |_, frame| with_bytes_at(frame, 8, &i32::MIN.to_be_bytes())),
    ("a millisecond", |_, frame| with_bytes_at(frame, 8, &1_i32.to_be_bytes())),
    ("the largest time-out", |_, frame| with_bytes_at(frame, 8, &i32::MAX.to_be_bytes())),
    ("another session each time", |state, frame| {
        state.kept_frame.push(1);
        with_bytes_at(frame, 12, &(77 + state.kept_frame.len() as i64).to_be_bytes())
    }),
    ("a password too long for its frame", |_, frame| with_bytes_at(frame, 20, &1000_i32.to_be_bytes())),
    ("a password of a negative length", |_, frame| with_bytes_at(frame, 20, &(-7_i32).to_be_bytes())),
    ("no password", |_, frame| framed(&[&frame[4..20], &0_i32.to_be_bytes(), &[0]].concat())),
    ("a read-only server", |_, frame| with_bytes_at(frame, frame.len() - 1, &[1])),
    ("another protocol", |_, frame| with_bytes_at(frame, 4, &i32::MAX.to_be_bytes())),
    ("words before it", |_, frame| [b"HTTP/1.1 400 Bad Request\r\n\r\n", frame].concat()),
];

#[test]
fn altered_replies_cause_errors_in_time_and_the_client_recovers() {
    let server = ZooKeeper::start();
    // The I/O thread exists as long as this client.
    let _bystander = client_with(&server.address(), 6 * SECOND);
    let lies = [
        (MALFORMED, AlterationKind::Malformed),
        (FALSE_CONTENT, AlterationKind::FalseContent),
        (HANDSHAKES, AlterationKind::Handshake),
    ];
    let lies = lies
        .into_iter()
        .flat_map(|(lies, manner)| lies.iter().map(move |&(name, alteration)| (name, alteration, manner)));
    let (worked, took) = timed(|| {
        let before = io_time();
        thread::scope(|scope| {
            for (name, alteration, manner) in lies {
                let server = &server;
                thread::Builder::new()
                    .name(name.to_owned())
                    .spawn_scoped(scope, move || check_altered_replies(server, name, alteration, manner))
                    .unwrap();
            }
        });
        io_time() - before
    });
    // All modified replies together contain sixty megabytes and a hundred thousand names.
    assert!(worked < took / 2, "the I/O thread was busy for {worked:?} of {took:?}");
}

fn check_altered_replies(server: &ZooKeeper, name: &str, alteration: Alteration, manner: AlterationKind) {
    let (safe, wanted_path) = (path("lied-safe"), path("lied-wished"));
    let mut witness = raw(server);
    let proxy = Proxy::start_opaque(&server.address());
    let altering = Arc::new(AtomicBool::new(false));
    alter_replies(&proxy, &altering, alteration, manner == AlterationKind::Handshake);
    let client = client_with(&proxy.address(), 6 * SECOND);
    let (held, wanted) = (client.mutex(&safe).unwrap(), client.mutex(&wanted_path).unwrap());
    held.acquire(Some(TEST_TIMEOUT)).unwrap();
    altering.store(true, Ordering::SeqCst);
    if manner == AlterationKind::Handshake {
        proxy.cut();
    }

    let limit = 700 * MS;
    let (result, took) = timed(|| wanted.acquire(Some(limit)));
    assert!(took < limit + slack(), "{name}: late, after {took:?}");
    match &result {
        Ok(()) => assert_eq!(queue(&mut witness, &wanted_path).len(), 1, "{name}: the lock is held without a node"),
        Err(error) => assert!(!error.message().is_empty(), "{name}"),
    }
    if held.is_held().unwrap() {
        assert_eq!(queue(&mut witness, &safe).len(), 1, "{name}: the lock is still held without a node");
    }
    let connections = proxy.accepted_count();
    assert!(connections < 100, "{name}: {connections} connections");

    altering.store(false, Ordering::SeqCst);
    if manner == AlterationKind::FalseContent {
        client.close().unwrap();
    } else {
        // An altered reply may still be on its way. The reply to this request follows it.
        let _ = held.participants();
        assert_recovers(name, &held, &wanted, result.is_ok());
    }
    for path in [&safe, &wanted_path] {
        wait_until(TEST_TIMEOUT, || queue(&mut witness, path).is_empty());
    }
}

/// Asserts that both locks can be held and released again.
#[track_caller]
fn assert_recovers(name: &str, held: &Lock, wanted: &Lock, is_wanted_held: bool) {
    if !is_wanted_held || wanted.release().is_err() {
        let result = wanted.acquire(Some(TEST_TIMEOUT));
        assert!(result.is_ok(), "{name}: the server answers correctly again, but the result is {result:?}");
        wanted.release().unwrap();
    }
    let released = held.release();
    assert!(released.is_ok() || status(released.clone()) == Status::Lost, "{name}: {released:?}");
}

/// Modifies the connect responses (`is_greeting`) or all other replies, as long as `altering` is true.
fn alter_replies(proxy: &Proxy, altering: &Arc<AtomicBool>, alteration: Alteration, is_handshake: bool) {
    let altering = Arc::clone(altering);
    let mut state = AlterationState::default();
    proxy.hook(move |way, bytes| {
        if way == Direction::ToServer {
            for frame in frames(bytes) {
                state.opcodes_by_xid.insert(xid(&frame), number(&frame, 8));
            }
        } else if altering.load(Ordering::SeqCst) {
            // A connect response begins with the protocol version 0. No other reply has the xid 0.
            let is_concerned = |frame: &[u8]| (xid(frame) == 0) == is_handshake;
            let altered = |frame: Vec<u8>| if is_concerned(&frame) { alteration(&mut state, &frame) } else { frame };
            *bytes = frames(bytes).into_iter().flat_map(altered).collect();
        }
        zklock_test_support::Verdict::Forward
    });
}

#[test]
fn replies_sent_byte_by_byte_extend_no_deadline_and_no_lease() {
    let server = ZooKeeper::start();
    let dripping = Arc::new(AtomicBool::new(false));
    let (address, connections) = byte_by_byte_proxy(&server.address(), &dripping);
    let client = client_with(&address, 3 * SECOND);
    let (held, wanted) = (client.mutex(&path("dripped")).unwrap(), client.mutex(&path("drop")).unwrap());
    held.acquire(Some(TEST_TIMEOUT)).unwrap();
    dripping.store(true, Ordering::SeqCst);
    let start = Instant::now();
    let (result, took) = timed(|| wanted.acquire(Some(SECOND)));
    assert!(result.is_err() && took < SECOND + slack(), "{result:?} after {took:?}");
    // A reply that arrives at one byte per tenth of a second takes longer than a third of the session timeout.
    wait_until(3 * SECOND, || connections.load(Ordering::SeqCst) > 1);
    wait_until(4 * SECOND, || held.state().unwrap() != LockState::Held);
    while start.elapsed() < 3 * SECOND {
        let (now, state, left) = (start.elapsed(), held.state().unwrap(), held.remaining().unwrap_or_default());
        assert!(now + left <= 3 * SECOND + 100 * MS, "{state:?} for {left:?} more, after {now:?}");
        thread::sleep(10 * MS);
    }
    dripping.store(false, Ordering::SeqCst);
    wait_until(TEST_TIMEOUT, || wanted.acquire(Some(TEST_TIMEOUT)).is_ok());
    wanted.release().unwrap();
}

#[test]
fn server_that_ignores_auth_is_abandoned_despite_pings() {
    let server = ZooKeeper::shared();
    let (bad, connections) = serve_with(|mut stream| {
        accept_session(&mut stream);
        while stream.write_all(&error(-2, 0)).is_ok() {
            thread::sleep(100 * MS);
        }
    });
    for servers in [format!("{bad},{}", server.address()), format!("{},{bad}", server.address())] {
        let config = Config::new().session_timeout(3 * SECOND).add_auth("digest", b"a:b").connect_timeout(TEST_TIMEOUT);
        let client = Client::connect(&servers, &config).unwrap();
        client.close().unwrap();
        if connections.load(Ordering::SeqCst) > 0 {
            return;
        }
    }
    // The client tries its servers in random order.
    server_that_ignores_auth_is_abandoned_despite_pings();
}

#[test]
fn non_zookeeper_servers_cause_connection_error_and_few_reconnects() {
    let foreign_servers: [(&str, FakeServer); 4] = [
        ("closes at once", drop),
        ("is silent", |stream| wait_for_the_end(&stream)),
        ("speaks HTTP", |mut stream| {
            let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n");
            wait_for_the_end(&stream);
        }),
        ("babbles", |mut stream| while stream.write_all(&[0xa5; 4096]).is_ok() {}),
    ];
    for (name, server) in foreign_servers {
        let (address, connections) = serve_with(server);
        let config = Config::new().connect_timeout(SECOND);
        let (result, took) = timed(|| Client::connect(&address, &config));
        assert_eq!(result.map(drop).unwrap_err().status(), Status::Connection, "{name}");
        assert!(took >= SECOND && took < SECOND + slack(), "{name}: {took:?}");
        let connections = connections.load(Ordering::SeqCst);
        assert!((1..40).contains(&connections), "{name}: {connections} connections");
    }
}

// Replies.

fn framed(body: &[u8]) -> Vec<u8> {
    [&i32::try_from(body.len()).unwrap().to_be_bytes()[..], body].concat()
}

fn error(xid: i32, code: i32) -> Vec<u8> {
    framed(&[&xid.to_be_bytes()[..], &1_i64.to_be_bytes(), &code.to_be_bytes()].concat())
}

fn with_bytes_at(frame: &[u8], at: usize, bytes: &[u8]) -> Vec<u8> {
    let mut frame = frame.to_vec();
    frame[at..at + bytes.len()].copy_from_slice(bytes);
    frame
}

/// Replaces bytes in texts, which are after the header.
fn replace_bytes(frame: &[u8], from: u8, to: u8) -> Vec<u8> {
    let mut frame = frame.to_vec();
    let body = frame.get_mut(20..).unwrap_or_default();
    body.iter_mut().filter(|byte| **byte == from).for_each(|byte| *byte = to);
    frame
}

/// Overwrites the stat, which is the last 68 bytes of a reply.
fn stat(frame: &[u8], byte: u8) -> Vec<u8> {
    let mut frame = frame.to_vec();
    if frame.len() >= 20 + 68 {
        let at = frame.len() - 68;
        frame[at..].fill(byte);
    }
    frame
}

/// Replaces the names in the reply to a list request by these names, repeated `times` times.
fn list(state: &AlterationState, frame: &[u8], names: &[&str], times: usize) -> Vec<u8> {
    if state.opcodes_by_xid.get(&xid(frame)) != Some(&LIST) || frame.len() < 20 + 68 {
        return frame.to_vec();
    }
    let strings: Vec<u8> = names.iter().flat_map(|name| framed(name.as_bytes())).collect();
    let count = i32::try_from(names.len() * times).unwrap().to_be_bytes();
    framed(&[&frame[4..20], &count, &strings.repeat(times), &frame[frame.len() - 68..]].concat())
}

/// A thousand events of each type for nodes that no client watches, and some with invalid paths.
fn events() -> Vec<u8> {
    let event = |kind: i32, path: &[u8]| {
        let header = [&(-1_i32).to_be_bytes()[..], &(-1_i64).to_be_bytes(), &0_i32.to_be_bytes()].concat();
        framed(&[&header, &kind.to_be_bytes()[..], &3_i32.to_be_bytes(), &framed(path)].concat())
    };
    let paths: [&[u8]; 4] = [b"/zookeeper", b"", b"a\0b", "/\u{1f512}/lock-".as_bytes()];
    (1..=7).flat_map(|kind| paths.map(|path| event(kind, path))).collect::<Vec<_>>().concat().repeat(40)
}

fn frames(mut bytes: &[u8]) -> Vec<Vec<u8>> {
    let mut found = Vec::new();
    while bytes.len() >= 4 {
        let length = (4 + usize::try_from(number(bytes, 0)).unwrap_or_default()).min(bytes.len());
        found.push(bytes[..length].to_vec());
        bytes = &bytes[length..];
    }
    found
}

fn xid(frame: &[u8]) -> i32 {
    number(frame, 4)
}

fn number(bytes: &[u8], at: usize) -> i32 {
    bytes.get(at..at + 4).map_or(0, |bytes| i32::from_be_bytes(bytes.try_into().unwrap()))
}

// Servers.

/// A server that calls `then` with each connection. Returns its address and its number of connections.
fn serve_with(then: impl Fn(TcpStream) + Send + Sync + Clone + 'static) -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let connections = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&connections);
    thread::spawn(move || {
        for stream in listener.incoming() {
            let (stream, then) = (stream.unwrap(), then.clone());
            counter.fetch_add(1, Ordering::SeqCst);
            thread::spawn(move || then(stream));
        }
    });
    (address, connections)
}

/// Answers the connect request with a new session.
fn accept_session(stream: &mut TcpStream) {
    let mut request = [0; 49];
    let numbers = [&0_i32.to_be_bytes()[..], &3_000_i32.to_be_bytes(), &77_i64.to_be_bytes()].concat();
    if stream.read_exact(&mut request).is_ok() {
        let _ = stream.write_all(&framed(&[&numbers, &framed(&[0; 16])[..], &[0]].concat()));
    }
}

fn wait_for_the_end(mut stream: &TcpStream) {
    let mut bytes = [0; 64];
    while stream.read(&mut bytes).is_ok_and(|count| count > 0) {}
}

/// A proxy to a server. While `dripping` is true, it forwards the replies byte by byte.
fn byte_by_byte_proxy(server: &str, dripping: &Arc<AtomicBool>) -> (String, Arc<AtomicUsize>) {
    let (server, dripping) = (server.to_owned(), Arc::clone(dripping));
    serve_with(move |client| {
        let server = TcpStream::connect(&server).unwrap();
        let (mut from_client, mut to_server) = (client.try_clone().unwrap(), server.try_clone().unwrap());
        thread::spawn(move || {
            let _ = std::io::copy(&mut from_client, &mut to_server);
            let _ = to_server.shutdown(std::net::Shutdown::Both);
        });
        let (mut server, mut client, mut byte) = (server, client, [0]);
        while server.read_exact(&mut byte).is_ok() && client.write_all(&byte).is_ok() {
            if dripping.load(Ordering::SeqCst) {
                thread::sleep(100 * MS);
            }
        }
        let _ = client.shutdown(std::net::Shutdown::Both);
    })
}

/// The processor time of the I/O thread. Threads that have ended do not count.
fn io_time() -> Duration {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().map(|task| task.unwrap().path());
    let io = tasks.filter(|task| std::fs::read_to_string(task.join("comm")).is_ok_and(|name| name.trim() == "zkl-io"));
    // The first field is the time on a processor in nanoseconds.
    let time = |task: std::path::PathBuf| {
        let line = std::fs::read_to_string(task.join("schedstat")).unwrap_or_default();
        line.split(' ').next().and_then(|nanos| nanos.parse::<u64>().ok()).unwrap_or_default()
    };
    Duration::from_nanos(io.map(time).sum())
}
