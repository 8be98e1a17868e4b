//! Counts: Curator's `SharedCount`, and semaphores that go by one.

use std::thread;
use std::time::Duration;

use zklock::Status;
use zklock_rig::{ZooKeeper, wait_until};

use crate::common::{SOON, client, path, raw, status};

const NOW: Option<Duration> = Some(Duration::ZERO);

#[test]
fn four_bytes_as_curator_has_them() {
    let server = ZooKeeper::shared();
    let (path, client, mut raw) = (path("count"), client(&server.address()), raw(server));
    assert_eq!(status(client.get_count(&path)), Status::Server);
    client.set_count(&path, 2).unwrap();
    assert_eq!(raw.data(&path).unwrap(), [0, 0, 0, 2]);
    assert_eq!(raw.stat(&path).unwrap().ephemeral_owner, 0, "it stays");
    for value in [-1, i32::MIN, i32::MAX, 0x0102_0304] {
        client.set_count(&path, value).unwrap();
        assert_eq!(raw.data(&path).unwrap(), value.to_be_bytes());
        assert_eq!(client.get_count(&path).unwrap(), value);
    }
    for not_a_count in [&b""[..], b"3", b"12345"] {
        assert_eq!(raw.set_data(&path, not_a_count), 0);
        let error = client.get_count(&path).unwrap_err();
        assert_eq!(error.status(), Status::Invalid);
        assert!(error.message().contains(&path) && error.message().contains("is no count"), "{error}");
    }
    assert_eq!(status(client.set_count("no/path", 1)), Status::Invalid);
}

/// Curator: `TestSharedCount.testMultiClientDifferentSeed`.
#[test]
fn the_first_seed_stays() {
    let server = ZooKeeper::shared();
    let (count, client) = (path("seed"), client(&server.address()));
    let _first = client.counted_semaphore(&path("a"), &count, 3).unwrap();
    let _second = client.counted_semaphore(&path("b"), &count, 4).unwrap();
    assert_eq!(client.get_count(&count).unwrap(), 3);
}

/// Curator: `TestInterProcessSemaphore.testThreadedLeaseIncrease`.
#[test]
fn raising_it_lets_a_waiter_in() {
    let server = ZooKeeper::shared();
    let (path, count) = (path("raise"), path("raise-count"));
    let (one, two) = (client(&server.address()), client(&server.address()));
    let semaphore = one.counted_semaphore(&path, &count, 1).unwrap();
    let held = semaphore.acquire(1, Some(SOON)).unwrap();
    thread::scope(|scope| {
        let waiter = scope.spawn(|| semaphore.acquire(1, Some(SOON)).unwrap());
        wait_until(SOON, || semaphore.participants().unwrap().len() == 2);
        two.set_count(&count, 2).unwrap();
        let second = waiter.join().unwrap();
        assert!(held.is_held().unwrap() && second.is_held().unwrap());
    });
}

#[test]
fn lowering_it_takes_nothing_away_and_keeps_others_out() {
    let server = ZooKeeper::shared();
    let (path, count, client) = (path("lower"), path("lower-count"), client(&server.address()));
    let semaphore = client.counted_semaphore(&path, &count, 3).unwrap();
    let leases = semaphore.acquire(3, Some(SOON)).unwrap();
    client.set_count(&count, 1).unwrap();
    assert!(leases.is_held().unwrap());
    assert_eq!(semaphore.participants().unwrap().iter().filter(|seen| seen.holds).count(), 3, "they hold all the same");
    leases.release().unwrap();
    let one = semaphore.acquire(1, Some(SOON)).unwrap();
    assert_eq!(semaphore.acquire(1, NOW).err().unwrap().status(), Status::Timeout);
    let holds: Vec<bool> = semaphore.participants().unwrap().iter().map(|seen| seen.holds).collect();
    assert_eq!(holds, [true]);
    drop(one);
}

/// Who wants more than there are waits until there are, and keeps nobody else waiting.
#[test]
fn who_wants_more_than_there_are_does_not_stand_in_the_way() {
    let server = ZooKeeper::shared();
    let (path, count, client) = (path("large"), path("large-count"), client(&server.address()));
    let semaphore = client.counted_semaphore(&path, &count, 2).unwrap();
    assert_eq!(semaphore.acquire(3, NOW).err().unwrap().status(), Status::Timeout);
    thread::scope(|scope| {
        let large = scope.spawn(|| semaphore.acquire(3, Some(SOON)).unwrap());
        for _ in 0..5 {
            semaphore.acquire(2, Some(SOON)).unwrap().release().unwrap();
        }
        client.set_count(&count, 3).unwrap();
        assert_eq!(large.join().unwrap().quantity(), 3);
        // Zero closes the pool for a while.
        client.set_count(&count, 0).unwrap();
        let next = scope.spawn(|| semaphore.acquire(1, Some(SOON)).unwrap());
        assert_eq!(semaphore.acquire(1, NOW).err().unwrap().status(), Status::Timeout);
        client.set_count(&count, 1).unwrap();
        next.join().unwrap();
    });
}

#[test]
fn a_count_that_is_lowered_while_somebody_waits_for_more() {
    let server = ZooKeeper::shared();
    let (path, count, client) = (path("lowered"), path("lowered-count"), client(&server.address()));
    let semaphore = client.counted_semaphore(&path, &count, 2).unwrap();
    let held = semaphore.acquire(1, Some(SOON)).unwrap();
    thread::scope(|scope| {
        let both = scope.spawn(|| semaphore.acquire(2, Some(SOON)).unwrap());
        wait_until(SOON, || semaphore.participants().unwrap().len() == 3);
        client.set_count(&count, 1).unwrap();
        // It steps back, so that one who wants one is next.
        wait_until(SOON, || semaphore.participants().unwrap().len() == 1);
        held.release().unwrap();
        semaphore.acquire(1, Some(SOON)).unwrap().release().unwrap();
        client.set_count(&count, 2).unwrap();
        both.join().unwrap().release().unwrap();
    });
}

#[test]
fn a_count_that_is_none_is_an_error_of_who_waits() {
    let server = ZooKeeper::shared();
    let (path, count) = (path("none"), path("none-count"));
    let (client, mut raw) = (client(&server.address()), raw(server));
    let semaphore = client.counted_semaphore(&path, &count, 1).unwrap();
    let held = semaphore.acquire(1, Some(SOON)).unwrap();
    thread::scope(|scope| {
        let waiter = scope.spawn(|| semaphore.acquire(1, Some(SOON)));
        wait_until(SOON, || semaphore.participants().unwrap().len() == 2);
        assert_eq!(raw.set_data(&count, b"lots!"), 0);
        let error = waiter.join().unwrap().err().unwrap();
        assert!(matches!(error.status(), Status::Invalid), "{error}");
    });
    held.release().unwrap();
    // A node that was deleted is made again, as it was made first.
    assert_eq!(raw.delete(&count), 0);
    semaphore.acquire(1, Some(SOON)).unwrap().release().unwrap();
    assert_eq!(client.get_count(&count).unwrap(), 1);
}
