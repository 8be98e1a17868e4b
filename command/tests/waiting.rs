//! The wait for a busy lock.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use zklock_test_support::{Direction, Proxy, Verdict, ZooKeeper, assert_not_late, flags, wait_until};

use crate::common::{TEST_TIMEOUT, code, path, program, queue, raw, wait_for_queue, zklock, zklock_on};

#[test]
fn consul_4439_signals_are_heeded_while_waiting() {
    let (path, mut raw) = (path("waiting"), raw());
    let holder = zklock(&["run", &path, "sleep", "60"]).start();
    holder.wait_for_tree(1);
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        let mut waiter = zklock(&["run", &path, "true"]).start();
        wait_for_queue(&mut raw, &path, 2);
        let since = Instant::now();
        waiter.signal(signal);
        assert_eq!(waiter.wait(), 128 + signal);
        assert_not_late(since.elapsed(), Duration::from_secs(2));
        assert_eq!(queue(&mut raw, &path).len(), 1, "the waiter has left the queue");
        wait_until(TEST_TIMEOUT, || waiter.processes().is_empty());
    }
}

#[test]
fn a_silent_server_does_not_delay_the_end_of_a_wait() {
    for (call, code) in [(&["run"][..], 143), (&["hold", "--for", "60s"], 1000 + libc::SIGTERM)] {
        let (path, mut raw) = (path("silent"), raw());
        let holder = zklock(&["run", &path, "sleep", "60"]).start();
        holder.wait_for_tree(1);
        let proxy = Proxy::start(&ZooKeeper::shared().address());
        let command: &[&str] = if code == 143 { &["true"] } else { &[] };
        let mut waiter = zklock_on(&proxy.address(), &[call, &[&path], command].concat()).start();
        wait_for_queue(&mut raw, &path, 2);
        proxy.black_hole(true);
        let since = Instant::now();
        waiter.signal(libc::SIGTERM);
        assert_eq!(waiter.wait(), code);
        wait_until(TEST_TIMEOUT, || waiter.processes().is_empty());
        assert_not_late(since.elapsed(), Duration::from_millis(500));
    }
}

/// The kernel discards a signal to the first process of a container if the process does not wait for it.
#[test]
fn the_first_process_of_a_container_ends_on_sigterm() {
    let path = path("container");
    let container = ["--user", "--map-root-user", "--pid", "--fork", "--kill-child", "sh", "-c"];
    let in_container =
        |script: &str| program("unshare", &[&container[..], &[script, env!("CARGO_BIN_EXE_zklock"), &path]].concat());
    if in_container("true").output().status.code() != Some(0) {
        eprintln!("this test needs unshare(1) and the permission to make pid namespaces");
        return;
    }
    let holder = zklock(&["run", &path, "sleep", "60"]).start();
    holder.wait_for_tree(1);
    for call in ["wait \"$1\"", "top --json \"$1\""] {
        // The process may not wait for the signal yet.
        let script = format!("while kill -TERM 1; do sleep 0.1; done & exec \"$0\" {call}");
        assert_eq!(in_container(&script).start().wait(), 143, "{call}");
    }
}

#[test]
fn an_ignored_signal_stays_ignored() {
    let (path, mut raw) = (path("nohup"), raw());
    let mut holder = zklock(&["run", &path, "sleep", "60"]).start();
    holder.wait_for_tree(1);
    let script = "trap '' HUP; exec \"$0\" run \"$1\" sh -c 'kill -HUP $$; exit 7'";
    let mut waiter = program("sh", &["-c", script, env!("CARGO_BIN_EXE_zklock"), &path]).start();
    wait_for_queue(&mut raw, &path, 2);
    waiter.signal(libc::SIGHUP);
    holder.signal(libc::SIGTERM);
    assert_eq!((holder.wait(), waiter.wait()), (143, 7));
}

#[test]
fn consul_9788_a_signal_reaches_the_command_at_once() {
    let mut call = zklock(&["run", &path("term"), "sleep", "60"]).start();
    call.wait_for_tree(1);
    let since = Instant::now();
    call.signal(libc::SIGTERM);
    assert_eq!(call.wait(), 143);
    assert_not_late(since.elapsed(), Duration::from_secs(2));
}

#[test]
fn a_signal_ends_an_attempt_to_connect() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = listener.local_addr().unwrap().to_string();
    let mut call = zklock_on(&silent, &["run", &path("silent"), "true"]).start();
    drop(listener.accept().unwrap());
    call.signal(libc::SIGTERM);
    assert_eq!(call.wait(), 143);
}

/// The time limit includes the time for connecting. The server accepts connections and never answers.
#[test]
fn a_server_that_does_not_answer_delays_no_call_beyond_its_time_limit() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = listener.local_addr().unwrap().to_string();
    let calls: [&[&str]; 6] = [
        &["run", "-w", "1s", "/a", "true"],
        &["run", "-n", "/a", "true"],
        &["try", "/a"],
        &["wait", "-w", "1s", "/a"],
        &["wait", "-w", "0", "/a"],
        &["hold", "-w", "1s", "--for", "1s", "/a"],
    ];
    let since = Instant::now();
    let started = calls.map(|arguments| {
        let mut call = zklock_on(&silent, arguments);
        call.command().env_remove("ZKLOCK_CONNECT_TIMEOUT");
        call.start()
    });
    for (call, arguments) in started.into_iter().zip(calls) {
        let output = call.output();
        let errors = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(69), "{arguments:?}: {errors}");
        assert!(errors.contains(&format!("no answer from {silent} within ")), "{errors}");
    }
    // Without a limit, a call connects for ten seconds.
    assert_not_late(since.elapsed(), Duration::from_secs(5));
}

#[test]
fn a_waiter_runs_its_command_after_the_holder() {
    let (path, mut raw) = (path("next"), raw());
    let mut holder = zklock(&["run", &path, "sleep", "60"]).start();
    holder.wait_for_tree(1);
    let mut waiter = zklock(&["run", &path, "sh", "-c", "exit 7"]).start();
    wait_for_queue(&mut raw, &path, 2);
    holder.signal(libc::SIGTERM);
    assert_eq!((holder.wait(), waiter.wait()), (143, 7));
    wait_for_queue(&mut raw, &path, 0);
}

#[test]
fn readers_share_and_a_semaphore_counts() {
    let lock = path("shared");
    let reader = zklock(&["run", "-s", &lock, "sleep", "60"]).start();
    reader.wait_for_tree(1);
    assert_eq!(code(&["run", "-n", "-s", &lock, "true"]).0, 0);
    assert_eq!(code(&["run", "-n", "-x", &lock, "true"]).0, 75);
    let semaphore = path("semaphore");
    let lease = zklock(&["run", "--semaphore", "2", &semaphore, "sleep", "60"]).start();
    lease.wait_for_tree(1);
    assert_eq!(code(&["run", "-n", "--semaphore", "2", &semaphore, "true"]).0, 0);
    assert_eq!(code(&["run", "-n", "--semaphore", "2", "--qty", "2", &semaphore, "true"]).0, 75);
}

#[test]
fn no_more_leases_are_in_use_than_the_semaphore_has() {
    let path = path("more");
    let lease = zklock(&["run", "--semaphore", "3", "--qty", "3", &path, "sleep", "60"]).start();
    lease.wait_for_tree(1);
    let (code, errors) = code(&["run", "-n", "--semaphore", "2", &path, "true"]);
    assert!(code == 75 && errors.contains("2 of 2 leases are in use"), "{errors}");
}

#[test]
fn several_paths_are_acquired_as_a_unit() {
    let (one, two) = (path("one"), path("two"));
    let holder = zklock(&["run", &two, "sleep", "60"]).start();
    holder.wait_for_tree(1);
    assert_eq!(code(&["run", "-n", "--and", &two, &one, "true"]).0, 75);
    assert_eq!(code(&["try", "--and", &two, &one]).0, 75);
    assert_eq!(queue(&mut raw(), &one), [""; 0]);
    assert_eq!(code(&["try", &one, "--and", &path("other")]), (0, String::new()));
    assert_eq!(code(&["run", "-n", &one, "--and", &path("three"), "--", "true"]).0, 0);
}

#[test]
fn a_failed_try_writes_nothing() {
    let (path, mut raw) = (path("try"), raw());
    let holder = zklock(&["run", &path, "sleep", "60"]).start();
    holder.wait_for_tree(1);
    let before = raw.stat(&path).unwrap().cversion;
    assert_eq!(code(&["try", &path]).0, 75);
    assert_eq!(code(&["try", &path, "true"]).0, 75);
    assert_eq!(raw.stat(&path).unwrap().cversion, before);
}

#[test]
fn a_try_on_a_free_lock_takes_three_round_trips_and_the_end_of_the_session() {
    let path = path("cold");
    // The server would delete an empty container.
    raw().create_with_ancestors(&path, b"", flags::PERSISTENT).unwrap();
    let proxy = Proxy::start(&ZooKeeper::shared().address());
    let turns = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&turns);
    proxy.hook(move |direction, frame| {
        let operation = frame.get(4..8).map(<[u8]>::to_vec);
        let mut seen = seen.lock().unwrap();
        match (direction, seen.last_mut()) {
            (Direction::ToServer, Some((Direction::ToServer, operations))) => Vec::push(operations, operation),
            (_, Some((last, _))) if *last == direction => {}
            _ => seen.push((direction, vec![operation])),
        }
        Verdict::Forward
    });
    let output = zklock_on(&proxy.address(), &["try", &path]).output();
    assert_eq!(output.status.code(), Some(0));
    let turns = turns.lock().unwrap();
    let requests: Vec<_> = turns.iter().filter(|(direction, _)| *direction == Direction::ToServer).collect();
    assert!(requests.len() <= 4, "{requests:?}");
}

#[test]
fn a_try_runs_the_command_or_releases_at_once() {
    let (path, mut raw) = (path("try"), raw());
    assert_eq!(code(&["try", &path]), (0, String::new()));
    wait_for_queue(&mut raw, &path, 0);
    assert_eq!(code(&["try", &path, "sh", "-c", "exit 9"]).0, 9);
}
