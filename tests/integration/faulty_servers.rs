//! Servers that send wrong replies, too much data, or nothing. The caller gets an error before its deadline, and no
//! node is left behind.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::{
    TEST_TIMEOUT, client, client_with, create_directory, path, queue, raw, server_without_sweeps, status, timed,
};
use zklock::{Client, Config, LockState, Status};
use zklock_test_support::{Direction, Proxy, Verdict, ZooKeeper, is_connect_request, request_type, wait_until, xid};

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
            let first =
                way == Direction::ToServer && request_type(frame) == Some(CLOSE) && !cut.swap(true, Ordering::SeqCst);
            if first { verdict } else { Verdict::Forward }
        });
        client.close().unwrap();
        assert_eq!(queue(&mut raw(server), &path), Vec::<String>::new(), "{verdict:?}");
    }
}

#[test]
fn resume_with_longer_timeout_does_not_extend_the_lease() {
    let server = ZooKeeper::start();
    let proxy = Proxy::start(&server.address());
    let cut_off = Arc::new(AtomicBool::new(false));
    let is_cut_off = Arc::clone(&cut_off);
    proxy.hook(move |way, frame| {
        // The sessions on the server have a timeout of three seconds. The proxy reports a longer one when the session
        // is resumed, and then drops all requests.
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
        // A lease lasts two seconds. The client resumes the session before the lease ends, and gets a new lease. With
        // the longer timeout, the new lease would last eight seconds.
        assert!(
            start.elapsed() + held.remaining().unwrap() <= 4 * SECOND,
            "the client assumes a longer lease than the server granted"
        );
    }
    assert!(proxy.accepted_count() > 1);
}

#[test]
fn error_reply_to_a_successful_create_leaves_no_node() {
    let server = ZooKeeper::shared();
    // SystemError, RuntimeInconsistency, MarshallingError, and an unknown code.
    for code in [-1, -2, -5, -9999] {
        let proxy = Proxy::start(&server.address());
        let path = path("ambiguous");
        create_directory(server, &path);
        let client = client(&proxy.address());
        rewrite_first_reply(&proxy, CREATE2, move |frame| {
            frame.truncate(16);
            frame[12..16].copy_from_slice(&i32::to_be_bytes(code));
        });
        let lock = client.mutex(&path).unwrap();
        assert_eq!(status(lock.acquire(Some(TEST_TIMEOUT))), Status::Server, "{code}");
        let mut raw = raw(server);
        wait_until(TEST_TIMEOUT, || queue(&mut raw, &path).is_empty());
    }
}

/// A server does not perform a throttled request. The proxy replaces each such request by one that changes nothing.
#[test]
fn throttled_requests_are_repeated_and_cost_no_place() {
    const EXISTS: i32 = 3;
    const NEVER_THROTTLED: [i32; 3] = [11, CLOSE, 101];
    const THROTTLED: i32 = -127;
    let server = ZooKeeper::shared();
    let throttle = |proxy: &Proxy| {
        let (throttled, mut random) = (Arc::new(AtomicUsize::new(0)), 1_u32);
        let count = Arc::clone(&throttled);
        let mut xids = std::collections::HashSet::new();
        proxy.hook(move |way, frame| {
            let kind = request_type(frame).filter(|kind| !NEVER_THROTTLED.contains(kind) && xid(frame) > 0);
            if let (Direction::ToServer, Some(_)) = (way, kind) {
                // Marsaglia's generator: the same numbers in each run.
                random ^= random << 13;
                random ^= random >> 17;
                random ^= random << 5;
                if random % 8 == 0 {
                    xids.insert(xid(frame));
                    frame.truncate(4);
                    frame.extend([&EXISTS.to_be_bytes()[..], &1_i32.to_be_bytes(), b"/\0"].concat());
                }
            } else if way == Direction::ToClient && xids.remove(&xid(frame)) {
                count.fetch_add(1, Ordering::SeqCst);
                frame.truncate(16);
                frame[12..16].copy_from_slice(&THROTTLED.to_be_bytes());
            }
            Verdict::Forward
        });
        throttled
    };
    let (first, second) = (Proxy::start(&server.address()), Proxy::start(&server.address()));
    let (one, two) = (client_with(&first.address(), 30 * SECOND), client_with(&second.address(), 30 * SECOND));
    let counts = [throttle(&first), throttle(&second)];
    for _ in 0..2 {
        let (path, count) = (path("throttled"), path("throttled-count"));
        let (held, waiting) = (one.mutex(&path).unwrap(), two.mutex(&path).unwrap());
        held.acquire(Some(TEST_TIMEOUT)).unwrap();
        thread::scope(|scope| {
            let waiter = scope.spawn(|| {
                waiting.acquire(Some(TEST_TIMEOUT)).unwrap();
                let nodes = queue(&mut raw(server), &path);
                waiting.release().unwrap();
                nodes
            });
            wait_until(TEST_TIMEOUT, || queue(&mut raw(server), &path).len() == 2);
            assert_eq!(held.participants().unwrap().len(), 2);
            assert!(one.fence_check(&path, held.fencing_token().unwrap()).unwrap());
            let place = queue(&mut raw(server), &path)[1].clone();
            held.release().unwrap();
            assert_eq!(waiter.join().unwrap(), [place], "the waiter has kept its place");
        });
        let rwlock = one.rwlock(&format!("{path}/below/it")).unwrap();
        rwlock.write.acquire(Some(TEST_TIMEOUT)).unwrap();
        rwlock.read.acquire(Some(TEST_TIMEOUT)).unwrap();
        zklock::Lock::multi(&[&held, &one.mutex(&format!("{path}/other")).unwrap()])
            .unwrap()
            .acquire(Some(TEST_TIMEOUT))
            .unwrap();
        one.shared_count_set(&count, 2).unwrap();
        let semaphore = two.semaphore_counted(&format!("{path}/semaphore"), &count, 1).unwrap();
        semaphore.acquire(2, Some(TEST_TIMEOUT)).unwrap().release().unwrap();
        assert_eq!(one.shared_count_get(&count).unwrap(), 2);
        assert_eq!(one.children(&count).unwrap().unwrap().names, Vec::<String>::new());
        assert_eq!(held.state().unwrap(), LockState::Held);
    }
    for count in counts {
        assert!(count.load(Ordering::SeqCst) > 2, "too few requests were throttled");
    }
    assert_eq!((first.accepted_count(), second.accepted_count()), (1, 1), "no throttled request costs a connection");
    one.close().unwrap();
    two.close().unwrap();
}

#[test]
fn create_reply_with_a_foreign_path_is_rejected() {
    let server = ZooKeeper::shared();
    let proxy = Proxy::start(&server.address());
    let path = path("wrong-path");
    create_directory(server, &path);
    let client = client(&proxy.address());
    rewrite_first_reply(&proxy, CREATE2, |frame| {
        let at = frame.windows(3).position(|word| word == b"_c_").unwrap();
        frame[at + 4] = if frame[at + 4] == b'a' { b'b' } else { b'a' };
    });
    let error = client.mutex(&path).unwrap().acquire(Some(TEST_TIMEOUT)).unwrap_err();
    assert_eq!(error.status(), Status::Internal, "{error}");
    let mut raw = raw(server);
    wait_until(TEST_TIMEOUT, || queue(&mut raw, &path).is_empty());
}

#[test]
fn list_that_omits_our_node_leaves_no_orphan() {
    let server = ZooKeeper::shared();
    let proxy = Proxy::start(&server.address());
    let path = path("denied");
    create_directory(server, &path);
    let client = client(&proxy.address());
    rewrite_first_reply(&proxy, LIST, |frame| {
        frame.truncate(16);
        frame[12..16].copy_from_slice(&(-101_i32).to_be_bytes());
    });
    let lock = client.mutex(&path).unwrap();
    lock.acquire(Some(TEST_TIMEOUT)).unwrap();
    assert_eq!(queue(&mut raw(server), &path).len(), 1);
    lock.release().unwrap();
    assert_eq!(queue(&mut raw(server), &path).len(), 0);
}

#[test]
fn server_that_only_sends_pings_is_abandoned() {
    let server = ZooKeeper::shared();
    let path = path("signs");
    create_directory(server, &path);
    let (address, connections) = faulty_server(|mut stream| {
        while stream.write_all(&ping_reply()).is_ok() {
            thread::sleep(200 * MS);
        }
    });
    // The client tries its servers in random order, so at first it knows only the faulty one.
    let proxy = Proxy::start(&address);
    let client = client_with(&format!("{},{}", proxy.address(), proxy.address()), 3 * SECOND);
    let lock = client.mutex(&path).unwrap();
    assert_eq!(status(lock.acquire(Some(4 * SECOND))), Status::Connection);
    assert!(connections.load(Ordering::SeqCst) > 1, "the client kept a connection without answers");
}

#[test]
fn flooding_server_delays_no_other_client() {
    let server = ZooKeeper::shared();
    let (bystander, path) = (client(&server.address()), path("flood"));
    let other = bystander.mutex(&path).unwrap();
    let bad_frame = [0x7f, 0xff, 0xff, 0xff].repeat(1 << 18);
    for flood in [ping_reply().repeat(50_000), bad_frame] {
        let (address, _) = faulty_server(move |mut stream| {
            // The flood ends when the client closes the connection.
            let start = Instant::now();
            while start.elapsed() < 2 * TEST_TIMEOUT && stream.write_all(&flood).is_ok() {}
        });
        let client = Client::connect(&address, &Config::new()).unwrap();
        let lock = client.mutex("/a").unwrap();
        thread::scope(|scope| {
            scope.spawn(|| {
                let (result, took) = timed(|| lock.acquire(Some(200 * MS)));
                assert_eq!(status(result), Status::Connection);
                assert!(took < TEST_TIMEOUT, "late, after {took:?}");
            });
            let (result, took) = timed(|| other.acquire(None));
            result.unwrap();
            assert!(took < TEST_TIMEOUT, "the call waited for the server of another client, {took:?}");
            other.release().unwrap();
        });
    }
}

#[test]
fn oversized_list_reply_fails_only_its_request() {
    // The server must not delete the directory while it is empty.
    let server = server_without_sweeps();
    let proxy = Proxy::start(&server.address());
    let (path, crowded) = (path("calm"), path("crowded"));
    create_directory(server, &crowded);
    let mut raw = raw(server);
    for number in 0..10 {
        raw.create(&format!("{crowded}/{number}{}", "x".repeat(900_000)), b"", 0).unwrap();
    }
    let client = client(&proxy.address());
    let (held, wanted) = (client.mutex(&path).unwrap(), client.mutex(&crowded).unwrap());
    held.acquire(None).unwrap();
    let error = wanted.acquire(Some(TEST_TIMEOUT)).unwrap_err();
    assert_eq!(error.status(), Status::Exhausted, "{error}");
    let problem = "bytes; this client accepts at most 8388600 bytes";
    assert!(error.message().contains(&crowded) && error.message().contains(problem), "{error}");
    assert_eq!(held.state().unwrap(), LockState::Held);
    assert_eq!(proxy.accepted_count(), 1, "the reply cost the connection");
    wait_until(TEST_TIMEOUT, || queue(&mut raw, &crowded).iter().all(|name| !name.starts_with("_c_")));
}

#[test]
fn short_timeouts_in_a_loop_leave_a_bounded_number_of_nodes() {
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
            // The holder, the waiters, the nodes that are being deleted, and the nodes that are being created.
            let length = queue(&mut raw, &path).len();
            assert!(length <= 1 + 3 * 16, "{length} nodes");
            assert_eq!(held.state().unwrap(), LockState::Held);
        }
        over.store(true, Ordering::SeqCst);
    });
    let mut raw = raw(&server);
    wait_until(TEST_TIMEOUT, || queue(&mut raw, &path).len() == 1);
    held.release().unwrap();
    wanted.acquire(Some(TEST_TIMEOUT)).unwrap();
}

/// Rewrites the reply to the first request of this type.
fn rewrite_first_reply(proxy: &Proxy, kind: i32, rewrite: impl Fn(&mut Vec<u8>) + Send + 'static) {
    let asked = AtomicI32::new(0);
    let mut done = false;
    proxy.hook(move |way, frame| {
        if way == Direction::ToServer && request_type(frame) == Some(kind) && asked.load(Ordering::SeqCst) == 0 {
            asked.store(xid(frame), Ordering::SeqCst);
        } else if way == Direction::ToClient && xid(frame) == asked.load(Ordering::SeqCst) && xid(frame) > 0 && !done {
            done = true;
            rewrite(frame);
        }
        Verdict::Forward
    });
}

/// A server that creates sessions and then calls `then` with each connection. Returns its address and its number of
/// connections.
fn faulty_server(then: impl Fn(TcpStream) + Send + Sync + Clone + 'static) -> (String, Arc<AtomicUsize>) {
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
