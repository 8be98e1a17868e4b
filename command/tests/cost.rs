//! The requests that a call costs, from its first connection to its end.

use std::sync::{Arc, Mutex};

use zklock_test_support::{Direction, Proxy, Verdict, ZooKeeper};

use crate::common::{path, zklock, zklock_on};

/// The types of requests, with ZooKeeper's numbers. The connect request has no type.
const PING: i32 = 11;
const READ: i32 = 4;
const SYNC: i32 = 9;
const LIST: i32 = 12;
const CREATE: i32 = 15;
const CREATE_CONTAINER: i32 = 19;
const CLOSE: i32 = -11;

/// The exit code of a call that has had no answer in time.
const UNAVAILABLE: i32 = 69;

/// Runs a call, and returns its exit code and the types of its requests. Leaves out heartbeats, which depend on the
/// speed of the machine, and the creates of missing directories, which the client sends in one write with the create of
/// the lock node.
fn requests(arguments: &[&str]) -> (Option<i32>, Vec<i32>) {
    // On a busy machine the server may be silent for longer than a call waits for it. Such an attempt does not count.
    let mut attempts = (0..5).map(|_| requests_of_one_attempt(arguments));
    attempts.find(|(code, _)| *code != Some(UNAVAILABLE)).unwrap()
}

fn requests_of_one_attempt(arguments: &[&str]) -> (Option<i32>, Vec<i32>) {
    let proxy = Proxy::start(&ZooKeeper::shared().address());
    let frames = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&frames);
    proxy.hook(move |direction, frame| {
        if direction == Direction::ToServer {
            seen.lock().unwrap().push(frame.clone());
        }
        Verdict::Forward
    });
    let code = zklock_on(&proxy.address(), arguments).output().status.code();
    let frames = frames.lock().unwrap();
    let types = frames.iter().skip(1).map(|frame| i32::from_be_bytes(*frame[4..].first_chunk().unwrap()));
    (code, types.filter(|kind| ![PING, CREATE_CONTAINER].contains(kind)).collect())
}

/// Sync and list are one round trip, as are create and list. With the connect and the close, this makes four.
#[test]
fn a_try_on_a_free_lock_looks_acquires_and_closes() {
    assert_eq!(requests(&["try", &path("free")]), (Some(0), vec![SYNC, LIST, CREATE, LIST, CLOSE]));
}

/// The read shows whether a session owns the node ahead, and who it is.
#[test]
fn a_try_on_a_busy_lock_looks_and_closes() {
    let path = path("busy");
    let holder = zklock(&["run", &path, "sleep", "60"]).start();
    holder.wait_for_tree(1);
    assert_eq!(requests(&["try", "-q", &path]), (Some(75), vec![SYNC, LIST, READ, CLOSE]));
}
