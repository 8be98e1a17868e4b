//! The semaphore: leases, quantities, and the maximum number of leases.

use std::sync::Mutex;
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use zklock::{Client, Hold, LockState, Semaphore, Status};
use zklock_test_support::{RawClient, ZooKeeper, wait_until};

use crate::common::{TEST_TIMEOUT, assert_times_out, client, client_with, path, queue, raw, status, timed};

const SECOND: Duration = Duration::from_secs(1);
const TRY_ONCE: Option<Duration> = Some(Duration::ZERO);

fn semaphore(client: &Client, path: &str, max: i32) -> Semaphore {
    client.semaphore(path, max).unwrap()
}

fn refused(result: zklock::Result<Hold>) -> Status {
    match result {
        Ok(_) => panic!("the semaphore granted leases"),
        Err(error) => error.status(),
    }
}

fn wait_for_leases(raw: &mut RawClient, path: &str, count: usize) {
    wait_until(TEST_TIMEOUT, || queue(raw, &format!("{path}/leases")).len() == count);
}

fn wait_for_empty(raw: &mut RawClient, path: &str) {
    wait_for_leases(raw, path, 0);
    wait_until(TEST_TIMEOUT, || queue(raw, &format!("{path}/locks")).is_empty());
}

/// Curator: `TestInterProcessSemaphore.testSimple` and `testSimple2`.
#[test]
fn acquire_beyond_the_last_lease_times_out() {
    let server = ZooKeeper::shared();
    for max in [1, 3] {
        let (path, client, mut raw) = (path("simple"), client(&server.address()), raw(server));
        let semaphore = semaphore(&client, &path, max);
        let mut leases: Vec<Hold> = (0..max).map(|_| semaphore.acquire(1, TRY_ONCE).unwrap()).collect();
        assert_eq!(refused(semaphore.acquire(1, TRY_ONCE)), Status::Timeout);
        assert_times_out(SECOND, |limit| semaphore.acquire(1, Some(limit)).map(drop));
        leases.pop().unwrap().release().unwrap();
        leases.push(semaphore.acquire(1, Some(TEST_TIMEOUT)).unwrap());
        assert!(leases.is_sorted_by_key(|lease| lease.token()));
        drop(leases);
        wait_for_empty(&mut raw, &path);
    }
}

/// Curator: `TestInterProcessSemaphore.testGetParticipantNodes`.
#[test]
fn participants_list_leases_and_waiters() {
    let server = ZooKeeper::shared();
    let (path, client) = (path("participants"), client(&server.address()));
    let semaphore = semaphore(&client, &path, 3);
    assert_eq!(semaphore.participants().unwrap(), [], "never used");
    semaphore.set_data(Some(b"hello")).unwrap();
    let leases = semaphore.acquire(2, None).unwrap();
    let one = semaphore.acquire(1, None).unwrap();
    assert_eq!(leases.quantity(), 2);
    let seen = semaphore.participants().unwrap();
    assert_eq!(seen.len(), 3);
    assert!(seen.iter().all(|lease| lease.holds && lease.data == b"hello"));
    assert!(seen.iter().all(|lease| lease.session_id == client.session_id().unwrap()));
    let paths: Vec<String> = seen.iter().map(|lease| lease.node_path.clone()).collect();
    assert_eq!(paths, [leases.node_paths().unwrap(), one.node_paths().unwrap()].concat());
    thread::scope(|scope| {
        let waiter = scope.spawn(|| semaphore.acquire(2, Some(TEST_TIMEOUT)).unwrap().release());
        wait_until(TEST_TIMEOUT, || semaphore.participants().unwrap().len() == 5);
        let seen = semaphore.participants().unwrap();
        assert_eq!(seen.iter().map(|seen| seen.holds).collect::<Vec<_>>(), [true, true, true, false, false]);
        leases.release().unwrap();
        waiter.join().unwrap().unwrap();
    });
    assert_eq!(status(leases.release()), Status::NotOwner);
    assert_eq!(leases.state().unwrap(), LockState::Free);
}

#[test]
fn quantities_that_can_never_be() {
    let server = ZooKeeper::shared();
    let client = client(&server.address());
    let semaphore = semaphore(&client, &path("too-many"), 2);
    let (refusal, took) = timed(|| semaphore.acquire(3, None));
    let refusal = refusal.err().unwrap();
    assert_eq!(refusal.status(), Status::Invalid);
    assert!(refusal.message().contains("quantity is 3, but the semaphore has only 2 leases"), "{refusal}");
    assert!(took < TEST_TIMEOUT);
    assert_eq!(refused(semaphore.acquire(0, None)), Status::Invalid);
    for max in [0, -1, i32::MIN] {
        assert_eq!(client.semaphore("/a", max).err().unwrap().status(), Status::Invalid);
    }
    let all = semaphore.acquire(2, TRY_ONCE).unwrap();
    drop(all);
    let many = client.semaphore(&path("a-million"), i32::MAX).unwrap();
    assert_eq!(refused(many.acquire(1_000_000, None)), Status::Invalid, "more than one transaction takes");
}

/// Two clients request both leases. Curator acquires them one by one, so that neither client gets its second lease.
#[test]
fn two_acquires_of_all_leases_do_not_deadlock() {
    let server = ZooKeeper::shared();
    let (path, clients) = (path("both"), [client(&server.address()), client(&server.address())]);
    let served = AtomicUsize::new(0);
    thread::scope(|scope| {
        for client in &clients {
            let (path, served) = (&path, &served);
            scope.spawn(move || {
                let semaphore = semaphore(client, path, 2);
                for _ in 0..500 {
                    semaphore.acquire(2, Some(TEST_TIMEOUT)).unwrap().release().unwrap();
                    served.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
    });
    assert_eq!(served.load(Ordering::SeqCst), 1_000);
}

/// Curator: `TestInterProcessSemaphore.testMaxPerSession`.
#[test]
fn leases_never_exceed_the_maximum() {
    let server = ZooKeeper::shared();
    let (path, out) = (path("max"), AtomicI32::new(0));
    thread::scope(|scope| {
        for seed in 0..6 {
            let (path, out) = (&path, &out);
            scope.spawn(move || {
                let client = client(&server.address());
                let semaphore = semaphore(&client, path, 5);
                for round in 0..15 {
                    let quantity = 1 + (seed * 7 + round * 3) % 5;
                    let leases = semaphore.acquire(quantity, Some(TEST_TIMEOUT)).unwrap();
                    let now = out.fetch_add(quantity, Ordering::SeqCst) + quantity;
                    assert!(now <= 5, "{now} leases are in use");
                    assert!(leases.is_held().unwrap());
                    out.fetch_sub(quantity, Ordering::SeqCst);
                    leases.release().unwrap();
                }
            });
        }
    });
}

/// Curator: `TestInterProcessSemaphore.testRelease1AtATime`.
#[test]
fn single_releases_serve_all_waiters() {
    let server = ZooKeeper::shared();
    let (path, served) = (path("one-at-a-time"), AtomicUsize::new(0));
    let held = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..10 {
            let (path, served, held) = (&path, &served, &held);
            scope.spawn(move || {
                let client = client(&server.address());
                let leases = semaphore(&client, path, 5).acquire(1, Some(TEST_TIMEOUT)).unwrap();
                served.fetch_add(1, Ordering::SeqCst);
                held.lock().unwrap().push(leases);
            });
        }
        wait_until(TEST_TIMEOUT, || held.lock().unwrap().len() == 5);
        assert_eq!(served.load(Ordering::SeqCst), 5, "at most the maximum number of leases");
        for done in 1..=10 {
            let one = held.lock().unwrap().remove(0);
            one.release().unwrap();
            wait_until(TEST_TIMEOUT, || served.load(Ordering::SeqCst) == (5 + done).min(10));
        }
    });
}

/// Curator: `TestInterProcessSemaphore.testReleaseInChunks` and `testThreads`.
#[test]
fn many_threads_share_one_semaphore() {
    let server = ZooKeeper::shared();
    let (path, client, mut raw) = (path("threads"), client(&server.address()), raw(server));
    let (semaphore, out) = (semaphore(&client, &path, 11), AtomicI32::new(0));
    thread::scope(|scope| {
        for at in 0..60 {
            let (semaphore, out) = (&semaphore, &out);
            scope.spawn(move || {
                let quantity = 1 + at % 4;
                let leases = semaphore.acquire(quantity, Some(TEST_TIMEOUT * 3)).unwrap();
                assert!(out.fetch_add(quantity, Ordering::SeqCst) + quantity <= 11);
                out.fetch_sub(quantity, Ordering::SeqCst);
                if at % 2 == 0 { leases.release().unwrap() } else { drop(leases) }
            });
        }
    });
    wait_for_empty(&mut raw, &path);
}

/// Curator: `TestInterProcessSemaphore.testClientClose`.
#[test]
fn client_close_returns_its_leases() {
    let server = ZooKeeper::shared();
    let (path, first, second) = (path("close"), client(&server.address()), client(&server.address()));
    let lease = semaphore(&first, &path, 1).acquire(1, TRY_ONCE).unwrap();
    first.close().unwrap();
    let other = semaphore(&second, &path, 1).acquire(1, Some(TEST_TIMEOUT)).unwrap();
    assert_eq!(status(lease.release()), Status::Closed);
    assert!(other.is_held().unwrap());
}

/// Curator: `TestInterProcessSemaphore.testNoOrphanedNodes`.
#[test]
fn deleted_node_of_a_waiter_is_recreated() {
    let server = ZooKeeper::shared();
    let (path, client, mut raw) = (path("orphan"), client(&server.address()), raw(server));
    let semaphore = semaphore(&client, &path, 1);
    let held = semaphore.acquire(1, TRY_ONCE).unwrap();
    let own = held.node_paths().unwrap().remove(0);
    thread::scope(|scope| {
        let waiter = scope.spawn(|| semaphore.acquire(1, Some(TEST_TIMEOUT)));
        wait_for_leases(&mut raw, &path, 2);
        let directory = format!("{path}/leases");
        let other = |raw: &mut RawClient| {
            let nodes = raw.children(&directory).unwrap_or_default();
            nodes.into_iter().map(|name| format!("{directory}/{name}")).find(|node| *node != own)
        };
        let first = other(&mut raw).unwrap();
        assert_eq!(raw.delete(&first), 0);
        wait_until(TEST_TIMEOUT, || other(&mut raw).is_some_and(|node| node != first));
        held.release().unwrap();
        waiter.join().unwrap().unwrap().release().unwrap();
    });
    wait_for_empty(&mut raw, &path);
}

/// Curator: `TestInterProcessSemaphore.testInterruptAcquire`; kazoo: `test_semaphore_cancel`.
#[test]
fn cancelled_acquire_leaves_no_nodes() {
    let server = ZooKeeper::shared();
    let (path, client, mut raw) = (path("cancel"), client(&server.address()), raw(server));
    let semaphore = semaphore(&client, &path, 1);
    let held = semaphore.acquire(1, TRY_ONCE).unwrap();
    thread::scope(|scope| {
        let waiters = [(); 2].map(|()| scope.spawn(|| semaphore.acquire(1, None)));
        wait_for_leases(&mut raw, &path, 2);
        wait_until(TEST_TIMEOUT, || queue(&mut raw, &format!("{path}/locks")).len() == 2);
        semaphore.cancel().unwrap();
        for waiter in waiters {
            assert_eq!(refused(waiter.join().unwrap()), Status::Canceled);
        }
    });
    wait_for_leases(&mut raw, &path, 1);
    held.release().unwrap();
    semaphore.acquire(1, TRY_ONCE).unwrap().release().unwrap();
    wait_for_empty(&mut raw, &path);
}

#[test]
fn closed_semaphore_wakes_waiters_and_keeps_leases() {
    let server = ZooKeeper::shared();
    let (path, client, mut raw) = (path("closed"), client(&server.address()), raw(server));
    let semaphore = semaphore(&client, &path, 1);
    let held = semaphore.acquire(1, TRY_ONCE).unwrap();
    thread::scope(|scope| {
        let waiter = scope.spawn(|| semaphore.acquire(1, None));
        wait_for_leases(&mut raw, &path, 2);
        semaphore.close().unwrap();
        assert_eq!(refused(waiter.join().unwrap()), Status::Closed);
    });
    assert_eq!(refused(semaphore.acquire(1, TRY_ONCE)), Status::Closed);
    assert!(held.is_held().unwrap());
    drop(semaphore);
    assert!(held.is_held().unwrap());
    held.release().unwrap();
    wait_for_empty(&mut raw, &path);
}

#[test]
fn loss_of_one_node_reports_all_leases_lost() {
    let server = ZooKeeper::shared();
    let (path, client, mut raw) = (path("lost"), client(&server.address()), raw(server));
    let leases = semaphore(&client, &path, 3).acquire(3, TRY_ONCE).unwrap();
    let nodes = leases.node_paths().unwrap();
    assert_eq!(raw.delete(&nodes[1]), 0, "one of three");
    wait_until(TEST_TIMEOUT, || leases.state().unwrap() == LockState::Lost);
    assert_eq!(status(leases.check()), Status::Lost);
    assert_eq!(status(leases.release()), Status::Lost);
    wait_for_empty(&mut raw, &path);
}

#[test]
fn foreign_child_counts_as_a_lease() {
    let server = ZooKeeper::shared();
    let (path, client, mut raw) = (path("foreign"), client(&server.address()), raw(server));
    let semaphore = semaphore(&client, &path, 2);
    semaphore.acquire(1, TRY_ONCE).unwrap().release().unwrap();
    raw.create_with_ancestors(&format!("{path}/leases/whatever"), b"", zklock_test_support::flags::EPHEMERAL).unwrap();
    assert_eq!(refused(semaphore.acquire(2, TRY_ONCE)), Status::Timeout);
    let one = semaphore.acquire(1, TRY_ONCE).unwrap();
    thread::scope(|scope| {
        let waiter = scope.spawn(|| semaphore.acquire(1, Some(TEST_TIMEOUT)).unwrap().release());
        wait_for_leases(&mut raw, &path, 3);
        assert_eq!(raw.delete(&format!("{path}/leases/whatever")), 0);
        waiter.join().unwrap().unwrap();
    });
    drop(one);
}

/// Curator: `TestInterProcessSemaphore.testAcquireAfterLostServer`. Curator's waiters hang; zklock's waiters survive
/// the end of a session.
#[test]
fn waiters_survive_a_server_that_is_away_for_longer_than_their_session() {
    let server = ZooKeeper::start();
    let (path, client) = (path("away"), client_with(&server.address(), Duration::from_secs(2)));
    let semaphore = semaphore(&client, &path, 1);
    let held = semaphore.acquire(1, None).unwrap();
    thread::scope(|scope| {
        let waiters = [(); 2].map(|()| scope.spawn(|| semaphore.acquire(1, Some(TEST_TIMEOUT * 3)).unwrap().release()));
        wait_until(TEST_TIMEOUT, || semaphore.participants().unwrap().len() == 3);
        let before = client.session_id().unwrap();
        RawClient::close_session(&server.address(), before, &[0; 16]);
        server.restart();
        let _ = held.release();
        for waiter in waiters {
            waiter.join().unwrap().unwrap();
        }
    });
}

#[test]
fn large_request_is_not_overtaken() {
    let server = ZooKeeper::shared();
    let (path, client) = (path("order"), client(&server.address()));
    let semaphore = semaphore(&client, &path, 4);
    let order = Mutex::new(Vec::new());
    let held = semaphore.acquire(3, TRY_ONCE).unwrap();
    thread::scope(|scope| {
        for (at, quantity) in [4, 1, 2].into_iter().enumerate() {
            let before = semaphore.participants().unwrap().len();
            let (semaphore, order) = (&semaphore, &order);
            scope.spawn(move || {
                let leases = semaphore.acquire(quantity, Some(TEST_TIMEOUT)).unwrap();
                order.lock().unwrap().push(quantity);
                leases.release().unwrap();
            });
            let more = if at == 0 { 4 } else { 1 };
            wait_until(TEST_TIMEOUT, || semaphore.participants().unwrap().len() == before + more);
        }
        assert_eq!(
            refused(semaphore.acquire(1, TRY_ONCE)),
            Status::Timeout,
            "an acquire with timeout 0 does not overtake"
        );
        held.release().unwrap();
    });
    assert_eq!(order.lock().unwrap()[0], 4, "an acquire of many leases is not overtaken");
}

/// Two of three leases are held, and another acquire requests two. The waiting acquire does not hold the free lease.
#[test]
fn waiting_nodes_are_not_listed_as_holders() {
    let server = ZooKeeper::shared();
    let (path, clients, mut raw) = (path("whole"), [client(&server.address()), client(&server.address())], raw(server));
    let [has, wants] = clients.each_ref().map(|client| semaphore(client, &path, 3));
    let held = has.acquire(2, TRY_ONCE).unwrap();
    let waiting = wants.start_acquire(2, None).unwrap();
    wait_for_leases(&mut raw, &path, 4);
    let holds: Vec<bool> = has.participants().unwrap().iter().map(|one| one.holds).collect();
    assert_eq!(holds, [true, true, false, false]);
    held.release().unwrap();
    drop(waiting.wait().unwrap());
}
