//! The read/write lock: which holds are compatible, and in which order they are granted.

use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use zklock::{LockState, Owner, RwLock, Status};
use zklock_test_support::{Direction, Proxy, Verdict, ZooKeeper, wait_until};

use crate::common::{
    OwnerCalls as _, TEST_TIMEOUT, assert_times_out, client, client_with, path, queue, raw, status, timed,
};

const MS: Duration = Duration::from_millis(1);
const TRY_ONCE: Option<Duration> = Some(Duration::ZERO);

fn waits(rw: &RwLock, length: usize) {
    wait_until(TEST_TIMEOUT, || rw.read.queue().unwrap().len() == length);
}

#[test]
fn readers_share_and_writers_do_not() {
    let server = ZooKeeper::shared();
    let (path, clients) = (path("rw"), [client(&server.address()), client(&server.address())]);
    let [one, two] = clients.each_ref().map(|client| client.rwlock(&path).unwrap());
    one.read.acquire(TRY_ONCE).unwrap();
    two.read.acquire(TRY_ONCE).unwrap();
    assert_eq!(status(two.write.acquire(TRY_ONCE)), Status::Deadlock, "this thread reads by the same handle");
    thread::scope(|scope| {
        scope.spawn(|| assert_times_out(Duration::ZERO, |limit| two.write.acquire(Some(limit))));
    });
    one.read.release().unwrap();
    two.read.release().unwrap();
    two.write.acquire(TRY_ONCE).unwrap();
    assert_times_out(Duration::ZERO, |limit| one.read.acquire(Some(limit)));
    assert_times_out(Duration::ZERO, |limit| one.write.acquire(Some(limit)));
    two.write.release().unwrap();
    one.read.acquire(TRY_ONCE).unwrap();
    one.read.release().unwrap();
}

/// Curator: `TestInterProcessReadWriteLock.testBasic`.
#[test]
fn eight_clients_read_and_write_at_random() {
    let server = ZooKeeper::shared();
    let path = path("basic");
    let (inside, most_readers) = (AtomicI32::new(0), AtomicI32::new(0));
    thread::scope(|scope| {
        for seed in 0..8_u32 {
            let (path, inside, most_readers) = (&path, &inside, &most_readers);
            scope.spawn(move || {
                let client = client(&server.address());
                let rw = client.rwlock(path).unwrap();
                let mut random = seed.wrapping_mul(2_654_435_761).wrapping_add(12_345);
                for _ in 0..40 {
                    random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    if (random >> 16) % 10 == 0 {
                        rw.write.acquire(Some(TEST_TIMEOUT)).unwrap();
                        assert_eq!(inside.swap(-1, Ordering::SeqCst), 0, "a writer holds the lock alone");
                        inside.store(0, Ordering::SeqCst);
                        rw.write.release().unwrap();
                    } else {
                        rw.read.acquire(Some(TEST_TIMEOUT)).unwrap();
                        let readers = inside.fetch_add(1, Ordering::SeqCst) + 1;
                        assert!(readers > 0, "no reader beside a writer");
                        most_readers.fetch_max(readers, Ordering::SeqCst);
                        thread::yield_now();
                        inside.fetch_sub(1, Ordering::SeqCst);
                        rw.read.release().unwrap();
                    }
                }
            });
        }
    });
    assert!(most_readers.load(Ordering::SeqCst) > 1, "readers hold the lock together");
}

/// Curator: `TestInterProcessReadWriteLock.testGetParticipantNodes`.
#[test]
fn read_and_write_lock_list_their_own_participants() {
    let server = ZooKeeper::shared();
    let (path, client) = (path("participants"), client(&server.address()));
    let rw = client.rwlock(&path).unwrap();
    let tasks = |from, count| (from..from + count).map(Owner::task);
    let readers: Vec<_> = tasks(0, 20).map(|task| rw.read.start_acquire(task, None).unwrap()).collect();
    let _holds: Vec<_> = readers.into_iter().map(|reader| reader.wait().unwrap()).collect();
    let writers: Vec<_> = tasks(100, 8).map(|task| rw.write.start_acquire(task, None).unwrap()).collect();
    waits(&rw, 28);
    let (read, write, all) =
        (rw.read.participants().unwrap(), rw.write.participants().unwrap(), rw.read.queue().unwrap());
    assert_eq!((read.len(), write.len(), all.len()), (20, 8, 28));
    assert!(read.iter().all(|reader| reader.holds && reader.node_path.contains("__READ__")));
    assert!(write.iter().all(|writer| !writer.holds && writer.node_path.contains("__WRIT__")));
    assert_eq!(all, rw.write.queue().unwrap());
    assert_eq!(all.iter().filter(|participant| participant.holds).count(), 20);
    assert!(all.is_sorted_by_key(|participant| participant.czxid));
    drop(writers);
    tasks(0, 20).for_each(|task| rw.read.release_as(task).unwrap());
    waits(&rw, 0);
}

/// Curator: `TestInterProcessReadWriteLock.testThatUpgradingIsDisallowed`. Curator waits for its own hold; zklock fails
/// with DEADLOCK.
#[test]
fn upgrade_returns_deadlock_at_once() {
    let server = ZooKeeper::shared();
    let client = client(&server.address());
    let (rw, again) = (client.rwlock(&path("upgrade")).unwrap(), path("upgrade-2"));
    rw.read.acquire(TRY_ONCE).unwrap();
    let (refused, took) = timed(|| rw.write.acquire(None));
    assert_eq!(refused.unwrap_err().status(), Status::Deadlock);
    assert!(took < TEST_TIMEOUT);
    assert!(rw.read.is_held().unwrap(), "nothing changed");
    rw.read.release().unwrap();
    rw.write.acquire(TRY_ONCE).unwrap();
    rw.write.release().unwrap();
    // The same applies to another lock handle of the same client.
    let (one, two) = (client.rwlock(&again).unwrap(), client.rwlock(&again).unwrap());
    one.read.acquire(TRY_ONCE).unwrap();
    assert_eq!(status(two.write.acquire(None)), Status::Deadlock);
    two.read.acquire(TRY_ONCE).unwrap();
    one.read.release().unwrap();
    assert_eq!(status(two.write.acquire(None)), Status::Deadlock);
    two.read.release().unwrap();
}

/// Curator: `TestInterProcessReadWriteLock.testDowngrading`.
#[test]
fn downgrading() {
    let server = ZooKeeper::shared();
    let (path, mut raw, client) = (path("downgrade"), raw(server), client(&server.address()));
    let rw = client.rwlock(&path).unwrap();
    rw.write.acquire(Some(TEST_TIMEOUT)).unwrap();
    rw.read.acquire(Some(TEST_TIMEOUT)).unwrap();
    let nodes = queue(&mut raw, &path);
    let numbers: Vec<&str> = nodes.iter().map(|name| &name[name.len() - 10..]).collect();
    assert_eq!(numbers, ["0000000000"; 2], "the read node has the write node's number: {nodes:?}");
    assert_eq!(raw.stat(&format!("{path}/{}", nodes[0])).unwrap().ephemeral_owner, client.session_id().unwrap());
    rw.write.release().unwrap();
    assert!(rw.read.is_held().unwrap() && !rw.write.is_held().unwrap());
    rw.read.release().unwrap();
    assert_eq!(queue(&mut raw, &path), Vec::<String>::new());
}

/// Curator: `TestInterProcessReadWriteLock.testContendingDowngrading` (CURATOR-621).
#[test]
fn waiting_writer_is_not_granted_during_a_downgrade() {
    let server = ZooKeeper::shared();
    let (path, clients) = (path("contended"), [client(&server.address()), client(&server.address())]);
    let [one, two] = clients.each_ref().map(|client| client.rwlock(&path).unwrap());
    one.write.acquire(TRY_ONCE).unwrap();
    thread::scope(|scope| {
        let writer = scope.spawn(|| two.write.acquire(Some(TEST_TIMEOUT)).and_then(|()| two.write.release()));
        waits(&one, 2);
        one.read.acquire(TRY_ONCE).unwrap();
        one.write.release().unwrap();
        // When the server has answered this request, the waiting writer has examined the queue again.
        for _ in 0..20 {
            let queue = one.read.queue().unwrap();
            assert_eq!(queue.iter().map(|participant| participant.holds).collect::<Vec<_>>(), [true, false]);
            assert!(!two.write.is_held_in_process().unwrap(), "the reader still holds the lock");
            thread::sleep(MS * 5);
        }
        assert!(one.read.is_held().unwrap());
        one.read.release().unwrap();
        writer.join().unwrap().unwrap();
    });
}

/// Curator: `TestInterProcessReadWriteLock.testThatDowngradingRespectsThreads`.
#[test]
fn another_thread_does_not_read_under_a_write_lock() {
    let server = ZooKeeper::shared();
    let client = client(&server.address());
    let rw = client.rwlock(&path("threads")).unwrap();
    rw.write.acquire(TRY_ONCE).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| assert_eq!(status(rw.read.acquire(Some(MS * 1_000))), Status::Timeout));
    });
    rw.write.release().unwrap();
}

/// Curator: `TestInterProcessReadWriteLock.testSetNodeData`.
#[test]
fn node_data() {
    let server = ZooKeeper::shared();
    let (path, mut raw, client) = (path("data"), raw(server), client(&server.address()));
    let rw = client.rwlock(&path).unwrap();
    rw.read.set_data(Some(b"reader")).unwrap();
    rw.read.acquire(TRY_ONCE).unwrap();
    let node = rw.read.node_paths().unwrap().remove(0);
    assert_eq!(raw.data(&node).unwrap(), b"reader");
    rw.read.release().unwrap();
    rw.write.acquire(TRY_ONCE).unwrap();
    let node = rw.write.node_paths().unwrap().remove(0);
    assert_eq!(raw.data(&node).unwrap(), b"127.0.0.1", "Curator does the same");
    rw.write.release().unwrap();
    assert_eq!(status(rw.write.node_paths()), Status::NotOwner);
}

/// Curator: `TestInterProcessReadWriteLock.testLockPath`.
#[test]
fn reader_proceeds_after_the_holders_session_ends() {
    let server = ZooKeeper::shared();
    let (path, mut raw) = (path("lock-path"), raw(server));
    let (first, second) = (client_with(&server.address(), Duration::from_secs(2)), client(&server.address()));
    let [one, two] = [&first, &second].map(|client| client.rwlock(&path).unwrap());
    one.write.acquire(TRY_ONCE).unwrap();
    let node = one.write.node_paths().unwrap().remove(0);
    let session = first.session_id().unwrap();
    assert_eq!(raw.delete(&node), 0, "as an operator ends it");
    two.read.acquire(Some(TEST_TIMEOUT)).unwrap();
    wait_until(TEST_TIMEOUT, || one.write.state().unwrap() == LockState::Lost);
    assert_eq!(first.session_id().unwrap(), session);
    assert!(!raw.exists(&node));
    assert_eq!(status(one.write.node_paths()), Status::Lost);
    assert_eq!(status(one.write.release()), Status::Lost);
    two.read.release().unwrap();
}

/// kazoo: `test_rw_lock`.
#[test]
fn the_queue_is_fair_between_readers_and_writers() {
    let server = ZooKeeper::shared();
    let (path, client) = (path("fair"), client(&server.address()));
    let rw = client.rwlock(&path).unwrap();
    let order = std::sync::Mutex::new(Vec::new());
    rw.write.acquire(TRY_ONCE).unwrap();
    thread::scope(|scope| {
        for (at, (name, lock)) in
            [("R1", &rw.read), ("W1", &rw.write), ("R2", &rw.read), ("W2", &rw.write)].into_iter().enumerate()
        {
            let order = &order;
            scope.spawn(move || {
                lock.acquire(None).unwrap();
                order.lock().unwrap().push(name);
                lock.release().unwrap();
            });
            waits(&rw, at + 2);
        }
        rw.write.release().unwrap();
    });
    assert_eq!(*order.lock().unwrap(), ["R1", "W1", "R2", "W2"]);
}

#[test]
fn read_and_write_holds_nest_and_reenter() {
    let server = ZooKeeper::shared();
    let (path, client) = (path("reentry"), client(&server.address()));
    let rw = client.rwlock(&path).unwrap();
    for _ in 0..2 {
        rw.write.acquire(TRY_ONCE).unwrap();
        rw.read.acquire(TRY_ONCE).unwrap();
    }
    assert_eq!(rw.read.queue().unwrap().len(), 2, "one node for each hold, for any hold count");
    assert!(rw.read.queue().unwrap().iter().all(|participant| participant.holds));
    rw.write.release().unwrap();
    rw.read.release().unwrap();
    assert!(rw.write.is_held().unwrap() && rw.read.is_held().unwrap());
    rw.read.release().unwrap();
    rw.read.acquire(TRY_ONCE).unwrap();
    rw.write.release().unwrap();
    rw.read.release().unwrap();
    waits(&rw, 0);
}

#[test]
fn waiting_read_is_granted_when_its_owner_gets_the_write_lock() {
    let server = ZooKeeper::shared();
    let (path, client) = (path("one-task"), client(&server.address()));
    let (rw, task) = (client.rwlock(&path).unwrap(), Owner::task(1));
    rw.write.acquire(TRY_ONCE).unwrap();
    let write = rw.write.start_acquire(task, Some(TEST_TIMEOUT)).unwrap();
    let read = rw.read.start_acquire(task, Some(TEST_TIMEOUT)).unwrap();
    waits(&rw, 3);
    rw.write.release().unwrap();
    write.wait().unwrap().leave_to_owner();
    read.wait().unwrap().leave_to_owner();
    rw.write.release_as(task).unwrap();
    rw.read.release_as(task).unwrap();
}

/// A write lock whose node an operator has deleted excludes no other client, so a read lock must not rely on it.
#[test]
fn read_under_a_deleted_write_lock_queues_normally() {
    let server = ZooKeeper::shared();
    let (path, mut raw) = (path("robbed"), raw(server));
    let clients = [client(&server.address()), client(&server.address())];
    let [one, two] = clients.each_ref().map(|client| client.rwlock(&path).unwrap());
    one.write.acquire(TRY_ONCE).unwrap();
    let node = one.write.node_paths().unwrap().remove(0);
    assert_eq!(raw.delete(&node), 0);
    two.write.acquire(Some(TEST_TIMEOUT)).unwrap();
    // The client may or may not have noticed the loss yet.
    match one.read.acquire(Some(MS * 1_000)) {
        Ok(()) => panic!("a reader beside a writer"),
        Err(error) => assert!(matches!(error.status(), Status::Timeout | Status::Lost), "{error}"),
    }
    two.write.release().unwrap();
    assert_eq!(status(one.write.release()), Status::Lost);
}

#[test]
fn many_readers_and_a_writer_of_many_threads() {
    let server = ZooKeeper::shared();
    let (path, client) = (path("many"), client(&server.address()));
    let (rw, value) = (client.rwlock(&path).unwrap(), AtomicUsize::new(0));
    thread::scope(|scope| {
        for at in 0..12 {
            let (rw, value) = (&rw, &value);
            scope.spawn(move || {
                for _ in 0..10 {
                    if at % 4 == 0 {
                        rw.write.acquire(Some(TEST_TIMEOUT)).unwrap();
                        let before = value.load(Ordering::SeqCst);
                        thread::yield_now();
                        value.store(before + 1, Ordering::SeqCst);
                        rw.write.release().unwrap();
                    } else {
                        rw.read.acquire(Some(TEST_TIMEOUT)).unwrap();
                        let before = value.load(Ordering::SeqCst);
                        thread::yield_now();
                        assert_eq!(value.load(Ordering::SeqCst), before);
                        rw.read.release().unwrap();
                    }
                }
            });
        }
    });
    assert_eq!(value.load(Ordering::SeqCst), 30);
}

/// The writer notices the loss within a heartbeat, here five seconds. Until then the client does not repeatedly try to
/// acquire the read lock.
#[test]
fn read_under_a_deleted_write_lock_reports_the_writer_lost() {
    let server = ZooKeeper::shared();
    let (proxy, mut raw) = (Proxy::start(&server.address()), raw(server));
    let rw = client_with(&proxy.address(), Duration::from_secs(30)).rwlock(&path("storm")).unwrap();
    rw.write.acquire(TRY_ONCE).unwrap();
    assert_eq!(raw.delete(&rw.write.node_paths().unwrap()[0]), 0);
    let creates = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&creates);
    proxy.hook(move |way, frame| {
        let is_create = way == Direction::ToServer && frame.get(4..8) == Some(&15_i32.to_be_bytes()[..]);
        counter.fetch_add(usize::from(is_create), Ordering::SeqCst);
        Verdict::Forward
    });
    rw.read.acquire(Some(TEST_TIMEOUT)).unwrap();
    assert_eq!(rw.write.state().unwrap(), LockState::Lost);
    let creates = creates.load(Ordering::SeqCst);
    assert!(creates < 20, "{creates} nodes were made");
}
