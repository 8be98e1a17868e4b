//! Acquires for which no thread waits: they take their steps, keep their deadlines and end without help.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use crate::common::{
    OwnerCalls as _, TEST_TIMEOUT, assert_ends_at_limit, client, path, queue, raw, status, wait_for_queue,
};
use zklock::{Client, Config, Hold, Lock, LockState, Operation, Owner, Status};
use zklock_test_support::{Proxy, ZooKeeper, wait_until};

const NO_WAIT: Duration = Duration::ZERO;

/// Receives a message when the acquire ends.
fn end_of(acquiring: &Operation<Hold>) -> mpsc::Receiver<()> {
    let (say, hear) = mpsc::channel();
    acquiring.on_done(move || say.send(()).unwrap()).unwrap();
    hear
}

/// A lock of three steps: the queues of two clients, and a semaphore mutex.
fn in_steps(one: &Client, two: &Client, paths: &[String; 3]) -> ([Lock; 3], Lock) {
    let locks = [one.mutex(&paths[0]).unwrap(), two.mutex(&paths[1]).unwrap(), one.semaphore_mutex(&paths[2]).unwrap()];
    let multi = Lock::multi(&locks.each_ref()).unwrap();
    (locks, multi)
}

fn three_paths() -> [String; 3] {
    [path("one"), path("two"), path("three")]
}

#[test]
fn unattended_acquire_takes_all_its_steps() {
    let server = ZooKeeper::shared();
    let (one, two, holder) = (client(&server.address()), client(&server.address()), client(&server.address()));
    let (paths, mut raw) = (three_paths(), raw(server));
    let (locks, multi) = in_steps(&one, &two, &paths);
    let held = holder.mutex(&paths[1]).unwrap();
    held.acquire(None).unwrap();
    let acquiring = multi.start_acquire(Owner::task(7), None).unwrap();
    let over = end_of(&acquiring);
    wait_for_queue(&mut raw, &paths[0], 1);
    wait_for_queue(&mut raw, &paths[1], 2);
    assert_eq!(queue(&mut raw, &format!("{}/leases", paths[2])), Vec::<String>::new(), "a step too early");
    held.release().unwrap();
    over.recv_timeout(TEST_TIMEOUT).unwrap();
    assert!(locks.iter().all(|lock| lock.is_held_as(Owner::task(7)).unwrap()));
    acquiring.wait_for(NO_WAIT).unwrap().unwrap().leave_to_owner();
    drop(acquiring);
    multi.release_as(Owner::task(7)).unwrap();
}

#[test]
fn unattended_acquire_times_out_across_its_steps() {
    let server = ZooKeeper::shared();
    let (one, two, holder) = (client(&server.address()), client(&server.address()), client(&server.address()));
    let (paths, mut raw) = (three_paths(), raw(server));
    let (_locks, multi) = in_steps(&one, &two, &paths);
    let held = holder.mutex(&paths[1]).unwrap();
    held.acquire(None).unwrap();
    let limit = Duration::from_secs(1);
    let acquiring = assert_ends_at_limit(limit, || {
        let acquiring = multi.start_acquire(Owner::task(7), Some(limit)).unwrap();
        end_of(&acquiring).recv_timeout(TEST_TIMEOUT).unwrap();
        acquiring
    });
    assert_eq!(status(acquiring.wait_for(NO_WAIT).unwrap()), Status::Timeout);
    wait_for_queue(&mut raw, &paths[0], 0);
    wait_for_queue(&mut raw, &paths[1], 1);
}

#[test]
fn client_close_ends_acquires_that_include_its_locks() {
    let server = ZooKeeper::shared();
    let (one, two, holder) = (client(&server.address()), client(&server.address()), client(&server.address()));
    let (paths, mut raw) = (three_paths(), raw(server));
    let (_locks, multi) = in_steps(&one, &two, &paths);
    let held = holder.mutex(&paths[1]).unwrap();
    held.acquire(None).unwrap();
    let acquiring = multi.start_acquire(Owner::task(7), None).unwrap();
    let over = end_of(&acquiring);
    wait_for_queue(&mut raw, &paths[1], 2);
    one.close().unwrap();
    over.recv_timeout(TEST_TIMEOUT).unwrap();
    assert_eq!(status(acquiring.wait_for(NO_WAIT).unwrap()), Status::Closed);
    wait_for_queue(&mut raw, &paths[1], 1);
}

/// Cancels or closes the first lock, the multi-lock or the acquire.
type Order = fn(&Lock, &Lock, &Operation<Hold>);

/// A cancel or close between two steps also ends the acquire. Two acquires of one owner are granted the first lock
/// together. The hook at the end of the first acquire delays the next step of the other one.
#[test]
fn cancel_and_close_between_two_steps_end_the_acquire() {
    let server = ZooKeeper::shared();
    let (one, two, holder) = (client(&server.address()), client(&server.address()), client(&server.address()));
    let orders: [(Order, Status); 3] = [
        (|_, multi, _| multi.cancel().unwrap(), Status::Canceled),
        (|_, _, acquiring| acquiring.cancel().unwrap(), Status::Canceled),
        (|first, _, _| first.close().unwrap(), Status::Closed),
    ];
    for (order, expected) in orders {
        let paths = [path("first"), path("next")];
        let held = paths.each_ref().map(|path| holder.mutex(path).unwrap());
        held.iter().for_each(|lock| lock.acquire(None).unwrap());
        let (first, next) = (one.mutex(&paths[0]).unwrap(), two.mutex(&paths[1]).unwrap());
        let multi = Lock::multi_in_order(&[&first, &next]).unwrap();
        let task = Owner::task(7);
        let alone = first.start_acquire(task, None).unwrap();
        let acquiring = multi.start_acquire(task, None).unwrap();
        wait_for_queue(&mut raw(server), &paths[0], 3);
        let ((say, hear), (go, wait)) = (mpsc::channel(), mpsc::channel());
        let hook = move || {
            say.send(()).unwrap();
            wait.recv().unwrap();
        };
        alone.on_done(hook).unwrap();
        held[0].release_nowait().unwrap();
        hear.recv_timeout(TEST_TIMEOUT).unwrap();
        assert!(first.is_held_as(task).unwrap() && !acquiring.is_over());
        order(&first, &multi, &acquiring);
        go.send(()).unwrap();
        assert_eq!(status(acquiring.wait_for(TEST_TIMEOUT).unwrap()), expected);
        alone.wait_for(NO_WAIT).unwrap().unwrap().leave_to_owner();
        wait_for_queue(&mut raw(server), &paths[1], 1);
    }
}

#[test]
fn acquire_dropped_while_being_granted_leaves_no_node() {
    let server = ZooKeeper::shared();
    let (one, two, other) = (client(&server.address()), client(&server.address()), client(&server.address()));
    let (paths, mut raw) = (three_paths(), raw(server));
    let (locks, multi) = in_steps(&one, &two, &paths);
    let contended = other.mutex(&paths[1]).unwrap();
    let task = Owner::task(7);
    for round in 0..200_u64 {
        let acquiring = multi.start_acquire(task, None).unwrap();
        let rival = contended.start_acquire(Owner::task(8), Some(TEST_TIMEOUT)).unwrap();
        thread::sleep(Duration::from_micros(100 * (round % 20)));
        drop(acquiring);
        rival.wait().unwrap().leave_to_owner();
        drop(contended.start_release(Owner::task(8), false).unwrap());
    }
    wait_until(TEST_TIMEOUT, || locks.iter().all(|lock| !lock.is_held_as(task).unwrap()));
    wait_for_queue(&mut raw, &paths[0], 0);
    wait_for_queue(&mut raw, &paths[1], 0);
    wait_until(TEST_TIMEOUT, || queue(&mut raw, &format!("{}/leases", paths[2])).is_empty());
    multi.acquire(Some(TEST_TIMEOUT)).unwrap();
    multi.release().unwrap();
}

/// A program may drop its last reference to a client while the I/O thread is about to report the end of an operation.
#[test]
fn io_thread_does_not_wait_for_a_client_dropped_in_its_hook() {
    let server = ZooKeeper::shared();
    let path = path("all");
    for round in 0..100_u64 {
        let client = client(&server.address());
        let lock = client.mutex(&path).unwrap();
        let acquiring = lock.start_acquire(Owner::task(round), None).unwrap();
        drop((client, lock));
        thread::sleep(Duration::from_micros(30 * (round % 30)));
        drop(acquiring);
    }
    wait_for_queue(&mut raw(server), &path, 0);
}

#[test]
fn on_done_hook_runs_once_and_immediately_if_already_done() {
    let server = ZooKeeper::shared();
    let client = client(&server.address());
    let lock = client.mutex(&path("told")).unwrap();
    lock.acquire(None).unwrap();
    let told = Arc::new(AtomicUsize::new(0));
    let tell = |acquiring: &Operation<Hold>| {
        let told = Arc::clone(&told);
        let hook = move || {
            told.fetch_add(1, Ordering::SeqCst);
        };
        acquiring.on_done(hook).unwrap();
    };
    let acquiring = lock.start_acquire(Owner::task(1), None).unwrap();
    tell(&acquiring);
    tell(&acquiring);
    assert!(!acquiring.is_over());
    assert_eq!(told.load(Ordering::SeqCst), 0);
    lock.release().unwrap();
    wait_until(TEST_TIMEOUT, || acquiring.is_over());
    wait_until(TEST_TIMEOUT, || told.load(Ordering::SeqCst) == 2);
    tell(&acquiring);
    assert_eq!(told.load(Ordering::SeqCst), 3);
    drop(acquiring);
    assert!(!lock.is_held_as(Owner::task(1)).unwrap(), "the result was read, but the lock was not kept");

    lock.acquire(None).unwrap();
    let abandoned = lock.start_acquire(Owner::task(2), None).unwrap();
    tell(&abandoned);
    abandoned.abandon();
    assert_eq!(told.load(Ordering::SeqCst), 4);
    assert_eq!(status(abandoned.wait_for(NO_WAIT).unwrap()), Status::Closed);
    drop(abandoned);
    assert_eq!(told.load(Ordering::SeqCst), 4);
}

#[test]
fn on_done_hook_may_query_and_release() {
    let server = ZooKeeper::shared();
    let client = client(&server.address());
    let lock = Arc::new(client.mutex(&path("hook")).unwrap());
    let (say, hear) = mpsc::channel();
    let acquiring = Arc::new(lock.start_acquire(Owner::task(1), None).unwrap());
    let (of_hook, held) = (Arc::clone(&acquiring), Arc::clone(&lock));
    let hook = move || {
        of_hook.wait_for(NO_WAIT).unwrap().unwrap().leave_to_owner();
        drop(held.start_release(Owner::task(1), false).unwrap());
        say.send(held.is_held_as(Owner::task(1)).unwrap()).unwrap();
    };
    // A hook that panics does not affect the others.
    acquiring.on_done(|| panic!("on purpose")).unwrap();
    acquiring.on_done(hook).unwrap();
    assert!(!hear.recv_timeout(TEST_TIMEOUT).unwrap());
}

/// The I/O thread must not wait for itself.
#[test]
fn on_done_hook_may_drop_or_close_the_client() {
    let server = ZooKeeper::shared();
    let holder = client(&server.address());
    let path = path("last");
    let held = holder.mutex(&path).unwrap();
    for closes in [false, true] {
        held.acquire(Some(TEST_TIMEOUT)).unwrap();
        let one = client(&server.address());
        let lock = one.mutex(&path).unwrap();
        let acquiring = lock.start_acquire(Owner::task(1), None).unwrap();
        let all = Arc::new(Mutex::new(None));
        let ((say, hear), last) = (mpsc::channel(), Arc::clone(&all));
        let hook = move || {
            let (one, lock, acquiring): (Client, Lock, Operation<Hold>) = last.lock().unwrap().take().unwrap();
            let refused = status(lock.start_acquire(Owner::task(2), None).unwrap().wait());
            if closes {
                one.close().unwrap();
            }
            drop((one, lock, acquiring));
            say.send(refused).unwrap();
        };
        acquiring.on_done(hook).unwrap();
        *all.lock().unwrap() = Some((one, lock, acquiring));
        held.release_nowait().unwrap();
        assert_eq!(hear.recv_timeout(TEST_TIMEOUT).unwrap(), Status::Deadlock);
        wait_for_queue(&mut raw(server), &path, 0);
    }
}

/// If one of the acquires has been granted a lock, the other one must not wait for it.
#[test]
fn two_acquires_of_one_owner_do_not_wait_for_each_other() {
    let server = ZooKeeper::shared();
    let (one, holder, mut raw) = (client(&server.address()), client(&server.address()), raw(server));
    let paths = [path("a"), path("b")];
    let held = paths.each_ref().map(|path| holder.mutex(path).unwrap());
    let locks = paths.each_ref().map(|path| one.mutex(path).unwrap());
    let multi = Lock::multi(&locks.each_ref()).unwrap();
    let task = Owner::task(7);
    for (lock, held) in locks.iter().zip(&held) {
        held.acquire(None).unwrap();
        let alone = lock.start_acquire(task, None).unwrap();
        wait_for_queue(&mut raw, lock.path(), 2);
        let all = multi.start_acquire(task, None).unwrap();
        wait_for_queue(&mut raw, lock.path(), 3);
        held.release().unwrap();
        alone.wait_for(TEST_TIMEOUT).unwrap().unwrap().leave_to_owner();
        all.wait_for(TEST_TIMEOUT).unwrap().unwrap().leave_to_owner();
        multi.release_as(task).unwrap();
        assert!(lock.is_held_as(task).unwrap() && !multi.is_held_as(task).unwrap());
        lock.release_as(task).unwrap();
        wait_for_queue(&mut raw, &paths[0], 0);
        wait_for_queue(&mut raw, &paths[1], 0);
    }
}

/// Asks twice from each of several threads, some of which wait already. Each answer must be the same.
#[track_caller]
fn ask<T, R: Send + PartialEq + std::fmt::Debug>(
    one: &T,
    end: impl FnOnce(),
    ask: impl Fn(&T, Duration) -> Option<R> + Sync,
) -> R
where
    T: Sync,
{
    let (answers, ask) = (Mutex::new(Vec::new()), &ask);
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| (0..2).for_each(|_| answers.lock().unwrap().push(ask(one, TEST_TIMEOUT))));
        }
        end();
    });
    let mut answers = answers.into_inner().unwrap();
    answers.push(ask(one, NO_WAIT));
    let first = answers[0].as_ref().unwrap();
    assert!(answers.iter().all(|answer| answer.as_ref() == Some(first)), "{answers:?}");
    answers.pop().unwrap().unwrap()
}

/// Several threads wait for one operation, and each asks again after its end.
#[test]
fn each_operation_gives_every_thread_the_same_answer_each_time() {
    let (server, owner) = (ZooKeeper::shared(), Owner::task(7));
    let connecting = Client::start_connect(&server.address(), &Config::new()).unwrap();
    let session = ask(&connecting, || (), |one, slice| Some(one.wait_for(slice)?.unwrap().session_id().unwrap()));
    assert_ne!(session, 0);

    let nobody =
        Client::start_connect("127.0.0.1:1", &Config::new().connect_timeout(Duration::from_millis(300))).unwrap();
    let failed = ask(&nobody, || (), |one, slice| Some(one.wait_for(slice)?.unwrap_err().to_string()));
    assert!(failed.contains("127.0.0.1:1"), "{failed}");

    let client = client(&server.address());
    let lock = client.mutex(&path("same")).unwrap();
    let acquiring = lock.start_acquire(owner, None).unwrap();
    assert!(ask(&acquiring, || (), |one, slice| Some(one.wait_for(slice)?.map(Hold::leave_to_owner).is_ok())));

    let listing = lock.start_participants().unwrap();
    let nodes = ask(&listing, || (), |one, slice| Some(one.wait_for(slice)?.unwrap()));
    assert_eq!(nodes.len(), 1);

    let semaphore = client.semaphore(&path("same-leases"), 2).unwrap();
    let acquiring = semaphore.start_acquire(2, None).unwrap();
    let kept = acquiring.wait_for(TEST_TIMEOUT).unwrap().unwrap();
    let tokens = ask(&acquiring, || (), |one, slice| Some(one.wait_for(slice)?.unwrap().token()));
    assert_eq!(tokens, kept.token());
    // The last value releases the leases, and the acquire gives no leases that are held.
    drop(kept);
    let dropped = acquiring.wait_for(NO_WAIT).unwrap().unwrap();
    assert_eq!((dropped.state().unwrap(), status(dropped.release())), (LockState::Free, Status::NotOwner));

    let lost = lock.start_wait_lost(owner).unwrap();
    let release = || lock.release_as(owner).unwrap();
    let ended = ask(&lost, release, |one, slice| Some(one.wait_for(slice)?.unwrap_err().to_string()));
    assert!(ended.starts_with(lock.path()), "{ended}");
    lock.acquire_as(owner, None).unwrap();
    lock.close().unwrap();
    assert_eq!(lost.wait_for(NO_WAIT).unwrap().unwrap_err().to_string(), ended);
}

/// The waiting thread also ends if the server does not answer.
#[test]
fn an_operation_of_each_kind_that_is_abandoned_ends_with_closed_for_a_thread_that_waits() {
    let proxy = Proxy::start(&ZooKeeper::shared().address());
    let client = client(&proxy.address());
    let (held, other) = (client.mutex(&path("given-up")).unwrap(), client.mutex(&path("given-up-other")).unwrap());
    let (hold, releasing) = (held.hold(None).unwrap(), other.hold(None).unwrap());
    proxy.black_hole(true);
    let servers = proxy.address();
    assert_abandoned(&Client::start_connect(&servers, &Config::new()).unwrap());
    assert_abandoned(&held.start_acquire(Owner::unique(), None).unwrap());
    assert_abandoned(&held.start_participants().unwrap());
    assert_abandoned(&hold.start_wait_lost().unwrap());
    assert_abandoned(&releasing.start_release(true).unwrap());
}

fn assert_abandoned<T: Send>(operation: &Operation<T>) {
    thread::scope(|scope| {
        let waiting = scope.spawn(|| operation.wait_for(TEST_TIMEOUT).unwrap().err().unwrap().status());
        assert!(operation.wait_for(Duration::from_millis(20)).is_none());
        operation.abandon();
        assert_eq!(waiting.join().unwrap(), Status::Closed);
    });
    for _ in 0..2 {
        assert_eq!(operation.wait_for(NO_WAIT).unwrap().err().unwrap().status(), Status::Closed);
    }
}

#[test]
fn an_attempt_to_connect_and_a_wait_for_a_loss_can_be_canceled_and_a_query_cannot() {
    let proxy = Proxy::start(&ZooKeeper::shared().address());
    let client = client(&proxy.address());
    let lock = client.mutex(&path("canceled")).unwrap();
    let hold = lock.hold(None).unwrap();
    proxy.black_hole(true);
    let connecting = Client::start_connect(&proxy.address(), &Config::new()).unwrap();
    let (losing, listing) = (hold.start_wait_lost().unwrap(), lock.start_participants().unwrap());
    let lengths = lock.start_queue().unwrap().and_then(|queue| Ok(queue.len()));
    connecting.cancel().unwrap();
    losing.cancel().unwrap();
    listing.cancel().unwrap();
    for _ in 0..2 {
        let canceled = connecting.wait_for(NO_WAIT).unwrap().err().unwrap();
        assert_eq!(canceled.status(), Status::Canceled);
        assert!(canceled.message().contains(&proxy.address()), "{canceled}");
        assert_eq!(status(losing.wait_for(NO_WAIT).unwrap()), Status::Canceled);
    }
    assert!(!listing.is_over() && !lengths.is_over());
    proxy.black_hole(false);
    assert_eq!(listing.wait_for(TEST_TIMEOUT).unwrap().unwrap().len(), 1);
    assert_eq!([lengths.wait_for(TEST_TIMEOUT), lengths.wait_for(NO_WAIT)], [Some(Ok(1)), Some(Ok(1))]);
}
