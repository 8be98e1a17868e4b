//! Helpers of the integration tests: clients of a real server, and paths that belong to one test.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic, reason = "a failing test may panic")]
#![allow(dead_code, unused_imports, reason = "each test binary uses only a part of this module")]

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use zklock::{Client, Config, Hold, HoldView, Lock, LockState, Owner, Result, Status};
use zklock_test_support::{RawClient, ZooKeeper, flags, wait_until};
pub(crate) use zklock_test_support::{
    TEST_TIMEOUT, assert_not_late, limits_are_exact, path, queue, slack, wait_for_queue,
};

/// The session timeout of a client whose session must survive a busy machine.
pub(crate) const LONG_SESSION: Duration = Duration::from_secs(20);

/// A server that all tests of the program share, and that does not delete empty directories during a test.
pub(crate) fn server_without_sweeps() -> &'static ZooKeeper {
    static SERVER: OnceLock<ZooKeeper> = OnceLock::new();
    SERVER.get_or_init(|| ZooKeeper::options().container_sweep_ms(3_600_000).start())
}

pub(crate) fn client(servers: &str) -> Client {
    Client::connect(servers, &Config::new().connect_timeout(TEST_TIMEOUT)).unwrap()
}

pub(crate) fn client_with(servers: &str, session_timeout: Duration) -> Client {
    let config = Config::new().session_timeout(session_timeout).connect_timeout(TEST_TIMEOUT);
    Client::connect(servers, &config).unwrap()
}

/// Creates a lock directory that the server does not delete, so that the next acquire needs only one round trip.
pub(crate) fn create_directory(server: &ZooKeeper, path: &str) {
    raw(server).create_with_ancestors(path, b"", flags::PERSISTENT).unwrap();
}

pub(crate) fn raw(server: &ZooKeeper) -> RawClient {
    RawClient::connect(&server.address(), 60_000)
}

pub(crate) fn status<T: std::fmt::Debug>(result: Result<T>) -> Status {
    result.unwrap_err().status()
}

#[track_caller]
pub(crate) fn wait_for_waiters(lock: &Lock, count: usize) {
    wait_until(TEST_TIMEOUT, || lock.participants().is_ok_and(|found| found.len() == count));
}

/// Asserts that a call returns at its time limit, and never before it. If the limits are exact, the call must return at
/// most 100 ms after its limit. Several attempts are allowed, because a busy machine may delay a thread.
#[track_caller]
pub(crate) fn assert_ends_at_limit<T>(limit: Duration, mut call: impl FnMut() -> T) -> T {
    let tolerance = if limits_are_exact() { Duration::from_millis(100) } else { slack() };
    let mut times = Vec::new();
    for _ in 0..5 {
        let (result, took) = timed(&mut call);
        assert!(took >= limit, "{limit:?}: too early, after {took:?}");
        if took <= limit + tolerance {
            return result;
        }
        times.push(took);
    }
    panic!("{limit:?}: too late every time, after {times:?}");
}

/// Asserts that an acquire fails with TIMEOUT at its time limit. If the server owes the client an answer at that time,
/// the acquire fails with CONNECTION instead, and is tried again.
#[track_caller]
pub(crate) fn assert_times_out<T: std::fmt::Debug>(limit: Duration, mut acquire: impl FnMut(Duration) -> Result<T>) {
    let mut last = None;
    wait_until(TEST_TIMEOUT, || {
        last = Some(status(assert_ends_at_limit(limit, || acquire(limit))));
        last != Some(Status::Connection)
    });
    assert_eq!(last, Some(Status::Timeout));
}

/// Runs `work` and returns its result and its duration.
pub(crate) fn timed<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    let start = Instant::now();
    let result = work();
    (result, start.elapsed())
}

/// Calls for an owner that is not the calling thread, for tests in which one thread acts for many owners.
pub(crate) trait OwnerCalls {
    fn acquire_as(&self, owner: Owner, timeout: Option<Duration>) -> Result<()>;
    fn release_as(&self, owner: Owner) -> Result<()>;
    fn is_held_as(&self, owner: Owner) -> Result<bool>;
    fn state_as(&self, owner: Owner) -> Result<LockState>;
    fn fencing_token_as(&self, owner: Owner) -> Result<i64>;
    fn fencing_pass_as(&self, owner: Owner) -> Result<u32>;
    fn wait_lost_as(&self, owner: Owner, timeout: Option<Duration>) -> Result<bool>;
}

impl OwnerCalls for Lock {
    fn acquire_as(&self, owner: Owner, timeout: Option<Duration>) -> Result<()> {
        self.hold_as(owner, timeout).map(Hold::leave_to_owner).map(drop)
    }

    fn release_as(&self, owner: Owner) -> Result<()> {
        self.start_release(owner, true)?.wait()
    }

    fn is_held_as(&self, owner: Owner) -> Result<bool> {
        Ok(self.view(owner)?.is_some_and(HoldView::is_safe))
    }

    fn state_as(&self, owner: Owner) -> Result<LockState> {
        Ok(self.view(owner)?.map_or(LockState::Free, |view| view.state))
    }

    fn fencing_token_as(&self, owner: Owner) -> Result<i64> {
        Ok(self.live_view(owner)?.token)
    }

    fn fencing_pass_as(&self, owner: Owner) -> Result<u32> {
        Ok(self.live_view(owner)?.fencing_pass)
    }

    fn wait_lost_as(&self, owner: Owner, timeout: Option<Duration>) -> Result<bool> {
        let wait = self.start_wait_lost(owner)?;
        wait.wait_for(timeout.unwrap_or(Duration::MAX)).map_or(Ok(false), |ended| ended.map(|()| true))
    }
}
