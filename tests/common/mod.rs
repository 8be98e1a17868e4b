//! What the integration tests share: clients of a real server, and paths that belong to one test.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test that fails is a test that fails"
)]
#![allow(dead_code, reason = "each test binary uses its own part")]

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use zklock::{Client, Config, Lock, Result, Status};
use zklock_rig::{Raw, ZooKeeper, wait_until};

/// Long enough for anything that should happen at once, also on a loaded machine.
pub(crate) const SOON: Duration = Duration::from_secs(20);

pub(crate) fn client(servers: &str) -> Client {
    Client::connect(servers, &Config::new()).unwrap()
}

pub(crate) fn client_with(servers: &str, session_timeout: Duration) -> Client {
    let mut config = Config::new();
    config.set_session_timeout(session_timeout).unwrap();
    Client::connect(servers, &config).unwrap()
}

/// A path that no other test uses.
pub(crate) fn path(name: &str) -> String {
    static LAST: AtomicU32 = AtomicU32::new(0);
    format!("/test-{}/{name}-{}", std::process::id(), LAST.fetch_add(1, Ordering::Relaxed))
}

pub(crate) fn raw(server: &ZooKeeper) -> Raw {
    Raw::connect(&server.address(), 60_000)
}

pub(crate) fn status<T: std::fmt::Debug>(result: Result<T>) -> Status {
    result.unwrap_err().status()
}

/// The lock nodes in a directory, in the order of the queue.
pub(crate) fn queue(raw: &mut Raw, path: &str) -> Vec<String> {
    let mut nodes = raw.children(path).unwrap_or_default();
    nodes.sort_by_key(|name| name.rsplit('-').next().map(str::to_owned));
    nodes
}

/// Waits until so many nodes stand in the directory.
#[track_caller]
pub(crate) fn wait_for_queue(raw: &mut Raw, path: &str, length: usize) {
    wait_until(SOON, || queue(raw, path).len() == length);
}

#[track_caller]
pub(crate) fn wait_for_waiters(lock: &Lock, count: usize) {
    wait_until(SOON, || lock.participants().is_ok_and(|found| found.len() == count));
}

/// Checks that a call ends at its limit: never early, and in time, but for the odd moment in which the machine did not run it.
#[track_caller]
pub(crate) fn ends_at<T>(limit: Duration, mut call: impl FnMut() -> T) -> T {
    const LATE: Duration = Duration::from_millis(100);
    let mut times = Vec::new();
    for _ in 0..5 {
        let (result, took) = timed(&mut call);
        assert!(took >= limit, "{limit:?}: early, after {took:?}");
        if took <= limit + LATE {
            return result;
        }
        times.push(took);
    }
    panic!("{limit:?}: late every time, after {times:?}");
}

/// How long it takes.
pub(crate) fn timed<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    let start = Instant::now();
    let result = work();
    (result, start.elapsed())
}
