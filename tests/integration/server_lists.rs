//! Server lists that change: a list that the program sets, an ensemble whose members change, and servers that are
//! read-only.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use crate::common::{LONG_SESSION, TEST_TIMEOUT, assert_not_late, client, client_with, path, raw, status, timed};
use zklock::{Client, ClientState, Config, Lock, LockState, Status};
use zklock_test_support::{DynamicEnsemble, Ensemble, Proxy, RawClient, ZooKeeper, wait_until};

const SECOND: Duration = Duration::from_secs(1);

/// Waits until the hold is safe at another server, and asserts that it was never lost meanwhile.
#[track_caller]
fn wait_until_moved(lock: &Lock, from: &ZooKeeper) {
    wait_until(3 * TEST_TIMEOUT, || {
        let state = lock.state().unwrap();
        assert!(matches!(state, LockState::Held | LockState::Suspended), "{state:?}");
        state == LockState::Held && from.connection_count() == 0
    });
}

#[test]
fn holds_and_waiters_move_to_the_servers_of_a_new_list() {
    let ensemble = Ensemble::start(500, 20);
    let address = |server: usize| ensemble.servers()[server].address();
    let path = path("set-servers");
    let (one, two) = (client(&address(0)), client(&address(0)));
    let (held, waiting) = (one.mutex(&path).unwrap(), two.mutex(&path).unwrap());
    held.acquire(None).unwrap();
    let (token, session) = (held.fencing_token().unwrap(), one.session_id().unwrap());
    thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            waiting.acquire(Some(3 * TEST_TIMEOUT)).unwrap();
            waiting.release().unwrap();
        });
        wait_until(TEST_TIMEOUT, || held.participants().is_ok_and(|found| found.len() == 2));
        let before = held.participants().unwrap();
        let list = format!("{},{}", address(1), address(2));
        one.set_servers(&list).unwrap();
        two.set_servers(&list).unwrap();
        wait_until_moved(&held, &ensemble.servers()[0]);
        assert_eq!(held.participants().unwrap(), before);
        // A list that contains the present server changes nothing.
        let connections = one.metrics().unwrap().connections;
        one.set_servers(&list).unwrap();
        one.set_servers(&format!("{},{list}", list)).unwrap();
        assert_eq!(one.metrics().unwrap().connections, connections);
        ensemble.servers()[0].stop();
        held.release().unwrap();
        waiter.join().unwrap();
    });
    held.acquire(Some(TEST_TIMEOUT)).unwrap();
    assert!(held.fencing_token().unwrap() > token);
    assert_eq!(one.session_id().unwrap(), session);
    held.release().unwrap();
}

/// The program lists its server under another name, while the source of its credentials fails.
#[test]
fn client_stays_at_its_server_until_the_credentials_for_the_next_are_loaded() {
    let server = ZooKeeper::shared();
    let proxy = Proxy::start(&server.address());
    let (fails, calls) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let (is_failing, counted) = (Arc::clone(&fails), Arc::clone(&calls));
    let config = Config::new().session_timeout(12 * SECOND).auth_callback("digest", move || {
        counted.fetch_add(1, Ordering::SeqCst);
        let sealed = is_failing.load(Ordering::SeqCst);
        if sealed { Err("the vault is sealed".into()) } else { Ok(b"alice:secret".to_vec()) }
    });
    let client = Client::connect(&server.address(), &config).unwrap();
    let lock = client.mutex(&path("sealed")).unwrap();
    lock.acquire(Some(TEST_TIMEOUT)).unwrap();
    let connections = client.metrics().unwrap().connections;
    fails.store(true, Ordering::SeqCst);
    let before = calls.load(Ordering::SeqCst);
    client.set_servers(&proxy.address()).unwrap();
    // The client calls the callback every third of the session timeout.
    wait_until(3 * TEST_TIMEOUT, || {
        assert_eq!(lock.state().unwrap(), LockState::Held);
        calls.load(Ordering::SeqCst) >= before + 4
    });
    assert_eq!((client.metrics().unwrap().connections, proxy.accepted_count()), (connections, 0));
    fails.store(false, Ordering::SeqCst);
    wait_until(3 * TEST_TIMEOUT, || {
        let state = lock.state().unwrap();
        assert!(matches!(state, LockState::Held | LockState::Suspended), "{state:?}");
        state == LockState::Held && client.metrics().unwrap().connections > connections
    });
    assert_eq!(proxy.accepted_count(), 1);
    lock.release().unwrap();
}

/// Most servers of the new list refuse connections, and the source of the credentials fails from the second call on.
#[test]
fn credentials_that_were_loaded_before_the_move_serve_all_its_attempts() {
    let server = ZooKeeper::shared();
    let proxy = Proxy::start(&server.address());
    let calls_left = Arc::new(AtomicUsize::new(usize::MAX));
    let left = Arc::clone(&calls_left);
    let config = Config::new().session_timeout(LONG_SESSION).auth_callback("digest", move || {
        let taken = left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
        taken.map(|_| b"alice:secret".to_vec()).map_err(|_| "the vault is sealed".into())
    });
    let client = Client::connect(&server.address(), &config).unwrap();
    let lock = client.mutex(&path("once")).unwrap();
    lock.acquire(Some(TEST_TIMEOUT)).unwrap();
    calls_left.store(1, Ordering::SeqCst);
    client.set_servers(&format!("127.0.0.1:1,127.0.0.1:2,127.0.0.1:3,127.0.0.1:4,{}", proxy.address())).unwrap();
    wait_until(TEST_TIMEOUT, || {
        let state = lock.state().unwrap();
        assert!(matches!(state, LockState::Held | LockState::Suspended), "{state:?}");
        state == LockState::Held && proxy.accepted_count() == 1
    });
    assert_eq!(calls_left.load(Ordering::SeqCst), 0);
    lock.release().unwrap();
}

/// A callback that does not return delays the move, but no other call, and neither a reconnect nor a close.
#[test]
fn credentials_that_load_slowly_delay_only_the_move() {
    let server = ZooKeeper::shared();
    let [first, second] = [Proxy::start(&server.address()), Proxy::start(&server.address())];
    let (blocks, calls) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let (is_blocked, counted) = (Arc::clone(&blocks), Arc::clone(&calls));
    let config = Config::new().session_timeout(LONG_SESSION).auth_callback("digest", move || {
        counted.fetch_add(1, Ordering::SeqCst);
        while is_blocked.load(Ordering::SeqCst) {
            thread::sleep(SECOND / 1000);
        }
        Ok(b"alice:secret".to_vec())
    });
    let client = Client::connect(&first.address(), &config).unwrap();
    let lock = client.mutex(&path("slow")).unwrap();
    for cuts_connection in [false, true] {
        blocks.store(true, Ordering::SeqCst);
        let before = calls.load(Ordering::SeqCst);
        let (from, to) = if cuts_connection { (&second, &first) } else { (&first, &second) };
        client.set_servers(&to.address()).unwrap();
        wait_until(TEST_TIMEOUT, || calls.load(Ordering::SeqCst) > before);
        lock.acquire(Some(TEST_TIMEOUT)).unwrap();
        lock.release().unwrap();
        if cuts_connection {
            from.cut();
            wait_until(TEST_TIMEOUT, || client.state().unwrap() == ClientState::Suspended);
        }
        let accepted = to.accepted_count();
        blocks.store(false, Ordering::SeqCst);
        wait_until(TEST_TIMEOUT, || {
            to.accepted_count() > accepted && client.state().unwrap() == ClientState::Connected
        });
        lock.acquire(Some(TEST_TIMEOUT)).unwrap();
        lock.release().unwrap();
    }
    blocks.store(true, Ordering::SeqCst);
    client.set_servers(&second.address()).unwrap();
    let (closed, took) = timed(|| client.close());
    blocks.store(false, Ordering::SeqCst);
    closed.unwrap();
    assert_not_late(took, 4 * SECOND);
}

/// Threads acquire and release without a pause while the list changes. No call fails, not even an attempt that does not
/// wait, because a move takes less than the second of such a call.
#[test]
fn calls_succeed_while_the_list_changes() {
    let ensemble = Ensemble::start(500, 20);
    let lists: Vec<String> = ensemble.servers().iter().map(ZooKeeper::address).collect();
    // A server may apply a committed transaction only when its next request arrives, because `CommitProcessor` looks at
    // its queues before it locks the object on which it then waits (ZooKeeper 3.9.4). Until then the server refuses the
    // client, which has already seen the transaction on another server. In this test only other sessions can send the
    // request.
    let mut others: Vec<RawClient> = ensemble.servers().iter().map(raw).collect();
    let client = client_with(&lists[0], TEST_TIMEOUT);
    let path = path("busy");
    thread::scope(|scope| {
        let workers: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| {
                    let lock = client.mutex(&path).unwrap();
                    for _ in 0..100 {
                        lock.acquire(Some(3 * TEST_TIMEOUT)).unwrap();
                        assert!(lock.is_held().unwrap());
                        lock.release().unwrap();
                    }
                })
            })
            .collect();
        let is_over = || workers.iter().all(|worker| worker.is_finished());
        let free = client.mutex(&format!("{path}/free")).unwrap();
        let mut changes = 0;
        while !is_over() {
            changes += 1;
            let connections = client.metrics().unwrap().connections;
            client.set_servers(&lists[changes % lists.len()]).unwrap();
            let (result, took) = timed(|| free.acquire(Some(Duration::ZERO)));
            match result {
                Ok(()) => free.release().unwrap(),
                // On a busy machine, the move can take longer. The attempt may leave a node behind for a moment.
                Err(error) => {
                    assert!(took >= SECOND, "{error} after {took:?}");
                    wait_until(TEST_TIMEOUT, || free.participants().is_ok_and(|found| found.is_empty()));
                }
            }
            wait_until(TEST_TIMEOUT, || {
                others.iter_mut().for_each(|other| assert!(other.exists("/")));
                client.metrics().unwrap().connections > connections || is_over()
            });
        }
        println!("{changes} changes");
    });
    let metrics = client.metrics().unwrap();
    assert_eq!(metrics.sessions_lost, 0, "{metrics:?}");
}

#[test]
fn unusable_lists_are_refused_and_change_nothing() {
    let server = ZooKeeper::shared();
    let mut config = Config::new();
    config.set("chroot.create", "true").unwrap();
    let with_chroot = Client::connect(&format!("{}/app", server.address()), &config).unwrap();
    for list in [server.address(), format!("{}/", server.address()), format!("{}/app", server.address())] {
        with_chroot.set_servers(&list).unwrap();
    }
    let refusal = |client: &Client, list: &str| {
        let error = client.set_servers(list).unwrap_err();
        assert_eq!(error.status(), Status::Invalid);
        error.message().to_owned()
    };
    assert_eq!(
        refusal(&with_chroot, "h/other"),
        "the server list has the chroot \"/other\", but the chroot of the client is \"/app\"; expected the same chroot, or none"
    );
    let client = client(&server.address());
    assert_eq!(
        refusal(&client, "h/app"),
        "the server list has the chroot \"/app\", but the client has no chroot; expected servers without a chroot"
    );
    let twice = ("h1:2181/app,h2:2181/app", "write it once, after the last server: \"h1:2181,h2:2181/app\"");
    assert!(refusal(&with_chroot, twice.0).contains(twice.1));
    for (list, reason) in [("", "is not a server"), ("h:x", "is not a port"), ("h//", "chroot"), twice] {
        assert!(refusal(&client, list).contains(reason), "{list}");
    }
    let lock = client.mutex(&path("refused")).unwrap();
    lock.acquire(Some(TEST_TIMEOUT)).unwrap();
    client.close().unwrap();
    assert_eq!(status(client.set_servers(&server.address())), Status::Closed);
}

/// A program that knows only servers that no longer exist gets a new list before its connect timeout.
#[test]
fn new_list_helps_a_client_without_a_connection() {
    let [first, second] = [ZooKeeper::start(), ZooKeeper::start()];
    let client = client(&first.address());
    first.stop();
    let lock = client.mutex(&path("stopped")).unwrap();
    let acquired = thread::scope(|scope| {
        let waiter = scope.spawn(|| lock.acquire(Some(3 * TEST_TIMEOUT)).and_then(|()| lock.release()));
        wait_until(TEST_TIMEOUT, || client.metrics().unwrap().connection_attempts > 2);
        client.set_servers(&second.address()).unwrap();
        waiter.join().unwrap()
    });
    acquired.unwrap();
    assert_eq!(second.connection_count(), 1);
}

/// The program knows one server. The ensemble gains a server, and loses all servers that the program could know.
#[test]
fn client_follows_the_ensemble_to_servers_that_the_program_never_named() {
    let ensemble = DynamicEnsemble::start(&ZooKeeper::options().tick_ms(500), 4);
    let servers = ensemble.servers();
    let mut config = Config::new().session_timeout(TEST_TIMEOUT);
    config.set("servers.follow_config", "true").unwrap();
    let client = Client::connect(&servers[0].address(), &config).unwrap();
    let lock = client.mutex(&path("follow")).unwrap();
    lock.acquire(None).unwrap();
    let (token, session) = (lock.fencing_token().unwrap(), client.session_id().unwrap());
    let expect_held = || {
        wait_until(3 * TEST_TIMEOUT, || {
            let state = lock.state().unwrap();
            assert!(matches!(state, LockState::Held | LockState::Suspended), "{state:?}");
            state == LockState::Held && client.metrics().unwrap().watches > 1
        });
    };
    expect_held();
    ensemble.join(3, 1);
    ensemble.remove(0, 1);
    wait_until_moved(&lock, &servers[0]);
    servers[0].stop();
    ensemble.remove(1, 2);
    wait_until_moved(&lock, &servers[1]);
    servers[1].stop();
    expect_held();
    assert_eq!((lock.fencing_token().unwrap(), client.session_id().unwrap()), (token, session));
    assert_eq!(client.metrics().unwrap().sessions_lost, 0);
    lock.release().unwrap();
}

/// A server without dynamic reconfiguration lists no addresses for clients, and the client keeps its list.
#[test]
fn client_that_follows_a_server_without_a_list_keeps_its_list() {
    let server = ZooKeeper::start();
    let mut config = Config::new();
    config.set("servers.follow_config", "true").unwrap();
    let client = Client::connect(&server.address(), &config).unwrap();
    let lock = client.mutex(&path("standalone")).unwrap();
    lock.acquire(Some(TEST_TIMEOUT)).unwrap();
    server.restart();
    wait_until(TEST_TIMEOUT, || client.metrics().unwrap().reconnects > 0 && lock.is_held().unwrap());
    lock.release().unwrap();
}

/// Two of three servers stop, and the third server becomes read-only.
#[test]
fn read_only_servers_are_refused() {
    let options = ZooKeeper::options().jvm_argument("-Dreadonlymode.enabled=true");
    let options = options.config_line("localSessionsEnabled=true").config_line("localSessionsUpgradingEnabled=true");
    let ensemble = Ensemble::start_with(&options, 6);
    let leader = ensemble.leader();
    let survivor = &ensemble.servers()[(leader + 1) % 3];
    let waits = client(&ensemble.address());
    let lock = waits.mutex(&path("read-only")).unwrap();
    [leader, (leader + 2) % 3].iter().for_each(|&server| ensemble.servers()[server].stop());
    wait_until(3 * TEST_TIMEOUT, || survivor.four_letter_word("srvr").contains("Mode: read-only"));
    let config = Config::new().connect_timeout(2 * SECOND);
    let (refused, took) = timed(|| Client::connect(&survivor.address(), &config));
    let error = refused.unwrap_err();
    println!("after {took:?}: {error}");
    assert!(error.status() == Status::Connection && took < TEST_TIMEOUT, "{error}");
    assert_eq!(status(lock.acquire(Some(SECOND))), Status::Connection);
    assert!(!lock.is_held().unwrap());
    ensemble.servers()[leader].restart();
    lock.acquire(Some(3 * TEST_TIMEOUT)).unwrap();
    lock.release().unwrap();
}
