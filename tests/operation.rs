//! Acquires that nobody waits for: they take their steps, keep their time and end by themselves.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

mod common;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use common::{SOON, client, path, queue, raw, status, wait_for_queue};
use zklock::{Acquiring, Client, Lock, Owner, Status};
use zklock_rig::{ZooKeeper, wait_until};

const MS: Duration = Duration::from_millis(1);
const NOW: Duration = Duration::ZERO;

/// When it was over.
fn end_of(acquiring: &Acquiring) -> mpsc::Receiver<Instant> {
    let (say, hear) = mpsc::channel();
    acquiring.on_done(move || say.send(Instant::now()).unwrap()).unwrap();
    hear
}

/// A lock of three steps: queues of two clients, and a semaphore mutex.
fn in_steps(one: &Client, two: &Client, paths: &[String; 3]) -> ([Lock; 3], Lock) {
    let locks = [one.mutex(&paths[0]).unwrap(), two.mutex(&paths[1]).unwrap(), one.semaphore_mutex(&paths[2]).unwrap()];
    let multi = Lock::multi(&locks.each_ref()).unwrap();
    (locks, multi)
}

fn three_paths() -> [String; 3] {
    [path("one"), path("two"), path("three")]
}

#[test]
fn steps_are_taken_though_nobody_waits() {
    let server = ZooKeeper::shared();
    let (one, two, holder) = (client(&server.address()), client(&server.address()), client(&server.address()));
    let (paths, mut raw) = (three_paths(), raw(server));
    let (locks, multi) = in_steps(&one, &two, &paths);
    let held = holder.mutex(&paths[1]).unwrap();
    held.acquire(None).unwrap();
    let acquiring = multi.start_acquire(Owner::Custom(7), None).unwrap();
    let over = end_of(&acquiring);
    wait_for_queue(&mut raw, &paths[0], 1);
    wait_for_queue(&mut raw, &paths[1], 2);
    assert_eq!(queue(&mut raw, &format!("{}/leases", paths[2])), Vec::<String>::new(), "a step too early");
    held.release().unwrap();
    over.recv_timeout(SOON).unwrap();
    assert!(locks.iter().all(|lock| lock.is_held_by(Owner::Custom(7)).unwrap()));
    acquiring.wait_for(NOW).unwrap().unwrap();
    drop(acquiring);
    multi.release_as(Owner::Custom(7)).unwrap();
}

#[test]
fn the_time_of_steps_is_kept_though_nobody_waits() {
    let server = ZooKeeper::shared();
    let (one, two, holder) = (client(&server.address()), client(&server.address()), client(&server.address()));
    let (paths, mut raw) = (three_paths(), raw(server));
    let (_locks, multi) = in_steps(&one, &two, &paths);
    let held = holder.mutex(&paths[1]).unwrap();
    held.acquire(None).unwrap();
    for limit in [100 * MS, 333 * MS] {
        let start = Instant::now();
        let acquiring = multi.start_acquire(Owner::Custom(7), Some(limit)).unwrap();
        let took = end_of(&acquiring).recv_timeout(SOON).unwrap() - start;
        assert!(took >= limit && took < limit + 500 * MS, "{limit:?}: {took:?}");
        assert_eq!(status(acquiring.wait_for(NOW).unwrap()), Status::Timeout);
        wait_for_queue(&mut raw, &paths[0], 0);
        wait_for_queue(&mut raw, &paths[1], 1);
    }
}

#[test]
fn a_client_that_closes_ends_what_waits_for_a_step_of_another() {
    let server = ZooKeeper::shared();
    let (one, two, holder) = (client(&server.address()), client(&server.address()), client(&server.address()));
    let (paths, mut raw) = (three_paths(), raw(server));
    let (_locks, multi) = in_steps(&one, &two, &paths);
    let held = holder.mutex(&paths[1]).unwrap();
    held.acquire(None).unwrap();
    let acquiring = multi.start_acquire(Owner::Custom(7), None).unwrap();
    let over = end_of(&acquiring);
    wait_for_queue(&mut raw, &paths[1], 2);
    one.close().unwrap();
    over.recv_timeout(SOON).unwrap();
    assert_eq!(status(acquiring.wait_for(NOW).unwrap()), Status::Closed);
    wait_for_queue(&mut raw, &paths[1], 1);
}

/// Given to the first lock, the multi-lock, or the acquire.
type Order = fn(&Lock, &Lock, &Acquiring);

/// What is said while one step is done and the next is not begun reaches whoever waits for that one. Two calls of one owner get into the first lock
/// together, and what the first does at its end keeps the other from its next step.
#[test]
fn between_two_steps_it_hears_of_a_cancel_and_of_a_lock_that_is_closed() {
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
        let task = Owner::Custom(7);
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
        hear.recv_timeout(SOON).unwrap();
        assert!(first.is_held_by(task).unwrap() && acquiring.look_for(NOW).is_none());
        order(&first, &multi, &acquiring);
        go.send(()).unwrap();
        assert_eq!(status(acquiring.wait_for(SOON).unwrap()), expected);
        alone.wait_for(NOW).unwrap().unwrap();
        wait_for_queue(&mut raw(server), &paths[1], 1);
    }
}

#[test]
fn dropped_while_it_wins_it_leaves_nothing() {
    let server = ZooKeeper::shared();
    let (one, two, other) = (client(&server.address()), client(&server.address()), client(&server.address()));
    let (paths, mut raw) = (three_paths(), raw(server));
    let (locks, multi) = in_steps(&one, &two, &paths);
    let contended = other.mutex(&paths[1]).unwrap();
    let task = Owner::Custom(7);
    for round in 0..200_u64 {
        let acquiring = multi.start_acquire(task, None).unwrap();
        let rival = contended.start_acquire(Owner::Custom(8), Some(SOON)).unwrap();
        thread::sleep(Duration::from_micros(100 * (round % 20)));
        drop(acquiring);
        rival.wait().unwrap();
        contended.start_release(Owner::Custom(8), false).unwrap();
    }
    wait_until(SOON, || locks.iter().all(|lock| !lock.is_held_by(task).unwrap()));
    wait_for_queue(&mut raw, &paths[0], 0);
    wait_for_queue(&mut raw, &paths[1], 0);
    wait_until(SOON, || queue(&mut raw, &format!("{}/leases", paths[2])).is_empty());
    multi.acquire(Some(SOON)).unwrap();
    multi.release().unwrap();
}

/// The last user of a client may go while the I/O thread is about to tell of an end.
#[test]
fn whoever_drops_everything_at_once_is_not_waited_for_by_the_thread_that_serves_him() {
    let server = ZooKeeper::shared();
    let path = path("all");
    for round in 0..100_u64 {
        let client = client(&server.address());
        let lock = client.mutex(&path).unwrap();
        let acquiring = lock.start_acquire(Owner::Custom(round), None).unwrap();
        drop((client, lock));
        thread::sleep(Duration::from_micros(30 * (round % 30)));
        drop(acquiring);
    }
    wait_for_queue(&mut raw(server), &path, 0);
}

#[test]
fn the_end_is_told_once_and_at_once_where_it_is_there() {
    let server = ZooKeeper::shared();
    let client = client(&server.address());
    let lock = client.mutex(&path("told")).unwrap();
    lock.acquire(None).unwrap();
    let told = Arc::new(AtomicUsize::new(0));
    let tell = |acquiring: &Acquiring| {
        let told = Arc::clone(&told);
        let hook = move || {
            told.fetch_add(1, Ordering::SeqCst);
        };
        acquiring.on_done(hook).unwrap();
    };
    let acquiring = lock.start_acquire(Owner::Custom(1), None).unwrap();
    tell(&acquiring);
    tell(&acquiring);
    assert!(acquiring.look_for(NOW).is_none());
    assert_eq!(told.load(Ordering::SeqCst), 0);
    lock.release().unwrap();
    acquiring.look_for(SOON).unwrap().unwrap();
    wait_until(SOON, || told.load(Ordering::SeqCst) == 2);
    tell(&acquiring);
    assert_eq!(told.load(Ordering::SeqCst), 3);
    drop(acquiring);
    assert!(!lock.is_held_by(Owner::Custom(1)).unwrap(), "it was looked at, and not kept");

    lock.acquire(None).unwrap();
    let abandoned = lock.start_acquire(Owner::Custom(2), None).unwrap();
    tell(&abandoned);
    abandoned.abandon();
    assert_eq!(told.load(Ordering::SeqCst), 4);
    assert_eq!(status(abandoned.wait_for(NOW).unwrap()), Status::Closed);
    drop(abandoned);
    assert_eq!(told.load(Ordering::SeqCst), 4);
}

#[test]
fn a_hook_may_ask_and_release() {
    let server = ZooKeeper::shared();
    let client = client(&server.address());
    let lock = Arc::new(client.mutex(&path("hook")).unwrap());
    let (say, hear) = mpsc::channel();
    let acquiring = Arc::new(lock.start_acquire(Owner::Custom(1), None).unwrap());
    let (of_hook, held) = (Arc::clone(&acquiring), Arc::clone(&lock));
    let hook = move || {
        of_hook.wait_for(NOW).unwrap().unwrap();
        held.start_release(Owner::Custom(1), false).unwrap();
        say.send(held.is_held_by(Owner::Custom(1)).unwrap()).unwrap();
    };
    // One that panics takes nobody along.
    acquiring.on_done(|| panic!("on purpose")).unwrap();
    acquiring.on_done(hook).unwrap();
    assert!(!hear.recv_timeout(SOON).unwrap());
}

/// The thread that serves all clients would wait for itself.
#[test]
fn a_hook_may_be_the_last_user_of_a_client_or_close_it() {
    let server = ZooKeeper::shared();
    let holder = client(&server.address());
    let path = path("last");
    let held = holder.mutex(&path).unwrap();
    for closes in [false, true] {
        held.acquire(Some(SOON)).unwrap();
        let one = client(&server.address());
        let lock = one.mutex(&path).unwrap();
        let acquiring = lock.start_acquire(Owner::Custom(1), None).unwrap();
        let all = Arc::new(Mutex::new(None));
        let ((say, hear), last) = (mpsc::channel(), Arc::clone(&all));
        let hook = move || {
            let (one, lock, acquiring): (Client, Lock, Acquiring) = last.lock().unwrap().take().unwrap();
            let refused = status(lock.start_acquire(Owner::Custom(2), None).unwrap().wait());
            if closes {
                one.close().unwrap();
            }
            drop((one, lock, acquiring));
            say.send(refused).unwrap();
        };
        acquiring.on_done(hook).unwrap();
        *all.lock().unwrap() = Some((one, lock, acquiring));
        held.release_nowait().unwrap();
        assert_eq!(hear.recv_timeout(SOON).unwrap(), Status::Deadlock);
        wait_for_queue(&mut raw(server), &path, 0);
    }
}

/// What one of them has got, the other is not to wait for.
#[test]
fn two_acquires_of_one_owner_do_not_wait_for_each_other() {
    let server = ZooKeeper::shared();
    let (one, holder, mut raw) = (client(&server.address()), client(&server.address()), raw(server));
    let paths = [path("a"), path("b")];
    let held = paths.each_ref().map(|path| holder.mutex(path).unwrap());
    let locks = paths.each_ref().map(|path| one.mutex(path).unwrap());
    let multi = Lock::multi(&locks.each_ref()).unwrap();
    let task = Owner::Custom(7);
    for (lock, held) in locks.iter().zip(&held) {
        held.acquire(None).unwrap();
        let alone = lock.start_acquire(task, None).unwrap();
        wait_for_queue(&mut raw, lock.path(), 2);
        let all = multi.start_acquire(task, None).unwrap();
        wait_for_queue(&mut raw, lock.path(), 3);
        held.release().unwrap();
        alone.wait_for(SOON).unwrap().unwrap();
        all.wait_for(SOON).unwrap().unwrap();
        multi.release_as(task).unwrap();
        assert!(lock.is_held_by(task).unwrap() && !multi.is_held_by(task).unwrap());
        lock.release_as(task).unwrap();
        wait_for_queue(&mut raw, &paths[0], 0);
        wait_for_queue(&mut raw, &paths[1], 0);
    }
}
