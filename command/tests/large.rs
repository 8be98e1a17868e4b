//! Queues of 100,000 nodes, and nodes with much data. Part of `make verify`, because the server needs much memory.

use std::time::Duration;

use zklock::{Client, Config, Lock, Status};
use zklock_test_support::{RawClient, ZooKeeper, flags, wait_until};

use crate::common::{TEST_TIMEOUT, zklock_on};
use crate::observe::{curator, lock_nodes};

const COUNT: usize = 100_000;

/// Starts a server with enough memory for these nodes.
fn server() -> ZooKeeper {
    ZooKeeper::options().jvm_argument("-Xmx1g").start()
}

/// Runs a call, and returns its exit code and its output.
fn call(server: &ZooKeeper, arguments: &[&str]) -> (Option<i32>, String) {
    let output = zklock_on(&server.address(), arguments).output();
    (output.status.code(), String::from_utf8([output.stdout, output.stderr].concat()).unwrap())
}

/// Returns a mutex of a new client.
fn mutex(server: &ZooKeeper, path: &str) -> Lock {
    let config = Config::new().session_timeout(TEST_TIMEOUT).connect_timeout(TEST_TIMEOUT);
    Client::connect(&server.address(), &config).unwrap().mutex(path).unwrap()
}

fn check_participants(lock: &Lock, expected: usize) {
    match lock.participants() {
        Ok(found) => assert!(found.len() == expected && found[0].holds),
        Err(error) => {
            let message = error.message();
            assert_eq!(error.status(), Status::Exhausted, "{message}");
            assert!(message.contains(&format!("the {expected} nodes need more than 33554432 bytes")), "{message}");
        }
    }
}

#[test]
#[ignore = "part of make verify"]
fn a_queue_of_100_000_nodes_works() {
    let server = server();
    let mut raw = RawClient::connect(&server.address(), 600_000);
    lock_nodes(&mut raw, "/root/beside", &[&curator("lock-")]);
    let crowded = "/root/crowded";
    let (holder, waiter) = (mutex(&server, crowded), mutex(&server, crowded));
    holder.acquire(Some(TEST_TIMEOUT)).unwrap();
    let mut queue = RawClient::connect(&server.address(), 600_000);
    queue.create_many(&format!("{crowded}/{}", curator("lock-")), COUNT, flags::EPHEMERAL_SEQUENTIAL);
    // Several acquires at the same time start a directory cache. A server needs about a second for this list.
    std::thread::scope(|scope| {
        for _ in 0..6 {
            let waiter = &waiter;
            scope.spawn(move || {
                let error = waiter.acquire(Some(Duration::from_secs(5))).unwrap_err();
                assert_eq!(error.status(), Status::Timeout, "{}", error.message());
            });
        }
    });
    wait_until(TEST_TIMEOUT, || raw.stat(crowded).unwrap().children == 100_001);
    check_participants(&waiter, COUNT + 1);

    assert_eq!(call(&server, &["run", "-w", "5s", crowded, "true"]).0, Some(75));
    assert_eq!(call(&server, &["wait", "-w", "5s", crowded]).0, Some(75));
    for verb in [&["ls", "/root"][..], &["ls", "--json", "/root"], &["top", "-n", "1", "/root"]] {
        let (code, text) = call(&server, verb);
        assert!(code == Some(0) && text.contains("10.0.0.7") && text.contains("100000"), "{verb:?}: {code:?} {text}");
    }
    let (code, text) = call(&server, &["status", crowded]);
    assert!(code == Some(0) && text.starts_with("/root/crowded: mutex, 1 holder, 100000 waiting\n"), "{code:?} {text}");
    for path in ["/root", crowded] {
        let (code, text) = call(&server, &["doctor", path]);
        assert_eq!(code, Some(0), "{text}");
    }

    holder.release().unwrap();
    wait_until(TEST_TIMEOUT, || raw.stat(crowded).unwrap().children == 100_000);
    check_participants(&waiter, COUNT);
    let waiting = std::thread::spawn(move || waiter.acquire(Some(TEST_TIMEOUT)));
    wait_until(TEST_TIMEOUT, || raw.stat(crowded).unwrap().children == 100_001);
    queue.close();
    waiting.join().unwrap().unwrap();
}

/// The program requests the nodes of 64 participants at the same time, and keeps only what it prints.
#[test]
#[ignore = "part of make verify"]
fn the_largest_nodes_need_less_than_64_mb() {
    let server = server();
    let mut raw = RawClient::connect(&server.address(), 600_000);
    lock_nodes(&mut raw, "/large", &[]);
    for _ in 0..80 {
        let node = format!("/large/{}", curator("lock-"));
        raw.create(&node, &[b'x'; 1_000_000], flags::EPHEMERAL_SEQUENTIAL).unwrap();
    }
    let limited = "ulimit -d 65536 && exec \"$0\" \"$@\"";
    let arguments = ["-c", limited, env!("CARGO_BIN_EXE_zklock"), "status", "/large"];
    let output = crate::common::program("sh", &arguments).env("ZKLOCK_SERVERS", &server.address()).output();
    let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    assert!(output.status.success() && text.contains("1 holder, 79 waiting"), "{text}");
}
