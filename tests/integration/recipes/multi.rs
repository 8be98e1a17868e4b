//! The multi-lock: several locks that are acquired together.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use zklock::{Client, Lock, LockState, Owner, Status};
use zklock_test_support::{Direction, Proxy, Verdict, ZooKeeper, wait_until};

use crate::common::{
    OwnerCalls as _, TEST_TIMEOUT, assert_not_late, assert_times_out, client, client_with, path, queue, raw, status,
    timed, wait_for_queue,
};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const TRY_ONCE: Option<Duration> = Some(Duration::ZERO);

fn mutexes<const N: usize>(client: &Client, paths: &[String; N]) -> [Lock; N] {
    paths.each_ref().map(|path| client.mutex(path).unwrap())
}

#[test]
fn all_or_nothing_in_one_transaction() {
    let server = ZooKeeper::shared();
    let (paths, client, mut raw) = ([path("a"), path("b"), path("c")], client(&server.address()), raw(server));
    let locks = mutexes(&client, &paths);
    let multi = Lock::multi(&locks.each_ref()).unwrap();
    multi.acquire(None).unwrap();
    assert!(multi.is_held().unwrap() && locks.iter().all(|lock| lock.is_held().unwrap()));
    let tokens = locks.each_ref().map(|lock| lock.fencing_token().unwrap());
    assert_eq!(tokens, [multi.fencing_token().unwrap(); 3], "one transaction, one token");
    assert_eq!(multi.node_paths().unwrap().len(), 3);
    assert_eq!(multi.participants().unwrap().len(), 3);
    assert_eq!(multi.state().unwrap(), LockState::Held);
    assert!(multi.remaining().unwrap() > Duration::ZERO);
    multi.release().unwrap();
    assert_eq!(multi.state().unwrap(), LockState::Free);
    assert!(paths.iter().all(|path| queue(&mut raw, path).is_empty()));
    assert_eq!(status(multi.release()), Status::NotOwner);
}

#[test]
fn timeout_on_one_member_releases_the_others() {
    let server = ZooKeeper::shared();
    let (paths, mut raw) = ([path("free"), path("taken")], raw(server));
    let (holder, client) = (client(&server.address()), client(&server.address()));
    let taken = holder.mutex(&paths[1]).unwrap();
    taken.acquire(None).unwrap();
    let locks = mutexes(&client, &paths);
    let multi = Lock::multi(&locks.each_ref()).unwrap();
    // All member locks have one deadline.
    assert_times_out(SECOND, |limit| multi.acquire(Some(limit)));
    assert_times_out(Duration::ZERO, |limit| multi.acquire(Some(limit)));
    wait_for_queue(&mut raw, &paths[0], 0);
    wait_for_queue(&mut raw, &paths[1], 1);
    thread::scope(|scope| {
        let waiter = scope.spawn(|| multi.acquire(Some(TEST_TIMEOUT)).and_then(|()| multi.release()));
        wait_for_queue(&mut raw, &paths[0], 1);
        wait_for_queue(&mut raw, &paths[1], 2);
        assert!(!multi.is_held_in_process().unwrap() && !locks[0].is_held_in_process().unwrap());
        taken.release().unwrap();
        waiter.join().unwrap().unwrap();
    });
}

/// Two clients acquire the same locks in opposite orders. With Curator this is a deadlock.
#[test]
fn opposite_orders_do_not_deadlock() {
    let server = ZooKeeper::shared();
    let (paths, served) = ([path("x"), path("y")], AtomicUsize::new(0));
    thread::scope(|scope| {
        for at in 0..2 {
            let (paths, served) = (&paths, &served);
            scope.spawn(move || {
                let client = client(&server.address());
                let [x, y] = mutexes(&client, paths);
                let multi = if at == 0 { Lock::multi(&[&x, &y]) } else { Lock::multi(&[&y, &x]) }.unwrap();
                for _ in 0..500 {
                    multi.acquire(Some(TEST_TIMEOUT)).unwrap();
                    served.fetch_add(1, Ordering::SeqCst);
                    multi.release().unwrap();
                }
            });
        }
    });
    assert_eq!(served.load(Ordering::SeqCst), 1_000);
}

#[test]
fn multi_lock_reenters_itself_and_held_members() {
    let server = ZooKeeper::shared();
    let (paths, client) = ([path("held"), path("new")], client(&server.address()));
    let [held, new] = mutexes(&client, &paths);
    let multi = Lock::multi(&[&held, &new]).unwrap();
    held.acquire(TRY_ONCE).unwrap();
    assert!(!multi.is_held().unwrap(), "one of two");
    multi.acquire(TRY_ONCE).unwrap();
    multi.acquire(TRY_ONCE).unwrap();
    assert!(multi.is_held().unwrap());
    assert_eq!(multi.fencing_token().unwrap(), held.fencing_token().unwrap(), "the smallest");
    multi.release().unwrap();
    multi.release().unwrap();
    assert!(held.is_held().unwrap() && !new.is_held().unwrap());
    held.release().unwrap();
    assert_eq!(status(multi.release()), Status::NotOwner);
}

#[test]
fn member_can_be_released_alone() {
    let server = ZooKeeper::shared();
    let (paths, client, mut raw) = ([path("one"), path("two")], client(&server.address()), raw(server));
    let [one, two] = mutexes(&client, &paths);
    let multi = Lock::multi(&[&one, &two]).unwrap();
    multi.acquire(TRY_ONCE).unwrap();
    one.release().unwrap();
    assert!(queue(&mut raw, &paths[0]).is_empty());
    assert!(two.is_held().unwrap() && !multi.is_held().unwrap());
    // As in Curator, the release releases the other locks too and reports the first error.
    assert_eq!(status(multi.release()), Status::NotOwner);
    assert!(queue(&mut raw, &paths[1]).is_empty());
}

/// Curator: `TestInterProcessMultiMutex.testSomeReleasesFail`.
#[test]
fn a_member_that_is_lost_does_not_keep_the_others() {
    let server = ZooKeeper::shared();
    let (paths, client, mut raw) = ([path("lost"), path("kept")], client(&server.address()), raw(server));
    let locks = mutexes(&client, &paths);
    let multi = Lock::multi(&locks.each_ref()).unwrap();
    multi.acquire(TRY_ONCE).unwrap();
    let node = locks[0].node_paths().unwrap().remove(0);
    assert_eq!(raw.delete(&node), 0);
    wait_until(TEST_TIMEOUT, || multi.state().unwrap() == LockState::Lost);
    assert!(!multi.is_held().unwrap() && locks[1].is_held().unwrap());
    assert_eq!(status(multi.acquire(TRY_ONCE)), Status::Lost, "sticky");
    assert_eq!(status(multi.release()), Status::Lost);
    wait_for_queue(&mut raw, &paths[1], 0);
    multi.acquire(TRY_ONCE).unwrap();
    multi.release().unwrap();
}

/// Curator: `TestInterProcessMultiMutex.testSomeLocksFailToLock`.
#[test]
fn failed_member_leaves_no_nodes_of_the_others() {
    let server = ZooKeeper::shared();
    let (paths, client, mut raw) = ([path("good"), path("bad")], client(&server.address()), raw(server));
    let locks = mutexes(&client, &paths);
    // A lock of another library is in the queue.
    locks[1].acquire(TRY_ONCE).unwrap();
    locks[1].release().unwrap();
    let kazoo = format!("{}/509e033e5443480e924d21ab1ded34a7__lock__", paths[1]);
    raw.create(&kazoo, b"", zklock_test_support::flags::EPHEMERAL_SEQUENTIAL).unwrap();
    let multi = Lock::multi(&locks.each_ref()).unwrap();
    assert_eq!(status(multi.acquire(None)), Status::Foreign);
    wait_for_queue(&mut raw, &paths[0], 0);
    wait_for_queue(&mut raw, &paths[1], 1);
}

#[test]
fn read_and_write_locks_can_be_members() {
    let server = ZooKeeper::shared();
    let (a, b, client) = (path("rw"), path("mutex"), client(&server.address()));
    let (rw, mutex) = (client.rwlock(&a).unwrap(), client.mutex(&b).unwrap());
    let reading = Lock::multi(&[&rw.read, &mutex]).unwrap();
    let writing = Lock::multi(&[&mutex, &rw.write]).unwrap();
    writing.acquire(TRY_ONCE).unwrap();
    // The read lock under the owner's write lock, as without the multi-lock.
    reading.acquire(TRY_ONCE).unwrap();
    writing.release().unwrap();
    assert!(reading.is_held().unwrap());
    assert_eq!(status(writing.acquire(None)), Status::Deadlock);
    reading.release().unwrap();
}

/// Semaphore mutexes and locks of several clients cannot be joined in one transaction. They are acquired one after the
/// other.
#[test]
fn members_of_several_clients_and_semaphore_mutexes_are_acquired_in_steps() {
    let server = ZooKeeper::shared();
    let (paths, mut raw) = ([path("p"), path("q"), path("r")], raw(server));
    let clients = [client(&server.address()), client(&server.address())];
    let locks = [
        clients[0].semaphore_mutex(&paths[2]).unwrap(),
        clients[1].mutex(&paths[1]).unwrap(),
        clients[0].mutex(&paths[0]).unwrap(),
    ];
    let multi = Lock::multi(&locks.each_ref()).unwrap();
    for _ in 0..3 {
        multi.acquire(Some(TEST_TIMEOUT)).unwrap();
        assert!(multi.is_held().unwrap() && locks.iter().all(|lock| lock.is_held().unwrap()));
        let tokens = locks.each_ref().map(|lock| lock.fencing_token().unwrap());
        assert_eq!(multi.fencing_token().unwrap(), *tokens.iter().min().unwrap());
        assert_eq!(multi.participants().unwrap().len(), 3);
        multi.release().unwrap();
    }
    let other = clients[1].semaphore_mutex(&paths[2]).unwrap();
    other.acquire(None).unwrap();
    assert_times_out(SECOND, |limit| multi.acquire(Some(limit)));
    wait_for_queue(&mut raw, &paths[0], 0);
    wait_for_queue(&mut raw, &paths[1], 0);
    thread::scope(|scope| {
        let waiter = scope.spawn(|| multi.acquire(None));
        wait_for_queue(&mut raw, &format!("{}/leases", paths[2]), 2);
        multi.cancel().unwrap();
        assert_eq!(status(waiter.join().unwrap()), Status::Canceled);
    });
    wait_for_queue(&mut raw, &paths[0], 0);
    other.release().unwrap();
    multi.acquire(Some(TEST_TIMEOUT)).unwrap();
    multi.release().unwrap();
}

#[test]
fn several_semaphore_mutexes_in_opposite_order_do_not_deadlock() {
    let server = ZooKeeper::shared();
    let paths = [path("s"), path("t")];
    thread::scope(|scope| {
        for at in 0..2 {
            let paths = &paths;
            scope.spawn(move || {
                let client = client(&server.address());
                let [s, t] = paths.each_ref().map(|path| client.semaphore_mutex(path).unwrap());
                let multi = if at == 0 { Lock::multi(&[&s, &t]) } else { Lock::multi(&[&t, &s]) }.unwrap();
                for _ in 0..50 {
                    multi.acquire(Some(TEST_TIMEOUT)).unwrap();
                    multi.release().unwrap();
                }
            });
        }
    });
}

#[test]
fn invalid_member_lists_return_invalid() {
    let server = ZooKeeper::shared();
    let client = client(&server.address());
    let (a, again) = (client.mutex("/multi/a").unwrap(), client.rwlock("/multi/a").unwrap());
    assert_eq!(Lock::multi(&[]).err().unwrap().status(), Status::Invalid);
    let twice = Lock::multi(&[&a, &again.read]).err().unwrap();
    assert!(
        twice.status() == Status::Invalid && twice.message().contains("have the same path \"/multi/a\""),
        "{twice}"
    );
    let one = Lock::multi(&[&a]).unwrap();
    assert_eq!(
        Lock::multi(&[&one, &a]).err().unwrap().status(),
        Status::Invalid,
        "a multi-lock of multi-locks is one of its locks"
    );
    one.acquire(TRY_ONCE).unwrap();
    one.release().unwrap();
    // A member lock that is closed.
    let b = client.mutex("/multi/b").unwrap();
    let both = Lock::multi(&[&a, &b]).unwrap();
    both.acquire(TRY_ONCE).unwrap();
    b.close().unwrap();
    assert!(a.is_held().unwrap());
    assert_eq!(both.is_held().unwrap_err().status(), Status::Closed);
    assert_eq!(status(both.release()), Status::Closed);
    assert!(!a.is_held().unwrap());
    assert_eq!(status(both.acquire(TRY_ONCE)), Status::Closed);
}

/// If an operator deletes one node, the waiter loses its position in all queues. Otherwise two multi-locks could wait
/// for each other.
#[test]
fn a_waiter_that_loses_one_node_joins_all_queues_again() {
    let server = ZooKeeper::shared();
    let (paths, mut raw) = ([path("m"), path("n")], raw(server));
    let (holder, client) = (client(&server.address()), client(&server.address()));
    let held = mutexes(&holder, &paths);
    Lock::multi(&held.each_ref()).unwrap().acquire(None).unwrap();
    let locks = mutexes(&client, &paths);
    let multi = Lock::multi(&locks.each_ref()).unwrap();
    thread::scope(|scope| {
        let waiter = scope.spawn(|| multi.acquire(Some(TEST_TIMEOUT)).and_then(|()| multi.release()));
        wait_for_queue(&mut raw, &paths[0], 2);
        wait_for_queue(&mut raw, &paths[1], 2);
        let [first, second] = paths.each_ref().map(|path| queue(&mut raw, path).remove(1));
        assert_eq!(raw.delete(&format!("{}/{first}", paths[0])), 0);
        wait_until(TEST_TIMEOUT, || queue(&mut raw, &paths[1]).get(1).is_some_and(|node| *node != second));
        held.iter().for_each(|lock| lock.release().unwrap());
        waiter.join().unwrap().unwrap();
    });
}

#[test]
fn waiting_multi_lock_survives_session_expiry() {
    let server = ZooKeeper::start();
    let paths = [path("u"), path("v")];
    let (holder, client) = (client(&server.address()), client_with(&server.address(), Duration::from_secs(2)));
    let held = holder.mutex(&paths[1]).unwrap();
    held.acquire(None).unwrap();
    let locks = mutexes(&client, &paths);
    let multi = Lock::multi(&locks.each_ref()).unwrap();
    thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            multi.acquire(Some(TEST_TIMEOUT * 3)).unwrap();
            assert!(multi.is_held().unwrap());
            multi.release()
        });
        wait_for_queue(&mut raw(&server), &paths[1], 2);
        server.restart();
        wait_for_queue(&mut raw(&server), &paths[1], 2);
        held.release().unwrap();
        waiter.join().unwrap().unwrap();
    });
}

#[test]
fn dropped_acquire_leaves_no_nodes() {
    let server = ZooKeeper::shared();
    let (paths, mut raw) = ([path("g"), path("h")], raw(server));
    let (holder, client) = (client(&server.address()), client(&server.address()));
    let held = holder.semaphore_mutex(&paths[1]).unwrap();
    held.acquire(None).unwrap();
    let locks = [client.mutex(&paths[0]).unwrap(), client.semaphore_mutex(&paths[1]).unwrap()];
    let multi = Lock::multi(&locks.each_ref()).unwrap();
    let waiting = multi.start_acquire(Owner::task(1), None).unwrap();
    assert!(waiting.wait_for(MS * 100).is_none());
    wait_for_queue(&mut raw, &paths[0], 1);
    drop(waiting);
    wait_for_queue(&mut raw, &paths[0], 0);
    wait_for_queue(&mut raw, &format!("{}/leases", paths[1]), 1);
}

/// Another client acquires the locks one after the other, as Curator's multi-lock does. It holds the first lock and
/// queues for the second behind a multi-lock that waits for it. The multi-lock yields.
#[test]
fn multi_lock_yields_to_one_by_one_acquirer() {
    let server = ZooKeeper::shared();
    let (paths, mut raw) = ([path("first"), path("second")], raw(server));
    let (other, client) = (client(&server.address()), client(&server.address()));
    let [first, second] = mutexes(&other, &paths);
    let locks = mutexes(&client, &paths);
    let multi = Lock::multi(&locks.each_ref()).unwrap();
    for _ in 0..2 {
        first.acquire(None).unwrap();
        thread::scope(|scope| {
            let waiter = scope.spawn(|| multi.acquire(Some(TEST_TIMEOUT)).and_then(|()| multi.release()));
            wait_for_queue(&mut raw, &paths[1], 1);
            second.acquire(Some(TEST_TIMEOUT)).unwrap();
            assert!(!multi.is_held_in_process().unwrap());
            second.release().unwrap();
            first.release().unwrap();
            waiter.join().unwrap().unwrap();
        });
    }
}

/// A waiter that is behind another multi-lock in one queue, and that blocks no other client, keeps its position.
#[test]
fn multi_lock_without_deadlock_keeps_its_position() {
    let server = ZooKeeper::shared();
    let (paths, mut raw) = ([path("kept-1"), path("kept-2")], raw(server));
    let clients = [client(&server.address()), client(&server.address()), client(&server.address())];
    let held = clients[0].mutex(&paths[0]).unwrap();
    held.acquire(None).unwrap();
    let locks = mutexes(&clients[1], &paths);
    let multi = Lock::multi(&locks.each_ref()).unwrap();
    let behind = clients[2].mutex(&paths[1]).unwrap();
    thread::scope(|scope| {
        let waiter = scope.spawn(|| multi.acquire(Some(TEST_TIMEOUT)).and_then(|()| multi.release()));
        wait_for_queue(&mut raw, &paths[1], 1);
        let place = queue(&mut raw, &paths[1]);
        let last = scope.spawn(|| behind.acquire(Some(TEST_TIMEOUT)).and_then(|()| behind.release()));
        wait_for_queue(&mut raw, &paths[1], 2);
        // The multi-lock searches for deadlocks up to about a second after it has joined.
        thread::sleep(MS * 1_500);
        assert_eq!(queue(&mut raw, &paths[1])[..1], place[..]);
        held.release().unwrap();
        waiter.join().unwrap().unwrap();
        last.join().unwrap().unwrap();
    });
}

#[test]
fn ordered_multi_lock_acquires_members_in_the_given_order() {
    let server = ZooKeeper::shared();
    let (paths, mut raw) = ([path("z-first"), path("a-second")], raw(server));
    let (holder, client) = (client(&server.address()), client(&server.address()));
    let held = mutexes(&holder, &paths);
    let locks = mutexes(&client, &paths);
    let multi = Lock::multi_in_order(&locks.each_ref()).unwrap();
    held[0].acquire(None).unwrap();
    thread::scope(|scope| {
        let waiter = scope.spawn(|| multi.acquire(Some(TEST_TIMEOUT)).and_then(|()| multi.release()));
        wait_for_queue(&mut raw, &paths[0], 2);
        // As with Curator's multi-lock, the holder of the first lock finds no node ahead in the second queue.
        held[1].acquire(Some(Duration::ZERO)).unwrap();
        wait_for_queue(&mut raw, &paths[1], 1);
        held.iter().for_each(|lock| lock.release().unwrap());
        waiter.join().unwrap().unwrap();
    });
    held[1].acquire(None).unwrap();
    // All member locks have one deadline.
    assert_times_out(SECOND, |limit| multi.acquire(Some(limit)));
    wait_for_queue(&mut raw, &paths[0], 0);
    held[1].release().unwrap();
    multi.acquire(TRY_ONCE).unwrap();
    assert!(multi.is_held().unwrap() && locks.iter().all(|lock| lock.is_held().unwrap()));
    assert_eq!(multi.fencing_token().unwrap(), locks[0].fencing_token().unwrap(), "the smallest");
    multi.release().unwrap();
    assert_eq!(status(Lock::multi_in_order(&[&locks[0], &locks[0]]).map(drop)), Status::Invalid);
    assert_eq!(status(Lock::multi_in_order(&[]).map(drop)), Status::Invalid);
}

/// The reply to the create is lost, and then one directory cannot be listed once. The client still deletes its nodes in
/// this directory.
#[test]
fn a_directory_that_can_not_be_searched_at_once_is_searched_again() {
    let server = ZooKeeper::shared();
    let (proxy, paths, mut raw) = (Proxy::start(&server.address()), [path("refused"), path("searched")], raw(server));
    let client = client(&proxy.address());
    let locks = mutexes(&client, &paths);
    let multi = Lock::multi(&locks.each_ref()).unwrap();
    multi.acquire(None).unwrap();
    paths.iter().for_each(|path| drop(raw.create(&format!("{path}/stays"), b"", 0).unwrap()));
    multi.release().unwrap();
    let number =
        |frame: &[u8], at: usize| frame.get(at..at + 4).map(|bytes| i32::from_be_bytes(bytes.try_into().unwrap()));
    let (mut was_cut, mut list) = (false, None);
    proxy.hook(move |way, frame| {
        let to_server = way == Direction::ToServer;
        // A multi whose first operation is a create.
        if to_server && number(frame, 4) == Some(14) && number(frame, 8) == Some(15) && !was_cut {
            was_cut = true;
            return Verdict::CutAfter;
        }
        if to_server && was_cut && number(frame, 4) == Some(12) && list.is_none() {
            list = number(frame, 0);
        } else if !to_server && list.is_some() && number(frame, 0) == list {
            // Fail with NoAuth once.
            frame.truncate(16);
            frame[12..16].copy_from_slice(&(-102_i32).to_be_bytes());
            list = Some(-1);
        }
        Verdict::Forward
    });
    assert_eq!(status(multi.acquire(Some(TEST_TIMEOUT))), Status::Denied);
    paths.iter().for_each(|path| wait_for_queue(&mut raw, path, 1));
}

/// The order in which the locks are acquired does not depend on the order of the arguments.
#[test]
fn two_clients_of_one_ensemble_in_other_orders_do_not_deadlock() {
    let server = ZooKeeper::shared();
    let (base, clients) = (path("orders"), [0; 4].map(|_| client(&server.address())));
    let lock = |client: usize, name: &str| clients[client].mutex(&format!("{base}/{name}")).unwrap();
    let one = Lock::multi(&[&lock(0, "d"), &lock(0, "a"), &lock(1, "b")]).unwrap();
    let other = Lock::multi(&[&lock(2, "a"), &lock(2, "d"), &lock(3, "b")]).unwrap();
    let start = |multi: &Lock| {
        let started = multi.start_acquire(Owner::task(1), Some(TEST_TIMEOUT)).unwrap();
        // The acquire has time to complete its first step.
        thread::sleep(MS * 300);
        started
    };
    let (first, second) = (start(&one), start(&other));
    thread::scope(|scope| {
        for started in [first, second] {
            scope.spawn(move || {
                let hold = std::iter::repeat_with(|| started.wait_for(MS * 10)).flatten().next();
                hold.unwrap().unwrap().release().unwrap();
            });
        }
    });
}

/// Each step takes less than a second, but the two steps together take longer.
#[test]
fn timeout_zero_takes_one_second_at_most_over_all_steps() {
    let server = ZooKeeper::shared();
    let (paths, mut raw, proxies) =
        ([path("slow"), path("slower")], raw(server), [0; 2].map(|_| Proxy::start(&server.address())));
    let clients = proxies.each_ref().map(|proxy| client(&proxy.address()));
    let locks = [0, 1].map(|at| clients[at].mutex(&paths[at]).unwrap());
    let multi = Lock::multi_in_order(&locks.each_ref()).unwrap();
    multi.acquire(None).unwrap();
    paths.iter().for_each(|path| drop(raw.create(&format!("{path}/stays"), b"", 0).unwrap()));
    multi.release().unwrap();
    proxies.iter().for_each(|proxy| proxy.delay(Direction::ToClient, MS * 400));
    let first_request = Arc::new(OnceLock::new());
    let note = Arc::clone(&first_request);
    proxies[1].hook(move |way, _| {
        if way == Direction::ToServer {
            note.get_or_init(Instant::now);
        }
        Verdict::Forward
    });
    let started = Instant::now();
    let (result, took) = timed(|| multi.acquire(TRY_ONCE));
    assert_not_late(took, MS * 1_000);
    // On a busy machine, the second step may begin so late that its server owes the answer for less than 100 ms.
    let begin = first_request.get().map(|&first| first - started);
    println!("the second step began after {begin:?}");
    match status(result) {
        Status::Timeout => {
            assert!(begin.is_none_or(|begin| begin >= MS * 900), "the second step began after {begin:?}");
        }
        other => assert_eq!(other, Status::Connection),
    }
}

/// Between two steps, the acquire waits in neither queue. A cancel must still end it.
#[test]
fn cancel_between_two_steps_ends_the_acquire() {
    let server = ZooKeeper::shared();
    let (paths, clients) = ([path("got"), path("taken")], [0; 3].map(|_| client(&server.address())));
    let taken = clients[2].mutex(&paths[1]).unwrap();
    taken.acquire(None).unwrap();
    let locks = [0, 1].map(|at| clients[at].mutex(&paths[at]).unwrap());
    let multi = Lock::multi_in_order(&locks.each_ref()).unwrap();
    let waiting = multi.start_acquire(Owner::task(1), None).unwrap();
    wait_until(TEST_TIMEOUT, || locks[0].is_held_as(Owner::task(1)).unwrap());
    multi.cancel().unwrap();
    assert_eq!(status(waiting.wait_for(TEST_TIMEOUT).unwrap()), Status::Canceled);
    // A later acquire is not affected.
    taken.release().unwrap();
    multi.acquire(Some(TEST_TIMEOUT)).unwrap();
    multi.release().unwrap();
}
