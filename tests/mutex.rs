//! The mutex on a real server that behaves: order, re-entrancy, ownership, time-outs, cancel, close, tokens.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test that fails is a test that fails"
)]

mod common;

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use common::{SOON, client, client_with, ends_at, path, queue, raw, status, timed, wait_for_queue, wait_for_waiters};
use zklock::{Client, Config, Lock, LockState, Owner, Result, Status};
use zklock_rig::{Direction, Proxy, Raw, ZooKeeper, flags, wait_until};

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
    assert_eq!(lock.participants().unwrap().len(), 1, "one node, however deep");
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
    let (one, two) = (Owner::new_green_thread(), Owner::new_green_thread());
    for owner in [one, one] {
        lock.start_acquire(owner, Some(Duration::ZERO)).unwrap().wait().unwrap();
    }
    for stranger in [two, Owner::current_thread()] {
        let entered = lock.start_acquire(stranger, Some(Duration::ZERO)).unwrap().wait();
        assert_eq!(status(entered), Status::Timeout);
        assert_eq!(status(lock.release_as(stranger)), Status::NotOwner);
        assert!(!lock.is_held_by(stranger).unwrap());
    }
    for _ in 0..2 {
        assert!(lock.is_held_by(one).unwrap());
        lock.release_as(one).unwrap();
    }
    assert_eq!(lock.state().unwrap(), LockState::Free);
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
                    assert!(!inside.swap(true, Ordering::SeqCst), "two inside");
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
    let task = Owner::Custom(7);
    lock.start_acquire(task, None).unwrap().wait().unwrap();
    thread::scope(|scope| {
        scope.spawn(|| lock.start_acquire(task, Some(Duration::ZERO)).unwrap().wait().unwrap());
    });
    assert!(!lock.is_held().unwrap());
    assert!(lock.is_held_by(task).unwrap());
    assert_eq!(status(lock.acquire(Some(Duration::ZERO))), Status::Timeout);
    lock.release_as(task).unwrap();
    lock.release_as(task).unwrap();
    assert_eq!(status(lock.release_as(task)), Status::NotOwner);
}

#[test]
fn two_calls_of_one_owner_get_in_together() {
    let server = ZooKeeper::shared();
    let client = client(&server.address());
    let lock = client.mutex(&path("together")).unwrap();
    lock.acquire(None).unwrap();
    let task = Owner::Custom(1);
    let (one, two) = (lock.start_acquire(task, None).unwrap(), lock.start_acquire(task, None).unwrap());
    wait_for_waiters(&lock, 3);
    lock.release().unwrap();
    one.wait().unwrap();
    two.wait().unwrap();
    wait_for_waiters(&lock, 1);
    lock.release_as(task).unwrap();
    lock.release_as(task).unwrap();
}

#[test]
fn one_look_at_a_free_and_at_a_held_lock() {
    let server = ZooKeeper::shared();
    let (path, mut raw) = (path("look"), raw(server));
    let (one, two) = (client(&server.address()), client(&server.address()));
    let (held, free) = (one.mutex(&path).unwrap(), two.mutex(&path).unwrap());
    held.acquire(Some(Duration::ZERO)).unwrap();
    for _ in 0..20 {
        let (result, took) = timed(|| free.acquire(Some(Duration::ZERO)));
        assert_eq!(status(result), Status::Timeout);
        assert!(took < 500 * MS, "{took:?}");
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
    for limit in [MS, 10 * MS, 50 * MS, 100 * MS, 333 * MS, 1000 * MS] {
        assert_eq!(status(ends_at(limit, || wanted.acquire(Some(limit)))), Status::Timeout);
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
    assert!(held.is_held().unwrap(), "the holder is not concerned");
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
    next.acquire(Some(SOON)).unwrap();
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
    next.acquire(Some(SOON)).unwrap();
    drop(next);
    let after = one.mutex(&path).unwrap();
    after.acquire(Some(SOON)).unwrap();
    after.release().unwrap();
}

#[test]
fn two_handles_in_one_thread_say_deadlock() {
    let server = ZooKeeper::shared();
    let (client, path) = (client(&server.address()), path("deadlock"));
    let (one, two) = (client.mutex(&path).unwrap(), client.mutex(&path).unwrap());
    one.acquire(None).unwrap();
    for timeout in [None, Some(Duration::ZERO), Some(SOON)] {
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
        lock.acquire(Some(SOON)).unwrap();
        let token = lock.fencing_token().unwrap();
        assert!(token > last);
        last = token;
        lock.release_nowait().unwrap();
        assert!(!lock.is_held().unwrap());
    }
    wait_until(SOON, || lock.participants().unwrap().is_empty());
}

#[test]
fn tokens_grow_also_across_a_parent_that_was_removed() {
    let server = ZooKeeper::start();
    let client = client(&server.address());
    let mut raw = raw(&server);
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
fn parents_are_containers_that_the_server_sweeps() {
    let server = ZooKeeper::options().container_sweep_ms(200).start();
    let client = client(&server.address());
    let mut raw = raw(&server);
    let lock = client.mutex("/containers/a/b").unwrap();
    for _ in 0..2 {
        lock.acquire(None).unwrap();
        assert!(raw.children("/containers/a/b").is_some());
        lock.release().unwrap();
        wait_until(SOON, || raw.children("/containers").is_none());
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
    make(&mut raw, &root);
    let client = client(&servers);
    let lock = client.mutex("/a/b").unwrap();
    lock.acquire(None).unwrap();
    lock.release().unwrap();
}

/// All that creates directories, below a chroot that an operator removes after the client has connected, and creates anew.
#[test]
fn nothing_creates_a_chroot_that_is_removed() {
    let server = ZooKeeper::shared();
    let (root, mut raw) = (path("chroot"), raw(server));
    make(&mut raw, &root);
    let client = client(&format!("{}{root}", server.address()));
    assert_eq!(raw.delete(&root), 0);
    let (a, b, rw) = (client.mutex("/a").unwrap(), client.mutex("/b/c").unwrap(), client.rwlock("/rw").unwrap());
    let both = Lock::multi(&[&a, &b]).unwrap();
    let in_order = Lock::multi_in_order(&[&a, &b]).unwrap();
    let single = client.semaphore_mutex("/single").unwrap();
    let leases = client.semaphore("/leases", 2).unwrap();
    let counted = client.counted_semaphore_at_once("/counted", "/counts/n", 1).unwrap();
    let limit = Some(Duration::from_secs(5));
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
        ("count", &|| client.set_count("/n", 3)),
        ("counted semaphore", &|| counted.acquire(1, limit)?.release()),
    ];
    let said = format!("the chroot {root} does not exist; create it, or set the option chroot.create to true");
    for (what, call) in calls {
        let error = call().unwrap_err();
        assert_eq!(error.status(), Status::Server, "{what}: {error}");
        assert!(error.message().starts_with(&said), "{what}: {error}");
        assert!(!raw.exists(&root), "{what} has created it");
    }
    make(&mut raw, &root);
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
    wait_until(SOON, || raw.children(&format!("{root}/app/a")).is_some_and(|nodes| nodes.is_empty()));
    for node in [&format!("{root}/app"), &root] {
        assert_eq!(raw.stat(node).unwrap().ephemeral_owner, 0, "{node} is no persistent node");
    }
}

fn make(raw: &mut Raw, path: &str) {
    for at in path.char_indices().skip(1).filter(|&(_, c)| c == '/').map(|(at, _)| at).chain([path.len()]) {
        let _ = raw.create(path.get(..at).unwrap(), b"", flags::PERSISTENT);
    }
    assert!(raw.exists(path));
}

/// One refuses, one is silent, one has no address: the message has the cause of each.
#[test]
fn every_server_that_fails_is_listed_with_its_own_cause() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = listener.local_addr().unwrap();
    let refusing = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mut config = Config::new();
    config.set("connect.timeout", "4000").unwrap();
    config.set("session.timeout", "3000").unwrap();
    let Err(error) = Client::connect(&format!("{refusing},no.such.name.invalid:1,{silent}"), &config) else {
        panic!("connected to nothing")
    };
    assert_eq!(error.status(), Status::Connection);
    let said = error.message();
    assert!(said.contains(&format!("{refusing}: Connection refused")), "{said}");
    assert!(said.contains("no.such.name.invalid:1: its name can't be resolved"), "{said}");
    let causes = said.matches(&silent.to_string()).count();
    assert!(causes >= 2 && said.contains("the handshake"), "{said}");

    let many: Vec<String> = (0..20)
        .map(|_| std::net::TcpListener::bind("127.0.0.1:0").unwrap())
        .map(|free| free.local_addr().unwrap().to_string())
        .collect();
    let Err(error) = Client::connect(&many.join(","), &config) else { panic!("connected to nothing") };
    assert_eq!(error.message().matches(": Connection refused").count(), 8, "{error}");
    assert!(error.message().ends_with("; and 12 more"), "{error}");
}

#[test]
fn a_chroot_goes_before_every_path() {
    let server = ZooKeeper::shared();
    let (root, mut raw) = (path("chroot"), raw(server));
    make(&mut raw, &format!("{root}/app"));
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
    assert_eq!(held.participants().unwrap(), [], "nobody was ever there");
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
    raw.create(&format!("{path}/0"), b"", 0).unwrap();
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

#[test]
fn watches_and_connections_are_back_where_they_were() {
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
            assert_eq!(status(wanted.acquire(Some(50 * MS))), Status::Timeout);
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
        wait_until(SOON, || server.watch_count() <= 1);
        held.release().unwrap();
        wait_until(SOON, || server.watch_count() == 0);
    }
    wait_until(SOON, || server.connection_count() == connections);
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
fn nothing_of_a_client_is_left_in_the_process() {
    let server = ZooKeeper::shared();
    // Others in this process come and go: what is looked for must go away at some time.
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

/// Both use the one thread that calls handlers, which ends with the last client and not with the last but one.
#[test]
fn a_client_that_closes_does_not_wait_for_one_that_has_just_come() {
    let address = ZooKeeper::shared().address();
    let connect = || {
        let mut config = Config::new();
        config.set_event_handler(|_| {});
        Client::connect(&address, &config).unwrap()
    };
    for round in 0..60 {
        let first = connect();
        thread::scope(|scope| {
            let closing = scope.spawn(|| first.close().unwrap());
            // The moment in question is short, and a little later in each round.
            thread::sleep(Duration::from_micros(round * 100));
            let second = connect();
            wait_until(SOON, || closing.is_finished());
            second.close().unwrap();
        });
    }
}

/// Many give up at once and leave; whoever comes meanwhile waits for some of them, and then gets in.
#[test]
fn those_who_come_while_many_leave_get_in() {
    let server = ZooKeeper::shared();
    let proxy = Proxy::start(&server.address());
    let client = client(&proxy.address());
    let (crowded, holder) = (path("crowded"), common::client(&server.address()));
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
            scope.spawn(move || free.acquire(Some(SOON)).unwrap());
        }
    });
}

/// Curator: `TestInterProcessMutexBase.testLocker`.
#[test]
fn a_guard_releases() {
    let server = ZooKeeper::shared();
    let client = client(&server.address());
    let lock = client.mutex(&path("guard")).unwrap();
    let guard = lock.guard(Some(SOON)).unwrap();
    assert!(lock.is_held().unwrap());
    drop(guard);
    assert!(!lock.is_held().unwrap());
    assert_eq!(lock.participants().unwrap(), []);
}

/// Names are free: two nodes can have one number, and then the one that was created first is ahead.
#[test]
fn the_same_sequence_number_is_decided_by_the_order_of_creation() {
    let server = ZooKeeper::shared();
    let (path, mut raw) = (path("tie"), raw(server));
    let clients: Vec<Client> = (0..3).map(|_| client(&server.address())).collect();
    let locks: Vec<_> = clients.iter().map(|client| client.mutex(&path).unwrap()).collect();
    locks[0].acquire(None).unwrap();
    // The directory's counter counts every child: the next one is number 2.
    let earlier = format!("{path}/a-lock-0000000002");
    raw.create(&earlier, b"", 0).unwrap();
    thread::scope(|scope| {
        let first = scope.spawn(|| locks[1].acquire(Some(SOON)));
        wait_for_queue(&mut raw, &path, 3);
        let second = scope.spawn(|| locks[2].acquire(Some(SOON)));
        wait_for_queue(&mut raw, &path, 4);
        let later = format!("{path}/z-lock-0000000003");
        raw.create(&later, b"", 0).unwrap();
        locks[0].release().unwrap();
        wait_until(SOON, || locks[0].participants().unwrap().len() == 4);
        assert!(!locks[1].is_held_in_process().unwrap(), "the other was there before");
        assert_eq!(raw.delete(&earlier), 0);
        first.join().unwrap().unwrap();
        locks[1].close().unwrap();
        second.join().unwrap().unwrap();
        assert!(locks[2].is_held_in_process().unwrap(), "the other came later");
        assert_eq!(raw.delete(&later), 0);
    });
}
