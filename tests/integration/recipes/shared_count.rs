//! Counts: Curator's `SharedCount`, and semaphores whose maximum is a count.

use std::thread;
use std::time::Duration;

use zklock::Status;
use zklock_test_support::{ZooKeeper, wait_until};

use crate::common::{TEST_TIMEOUT, client, path, raw, status};

const TRY_ONCE: Option<Duration> = Some(Duration::ZERO);

#[test]
fn count_is_stored_as_four_bytes_like_curator() {
    let server = ZooKeeper::shared();
    let (path, client, mut raw) = (path("count"), client(&server.address()), raw(server));
    assert_eq!(status(client.shared_count_get(&path)), Status::Server);
    client.shared_count_set(&path, 2).unwrap();
    assert_eq!(raw.data(&path).unwrap(), [0, 0, 0, 2]);
    assert_eq!(raw.stat(&path).unwrap().ephemeral_owner, 0, "the value stays the same");
    for value in [-1, i32::MIN, i32::MAX, 0x0102_0304] {
        client.shared_count_set(&path, value).unwrap();
        assert_eq!(raw.data(&path).unwrap(), value.to_be_bytes());
        assert_eq!(client.shared_count_get(&path).unwrap(), value);
    }
    for not_a_count in [&b""[..], b"3", b"12345"] {
        assert_eq!(raw.set_data(&path, not_a_count), 0);
        let error = client.shared_count_get(&path).unwrap_err();
        assert_eq!(error.status(), Status::Invalid);
        assert!(
            error.message().contains(&path) && error.message().contains("expected the 4 bytes of a SharedCount"),
            "{error}"
        );
    }
    assert_eq!(status(client.shared_count_set("no/path", 1)), Status::Invalid);
}

/// Curator: `TestSharedCount.testMultiClientDifferentSeed`.
#[test]
fn first_initial_value_is_kept() {
    let server = ZooKeeper::shared();
    let (count, client) = (path("seed"), client(&server.address()));
    let _first = client.semaphore_counted(&path("a"), &count, 3).unwrap();
    let _second = client.semaphore_counted(&path("b"), &count, 4).unwrap();
    assert_eq!(client.shared_count_get(&count).unwrap(), 3);
}

/// Curator: `TestInterProcessSemaphore.testThreadedLeaseIncrease`.
#[test]
fn raised_count_admits_a_waiter() {
    let server = ZooKeeper::shared();
    let (path, count) = (path("raise"), path("raise-count"));
    let (one, two) = (client(&server.address()), client(&server.address()));
    let semaphore = one.semaphore_counted(&path, &count, 1).unwrap();
    let held = semaphore.acquire(1, Some(TEST_TIMEOUT)).unwrap();
    thread::scope(|scope| {
        let waiter = scope.spawn(|| semaphore.acquire(1, Some(TEST_TIMEOUT)).unwrap());
        wait_until(TEST_TIMEOUT, || semaphore.participants().unwrap().len() == 2);
        two.shared_count_set(&count, 2).unwrap();
        let second = waiter.join().unwrap();
        assert!(held.is_held().unwrap() && second.is_held().unwrap());
    });
}

#[test]
fn lowered_count_keeps_holders_and_blocks_new_acquires() {
    let server = ZooKeeper::shared();
    let (path, count, client) = (path("lower"), path("lower-count"), client(&server.address()));
    let semaphore = client.semaphore_counted(&path, &count, 3).unwrap();
    let leases = semaphore.acquire(3, Some(TEST_TIMEOUT)).unwrap();
    client.shared_count_set(&count, 1).unwrap();
    assert!(leases.is_held().unwrap());
    assert_eq!(
        semaphore.participants().unwrap().iter().filter(|seen| seen.holds).count(),
        3,
        "the holders keep their leases"
    );
    leases.release().unwrap();
    let one = semaphore.acquire(1, Some(TEST_TIMEOUT)).unwrap();
    assert_eq!(semaphore.acquire(1, TRY_ONCE).err().unwrap().status(), Status::Timeout);
    let holds: Vec<bool> = semaphore.participants().unwrap().iter().map(|seen| seen.holds).collect();
    assert_eq!(holds, [true]);
    drop(one);
}

/// An acquire that requests more leases than exist waits until the count is large enough, and does not delay other
/// acquires.
#[test]
fn request_above_the_count_does_not_block_others() {
    let server = ZooKeeper::shared();
    let (path, count, client) = (path("large"), path("large-count"), client(&server.address()));
    let semaphore = client.semaphore_counted(&path, &count, 2).unwrap();
    assert_eq!(semaphore.acquire(3, TRY_ONCE).err().unwrap().status(), Status::Timeout);
    thread::scope(|scope| {
        let large = scope.spawn(|| semaphore.acquire(3, Some(TEST_TIMEOUT)).unwrap());
        for _ in 0..5 {
            semaphore.acquire(2, Some(TEST_TIMEOUT)).unwrap().release().unwrap();
        }
        client.shared_count_set(&count, 3).unwrap();
        assert_eq!(large.join().unwrap().quantity(), 3);
        // A count of zero closes the pool for a while.
        client.shared_count_set(&count, 0).unwrap();
        let next = scope.spawn(|| semaphore.acquire(1, Some(TEST_TIMEOUT)).unwrap());
        assert_eq!(semaphore.acquire(1, TRY_ONCE).err().unwrap().status(), Status::Timeout);
        client.shared_count_set(&count, 1).unwrap();
        drop(next.join().unwrap());
    });
}

#[test]
fn count_lowered_during_a_wait_is_respected() {
    let server = ZooKeeper::shared();
    let (path, count, client) = (path("lowered"), path("lowered-count"), client(&server.address()));
    let semaphore = client.semaphore_counted(&path, &count, 2).unwrap();
    let held = semaphore.acquire(1, Some(TEST_TIMEOUT)).unwrap();
    thread::scope(|scope| {
        let both = scope.spawn(|| semaphore.acquire(2, Some(TEST_TIMEOUT)).unwrap());
        wait_until(TEST_TIMEOUT, || semaphore.participants().unwrap().len() == 3);
        client.shared_count_set(&count, 1).unwrap();
        // The large acquire leaves the queue, so that an acquire of one lease is next.
        wait_until(TEST_TIMEOUT, || semaphore.participants().unwrap().len() == 1);
        held.release().unwrap();
        semaphore.acquire(1, Some(TEST_TIMEOUT)).unwrap().release().unwrap();
        client.shared_count_set(&count, 2).unwrap();
        both.join().unwrap().release().unwrap();
    });
}

#[test]
fn malformed_count_fails_the_waiter_with_invalid_and_keeps_the_holder() {
    let server = ZooKeeper::shared();
    let (path, count) = (path("none"), path("none-count"));
    let (client, mut raw) = (client(&server.address()), raw(server));
    let semaphore = client.semaphore_counted(&path, &count, 1).unwrap();
    let held = semaphore.acquire(1, Some(TEST_TIMEOUT)).unwrap();
    thread::scope(|scope| {
        let loss = scope.spawn(|| held.wait_lost(Some(TEST_TIMEOUT)));
        let waiter = scope.spawn(|| semaphore.acquire(1, Some(TEST_TIMEOUT)));
        wait_until(TEST_TIMEOUT, || semaphore.participants().unwrap().len() == 2);
        assert_eq!(raw.set_data(&count, b"lots!"), 0);
        let error = waiter.join().unwrap().err().unwrap();
        assert!(matches!(error.status(), Status::Invalid), "{error}");
        // The holder does not need the count, so only its release ends the wait for a loss.
        held.release().unwrap();
        assert_eq!(status(loss.join().unwrap()), Status::NotOwner);
    });
    // A deleted node is created again, as at first.
    assert_eq!(raw.delete(&count), 0);
    semaphore.acquire(1, Some(TEST_TIMEOUT)).unwrap().release().unwrap();
    assert_eq!(client.shared_count_get(&count).unwrap(), 1);
}
