//! The semaphore: leases, quantities, and how many there are.

use std::sync::Mutex;
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use zklock::{Client, Leases, LockState, Semaphore, Status};
use zklock_rig::{Raw, ZooKeeper, wait_until};

use crate::common::{SOON, client, client_with, ends_at, path, queue, raw, status, timed};

const MS: Duration = Duration::from_millis(1);
const NOW: Option<Duration> = Some(Duration::ZERO);

fn semaphore(client: &Client, path: &str, max: i32) -> Semaphore {
    client.semaphore(path, max).unwrap()
}

fn refused(result: zklock::Result<Leases>) -> Status {
    match result {
        Ok(_) => panic!("leases were given out"),
        Err(error) => error.status(),
    }
}

fn wait_for_leases(raw: &mut Raw, path: &str, count: usize) {
    wait_until(SOON, || queue(raw, &format!("{path}/leases")).len() == count);
}

fn wait_for_nobody(raw: &mut Raw, path: &str) {
    wait_for_leases(raw, path, 0);
    wait_until(SOON, || queue(raw, &format!("{path}/locks")).is_empty());
}

/// Curator: `TestInterProcessSemaphore.testSimple` and `testSimple2`.
#[test]
fn one_more_than_there_are() {
    let server = ZooKeeper::shared();
    for max in [1, 3] {
        let (path, client, mut raw) = (path("simple"), client(&server.address()), raw(server));
        let semaphore = semaphore(&client, &path, max);
        let mut leases: Vec<Leases> = (0..max).map(|_| semaphore.acquire(1, NOW).unwrap()).collect();
        assert_eq!(refused(semaphore.acquire(1, NOW)), Status::Timeout);
        assert_eq!(ends_at(MS * 100, || refused(semaphore.acquire(1, Some(MS * 100)))), Status::Timeout);
        leases.pop().unwrap().release().unwrap();
        leases.push(semaphore.acquire(1, Some(SOON)).unwrap());
        assert!(leases.is_sorted_by_key(|lease| lease.fencing_token().unwrap()));
        drop(leases);
        wait_for_nobody(&mut raw, &path);
    }
}

/// Curator: `TestInterProcessSemaphore.testGetParticipantNodes`.
#[test]
fn leases_are_seen_with_those_who_wait() {
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
        let waiter = scope.spawn(|| semaphore.acquire(2, Some(SOON)).unwrap().release());
        wait_until(SOON, || semaphore.participants().unwrap().len() == 5);
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
    assert!(refusal.message().contains("3 leases were asked for, and there are only 2"), "{refusal}");
    assert!(took < SOON);
    assert_eq!(refused(semaphore.acquire(0, None)), Status::Invalid);
    for max in [0, -1, i32::MIN] {
        assert_eq!(client.semaphore("/a", max).err().unwrap().status(), Status::Invalid);
    }
    let all = semaphore.acquire(2, NOW).unwrap();
    drop(all);
    let many = client.semaphore(&path("a-million"), i32::MAX).unwrap();
    assert_eq!(refused(many.acquire(1_000_000, None)), Status::Invalid, "more than one transaction takes");
}

/// Two clients, each of which wants both: Curator takes them one by one, and neither gets its second.
#[test]
fn two_who_want_all_are_served_one_after_the_other() {
    let server = ZooKeeper::shared();
    let (path, clients) = (path("both"), [client(&server.address()), client(&server.address())]);
    let served = AtomicUsize::new(0);
    thread::scope(|scope| {
        for client in &clients {
            let (path, served) = (&path, &served);
            scope.spawn(move || {
                let semaphore = semaphore(client, path, 2);
                for _ in 0..500 {
                    semaphore.acquire(2, Some(SOON)).unwrap().release().unwrap();
                    served.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
    });
    assert_eq!(served.load(Ordering::SeqCst), 1_000);
}

/// Curator: `TestInterProcessSemaphore.testMaxPerSession`.
#[test]
fn never_more_than_there_are() {
    let server = ZooKeeper::shared();
    let (path, out) = (path("max"), AtomicI32::new(0));
    thread::scope(|scope| {
        for seed in 0..6_u32 {
            let (path, out) = (&path, &out);
            scope.spawn(move || {
                let client = client(&server.address());
                let semaphore = semaphore(&client, path, 5);
                for round in 0..15 {
                    let quantity = 1 + (seed * 7 + round * 3) % 5;
                    let leases = semaphore.acquire(quantity, Some(SOON)).unwrap();
                    let now = out.fetch_add(quantity as i32, Ordering::SeqCst) + quantity as i32;
                    assert!(now <= 5, "{now} are out");
                    assert!(leases.is_held().unwrap());
                    out.fetch_sub(quantity as i32, Ordering::SeqCst);
                    leases.release().unwrap();
                }
            });
        }
    });
}

/// Curator: `TestInterProcessSemaphore.testRelease1AtATime`.
#[test]
fn all_are_served_when_one_is_given_back_at_a_time() {
    let server = ZooKeeper::shared();
    let (path, served) = (path("one-at-a-time"), AtomicUsize::new(0));
    let held = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..10 {
            let (path, served, held) = (&path, &served, &held);
            scope.spawn(move || {
                let client = client(&server.address());
                let leases = semaphore(&client, path, 5).acquire(1, Some(SOON)).unwrap();
                served.fetch_add(1, Ordering::SeqCst);
                held.lock().unwrap().push(leases);
            });
        }
        wait_until(SOON, || held.lock().unwrap().len() == 5);
        assert_eq!(served.load(Ordering::SeqCst), 5, "no more than there are");
        for done in 1..=10 {
            let one = held.lock().unwrap().remove(0);
            one.release().unwrap();
            wait_until(SOON, || served.load(Ordering::SeqCst) == (5 + done).min(10));
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
                let leases = semaphore.acquire(quantity, Some(SOON * 3)).unwrap();
                assert!(out.fetch_add(quantity as i32, Ordering::SeqCst) + quantity as i32 <= 11);
                out.fetch_sub(quantity as i32, Ordering::SeqCst);
                if at % 2 == 0 { leases.release().unwrap() } else { drop(leases) }
            });
        }
    });
    wait_for_nobody(&mut raw, &path);
}

/// Curator: `TestInterProcessSemaphore.testClientClose`.
#[test]
fn a_client_that_closes_gives_its_leases_back() {
    let server = ZooKeeper::shared();
    let (path, first, second) = (path("close"), client(&server.address()), client(&server.address()));
    let lease = semaphore(&first, &path, 1).acquire(1, NOW).unwrap();
    first.close().unwrap();
    let other = semaphore(&second, &path, 1).acquire(1, Some(SOON)).unwrap();
    assert_eq!(status(lease.release()), Status::Closed);
    assert!(other.is_held().unwrap());
}

/// Curator: `TestInterProcessSemaphore.testNoOrphanedNodes`.
#[test]
fn a_waiters_lease_that_was_deleted_is_made_again() {
    let server = ZooKeeper::shared();
    let (path, client, mut raw) = (path("orphan"), client(&server.address()), raw(server));
    let semaphore = semaphore(&client, &path, 1);
    let held = semaphore.acquire(1, NOW).unwrap();
    let own = held.node_paths().unwrap().remove(0);
    thread::scope(|scope| {
        let waiter = scope.spawn(|| semaphore.acquire(1, Some(SOON)));
        wait_for_leases(&mut raw, &path, 2);
        let directory = format!("{path}/leases");
        let other = |raw: &mut Raw| {
            let nodes = raw.children(&directory).unwrap_or_default();
            nodes.into_iter().map(|name| format!("{directory}/{name}")).find(|node| *node != own)
        };
        let first = other(&mut raw).unwrap();
        assert_eq!(raw.delete(&first), 0);
        wait_until(SOON, || other(&mut raw).is_some_and(|node| node != first));
        held.release().unwrap();
        waiter.join().unwrap().unwrap().release().unwrap();
    });
    wait_for_nobody(&mut raw, &path);
}

/// Curator: `TestInterProcessSemaphore.testInterruptAcquire`; kazoo: `test_semaphore_cancel`.
#[test]
fn who_is_cancelled_leaves_nothing() {
    let server = ZooKeeper::shared();
    let (path, client, mut raw) = (path("cancel"), client(&server.address()), raw(server));
    let semaphore = semaphore(&client, &path, 1);
    let held = semaphore.acquire(1, NOW).unwrap();
    thread::scope(|scope| {
        let waiters = [(); 2].map(|()| scope.spawn(|| semaphore.acquire(1, None)));
        wait_for_leases(&mut raw, &path, 2);
        wait_until(SOON, || queue(&mut raw, &format!("{path}/locks")).len() == 2);
        semaphore.cancel().unwrap();
        for waiter in waiters {
            assert_eq!(refused(waiter.join().unwrap()), Status::Canceled);
        }
    });
    wait_for_leases(&mut raw, &path, 1);
    held.release().unwrap();
    semaphore.acquire(1, NOW).unwrap().release().unwrap();
    wait_for_nobody(&mut raw, &path);
}

#[test]
fn who_closes_it_wakes_those_who_wait_and_keeps_what_is_out() {
    let server = ZooKeeper::shared();
    let (path, client, mut raw) = (path("closed"), client(&server.address()), raw(server));
    let semaphore = semaphore(&client, &path, 1);
    let held = semaphore.acquire(1, NOW).unwrap();
    thread::scope(|scope| {
        let waiter = scope.spawn(|| semaphore.acquire(1, None));
        wait_for_leases(&mut raw, &path, 2);
        semaphore.close().unwrap();
        assert_eq!(refused(waiter.join().unwrap()), Status::Closed);
    });
    assert_eq!(refused(semaphore.acquire(1, NOW)), Status::Closed);
    assert!(held.is_held().unwrap());
    drop(semaphore);
    assert!(held.is_held().unwrap());
    held.release().unwrap();
    wait_for_nobody(&mut raw, &path);
}

#[test]
fn leases_that_are_lost_say_so() {
    let server = ZooKeeper::shared();
    let (path, client, mut raw) = (path("lost"), client(&server.address()), raw(server));
    let leases = semaphore(&client, &path, 3).acquire(3, NOW).unwrap();
    let nodes = leases.node_paths().unwrap();
    assert_eq!(raw.delete(&nodes[1]), 0, "one of three");
    wait_until(SOON, || leases.state().unwrap() == LockState::Lost);
    assert_eq!(status(leases.fencing_token()), Status::Lost);
    assert_eq!(status(leases.release()), Status::Lost);
    wait_for_nobody(&mut raw, &path);
}

#[test]
fn whatever_is_among_the_leases_counts() {
    let server = ZooKeeper::shared();
    let (path, client, mut raw) = (path("foreign"), client(&server.address()), raw(server));
    let semaphore = semaphore(&client, &path, 2);
    semaphore.acquire(1, NOW).unwrap().release().unwrap();
    raw.create(&format!("{path}/leases/whatever"), b"", zklock_rig::flags::EPHEMERAL).unwrap();
    assert_eq!(refused(semaphore.acquire(2, NOW)), Status::Timeout);
    let one = semaphore.acquire(1, NOW).unwrap();
    thread::scope(|scope| {
        let waiter = scope.spawn(|| semaphore.acquire(1, Some(SOON)).unwrap().release());
        wait_for_leases(&mut raw, &path, 3);
        assert_eq!(raw.delete(&format!("{path}/leases/whatever")), 0);
        waiter.join().unwrap().unwrap();
    });
    drop(one);
}

/// Curator: `TestInterProcessSemaphore.testAcquireAfterLostServer`, with what Curator's hangs on: waiters outlive a session.
#[test]
fn waiters_survive_a_server_that_is_away_for_longer_than_their_session() {
    let server = ZooKeeper::start();
    let (path, client) = (path("away"), client_with(&server.address(), Duration::from_secs(2)));
    let semaphore = semaphore(&client, &path, 1);
    let held = semaphore.acquire(1, None).unwrap();
    thread::scope(|scope| {
        let waiters = [(); 2].map(|()| scope.spawn(|| semaphore.acquire(1, Some(SOON * 3)).unwrap().release()));
        wait_until(SOON, || semaphore.participants().unwrap().len() == 3);
        let before = client.session_id().unwrap();
        Raw::close_session(&server.address(), before, &[0; 16]);
        server.restart();
        let _ = held.release();
        for waiter in waiters {
            waiter.join().unwrap().unwrap();
        }
    });
}

#[test]
fn requests_are_served_in_their_order() {
    let server = ZooKeeper::shared();
    let (path, client) = (path("order"), client(&server.address()));
    let semaphore = semaphore(&client, &path, 4);
    let order = Mutex::new(Vec::new());
    let held = semaphore.acquire(3, NOW).unwrap();
    thread::scope(|scope| {
        for (at, quantity) in [4, 1, 2].into_iter().enumerate() {
            let before = semaphore.participants().unwrap().len();
            let (semaphore, order) = (&semaphore, &order);
            scope.spawn(move || {
                let leases = semaphore.acquire(quantity, Some(SOON)).unwrap();
                order.lock().unwrap().push(quantity);
                leases.release().unwrap();
            });
            let more = if at == 0 { 4 } else { 1 };
            wait_until(SOON, || semaphore.participants().unwrap().len() == before + more);
        }
        assert_eq!(refused(semaphore.acquire(1, NOW)), Status::Timeout, "nor does a look overtake");
        held.release().unwrap();
    });
    assert_eq!(order.lock().unwrap()[0], 4, "a large one is not overtaken");
}

/// Two of three are out and two are wanted: the one that would be left is not held by who waits.
#[test]
fn leases_that_are_waited_for_are_not_held() {
    let server = ZooKeeper::shared();
    let (path, clients, mut raw) = (path("whole"), [client(&server.address()), client(&server.address())], raw(server));
    let [has, wants] = clients.each_ref().map(|client| semaphore(client, &path, 3));
    let held = has.acquire(2, NOW).unwrap();
    let waiting = wants.start_acquire(2, None).unwrap();
    wait_for_leases(&mut raw, &path, 4);
    let holds: Vec<bool> = has.participants().unwrap().iter().map(|one| one.holds).collect();
    assert_eq!(holds, [true, true, false, false]);
    held.release().unwrap();
    drop(waiting.wait().unwrap());
}
