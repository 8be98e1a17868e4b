//! Local hand-over: threads of one process pass a mutex to each other without a request to the server.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use zklock::{Client, Hold, Lock, LockState, Operation, Owner, Status, WaitsFor};
use zklock_test_support::{Proxy, Verdict, ZooKeeper, wait_until};

use crate::common::{
    OwnerCalls as _, TEST_TIMEOUT, client, client_with, path, queue, raw, status, wait_for_queue, wait_for_waiters,
};

const TRY_ONCE: Option<Duration> = Some(Duration::ZERO);
const MS: Duration = Duration::from_millis(1);

fn mutex(client: &Client, path: &str, max_passes: u32) -> Lock {
    let lock = client.mutex(path).unwrap();
    lock.set_local_handover(max_passes).unwrap();
    lock
}

fn task(number: u64) -> Owner {
    Owner::task(number)
}

/// Starts acquires of several tasks, one after the other.
fn wait_as(lock: &Lock, tasks: std::ops::Range<u64>) -> Vec<(Owner, Operation<Hold>)> {
    let start = |number| (task(number), lock.start_acquire(task(number), Some(TEST_TIMEOUT)).unwrap());
    tasks.map(start).collect()
}

/// The token and the pass, which a store compares.
fn fencing_pair(lock: &Lock, owner: Owner) -> (i64, u32) {
    (lock.fencing_token_as(owner).unwrap(), lock.fencing_pass_as(owner).unwrap())
}

#[test]
fn local_handover_repeats_up_to_its_limit_without_requests() {
    let server = ZooKeeper::shared();
    let (path, mut raw) = (path("passed"), raw(server));
    let proxy = Proxy::start(&server.address());
    let client = client(&proxy.address());
    // Two lock handles of one path share a cohort.
    let (lock, twin) = (mutex(&client, &path, 3), mutex(&client, &path, 3));
    lock.acquire_as(task(0), None).unwrap();
    let first = fencing_pair(&lock, task(0));
    assert_eq!(first.1, 0);
    let mut waiting = wait_as(&lock, 1..4);
    waiting.extend(wait_as(&twin, 4..6));
    assert_eq!(queue(&mut raw, &path).len(), 1, "one node represents all operations");
    // From here on, the client sends no list, create or delete request until the limit of passes is reached.
    let heard = Arc::new(AtomicBool::new(false));
    let hears = Arc::clone(&heard);
    proxy.hook(move |_, frame| {
        let is_of_the_queue = matches!(frame.get(4..8), Some([0, 0, 0, 1 | 2 | 8 | 12 | 15 | 19]));
        hears.fetch_or(is_of_the_queue, Ordering::SeqCst);
        Verdict::Forward
    });
    let (node, mut holder) = (lock.node_paths_of(task(0)).unwrap(), task(0));
    for (pass, (owner, acquiring)) in (1..).zip(waiting.drain(..3)) {
        lock.release_as(holder).unwrap();
        acquiring.wait().unwrap().leave_to_owner();
        assert_eq!(fencing_pair(&lock, owner), (first.0, pass));
        assert_eq!(lock.node_paths_of(owner).unwrap(), node);
        assert_eq!((lock.state_as(owner).unwrap(), lock.is_held_as(holder).unwrap()), (LockState::Held, false));
        holder = owner;
    }
    proxy.unhook();
    assert!(!heard.load(Ordering::SeqCst), "a request was sent to a server");
    assert!(client.fence_check(&path, first.0).unwrap());
    lock.release_as(holder).unwrap();
    let mut last = first;
    for (owner, acquiring) in waiting {
        acquiring.wait().unwrap().leave_to_owner();
        let next = fencing_pair(&twin, owner);
        assert!(next > last && next.0 > first.0, "{next:?} after {last:?}");
        last = next;
        twin.release_as(owner).unwrap();
    }
    assert_eq!(last.1, 1, "the second node was handed over, too");
    wait_for_queue(&mut raw, &path, 0);
}

/// Other clients were promised the limit that the acquires had.
#[test]
fn a_new_limit_applies_to_acquires_that_begin_later() {
    let server = ZooKeeper::shared();
    let client = client(&server.address());
    for (before, after) in [(1, 100), (100, 1), (2, 0)] {
        let lock = mutex(&client, &path("new-limit"), before);
        lock.acquire_as(task(0), None).unwrap();
        let waiting = wait_as(&lock, 1..4);
        lock.set_local_handover(after).unwrap();
        let (mut holder, mut passes) = (task(0), Vec::new());
        for (owner, acquiring) in waiting {
            lock.release_as(holder).unwrap();
            acquiring.wait().unwrap().leave_to_owner();
            passes.push(fencing_pair(&lock, owner).1);
            holder = owner;
        }
        let expected: Vec<u32> = (1..4).map(|number| number % (before + 1)).collect();
        assert_eq!(passes, expected, "from {before} to {after}");
        // A later acquire can be handed a node whose holds had another limit. The smaller limit applies.
        let late = wait_as(&lock, 4..6);
        lock.release_as(holder).unwrap();
        for (owner, acquiring) in late {
            acquiring.wait().unwrap().leave_to_owner();
            assert!(fencing_pair(&lock, owner).1 <= before.max(after), "from {before} to {after}");
            lock.release_as(owner).unwrap();
        }
    }
}

#[test]
fn remote_waiter_waits_for_at_most_the_handover_limit() {
    let server = ZooKeeper::shared();
    let (path, one, two) = (path("fair"), client(&server.address()), client(&server.address()));
    let (ours, theirs) = (mutex(&one, &path, 5), two.mutex(&path).unwrap());
    let holds = Mutex::new(Vec::new());
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    ours.acquire(None).unwrap();
                    holds.lock().unwrap().push((ours.fencing_token().unwrap(), ours.fencing_pass().unwrap()));
                    ours.release().unwrap();
                }
            });
        }
        for _ in 0..20 {
            let before = holds.lock().unwrap().len();
            wait_until(TEST_TIMEOUT, || holds.lock().unwrap().len() > before);
            theirs.acquire(Some(TEST_TIMEOUT)).unwrap();
            let token = theirs.fencing_token().unwrap();
            let ahead = holds.lock().unwrap().iter().filter(|hold| hold.0 < token).copied().collect::<Vec<_>>();
            let last = ahead.last().unwrap().0;
            assert!(ahead.iter().filter(|hold| hold.0 == last).count() <= 1 + 5, "{ahead:?}");
            holds.lock().unwrap().push((token, 0));
            theirs.release().unwrap();
        }
        stop.store(true, Ordering::Relaxed);
    });
    let holds = holds.into_inner().unwrap();
    assert!(holds.windows(2).all(|pair| pair[0] < pair[1]), "{holds:?}");
    assert!(holds.iter().all(|hold| hold.1 <= 5) && holds.iter().any(|hold| hold.1 == 5));
}

/// Two sessions with eight threads each, like two processes.
#[test]
fn threads_of_two_sessions_exclude_each_other() {
    let server = ZooKeeper::shared();
    let path = path("many");
    let inside = AtomicBool::new(false);
    let holds = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..2 {
            let client = client(&server.address());
            for _ in 0..8 {
                let (lock, inside, holds) = (mutex(&client, &path, 4), &inside, &holds);
                scope.spawn(move || {
                    for _ in 0..100 {
                        lock.acquire(Some(TEST_TIMEOUT)).unwrap();
                        assert!(!inside.swap(true, Ordering::SeqCst), "two owners hold the lock");
                        holds.lock().unwrap().push((lock.fencing_token().unwrap(), lock.fencing_pass().unwrap()));
                        inside.store(false, Ordering::SeqCst);
                        lock.release().unwrap();
                    }
                });
            }
        }
    });
    let holds = holds.into_inner().unwrap();
    assert_eq!(holds.len(), 1600);
    assert!(holds.windows(2).all(|pair| pair[0] < pair[1]), "pairs grow");
    let twins = holds.windows(2).filter(|pair| pair[0].0 == pair[1].0).count();
    assert!(twins > 800, "only {twins} holds were handed over");
}

#[test]
fn abandoned_wait_leaves_the_node_to_the_next_local_waiter() {
    let server = ZooKeeper::shared();
    let (path, mut raw) = (path("place"), raw(server));
    let (one, two) = (client(&server.address()), client(&server.address()));
    let (ours, theirs) = (mutex(&one, &path, 9), two.mutex(&path).unwrap());
    theirs.acquire(None).unwrap();
    for gives_up in [true, false] {
        let limit = if gives_up { 3_000 * MS } else { TEST_TIMEOUT };
        let first = ours.start_acquire(task(1), Some(limit)).unwrap();
        wait_for_waiters(&theirs, 2);
        let others = wait_as(&ours, 2..4);
        let behind = theirs.start_acquire(task(9), None).unwrap();
        wait_for_waiters(&theirs, 3);
        let before = queue(&mut raw, &path);
        if gives_up {
            let error = first.wait().unwrap_err();
            assert_eq!(error.status(), Status::Timeout);
            assert!(error.to_string().contains("held by "), "{error}");
        } else {
            first.cancel().unwrap();
            assert_eq!(status(first.wait()), Status::Canceled);
        }
        assert_eq!(queue(&mut raw, &path), before);
        theirs.release().unwrap();
        for (owner, acquiring) in others {
            acquiring.wait().unwrap().leave_to_owner();
            assert!(behind.wait_for(Duration::ZERO).is_none());
            ours.release_as(owner).unwrap();
        }
        behind.wait().unwrap().leave_to_owner();
        theirs.release_as(task(9)).unwrap();
        theirs.acquire(None).unwrap();
    }
    // The client deletes the node when the last waiter of the cohort leaves.
    let alone = ours.start_acquire(task(1), None).unwrap();
    wait_for_waiters(&theirs, 2);
    drop(alone);
    wait_for_queue(&mut raw, &path, 1);
}

#[test]
fn timeout_cancel_and_close_reach_waiters_without_a_node() {
    let server = ZooKeeper::shared();
    let (path, client) = (path("behind"), client(&server.address()));
    let (lock, twin) = (mutex(&client, &path, 9), mutex(&client, &path, 9));
    lock.acquire_as(task(0), None).unwrap();
    let node = lock.node_paths_of(task(0)).unwrap().remove(0);
    let error = lock.acquire(Some(200 * MS)).unwrap_err();
    assert_eq!(error.status(), Status::Timeout);
    assert!(
        error.to_string().ends_with(&format!("s; held by another owner of this process, with the node {node}")),
        "{error}"
    );
    assert_eq!(
        lock.acquire(TRY_ONCE).unwrap_err().to_string(),
        format!("{path}: held by another owner of this process, with the node {node}")
    );
    let first = wait_as(&lock, 1..3);
    let second = wait_as(&twin, 3..5);
    let seen = lock.waiting().unwrap();
    assert_eq!(seen.iter().map(|one| one.owner).collect::<Vec<_>>(), [task(1), task(2)]);
    for one in seen {
        assert_eq!((one.waits_for, one.ahead.as_ref(), one.node_path), (WaitsFor::Node, Some(&node), None));
        assert_eq!((one.session_id, one.count), (client.session_id().unwrap(), 1));
    }
    lock.cancel().unwrap();
    first.into_iter().for_each(|(_, acquiring)| assert_eq!(status(acquiring.wait()), Status::Canceled));
    let first = wait_as(&lock, 5..6);
    // A hold of a closed lock handle is not handed over locally, but other calls can still acquire the lock.
    lock.close().unwrap();
    first.into_iter().for_each(|(_, acquiring)| assert_eq!(status(acquiring.wait()), Status::Closed));
    for (owner, acquiring) in second {
        acquiring.wait().unwrap().leave_to_owner();
        twin.release_as(owner).unwrap();
    }
    twin.acquire_as(task(0), None).unwrap();
    let last = wait_as(&twin, 1..4);
    client.close().unwrap();
    last.into_iter().for_each(|(_, acquiring)| assert_eq!(status(acquiring.wait()), Status::Closed));
}

#[test]
fn reentrant_hold_is_handed_over_after_its_last_release() {
    let server = ZooKeeper::shared();
    let (path, client) = (path("again"), client(&server.address()));
    let lock = mutex(&client, &path, 9);
    let twice = || lock.start_acquire(task(1), TRY_ONCE).unwrap().wait().unwrap();
    twice().leave_to_owner();
    twice().leave_to_owner();
    let (owner, next) = wait_as(&lock, 2..3).remove(0);
    lock.release_as(task(1)).unwrap();
    assert!(next.wait_for(20 * MS).is_none(), "the owner has acquired the lock twice");
    lock.release_as(task(1)).unwrap();
    next.wait().unwrap().leave_to_owner();
    let again = lock.start_acquire(task(1), Some(TEST_TIMEOUT)).unwrap();
    lock.release_as(owner).unwrap();
    again.wait().unwrap().leave_to_owner();
    assert_eq!(lock.fencing_pass_as(task(1)).unwrap(), 2);
    assert_eq!(status(lock.fencing_pass_as(owner)), Status::NotOwner);
}

#[test]
fn lost_hold_is_not_handed_over() {
    let server = ZooKeeper::shared();
    let (path, mut raw, client) = (path("lost"), raw(server), client(&server.address()));
    let lock = mutex(&client, &path, 9);
    lock.acquire_as(task(0), None).unwrap();
    let node = lock.node_paths_of(task(0)).unwrap().remove(0);
    let token = fencing_pair(&lock, task(0));
    let waiting = wait_as(&lock, 1..4);
    assert_eq!(raw.delete(&node), 0);
    for (owner, acquiring) in waiting {
        acquiring.wait().unwrap().leave_to_owner();
        assert!(fencing_pair(&lock, owner) > token);
        lock.release_as(owner).unwrap();
    }
    assert_eq!(lock.state_as(task(0)).unwrap(), LockState::Lost);
    assert_eq!(status(lock.release_as(task(0))), Status::Lost);
    // If the node of a cohort that waits for another process is deleted, its call joins again, and the other calls
    // continue to wait.
    lock.acquire_as(task(0), None).unwrap();
    lock.release_as(task(0)).unwrap();
    wait_for_queue(&mut raw, &path, 0);
}

/// The session ends while one call holds the lock and others wait, and while all of them wait for another process.
#[test]
fn cohort_survives_session_expiry() {
    let server = ZooKeeper::shared();
    let proxy = Proxy::start(&server.address());
    let path = path("session");
    let (one, two) = (client_with(&proxy.address(), 3000 * MS), client(&server.address()));
    let (ours, theirs) = (mutex(&one, &path, 9), two.mutex(&path).unwrap());
    let end_session = |waits_for_it: bool| {
        let before = one.session_id().unwrap();
        proxy.refuse(true);
        proxy.cut();
        wait_until(TEST_TIMEOUT, || queue(&mut raw(server), &path).len() == usize::from(waits_for_it));
        proxy.refuse(false);
        wait_until(TEST_TIMEOUT, || ![0, before].contains(&one.session_id().unwrap()));
    };
    ours.acquire_as(task(0), None).unwrap();
    let token = fencing_pair(&ours, task(0));
    let waiting = wait_as(&ours, 1..4);
    end_session(false);
    assert_eq!(status(ours.release_as(task(0))), Status::Lost);
    for (pass, (owner, acquiring)) in (0..).zip(waiting) {
        acquiring.wait().unwrap().leave_to_owner();
        assert!(fencing_pair(&ours, owner) > token && ours.fencing_pass_as(owner).unwrap() == pass);
        ours.release_as(owner).unwrap();
    }
    theirs.acquire(None).unwrap();
    let waiting = wait_as(&ours, 1..4);
    wait_for_waiters(&theirs, 2);
    end_session(true);
    wait_for_waiters(&theirs, 2);
    theirs.release().unwrap();
    for (owner, acquiring) in waiting {
        acquiring.wait().unwrap().leave_to_owner();
        ours.release_as(owner).unwrap();
    }
}

#[test]
fn suspended_hold_is_not_handed_over() {
    let server = ZooKeeper::shared();
    let proxy = Proxy::start(&server.address());
    let (path, client) = (path("suspended"), client(&proxy.address()));
    let lock = mutex(&client, &path, 9);
    lock.acquire_as(task(0), None).unwrap();
    let token = fencing_pair(&lock, task(0));
    let (owner, next) = wait_as(&lock, 1..2).remove(0);
    proxy.refuse(true);
    proxy.cut();
    wait_until(TEST_TIMEOUT, || lock.state_as(task(0)).unwrap() == LockState::Suspended);
    lock.start_release(task(0), false).unwrap().wait().unwrap();
    assert!(next.wait_for(50 * MS).is_none());
    proxy.refuse(false);
    next.wait().unwrap().leave_to_owner();
    assert!(fencing_pair(&lock, owner).0 > token.0);
}

#[test]
fn revoked_hold_is_released_instead_of_handed_over() {
    let server = ZooKeeper::shared();
    let (path, one, two) = (path("asked"), client(&server.address()), client(&server.address()));
    let (ours, theirs) = (mutex(&one, &path, 9), two.mutex(&path).unwrap());
    let (sender, requests) = mpsc::channel();
    ours.set_revocable(Some(move |node: &str| sender.send(node.to_owned()).unwrap())).unwrap();
    ours.acquire_as(task(0), None).unwrap();
    let mut waiting = wait_as(&ours, 1..3);
    ours.release_as(task(0)).unwrap();
    let (owner, acquiring) = waiting.remove(0);
    acquiring.wait().unwrap().leave_to_owner();
    let theirs_next = theirs.start_acquire(task(9), None).unwrap();
    wait_for_waiters(&theirs, 2);
    let node = ours.node_paths_of(owner).unwrap().remove(0);
    two.revoke(&node).unwrap();
    assert_eq!(requests.recv_timeout(TEST_TIMEOUT).unwrap(), node);
    ours.release_as(owner).unwrap();
    theirs_next.wait().unwrap().leave_to_owner();
    assert!(waiting[0].1.wait_for(Duration::ZERO).is_none());
    theirs.release_as(task(9)).unwrap();
    let (owner, acquiring) = waiting.remove(0);
    acquiring.wait().unwrap().leave_to_owner();
    assert_eq!(ours.fencing_pass_as(owner).unwrap(), 0);
}

#[test]
fn handles_without_local_handover_use_their_own_nodes() {
    let server = ZooKeeper::shared();
    let (path, mut raw, client) = (path("others"), raw(server), client(&server.address()));
    let rwlock = client.rwlock(&path).unwrap();
    let single = client.semaphore_mutex(&path).unwrap();
    let (ours, plain) = (mutex(&client, &path, 9), client.mutex(&path).unwrap());
    let both = Lock::multi(&[&ours, &client.mutex(&crate::common::path("other")).unwrap()]).unwrap();
    for lock in [&rwlock.read, &rwlock.write, &single, &both] {
        assert_eq!(status(lock.set_local_handover(1)), Status::Unsupported);
    }
    // A lock handle without this setting and a multi-lock have their own nodes. Their holds are not handed over
    // locally.
    both.acquire(None).unwrap();
    let (mine, cohort) = (plain.start_acquire(task(1), None).unwrap(), wait_as(&ours, 2..4));
    wait_for_queue(&mut raw, &path, 3);
    both.release().unwrap();
    mine.wait().unwrap().leave_to_owner();
    plain.release_as(task(1)).unwrap();
    for (pass, (owner, acquiring)) in (0..).zip(cohort) {
        acquiring.wait().unwrap().leave_to_owner();
        assert_eq!(ours.fencing_pass_as(owner).unwrap(), pass);
        ours.release_as(owner).unwrap();
    }
    // With the limit 0, local hand-over is off again.
    ours.set_local_handover(0).unwrap();
    ours.acquire_as(task(1), None).unwrap();
    let waiting = wait_as(&ours, 2..4);
    wait_for_queue(&mut raw, &path, 3);
    drop(waiting);
    ours.close().unwrap();
    assert_eq!(status(ours.set_local_handover(1)), Status::Closed);
}
