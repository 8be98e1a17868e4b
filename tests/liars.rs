//! A real server whose every word is twisted on its way: for each kind of lie, who asks gets an error or his deadline, nobody holds what
//! is not his, the client finds back once the server tells the truth, and nothing stays behind.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test that fails is a test that fails"
)]

mod common;

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use common::{SOON, client_with, path, queue, raw, status, timed};
use zklock::{Client, Config, Lock, LockState, Status};
use zklock_rig::{Direction, Proxy, ZooKeeper, wait_until};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
/// How late a call may be on a machine that is busy with all these clients.
const LATE: Duration = Duration::from_millis(1500);
const LIST: i32 = 12;

/// What becomes of a frame on its way to the client; the frame has its length before it.
type Lie = fn(&mut Liar, &[u8]) -> Vec<u8>;

/// What a server that is none does with a connection.
type Stranger = fn(TcpStream);

/// What is wrong with what is said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Manner {
    Garbled,
    Untrue,
    Greeting,
}

/// What a liar remembers of one connection.
#[derive(Default)]
struct Liar {
    /// The kinds of the requests by their numbers.
    kinds: HashMap<i32, i32>,
    /// What was said before, or is kept back.
    last: Vec<u8>,
}

const LIES: &[(&str, Lie)] = &[
    ("negative length", |_, frame| [&(-5_i32).to_be_bytes(), &frame[4..]].concat()),
    ("no length", |_, frame| [&0_i32.to_be_bytes(), &frame[4..]].concat()),
    ("a length that is too small", |_, frame| [&7_i32.to_be_bytes(), &frame[4..]].concat()),
    ("a length that is too large", |_, frame| [&(frame.len() as i32 + 9).to_be_bytes(), &frame[4..]].concat()),
    ("the largest length", |_, frame| [&i32::MAX.to_be_bytes(), &frame[4..]].concat()),
    ("half a record", |_, frame| framed(&frame[4..4 + (frame.len() - 4) / 2])),
    ("only a header", |_, frame| framed(&frame[4..frame.len().min(20)])),
    ("more than a record", |_, frame| framed(&[&frame[4..], &[0; 9]].concat())),
    ("numbers of no request", |_, frame| with(frame, 4, &(xid(frame).wrapping_add(1000)).to_be_bytes())),
    ("everything is a notification", |_, frame| with(frame, 4, &(-1_i32).to_be_bytes())),
    ("everything is a ping", |_, frame| with(frame, 4, &(-2_i32).to_be_bytes())),
    ("everything is about credentials", |_, frame| with(frame, 4, &(-4_i32).to_be_bytes())),
    ("credentials refused", |_, frame| [frame, &error(-4, -115)].concat()),
    ("everything twice", |_, frame| [frame, frame].concat()),
    ("always the one before", |liar, frame| std::mem::replace(&mut liar.last, frame.to_vec())),
    ("in pairs, the second first", |liar, frame| match liar.last.is_empty() {
        true => {
            liar.last = frame.to_vec();
            Vec::new()
        }
        false => [frame, &std::mem::take(&mut liar.last)].concat(),
    }),
    ("an error that nobody knows", |_, frame| error(xid(frame), -9999)),
    ("an error above zero", |_, frame| error(xid(frame), 12)),
    ("a session that has moved", |_, frame| error(xid(frame), -118)),
    ("texts that are none", |_, frame| replaced(frame, b'c', 0xff)),
    ("stats of zeros", |_, frame| stat(frame, 0)),
    ("stats of minus one", |_, frame| stat(frame, 0xff)),
    ("strangers ahead", |liar, frame| {
        list(liar, frame, &["_c_00000000-0000-4000-8000-000000000000-lock-0000000000"], 1)
    }),
    ("names without numbers", |liar, frame| list(liar, frame, &["lock-", "lock-", "_c_-lock-", "lock--1", ""], 1)),
    ("names with paths", |liar, frame| list(liar, frame, &["../../zookeeper", "/", "a/lock-0000000000"], 1)),
    ("a hundred thousand names", |liar, frame| list(liar, frame, &["a"], 200_000)),
    ("sixty megabytes", |liar, frame| match liar.kinds.get(&xid(frame)) {
        Some(&LIST) => [&(60_i32 << 20).to_be_bytes(), &frame[4..20], &vec![0; (60 << 20) - 16][..]].concat(),
        _ => frame.to_vec(),
    }),
    ("events of everything", |_, frame| [events(), frame.to_vec(), events()].concat()),
    ("pings of everything", |_, frame| [error(-2, 0).repeat(1000), frame.to_vec()].concat()),
    ("silence", |_, _| Vec::new()),
];

/// Well-formed and untrue: what was made was not made, or is called something else. Nobody can see through that, so a node may stay behind
/// until the session ends. Two halves of frames make such a whole, and its zxid may be one that no sound server has reached yet.
const FALSEHOODS: &[(&str, Lie)] = &[
    ("half a frame", |_, frame| frame[..frame.len() / 2].to_vec()),
    ("no node, whatever was asked", |_, frame| error(xid(frame), -101)),
    ("NULs in texts", |_, frame| replaced(frame, b'c', 0)),
    ("sequences that are no numbers", |_, frame| replaced(frame, b'0', b'x')),
    ("other numbers", |_, frame| replaced(frame, b'0', b'9')),
];

/// The same of the first frame of a connection, the answer to the handshake.
const GREETINGS: &[(&str, Lie)] = &[
    ("a negative time-out", |_, frame| with(frame, 8, &(-1_i32).to_be_bytes())),
    ("the least time-out", |_, frame| with(frame, 8, &i32::MIN.to_be_bytes())),
    ("a millisecond", |_, frame| with(frame, 8, &1_i32.to_be_bytes())),
    ("the largest time-out", |_, frame| with(frame, 8, &i32::MAX.to_be_bytes())),
    ("another session each time", |liar, frame| {
        liar.last.push(1);
        with(frame, 12, &(77 + liar.last.len() as i64).to_be_bytes())
    }),
    ("a password too long for its frame", |_, frame| with(frame, 20, &1000_i32.to_be_bytes())),
    ("a password of a negative length", |_, frame| with(frame, 20, &(-7_i32).to_be_bytes())),
    ("no password", |_, frame| framed(&[&frame[4..20], &0_i32.to_be_bytes(), &[0]].concat())),
    ("a read-only server", |_, frame| with(frame, frame.len() - 1, &[1])),
    ("another protocol", |_, frame| with(frame, 4, &i32::MAX.to_be_bytes())),
    ("words before it", |_, frame| [b"HTTP/1.1 400 Bad Request\r\n\r\n", frame].concat()),
];

#[test]
fn whoever_is_lied_to_gets_an_error_in_time_and_finds_back() {
    let server = ZooKeeper::start();
    // As long as it is there, the I/O thread is.
    let _bystander = client_with(&server.address(), 6 * SECOND);
    let lies = [(LIES, Manner::Garbled), (FALSEHOODS, Manner::Untrue), (GREETINGS, Manner::Greeting)];
    let lies = lies.into_iter().flat_map(|(lies, manner)| lies.iter().map(move |&(name, lie)| (name, lie, manner)));
    let (worked, took) = timed(|| {
        let before = io_time();
        thread::scope(|scope| {
            for (name, lie, manner) in lies {
                let server = &server;
                thread::Builder::new()
                    .name(name.to_owned())
                    .spawn_scoped(scope, move || be_lied_to(server, name, lie, manner))
                    .unwrap();
            }
        });
        io_time() - before
    });
    // All of them together, sixty megabytes and a hundred thousand names among them.
    assert!(worked < took / 2, "the I/O thread was busy for {worked:?} of {took:?}");
}

fn be_lied_to(server: &ZooKeeper, name: &str, lie: Lie, manner: Manner) {
    let (safe, wished) = (path("lied-safe"), path("lied-wished"));
    let mut witness = raw(server);
    let proxy = Proxy::start_opaque(&server.address());
    let lying = Arc::new(AtomicBool::new(false));
    twist(&proxy, &lying, lie, manner == Manner::Greeting);
    let client = client_with(&proxy.address(), 6 * SECOND);
    let (held, wanted) = (client.mutex(&safe).unwrap(), client.mutex(&wished).unwrap());
    held.acquire(Some(SOON)).unwrap();
    lying.store(true, Ordering::SeqCst);
    if manner == Manner::Greeting {
        proxy.cut();
    }

    let limit = 700 * MS;
    let (result, took) = timed(|| wanted.acquire(Some(limit)));
    assert!(took < limit + LATE, "{name}: late, after {took:?}");
    match &result {
        Ok(()) => assert_eq!(queue(&mut witness, &wished).len(), 1, "{name}: held, and there is no node"),
        Err(error) => assert!(!error.message().is_empty(), "{name}"),
    }
    if held.is_held().unwrap() {
        assert_eq!(queue(&mut witness, &safe).len(), 1, "{name}: still held, and there is no node");
    }
    let connections = proxy.connections();
    assert!(connections < 100, "{name}: {connections} connections");

    lying.store(false, Ordering::SeqCst);
    if manner == Manner::Untrue {
        client.close().unwrap();
    } else {
        find_back(name, &held, &wanted, result.is_ok());
    }
    for path in [&safe, &wished] {
        wait_until(SOON, || queue(&mut witness, path).is_empty());
    }
}

/// Both locks can be held and given back again.
#[track_caller]
fn find_back(name: &str, held: &Lock, wanted: &Lock, is_wanted_held: bool) {
    if !is_wanted_held || wanted.release().is_err() {
        let result = wanted.acquire(Some(SOON));
        assert!(result.is_ok(), "{name}: it tells the truth again, and {result:?}");
        wanted.release().unwrap();
    }
    let released = held.release();
    assert!(released.is_ok() || status(released.clone()) == Status::Lost, "{name}: {released:?}");
}

/// Has everything that goes to the client twisted while `lying`.
fn twist(proxy: &Proxy, lying: &Arc<AtomicBool>, lie: Lie, is_greeting: bool) {
    let lying = Arc::clone(lying);
    let mut liar = Liar::default();
    proxy.hook(move |way, bytes| {
        if way == Direction::ToServer {
            for frame in frames(bytes) {
                liar.kinds.insert(xid(&frame), number(&frame, 8));
            }
        } else if lying.load(Ordering::SeqCst) {
            // Zeros are the version of the protocol, and the number of no answer.
            let is_concerned = |frame: &[u8]| (xid(frame) == 0) == is_greeting;
            let twisted = |frame: Vec<u8>| if is_concerned(&frame) { lie(&mut liar, &frame) } else { frame };
            *bytes = frames(bytes).into_iter().flat_map(twisted).collect();
        }
        zklock_rig::Verdict::Forward
    });
}

#[test]
fn bytes_that_drip_do_not_lengthen_anything() {
    let server = ZooKeeper::start();
    let dripping = Arc::new(AtomicBool::new(false));
    let (address, connections) = drip(&server.address(), &dripping);
    let client = client_with(&address, 3 * SECOND);
    let (held, wanted) = (client.mutex(&path("dripped")).unwrap(), client.mutex(&path("drop")).unwrap());
    held.acquire(Some(SOON)).unwrap();
    dripping.store(true, Ordering::SeqCst);
    let start = Instant::now();
    let (result, took) = timed(|| wanted.acquire(Some(SECOND)));
    assert!(result.is_err() && took < SECOND + LATE, "{result:?} after {took:?}");
    // An answer of a byte each tenth of a second takes longer than a third of the session timeout.
    wait_until(3 * SECOND, || connections.load(Ordering::SeqCst) > 1);
    wait_until(4 * SECOND, || held.state().unwrap() != LockState::Held);
    while start.elapsed() < 3 * SECOND {
        let (state, left) = (held.state().unwrap(), held.remaining().unwrap_or_default());
        assert!(
            start.elapsed() + left <= 3 * SECOND + 100 * MS,
            "{state:?} for {left:?} more, after {:?}",
            start.elapsed()
        );
        thread::sleep(10 * MS);
    }
    dripping.store(false, Ordering::SeqCst);
    wait_until(SOON, || wanted.acquire(Some(SOON)).is_ok());
    wanted.release().unwrap();
}

#[test]
fn who_does_not_answer_credentials_is_given_up_whatever_else_he_says() {
    let server = ZooKeeper::shared();
    let (bad, connections) = serve(|mut stream| {
        greet(&mut stream);
        while stream.write_all(&error(-2, 0)).is_ok() {
            thread::sleep(100 * MS);
        }
    });
    for servers in [format!("{bad},{}", server.address()), format!("{},{bad}", server.address())] {
        let mut config = Config::new();
        config.set_session_timeout(3 * SECOND).unwrap();
        config.add_auth("digest", b"a:b").unwrap();
        config.set_connect_timeout(SOON).unwrap();
        let client = Client::connect(&servers, &config).unwrap();
        client.close().unwrap();
        if connections.load(Ordering::SeqCst) > 0 {
            return;
        }
    }
    // Which of two comes first is chance.
    who_does_not_answer_credentials_is_given_up_whatever_else_he_says();
}

#[test]
fn servers_that_are_none_cost_little() {
    let strangers: [(&str, Stranger); 4] = [
        ("closes at once", drop),
        ("is silent", |stream| wait_for_the_end(&stream)),
        ("speaks HTTP", |mut stream| {
            let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n");
            wait_for_the_end(&stream);
        }),
        ("babbles", |mut stream| while stream.write_all(&[0xa5; 4096]).is_ok() {}),
    ];
    for (name, stranger) in strangers {
        let (address, connections) = serve(stranger);
        let mut config = Config::new();
        config.set_connect_timeout(SECOND).unwrap();
        let (result, took) = timed(|| Client::connect(&address, &config));
        assert_eq!(result.map(drop).unwrap_err().status(), Status::Connection, "{name}");
        assert!(took >= SECOND && took < SECOND + LATE, "{name}: {took:?}");
        let connections = connections.load(Ordering::SeqCst);
        assert!((1..40).contains(&connections), "{name}: {connections} connections");
    }
}

// What is said.

fn framed(body: &[u8]) -> Vec<u8> {
    [&i32::try_from(body.len()).unwrap().to_be_bytes()[..], body].concat()
}

fn error(xid: i32, code: i32) -> Vec<u8> {
    framed(&[&xid.to_be_bytes()[..], &1_i64.to_be_bytes(), &code.to_be_bytes()].concat())
}

fn with(frame: &[u8], at: usize, bytes: &[u8]) -> Vec<u8> {
    let mut frame = frame.to_vec();
    frame[at..at + bytes.len()].copy_from_slice(bytes);
    frame
}

/// In texts, which are behind the header.
fn replaced(frame: &[u8], from: u8, to: u8) -> Vec<u8> {
    let mut frame = frame.to_vec();
    let body = frame.get_mut(20..).unwrap_or_default();
    body.iter_mut().filter(|byte| **byte == from).for_each(|byte| *byte = to);
    frame
}

/// A stat is the end of an answer, 68 bytes of it.
fn stat(frame: &[u8], byte: u8) -> Vec<u8> {
    let mut frame = frame.to_vec();
    if frame.len() >= 20 + 68 {
        let at = frame.len() - 68;
        frame[at..].fill(byte);
    }
    frame
}

/// The answer to a list has these names, so many times, instead of its own.
fn list(liar: &Liar, frame: &[u8], names: &[&str], times: usize) -> Vec<u8> {
    if liar.kinds.get(&xid(frame)) != Some(&LIST) || frame.len() < 20 + 68 {
        return frame.to_vec();
    }
    let strings: Vec<u8> = names.iter().flat_map(|name| framed(name.as_bytes())).collect();
    let count = i32::try_from(names.len() * times).unwrap().to_be_bytes();
    framed(&[&frame[4..20], &count, &strings.repeat(times), &frame[frame.len() - 68..]].concat())
}

/// A thousand events of each kind about nodes that nobody watches, and some about nothing.
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

// Who says it.

/// A server that does as it likes with each connection; its address, and how many connections it has had.
fn serve(then: impl Fn(TcpStream) + Send + Sync + Clone + 'static) -> (String, Arc<AtomicUsize>) {
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

/// Gives out a session.
fn greet(stream: &mut TcpStream) {
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

/// A way to a server on which answers come byte by byte while it drips.
fn drip(server: &str, dripping: &Arc<AtomicBool>) -> (String, Arc<AtomicUsize>) {
    let (server, dripping) = (server.to_owned(), Arc::clone(dripping));
    serve(move |client| {
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

/// How much processor time the library's I/O thread has had; one that has ended had none.
fn io_time() -> Duration {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().map(|task| task.unwrap().path());
    let io = tasks.filter(|task| std::fs::read_to_string(task.join("comm")).is_ok_and(|name| name.trim() == "zkl-io"));
    // Nanoseconds on a processor come first.
    let time = |task: std::path::PathBuf| {
        let line = std::fs::read_to_string(task.join("schedstat")).unwrap_or_default();
        line.split(' ').next().and_then(|nanos| nanos.parse::<u64>().ok()).unwrap_or_default()
    };
    Duration::from_nanos(io.map(time).sum())
}
