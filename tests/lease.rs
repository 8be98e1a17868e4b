//! The lease clock (rule 2): what proves that a session is alive, what does not, and what follows for a hold.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test that fails is a test that fails"
)]

mod common;

use std::thread;
use std::time::{Duration, Instant};

use common::{SOON, client, client_with, path, queue, raw, status};
use zklock::{LockState, Owner, Status};
use zklock_rig::{Direction, Proxy, Verdict, ZooKeeper, flags, wait_until};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const MULTI: i32 = 14;

/// A leader that was cut off from its followers goes on answering pings, reads, syncs and handshakes, while the others elect
/// another one, which expires the session. Here a server that answers everything but transactions.
#[test]
fn only_what_a_quorum_committed_keeps_a_hold_safe() {
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
    wait_until(SOON, || lock.state().unwrap() == LockState::Uncertain);
    assert!(start.elapsed() < 5 * SECOND, "two thirds of the timeout: {:?}", start.elapsed());
    assert!(!lock.is_held().unwrap());
    assert!(proxy.connections() > 1, "it was connected again meanwhile, which proved nothing");
    proxy.unhook();
    wait_until(SOON, || lock.state().unwrap() == LockState::Held);
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
    // As from a server that allows no longer one.
    proxy.hook(|way, frame: &mut Vec<u8>| {
        if way == Direction::ToServer && frame.len() == 45 {
            frame[12..16].copy_from_slice(&3000_i32.to_be_bytes());
        }
        Verdict::Forward
    });
    proxy.cut();
    wait_until(SOON, || proxy.connections() > 1 && lock.state().unwrap() == LockState::Held);
    assert!(lock.remaining().unwrap() <= 2 * SECOND);
    lock.release().unwrap();
}

#[test]
fn refused_requests_do_not_take_the_place_of_heartbeats() {
    let server = ZooKeeper::shared();
    let (holds, ephemeral, mut raw) =
        (path("beats"), path("ephemeral").replace("/ephemeral", "-ephemeral"), raw(server));
    // No node can be made below it, so every try is a transaction that proves nothing.
    raw.create(&ephemeral, b"", flags::EPHEMERAL).unwrap();
    let client = client_with(&server.address(), 3 * SECOND);
    let (held, refused) = (client.mutex(&holds).unwrap(), client.mutex(&ephemeral).unwrap());
    held.acquire(None).unwrap();
    let start = Instant::now();
    while start.elapsed() < 4 * SECOND {
        assert_eq!(status(refused.acquire(Some(SECOND))), Status::Server);
        assert!(held.is_held().unwrap(), "after {:?}", start.elapsed());
        thread::sleep(20 * MS);
    }
    held.release().unwrap();
}

#[test]
fn a_waiter_has_a_running_lease_when_its_turn_comes() {
    let server = ZooKeeper::shared();
    let path = path("turn");
    let (one, two) = (client(&server.address()), client_with(&server.address(), 3 * SECOND));
    let (held, waiting) = (one.mutex(&path).unwrap(), two.mutex(&path).unwrap());
    held.acquire(None).unwrap();
    thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            waiting.acquire(Some(SOON)).unwrap();
            assert!(waiting.remaining().unwrap() > 500 * MS);
            waiting.release().unwrap();
        });
        // Longer than a lease lasts without a proof.
        thread::sleep(3500 * MS);
        held.release().unwrap();
        waiter.join().unwrap();
    });
}

#[test]
fn re_entry_waits_while_a_hold_is_uncertain_and_goes_on_when_it_was_released() {
    let server = ZooKeeper::start();
    let client = client_with(&server.address(), 3 * SECOND);
    let lock = client.mutex(&path("re-entry")).unwrap();
    let task = Owner::Custom(7);
    lock.start_acquire(task, None).unwrap().wait().unwrap();
    server.pause();
    wait_until(SOON, || lock.state().unwrap() == LockState::Uncertain);
    assert_eq!(status(lock.start_acquire(task, Some(100 * MS)).unwrap().wait()), Status::Connection);
    let again = lock.start_acquire(task, None).unwrap();
    assert!(again.wait_for(100 * MS).is_none());
    thread::scope(|scope| {
        let release = scope.spawn(|| lock.release_as(task));
        wait_until(SOON, || lock.state().unwrap() == LockState::Free);
        server.resume();
        release.join().unwrap().unwrap();
    });
    again.wait().unwrap();
    lock.release_as(task).unwrap();
}

#[test]
fn a_node_deleted_while_its_holder_was_cut_off_is_a_lost_hold() {
    let server = ZooKeeper::shared();
    let (path, mut raw) = (path("deleted-unseen"), raw(server));
    let proxy = Proxy::start(&server.address());
    let client = client(&proxy.address());
    let lock = client.mutex(&path).unwrap();
    lock.acquire(None).unwrap();
    proxy.refuse(true);
    proxy.cut();
    wait_until(SOON, || lock.state().unwrap() == LockState::Suspended);
    let node = queue(&mut raw, &path).remove(0);
    assert_eq!(raw.delete(&format!("{path}/{node}")), 0);
    thread::scope(|scope| {
        scope.spawn(|| {
            wait_until(SOON, || lock.state().unwrap() == LockState::Free);
            proxy.refuse(false);
        });
        assert_eq!(status(lock.release()), Status::Lost);
    });
}
