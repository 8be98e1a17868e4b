//! The mutex on a real server without faults: order, re-entrance, ownership, timeouts, cancel, close, tokens.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use crate::common::{
    OwnerCalls as _, TEST_TIMEOUT, assert_times_out, client, client_with, path, queue, raw, server_without_sweeps,
    status, timed, wait_for_queue, wait_for_waiters,
};
use zklock::internal::semaphore_counted_nowait;
use zklock::{Client, Config, Lock, LockState, Owner, Result, Status};
use zklock_test_support::{Direction, Port, Proxy, ZooKeeper, flags, wait_until};

const MS: Duration = Duration::from_millis(1);

#[test]
fn eight_clients_get_it_in_queue_order() {
    let server = ZooKeeper::shared();
    let (path, mut raw) = (path("order"), raw(server));
    let holder = client(&server.address());
    let first = holder.mutex(&path).unwrap();
    first.acquire(None).unwrap();
    let order = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for number in 0..8 {
            let (order, path) = (&order, &path);
            scope.spawn(move || {
                let client = client(&server.address());
                let lock = client.mutex(path).unwrap();
                lock.acquire(None).unwrap();
                order.lock().unwrap().push(number);
                lock.release().unwrap();
            });
            wait_for_queue(&mut raw, path, number + 2);
        }
        first.release().unwrap();
    });
    assert_eq!(*order.lock().unwrap(), [0, 1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(queue(&mut raw, &path), Vec::<String>::new());
}

#[test]
fn reentrant_three_deep() {
    let server = ZooKeeper::shared();
    let client = client(&server.address());
    let lock = client.mutex(&path("reentrant")).unwrap();
    for _ in 0..3 {
        lock.acquire(Some(Duration::ZERO)).unwrap();
        assert!(lock.is_held().unwrap());
    }
    assert_eq!(lock.participants().unwrap().len(), 1, "one node for any hold count");
    for _ in 0..3 {
        assert!(lock.is_held().unwrap());
        lock.release().unwrap();
    }
    assert!(!lock.is_held().unwrap());
    assert_eq!(lock.state().unwrap(), LockState::Free);
    assert_eq!(status(lock.release()), Status::NotOwner);
    assert_eq!(lock.participants().unwrap(), []);
}

#[test]
fn green_threads_on_one_thread_exclude_each_other() {
    let server = ZooKeeper::shared();
    let client = client(&server.address());
    let lock = client.mutex(&path("green")).unwrap();
    let (one, two) = (Owner::unique(), Owner::unique());
    for owner in [one, one] {
        lock.acquire_as(owner, Some(Duration::ZERO)).unwrap();
    }
    for stranger in [two, Owner::current_thread()] {
        let entered = lock.start_acquire(stranger, Some(Duration::ZERO)).unwrap().wait();
        assert_eq!(status(entered), Status::Timeout);
        assert_eq!(status(lock.release_as(stranger)), Status::NotOwner);
        assert_eq!(status(lock.fencing_token_as(stranger)), Status::NotOwner);
        assert!(!lock.is_held_as(stranger).unwrap());
    }
    for _ in 0..2 {
        assert!(lock.is_held_as(one).unwrap());
        lock.release_as(one).unwrap();
    }
    assert_eq!(lock.state_in_process().unwrap(), LockState::Free);
}

/// A thread whose acquire failed must not write to a store with the token of the thread that holds the lock.
#[test]
fn queries_without_a_hold_return_not_owner() {
    let server = ZooKeeper::shared();
    let client = client(&server.address());
    let lock = client.mutex(&path("holder-only")).unwrap();
    lock.acquire(None).unwrap();
    let (task, unique) = (Owner::task(0), Owner::unique());
    thread::scope(|scope| {
        let watcher = scope.spawn(|| {
            assert_times_out(Duration::ZERO, |limit| lock.acquire(Some(limit)));
            for owner in [Owner::current_thread(), task, unique] {
                assert_eq!(status(lock.fencing_token_as(owner)), Status::NotOwner);
                assert_eq!(status(lock.fencing_pass_as(owner)), Status::NotOwner);
                assert_eq!(status(lock.node_paths_of(owner)), Status::NotOwner);
                assert_eq!(lock.view(owner).unwrap(), None);
                assert_eq!(lock.state_as(owner).unwrap(), LockState::Free);
                assert!(!lock.is_held_as(owner).unwrap());
            }
            assert_eq!(status(lock.fencing_token()), Status::NotOwner);
            assert_eq!(status(lock.fencing_pass()), Status::NotOwner);
            assert_eq!(status(lock.remaining()), Status::NotOwner);
            assert_eq!(lock.state().unwrap(), LockState::Free);
            // The queries whose names end with `in_process` answer for the whole process.
            assert_eq!(lock.state_in_process().unwrap(), LockState::Held);
            assert!(lock.is_held_in_process().unwrap());
        });
        watcher.join().unwrap();
    });
    lock.release().unwrap();
    assert_eq!(lock.state_in_process().unwrap(), LockState::Free);
}

/// Owners of different kinds are never equal, even if their numbers are.
#[test]
fn owners_of_different_kinds_are_never_the_same() {
    let owners = [0, 1, u64::MAX].map(Owner::task);
    let current = Owner::current_thread();
    let other = thread::spawn(Owner::current_thread).join().unwrap();
    let all = [owners[0], owners[1], owners[2], current, other, Owner::unique(), Owner::unique()];
    for (at, one) in all.iter().enumerate() {
        assert!(all[at + 1..].iter().all(|other| other != one), "{one} twice");
    }
    assert_eq!(Owner::current_thread(), current);
    assert_eq!((owners[0].task_number(), current.task_number()), (Some(0), None));
}

#[test]
fn threads_on_one_handle_exclude_each_other() {
    let server = ZooKeeper::shared();
    let client = client(&server.address());
    let lock = client.mutex(&path("threads")).unwrap();
    let (inside, cycles) = (AtomicBool::new(false), AtomicUsize::new(0));
    thread::scope(|scope| {
        for _ in 0..10 {
            scope.spawn(|| {
                for _ in 0..20 {
                    lock.acquire(None).unwrap();
                    assert!(!inside.swap(true, Ordering::SeqCst), "two owners hold the lock");
                    assert!(lock.is_held().unwrap());
                    inside.store(false, Ordering::SeqCst);
                    lock.release().unwrap();
                    cycles.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
    });
    assert_eq!(cycles.load(Ordering::SeqCst), 200);
}

#[test]
fn a_thread_that_does_not_hold_cannot_release() {
    let server = ZooKeeper::shared();
    let client = client(&server.address());
    let lock = client.mutex(&path("owner")).unwrap();
    lock.acquire(None).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            assert!(!lock.is_held().unwrap());
            assert!(lock.is_held_in_process().unwrap());
            assert_eq!(status(lock.release()), Status::NotOwner);
            assert_eq!(status(lock.release_nowait()), Status::NotOwner);
        });
    });
    assert!(lock.is_held().unwrap(), "nothing changed");
    lock.release().unwrap();
}

#[test]
fn an_owner_of_the_programs_own_is_not_a_thread() {
    let server = ZooKeeper::shared();
    let client = client(&server.address());
    let lock = client.mutex(&path("custom")).unwrap();
    let task = Owner::task(7);
    lock.acquire_as(task, None).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| lock.acquire_as(task, Some(Duration::ZERO)).unwrap());
    });
    assert!(!lock.is_held().unwrap());
    assert!(lock.is_held_as(task).unwrap());
    assert_times_out(Duration::ZERO, |limit| lock.acquire(Some(limit)));
    lock.release_as(task).unwrap();
    lock.release_as(task).unwrap();
    assert_eq!(status(lock.release_as(task)), Status::NotOwner);
}

#[test]
fn concurrent_acquires_of_one_owner_are_granted_together() {
    let server = ZooKeeper::shared();
    let client = client(&server.address());
    let lock = client.mutex(&path("together")).unwrap();
    lock.acquire(None).unwrap();
    let task = Owner::task(1);
    let (one, two) = (lock.start_acquire(task, None).unwrap(), lock.start_acquire(task, None).unwrap());
    wait_for_waiters(&lock, 3);
    lock.release().unwrap();
    one.wait().unwrap().leave_to_owner();
    two.wait().unwrap().leave_to_owner();
    wait_for_waiters(&lock, 1);
    lock.release_as(task).unwrap();
    lock.release_as(task).unwrap();
}

#[test]
fn timeout_zero_acquires_a_free_lock_and_times_out_on_a_held_one() {
    let server = ZooKeeper::shared();
    let (path, mut raw) = (path("look"), raw(server));
    let (one, two) = (client(&server.address()), client(&server.address()));
    let (held, free) = (one.mutex(&path).unwrap(), two.mutex(&path).unwrap());
    held.acquire(Some(Duration::ZERO)).unwrap();
    for _ in 0..20 {
        let (result, took) = timed(|| free.acquire(Some(Duration::ZERO)));
        assert_eq!(status(result), Status::Timeout);
        assert!(took < 5000 * MS, "{took:?}");
    }
    wait_for_queue(&mut raw, &path, 1);
    held.release().unwrap();
    free.acquire(Some(Duration::ZERO)).unwrap();
    free.release().unwrap();
    assert_eq!(queue(&mut raw, &path), Vec::<String>::new());
}

#[test]
fn time_outs_are_neither_early_nor_late() {
    let server = ZooKeeper::shared();
    let (path, mut raw) = (path("time"), raw(server));
    let (one, two) = (client(&server.address()), client(&server.address()));
    let (held, wanted) = (one.mutex(&path).unwrap(), two.mutex(&path).unwrap());
    held.acquire(None).unwrap();
    for limit in [MS, 10 * MS, 50 * MS, 1000 * MS] {
        assert_times_out(limit, |limit| wanted.acquire(Some(limit)));
    }
    wait_for_queue(&mut raw, &path, 1);
    held.release().unwrap();
}

#[test]
fn cancel_wakes_those_that_wait_now_and_nobody_later() {
    let server = ZooKeeper::shared();
    let path = path("cancel");
    let (one, two) = (client(&server.address()), client(&server.address()));
    let (held, wanted) = (one.mutex(&path).unwrap(), two.mutex(&path).unwrap());
    wanted.cancel().unwrap();
    wanted.acquire(None).unwrap();
    wanted.release().unwrap();
    held.acquire(None).unwrap();
    thread::scope(|scope| {
        let waiters: Vec<_> = (0..3).map(|_| scope.spawn(|| wanted.acquire(None))).collect();
        wait_for_waiters(&held, 4);
        wanted.cancel().unwrap();
        for waiter in waiters {
            assert_eq!(status(waiter.join().unwrap()), Status::Canceled);
        }
    });
    wait_for_waiters(&held, 1);
    assert!(held.is_held().unwrap(), "the call does not affect the holder");
    held.release().unwrap();
}

#[test]
fn closing_wakes_waiters_and_frees_the_lock() {
    let server = ZooKeeper::shared();
    let path = path("close");
    let (one, two) = (client(&server.address()), client(&server.address()));
    let (held, next) = (one.mutex(&path).unwrap(), two.mutex(&path).unwrap());
    held.acquire(None).unwrap();
    thread::scope(|scope| {
        let waiter = scope.spawn(|| held.acquire(None));
        wait_for_waiters(&next, 2);
        one.close().unwrap();
        assert_eq!(status(waiter.join().unwrap()), Status::Closed);
    });
    next.acquire(Some(TEST_TIMEOUT)).unwrap();
    for result in
        [held.acquire(None), held.release(), held.cancel(), held.is_held().map(drop), held.participants().map(drop)]
    {
        assert_eq!(status(result), Status::Closed);
    }
    one.close().unwrap();
    next.release().unwrap();
}

#[test]
fn freeing_a_lock_wakes_its_waiters_and_releases_it() {
    let server = ZooKeeper::shared();
    let path = path("free");
    let (one, two) = (client(&server.address()), client(&server.address()));
    let (held, next) = (one.mutex(&path).unwrap(), two.mutex(&path).unwrap());
    held.acquire(None).unwrap();
    thread::scope(|scope| {
        let waiter = scope.spawn(|| held.acquire(None));
        wait_for_waiters(&next, 2);
        held.close().unwrap();
        assert_eq!(status(waiter.join().unwrap()), Status::Closed);
    });
    next.acquire(Some(TEST_TIMEOUT)).unwrap();
    drop(next);
    let after = one.mutex(&path).unwrap();
    after.acquire(Some(TEST_TIMEOUT)).unwrap();
    after.release().unwrap();
}

#[test]
fn second_handle_of_the_holding_thread_returns_deadlock() {
    let server = ZooKeeper::shared();
    let (client, path) = (client(&server.address()), path("deadlock"));
    let (one, two) = (client.mutex(&path).unwrap(), client.mutex(&path).unwrap());
    one.acquire(None).unwrap();
    for timeout in [None, Some(Duration::ZERO), Some(TEST_TIMEOUT)] {
        assert_eq!(status(two.acquire(timeout)), Status::Deadlock);
    }
    thread::scope(|scope| {
        let other = scope.spawn(|| two.acquire(None).and_then(|()| two.release()));
        wait_for_waiters(&one, 2);
        one.release().unwrap();
        other.join().unwrap().unwrap();
    });
    two.acquire(None).unwrap();
    two.release().unwrap();
}

#[test]
fn a_release_that_is_not_waited_for_keeps_its_order() {
    let server = ZooKeeper::shared();
    let client = client(&server.address());
    let lock = client.mutex(&path("nowait")).unwrap();
    let mut last = 0;
    for _ in 0..200 {
        lock.acquire(Some(TEST_TIMEOUT)).unwrap();
        let token = lock.fencing_token().unwrap();
        assert!(token > last);
        last = token;
        lock.release_nowait().unwrap();
        assert!(!lock.is_held().unwrap());
    }
    wait_until(TEST_TIMEOUT, || lock.participants().unwrap().is_empty());
}

#[test]
fn tokens_grow_also_across_a_parent_that_was_removed() {
    // The test deletes the directories itself, so the server must not delete them.
    let server = server_without_sweeps();
    let client = client(&server.address());
    let mut raw = raw(server);
    let lock = client.mutex("/tokens/deep/lock").unwrap();
    let mut last = 0;
    for round in 0..3 {
        for _ in 0..3 {
            lock.acquire(None).unwrap();
            let token = lock.fencing_token().unwrap();
            assert!(token > last, "round {round}: {token} after {last}");
            last = token;
            lock.release().unwrap();
        }
        assert_eq!(raw.delete("/tokens/deep/lock"), 0);
        assert_eq!(raw.delete("/tokens/deep"), 0);
        assert_eq!(raw.delete("/tokens"), 0);
    }
    assert_eq!(status(lock.fencing_token()), Status::NotOwner);
}

#[test]
fn parents_are_containers_and_are_removed_when_empty() {
    let server = ZooKeeper::options().container_sweep_ms(200).start();
    let client = client(&server.address());
    let mut raw = raw(&server);
    let lock = client.mutex("/containers/a/b").unwrap();
    for _ in 0..2 {
        lock.acquire(None).unwrap();
        assert!(raw.children("/containers/a/b").is_some());
        lock.release().unwrap();
        wait_until(TEST_TIMEOUT, || raw.children("/containers").is_none());
    }
}

#[test]
fn a_missing_chroot_fails_to_connect_until_somebody_creates_it() {
    let server = ZooKeeper::shared();
    let (root, mut raw) = (path("chroot"), raw(server));
    let servers = format!("{}{root}", server.address());
    let Err(error) = Client::connect(&servers, &Config::new()) else { panic!("connected below a missing chroot") };
    assert_eq!(error.status(), Status::Server);
    let said = format!("the chroot {root} does not exist; create it, or set the option chroot.create to true");
    assert!(error.message().starts_with(&said), "{error}");
    assert!(!raw.exists(&root));
    raw.create_with_ancestors(&root, b"", flags::PERSISTENT).unwrap();
    let client = client(&servers);
    let lock = client.mutex("/a/b").unwrap();
    lock.acquire(None).unwrap();
    lock.release().unwrap();
}

/// Calls every function that creates directories, below a chroot that an operator deletes after the client has
/// connected and then creates again.
#[test]
fn nothing_creates_a_chroot_that_is_removed() {
    let server = ZooKeeper::shared();
    let (root, mut raw) = (path("chroot"), raw(server));
    raw.create_with_ancestors(&root, b"", flags::PERSISTENT).unwrap();
    let client = client(&format!("{}{root}", server.address()));
    assert_eq!(raw.delete(&root), 0);
    let (a, b, rw) = (client.mutex("/a").unwrap(), client.mutex("/b/c").unwrap(), client.rwlock("/rw").unwrap());
    let both = Lock::multi(&[&a, &b]).unwrap();
    let in_order = Lock::multi_in_order(&[&a, &b]).unwrap();
    let single = client.semaphore_mutex("/single").unwrap();
    let leases = client.semaphore("/leases", 2).unwrap();
    let counted = semaphore_counted_nowait(&client, "/counted", "/counts/n", 1).unwrap();
    let limit = Some(TEST_TIMEOUT);
    let calls: [(&str, &dyn Fn() -> Result<()>); 11] = [
        ("mutex", &|| a.acquire(limit).and_then(|()| a.release())),
        ("mutex in a directory", &|| b.acquire(limit).and_then(|()| b.release())),
        ("one look", &|| b.acquire(Some(Duration::ZERO)).and_then(|()| b.release())),
        ("read", &|| rw.read.acquire(limit).and_then(|()| rw.read.release())),
        ("write", &|| rw.write.acquire(limit).and_then(|()| rw.write.release())),
        ("multi", &|| both.acquire(limit).and_then(|()| both.release())),
        ("multi in order", &|| in_order.acquire(limit).and_then(|()| in_order.release())),
        ("semaphore mutex", &|| single.acquire(limit).and_then(|()| single.release())),
        ("semaphore", &|| leases.acquire(1, limit)?.release()),
        ("count", &|| client.shared_count_set("/n", 3)),
        ("counted semaphore", &|| counted.acquire(1, limit)?.release()),
    ];
    let said = format!("the chroot {root} does not exist; create it, or set the option chroot.create to true");
    for (what, call) in calls {
        let error = call().unwrap_err();
        assert_eq!(error.status(), Status::Server, "{what}: {error}");
        assert!(error.message().starts_with(&said), "{what}: {error}");
        assert!(!raw.exists(&root), "{what} has created it");
    }
    raw.create_with_ancestors(&root, b"", flags::PERSISTENT).unwrap();
    for (what, call) in calls {
        call().unwrap_or_else(|error| panic!("{what}: {error}"));
    }
}

#[test]
fn a_chroot_that_is_created_on_request_stays_when_it_is_empty() {
    let server = ZooKeeper::shared();
    let (root, mut raw) = (path("chroot"), raw(server));
    let servers = format!("{}{root}/app", server.address());
    let mut config = Config::new();
    config.set("chroot.create", "true").unwrap();
    let client = Client::connect(&servers, &config).unwrap();
    assert!(raw.exists(&format!("{root}/app")));
    let lock = client.mutex("/a").unwrap();
    lock.acquire(None).unwrap();
    lock.release().unwrap();
    wait_until(TEST_TIMEOUT, || raw.children(&format!("{root}/app/a")).is_some_and(|nodes| nodes.is_empty()));
    for node in [&format!("{root}/app"), &root] {
        assert_eq!(raw.stat(node).unwrap().ephemeral_owner, 0, "{node} is no persistent node");
    }
}

/// One server refuses connections, one is silent, and one has no address. The error message contains the cause of each.
#[test]
fn every_server_that_fails_is_listed_with_its_own_cause() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = listener.local_addr().unwrap();
    let reserved = Port::reserve();
    let refusing = reserved.address();
    let mut config = Config::new();
    config.set("connect.timeout", "4000").unwrap();
    config.set("session.timeout", "3000").unwrap();
    let Err(error) = Client::connect(&format!("{refusing},no.such.name.invalid:1,{silent}"), &config) else {
        panic!("connected to nothing")
    };
    assert_eq!(error.status(), Status::Connection);
    let said = error.message();
    assert!(said.contains(&format!("{refusing}: Connection refused")), "{said}");
    assert!(said.contains("no.such.name.invalid:1: its name cannot be resolved"), "{said}");
    let causes = said.matches(&silent.to_string()).count();
    assert!(causes >= 2 && said.contains("the handshake"), "{said}");

    let ports: Vec<_> = (0..20).map(|_| Port::reserve()).collect();
    let many: Vec<String> = ports.iter().map(Port::address).collect();
    let Err(error) = Client::connect(&many.join(","), &config) else { panic!("connected to nothing") };
    assert_eq!(error.message().matches(": Connection refused").count(), 8, "{error}");
    assert!(error.message().ends_with("; and 12 more"), "{error}");
}

#[test]
fn chroot_is_prefixed_to_every_path() {
    let server = ZooKeeper::shared();
    let (root, mut raw) = (path("chroot"), raw(server));
    raw.create_with_ancestors(&format!("{root}/app"), b"", flags::PERSISTENT).unwrap();
    let client = client(&format!("{}{root}/app", server.address()));
    let lock = client.mutex("/a").unwrap();
    lock.acquire(None).unwrap();
    assert_eq!(queue(&mut raw, &format!("{root}/app/a")).len(), 1);
    let found = lock.participants().unwrap();
    assert!(found[0].node_path.starts_with("/a/_c_"), "{}", found[0].node_path);
    lock.release().unwrap();
}

#[test]
fn participants_tell_who_holds_and_who_waits() {
    let server = ZooKeeper::shared();
    let path = path("participants");
    let (one, two) = (client(&server.address()), client(&server.address()));
    let (held, wanted) = (one.mutex(&path).unwrap(), two.mutex(&path).unwrap());
    assert_eq!(held.participants().unwrap(), [], "there was never a participant");
    wanted.set_data(Some(b"nightly\0report")).unwrap();
    held.acquire(None).unwrap();
    thread::scope(|scope| {
        let waiter = scope.spawn(|| wanted.acquire(None).and_then(|()| wanted.release()));
        wait_for_waiters(&held, 2);
        let found = wanted.participants().unwrap();
        assert!(found[0].holds && !found[1].holds);
        assert_eq!(found[0].data, b"127.0.0.1", "Curator's default: the host's address");
        assert_eq!(found[1].data, b"nightly\0report");
        assert_eq!(found[0].session_id, one.session_id().unwrap());
        assert_eq!(found[1].session_id, two.session_id().unwrap());
        assert_eq!(found[0].czxid, held.fencing_token().unwrap());
        assert!(found[0].node_path.starts_with(&format!("{path}/_c_")));
        assert!(found[1].czxid > found[0].czxid);
        held.release().unwrap();
        waiter.join().unwrap().unwrap();
    });
    assert_eq!(status(held.set_data(Some(&vec![0; 1 << 20]))), Status::Invalid);
}

#[test]
fn foreign_contenders_are_reported_and_plain_children_ignored() {
    let server = ZooKeeper::shared();
    let (client, path, mut raw) = (client(&server.address()), path("foreign"), raw(server));
    let lock = client.mutex(&path).unwrap();
    lock.acquire(None).unwrap();
    lock.release().unwrap();
    raw.create_with_ancestors(&format!("{path}/0"), b"", 0).unwrap();
    raw.create(&format!("{path}/readme"), b"", 0).unwrap();
    lock.acquire(Some(Duration::ZERO)).unwrap();
    assert_eq!(lock.participants().unwrap().len(), 1);
    lock.release().unwrap();
    for name in ["0123456789abcdef0123456789abcdef__lock__0000000009", "x-0100000714a2000f-0000000003"] {
        let node = format!("{path}/{name}");
        raw.create(&node, b"", 0).unwrap();
        let error = lock.acquire(None).unwrap_err();
        assert_eq!(error.status(), Status::Foreign);
        assert!(error.message().contains(name), "{error}");
        assert_eq!(raw.delete(&node), 0);
    }
    lock.acquire(None).unwrap();
    lock.release().unwrap();
}

/// The directory of a lock can contain directories of other locks, whose names resemble lock nodes.
#[test]
fn locks_below_each_other_are_independent() {
    let server = ZooKeeper::shared();
    let (client, path, mut raw) = (client(&server.address()), path("independent"), raw(server));
    let names = [
        "block-0",
        "block-0000000001",
        "clock-",
        "lock-",
        "lock-7",
        "__lock__a",
        "__lock__0000000001",
        "x__READ__1",
        "x-__READ__",
        "__WRIT__",
        "lease-1",
        "x-1-12",
    ];
    let inner: Vec<_> = names.iter().map(|name| client.mutex(&format!("{path}/{name}")).unwrap()).collect();
    let rwlock = client.rwlock(&path).unwrap();
    let outer = [client.mutex(&path).unwrap(), rwlock.write.clone(), rwlock.read.clone()];
    inner.iter().for_each(|lock| lock.acquire(None).unwrap());
    raw.create(&format!("{path}/block-2"), b"", flags::PERSISTENT).unwrap();
    for lock in outer {
        for limit in [None, Some(Duration::ZERO)] {
            lock.acquire(limit).unwrap();
            assert_eq!(lock.participants().unwrap().len(), 1);
            assert_eq!(client.order_queue(names).unwrap(), []);
            lock.release().unwrap();
        }
    }
    inner.iter().for_each(|lock| lock.release().unwrap());
    let members = [client.mutex(&path).unwrap(), client.mutex(&format!("{path}/lock-0")).unwrap()];
    let multi = Lock::multi(&members.each_ref()).unwrap();
    multi.acquire(None).unwrap();
    multi.release().unwrap();
}

#[test]
fn refusals_of_a_server_say_what_to_do() {
    let server = ZooKeeper::options().jvm_argument("-Dzookeeper.enforceQuota=true").newest().start();
    let (client, mut raw) = (client(&server.address()), raw(&server));
    let holder = client.mutex("/parent").unwrap();
    holder.acquire(None).unwrap();
    let below = format!("{}/below", holder.node_paths().unwrap()[0]);
    let error = client.mutex(&below).unwrap().acquire(Some(TEST_TIMEOUT)).unwrap_err();
    assert!(error.message().contains("a node on the path is ephemeral"), "{error}");
    raw.create_with_ancestors("/limited/lock", b"", 0).unwrap();
    raw.create_with_ancestors("/zookeeper/quota/limited/zookeeper_stats", b"count=1,bytes=0", 0).unwrap();
    raw.create("/zookeeper/quota/limited/zookeeper_limits", b"count=1,bytes=-1;byteHardLimit=-1;countHardLimit=1", 0)
        .unwrap();
    server.restart();
    let error = client.mutex("/limited/lock").unwrap().acquire(Some(TEST_TIMEOUT)).unwrap_err();
    assert!(error.message().contains("a quota of the path"), "{error}");
}

/// No session ends such a node, so a lock would wait for it forever.
#[test]
fn a_permanent_node_ahead_is_reported_at_once() {
    let server = ZooKeeper::shared();
    let (client, mut raw) = (client(&server.address()), raw(server));
    for (base, kind) in [("lock-", flags::PERSISTENT), ("lock-", flags::CONTAINER), ("x-__WRIT__", flags::PERSISTENT)] {
        let path = path("permanent");
        let node = format!("{path}/{base}0000000000");
        raw.create_with_ancestors(&format!("{path}/other"), b"", 0).unwrap();
        raw.create(&node, b"", kind).unwrap();
        let rwlock = client.rwlock(&path).unwrap();
        let locks = match base {
            "lock-" => vec![client.mutex(&path).unwrap()],
            _ => vec![rwlock.write.clone(), rwlock.read.clone()],
        };
        let other = client.mutex(&format!("{path}/other")).unwrap();
        let multi = Lock::multi(&[&locks[0], &other]).unwrap();
        for lock in locks.iter().chain([&multi]) {
            for limit in [None, Some(Duration::ZERO), Some(TEST_TIMEOUT)] {
                let error = lock.acquire(limit).unwrap_err();
                assert_eq!(error.status(), Status::Foreign, "{error}");
                assert!(error.message().contains(&node), "{error}");
            }
        }
        wait_until(TEST_TIMEOUT, || raw.children(&path).unwrap().len() == 2);
        assert_eq!(raw.delete(&node), 0);
        locks.iter().for_each(|lock| lock.acquire(None).unwrap());
    }
}

#[test]
fn released_locks_leave_no_watches_or_connections() {
    let server = ZooKeeper::start();
    let path = path("watches");
    let one = client(&server.address());
    let held = one.mutex(&path).unwrap();
    let connections = server.connection_count();
    for _ in 0..3 {
        held.acquire(None).unwrap();
        let two = client(&server.address());
        let wanted = two.mutex(&path).unwrap();
        for _ in 0..5 {
            assert_times_out(50 * MS, |limit| wanted.acquire(Some(limit)));
        }
        thread::scope(|scope| {
            let waiters: Vec<_> = (0..4).map(|_| scope.spawn(|| wanted.acquire(None))).collect();
            wait_for_waiters(&held, 5);
            wanted.cancel().unwrap();
            for waiter in waiters {
                assert_eq!(status(waiter.join().unwrap()), Status::Canceled);
            }
        });
        wait_for_waiters(&held, 1);
        wait_until(TEST_TIMEOUT, || server.watch_count() <= 1);
        held.release().unwrap();
        wait_until(TEST_TIMEOUT, || server.watch_count() == 0);
    }
    wait_until(TEST_TIMEOUT, || server.connection_count() == connections);
}

#[test]
fn names_addresses_and_several_servers() {
    let server = ZooKeeper::shared();
    let port = server.port();
    for servers in [
        format!("localhost:{port}"),
        format!("127.0.0.1:{port}"),
        format!("127.0.0.1:1,no-such-host.invalid:1,127.0.0.1:{port}"),
    ] {
        let client = client_with(&servers, Duration::from_secs(5));
        assert_ne!(client.session_id().unwrap(), 0, "{servers}");
    }
}

#[test]
fn dropped_clients_leave_no_node() {
    let server = ZooKeeper::shared();
    // Other tests in this process create and close clients, so the test waits until the resources are gone.
    let path = path("process");
    for _ in 0..3 {
        let client = client(&server.address());
        let lock = client.mutex(&path).unwrap();
        lock.acquire(None).unwrap();
        drop(lock);
        drop(client);
    }
    let mut raw = raw(server);
    wait_for_queue(&mut raw, &path, 0);
}

/// Both clients use the one thread that calls handlers. The thread ends with the last client, not with the one before
/// it.
#[test]
fn a_client_that_closes_does_not_wait_for_one_that_has_just_come() {
    let address = ZooKeeper::shared().address();
    let connect = || {
        let config = Config::new().on_event(|_| {});
        Client::connect(&address, &config).unwrap()
    };
    for round in 0..60 {
        let first = connect();
        thread::scope(|scope| {
            let closing = scope.spawn(|| first.close().unwrap());
            // The critical moment is short, so each round waits a little longer.
            thread::sleep(Duration::from_micros(round * 100));
            let second = connect();
            wait_until(TEST_TIMEOUT, || closing.is_finished());
            second.close().unwrap();
        });
    }
}

/// Many acquires time out at once and delete their nodes. New acquires wait for some of these deletions and then
/// succeed.
#[test]
fn new_acquires_succeed_while_many_cancelled_ones_leave() {
    let server = ZooKeeper::shared();
    let proxy = Proxy::start(&server.address());
    let client = client(&proxy.address());
    let (crowded, holder) = (path("crowded"), crate::common::client(&server.address()));
    let held = holder.mutex(&crowded).unwrap();
    held.acquire(None).unwrap();
    let wanted = client.mutex(&crowded).unwrap();
    thread::scope(|scope| {
        for _ in 0..20 {
            scope.spawn(|| assert_eq!(status(wanted.acquire(None)), Status::Canceled));
        }
        wait_for_waiters(&held, 21);
        proxy.delay(Direction::ToClient, Duration::from_millis(300));
        wanted.cancel().unwrap();
        for number in 0..40 {
            let free = client.mutex(&path(&format!("free-{number}"))).unwrap();
            scope.spawn(move || free.acquire(Some(TEST_TIMEOUT)).unwrap());
        }
    });
}

/// Curator: `TestInterProcessMutexBase.testLocker`.
#[test]
fn a_hold_releases() {
    let server = ZooKeeper::shared();
    let client = client(&server.address());
    let lock = client.mutex(&path("hold")).unwrap();
    let hold = lock.hold(Some(TEST_TIMEOUT)).unwrap();
    assert!(lock.is_held_in_process().unwrap());
    drop(hold);
    assert!(!lock.is_held_in_process().unwrap());
    wait_until(TEST_TIMEOUT, || lock.participants().unwrap().is_empty());
}

/// Nodes can have any name, so two nodes can have the same sequence number. The node that was created first is ahead.
#[test]
fn the_same_sequence_number_is_decided_by_the_order_of_creation() {
    let server = ZooKeeper::shared();
    let (path, mut raw) = (path("tie"), raw(server));
    let clients: Vec<Client> = (0..3).map(|_| client(&server.address())).collect();
    let locks: Vec<_> = clients.iter().map(|client| client.mutex(&path).unwrap()).collect();
    locks[0].acquire(None).unwrap();
    // The counter of the directory counts every child, so the next sequence number is 2.
    let earlier = format!("{path}/a-lock-0000000002");
    raw.create(&earlier, b"", flags::EPHEMERAL).unwrap();
    thread::scope(|scope| {
        let first = scope.spawn(|| locks[1].acquire(Some(TEST_TIMEOUT)));
        wait_for_queue(&mut raw, &path, 3);
        let second = scope.spawn(|| locks[2].acquire(Some(TEST_TIMEOUT)));
        wait_for_queue(&mut raw, &path, 4);
        let later = format!("{path}/z-lock-0000000003");
        raw.create(&later, b"", flags::EPHEMERAL).unwrap();
        locks[0].release().unwrap();
        wait_until(TEST_TIMEOUT, || locks[0].participants().unwrap().len() == 4);
        assert!(!locks[1].is_held_in_process().unwrap(), "the other participant joined earlier");
        assert_eq!(raw.delete(&earlier), 0);
        first.join().unwrap().unwrap();
        locks[1].close().unwrap();
        second.join().unwrap().unwrap();
        assert!(locks[2].is_held_in_process().unwrap(), "the other participant joined later");
        assert_eq!(raw.delete(&later), 0);
    });
}
