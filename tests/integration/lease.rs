//! The session lease (rule 2): which replies prove that a session is alive, which do not, and the effect on holds.

use std::thread;
use std::time::{Duration, Instant};

use crate::common::{
    OwnerCalls as _, TEST_TIMEOUT, assert_not_late, client, client_with, path, queue, raw, status, timed,
};
use zklock::{LockState, Owner, Status};
use zklock_test_support::{Direction, Proxy, Verdict, ZooKeeper, flags, is_connect_request, wait_until};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const MULTI: i32 = 14;

/// An isolated leader continues to answer pings, reads, syncs and handshakes, while the other servers elect a new
/// leader that expires the session. In this test, a server answers everything but transactions.
#[test]
fn only_quorum_commits_extend_the_lease() {
    let server = ZooKeeper::shared();
    let proxy = Proxy::start(&server.address());
    let client = client_with(&proxy.address(), 6 * SECOND);
    let lock = client.mutex(&path("quorum")).unwrap();
    lock.acquire(None).unwrap();
    proxy.hook(|way, frame: &mut Vec<u8>| {
        let transaction = way == Direction::ToServer && frame.get(4..8) == Some(&MULTI.to_be_bytes());
        if transaction { Verdict::Drop } else { Verdict::Forward }
    });
    let start = Instant::now();
    wait_until(TEST_TIMEOUT, || lock.state().unwrap() == LockState::Uncertain);
    // The lease ends after two thirds of the session timeout.
    assert_not_late(start.elapsed(), 4 * SECOND);
    assert!(!lock.is_held().unwrap());
    assert!(proxy.accepted_count() > 1, "the client reconnected meanwhile, which is no proof");
    proxy.unhook();
    wait_until(TEST_TIMEOUT, || lock.state().unwrap() == LockState::Held);
    lock.release().unwrap();
}

#[test]
fn a_shorter_timeout_after_a_reconnect_shortens_the_lease() {
    let server = ZooKeeper::shared();
    let proxy = Proxy::start(&server.address());
    let client = client_with(&proxy.address(), 12 * SECOND);
    let lock = client.mutex(&path("shorter")).unwrap();
    lock.acquire(None).unwrap();
    assert!(lock.remaining().unwrap() > 6 * SECOND);
    // The server seems to allow no longer session timeout.
    proxy.hook(|way, frame: &mut Vec<u8>| {
        if way == Direction::ToServer && is_connect_request(frame) {
            frame[12..16].copy_from_slice(&3000_i32.to_be_bytes());
        }
        Verdict::Forward
    });
    proxy.cut();
    wait_until(TEST_TIMEOUT, || proxy.accepted_count() > 1 && lock.state().unwrap() == LockState::Held);
    assert!(lock.remaining().unwrap() <= 2 * SECOND);
    lock.release().unwrap();
}

#[test]
fn refused_requests_do_not_take_the_place_of_heartbeats() {
    let server = ZooKeeper::shared();
    let (holds, ephemeral, mut raw) =
        (path("beats"), path("ephemeral").replace("/ephemeral", "-ephemeral"), raw(server));
    // An ephemeral node cannot have children, so every acquire below it is a transaction that fails and proves nothing.
    raw.create(&ephemeral, b"", flags::EPHEMERAL).unwrap();
    let client = client_with(&server.address(), 12 * SECOND);
    let (held, refused) = (client.mutex(&holds).unwrap(), client.mutex(&ephemeral).unwrap());
    held.acquire(None).unwrap();
    let (mut left, mut extensions) = (held.remaining().unwrap(), 0);
    // Only a heartbeat can extend the lease.
    wait_until(TEST_TIMEOUT, || {
        assert_eq!(status(refused.acquire(Some(TEST_TIMEOUT))), Status::Server);
        let before = std::mem::replace(&mut left, held.remaining().unwrap());
        extensions += usize::from(left > before);
        extensions == 2
    });
    assert!(held.is_held().unwrap());
    held.release().unwrap();
}

#[test]
fn waiter_is_granted_with_a_valid_lease() {
    let server = ZooKeeper::shared();
    let path = path("turn");
    let (one, two) = (client(&server.address()), client_with(&server.address(), 6 * SECOND));
    let (held, waiting) = (one.mutex(&path).unwrap(), two.mutex(&path).unwrap());
    // The lease becomes shorter while the machine stalls, so an attempt counts only if the machine did not stall.
    wait_until(TEST_TIMEOUT, || {
        held.acquire(Some(TEST_TIMEOUT)).unwrap();
        thread::scope(|scope| {
            let waiter = scope.spawn(|| {
                waiting.acquire(Some(TEST_TIMEOUT)).unwrap();
                (waiting.remaining().unwrap_or_default(), waiting.release())
            });
            // This is longer than a session lease without proof.
            let stall = longest_stall_during(4500 * MS);
            let ((left, released), took) = timed(|| {
                held.release().unwrap();
                waiter.join().unwrap()
            });
            // A waiter extends the lease of 4 s every 2 s, so at least 2 s are left.
            let counts = stall + took < 800 * MS;
            assert!(!counts || (left > SECOND && released.is_ok()), "{left:?}, {released:?} after {took:?}");
            counts
        })
    });
}

/// Sleeps for `duration`, and returns the longest delay of a wake-up.
fn longest_stall_during(duration: Duration) -> Duration {
    let (start, step) = (Instant::now(), 10 * MS);
    let mut longest = Duration::ZERO;
    while start.elapsed() < duration {
        let ((), took) = timed(|| thread::sleep(step));
        longest = longest.max(took.saturating_sub(step));
    }
    longest
}

#[test]
fn reentry_into_an_uncertain_hold_waits_until_it_is_resolved() {
    let server = ZooKeeper::start();
    let client = client_with(&server.address(), 12 * SECOND);
    let lock = client.mutex(&path("re-entry")).unwrap();
    let task = Owner::task(7);
    lock.acquire_as(task, None).unwrap();
    server.pause();
    wait_until(TEST_TIMEOUT, || lock.state_as(task).unwrap() == LockState::Uncertain);
    assert_eq!(status(lock.start_acquire(task, Some(100 * MS)).unwrap().wait()), Status::Connection);
    let again = lock.start_acquire(task, None).unwrap();
    assert!(again.wait_for(100 * MS).is_none());
    thread::scope(|scope| {
        let release = scope.spawn(|| lock.release_as(task));
        wait_until(TEST_TIMEOUT, || lock.state_as(task).unwrap() == LockState::Free);
        server.resume();
        release.join().unwrap().unwrap();
    });
    again.wait().unwrap().leave_to_owner();
    lock.release_as(task).unwrap();
}

#[test]
fn node_deleted_during_disconnection_reports_lost() {
    let server = ZooKeeper::shared();
    let (path, mut raw) = (path("deleted-unseen"), raw(server));
    let proxy = Proxy::start(&server.address());
    let client = client(&proxy.address());
    let lock = client.mutex(&path).unwrap();
    lock.acquire(None).unwrap();
    proxy.refuse(true);
    proxy.cut();
    wait_until(TEST_TIMEOUT, || lock.state().unwrap() == LockState::Suspended);
    let node = queue(&mut raw, &path).remove(0);
    assert_eq!(raw.delete(&format!("{path}/{node}")), 0);
    thread::scope(|scope| {
        scope.spawn(|| {
            wait_until(TEST_TIMEOUT, || lock.state_in_process().unwrap() == LockState::Free);
            proxy.refuse(false);
        });
        assert_eq!(status(lock.release()), Status::Lost);
    });
}
