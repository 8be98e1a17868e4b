//! The verbs that look at locks: `ls`, `status` and `wait`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;
use zklock_test_support::{
    Direction, Proxy, RawClient, Verdict, ZooKeeper, assert_not_late, flags, permissions, wait_until,
};

use crate::common::{TEST_TIMEOUT, code, code_in_time, path, raw, wait_for_queue, zklock, zklock_on};

/// A number of nodes that a careless program would read one by one, with all their data.
const MANY: usize = 10_000;

/// Runs a call that must succeed, and returns its standard output.
pub(crate) fn output(arguments: &[&str]) -> String {
    let output = zklock(arguments).output();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!((output.status.code(), &*errors), (Some(0), ""), "{arguments:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn json(arguments: &[&str]) -> Value {
    serde_json::from_str(&output(arguments)).unwrap()
}

/// Creates a directory with nodes of these names, in this order.
pub(crate) fn lock_nodes(raw: &mut RawClient, path: &str, names: &[&str]) {
    if names.is_empty() {
        raw.create_with_ancestors(path, b"", flags::PERSISTENT).unwrap();
    }
    for name in names {
        raw.create_with_ancestors(&format!("{path}/{name}"), b"10.0.0.7", flags::EPHEMERAL_SEQUENTIAL).unwrap();
    }
}

pub(crate) fn curator(mark: &str) -> String {
    format!("_c_d477f9d3-4b7a-4335-82e1-a2be2be1b4b0-{mark}")
}

#[test]
fn the_tree_shows_the_kind_the_holder_and_the_queue_of_each_lock() {
    let (root, mut raw) = (path("tree"), raw());
    let nested = format!("{root}/deploy/prod");
    let nightly = format!("{root}/nightly");
    let holder = zklock(&["run", &nested, "sleep", "60"]).start();
    holder.wait_for_tree(1);
    let waiter = zklock(&["run", &nested, "sleep", "60"]).start();
    wait_for_queue(&mut raw, &nested, 2);
    let lease = zklock(&["run", "--semaphore", "3", &format!("{root}/api"), "sleep", "60"]).start();
    lease.wait_for_tree(1);
    let reader = zklock(&["run", "-s", &nightly, "sleep", "60"]).start();
    reader.wait_for_tree(1);
    lock_nodes(&mut raw, &format!("{root}/kazoo"), &[&format!("{}__lock__", "0".repeat(32))]);
    let found = json(&["ls", "--json", &root]);
    let of = |path: &str| {
        let locks = found["locks"].as_array().unwrap();
        locks.iter().find(|lock| lock["path"] == format!("{root}/{path}")).cloned().unwrap_or_default()
    };
    let counts = |path: &str| {
        let lock = of(path);
        (lock["kind"].as_str().unwrap().to_owned(), lock["holders"].as_i64(), lock["waiting"].as_i64())
    };
    assert_eq!(counts("deploy/prod"), ("mutex".to_owned(), Some(1), Some(1)));
    assert_eq!(counts("api"), ("semaphore".to_owned(), Some(1), Some(0)));
    assert_eq!(counts("nightly"), ("read/write".to_owned(), Some(1), Some(0)));
    assert_eq!(counts("kazoo"), ("kazoo".to_owned(), Some(1), Some(0)));
    assert_eq!(of("deploy/prod")["longest_waiting"]["pid"], waiter.pid());
    assert_eq!(of("nightly")["longest_waiting"], Value::Null);
    let first = &of("deploy/prod")["first_holders"][0];
    assert_eq!((first["command"].as_str(), first["pid"].as_i64()), (Some("sleep"), Some(holder.pid().into())));
    assert_eq!(of("kazoo")["first_holders"][0]["participant"], "10.0.0.7");
    let text = output(&["ls", &root]);
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[0], ["PATH", "KIND", "WAITING", "AGE", "HOLDER"]);
    assert_eq!(lines[1], [&*root]);
    assert!(text.contains("\n  deploy\n    prod") && lines[4][..3] == ["prod", "mutex", "1"], "{text}");
    assert!(lines[4][4].ends_with(&format!(":{}", holder.pid())), "{text}");
}

#[test]
fn the_members_of_a_multi_lock_are_named() {
    let root = path("multi");
    let paths = [format!("{root}/a"), format!("{root}/b")];
    let call = zklock(&["run", &paths[0], "--and", &paths[1], "--", "sleep", "60"]).start();
    call.wait_for_tree(1);
    let found = json(&["ls", "--json", &root]);
    for lock in found["locks"].as_array().unwrap() {
        assert_eq!(lock["multi_lock"], serde_json::json!(paths), "{found}");
    }
    assert!(output(&["ls", &root]).contains("mutex, multi"));
}

#[test]
fn a_tree_without_locks_and_a_missing_path_are_no_errors() {
    let (root, mut raw) = (path("empty"), raw());
    assert_eq!(output(&["ls", &root]), format!("{root} does not exist, so every lock below it is free\n"));
    lock_nodes(&mut raw, &format!("{root}/sub"), &[]);
    assert_eq!(output(&["ls", &root]), format!("no lock below {root} is held or waited for\n"));
    assert!(output(&["ls", "--all", &root]).contains("\n  sub\n"));
    assert_eq!(output(&["status", &format!("{root}/x")]), format!("{root}/x: free; the node does not exist\n"));
    assert_eq!(output(&["status", &root]), format!("{root}: free\n"));
    assert_eq!(code(&["status", "no/path"]).0, 64);
    assert_eq!(code(&["ls", "/a/"]).0, 64);
}

#[test]
fn the_status_shows_the_whole_queue_in_order_with_roles() {
    let (path, mut raw) = (path("queue"), raw());
    let first = zklock(&["run", "-s", &path, "sleep", "60"]).start();
    first.wait_for_tree(1);
    let second = zklock(&["run", "-s", &path, "sleep", "60"]).start();
    second.wait_for_tree(1);
    let writer = zklock(&["run", "-x", &path, "true"]).start();
    wait_for_queue(&mut raw, &path, 3);
    let found = json(&["status", "--json", &path]);
    let queue = found["queue"].as_array().unwrap();
    let roles: Vec<(&str, bool, i64)> = queue
        .iter()
        .map(|one| (one["role"].as_str().unwrap(), one["shared"].as_bool().unwrap(), one["pid"].as_i64().unwrap()))
        .collect();
    let expected = [("holds", true, first.pid()), ("holds", true, second.pid()), ("waits", false, writer.pid())];
    assert_eq!(roles, expected.map(|(role, shared, pid)| (role, shared, pid.into())));
    let text = output(&["status", &path]);
    assert!(text.starts_with(&format!("{path}: read/write, 2 holders, 1 waiting\n")), "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    assert!(text.contains("holds read") && text.contains("waits write"), "{text}");
}

#[test]
fn a_node_of_another_library_is_named_as_foreign() {
    let (path, mut raw) = (path("foreign"), raw());
    lock_nodes(&mut raw, &path, &[&curator("lock-"), &format!("{}__lock__", "0".repeat(32)), "x-0100000714a2000f-"]);
    let text = output(&["status", &path]);
    assert!(text.contains("2 of them use another kind of lock") && text.contains("10.0.0.7 [kazoo]"), "{text}");
    let found = json(&["status", "--json", &path]);
    let kinds: Vec<&str> = found["queue"].as_array().unwrap().iter().map(|one| one["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["mutex", "kazoo", "zookeeper"]);
    assert_eq!(found["foreign"], 2);
}

#[test]
fn a_waiting_semaphore_participant_is_not_a_holder() {
    let (path, mut raw) = (path("semaphore"), raw());
    let holder = zklock(&["run", "--semaphore", "1", &path, "sleep", "60"]).start();
    holder.wait_for_tree(1);
    let _next = zklock(&["run", "--semaphore", "1", &path, "true"]).start();
    wait_for_queue(&mut raw, &format!("{path}/locks"), 1);
    wait_for_queue(&mut raw, &format!("{path}/leases"), 2);
    let _last = zklock(&["run", "--semaphore", "1", &path, "true"]).start();
    wait_for_queue(&mut raw, &format!("{path}/locks"), 2);
    let found = json(&["status", "--json", &path]);
    let roles: Vec<&str> = found["queue"].as_array().unwrap().iter().map(|one| one["role"].as_str().unwrap()).collect();
    assert_eq!(roles, ["holds", "acquires", "waits"], "{found}");
}

/// The participant that acquires has created its lease after the other one has joined the queue.
#[test]
fn the_longest_wait_for_a_semaphore_may_not_be_the_first() {
    let (path, mut raw) = (path("longest"), raw());
    let start = || zklock(&["run", "--semaphore", "1", &path, "sleep", "60"]).start();
    let first = start();
    first.wait_for_tree(1);
    let _second = start();
    wait_for_queue(&mut raw, &format!("{path}/leases"), 2);
    let _third = start();
    wait_for_queue(&mut raw, &format!("{path}/locks"), 2);
    let _fourth = start();
    wait_for_queue(&mut raw, &format!("{path}/locks"), 3);
    first.signal(libc::SIGTERM);
    wait_until(TEST_TIMEOUT, || {
        let lock = json(&["ls", "--json", &path])["locks"][0].clone();
        lock["holders"] == 1 && lock["waiting"] == 2 && lock["longest_waiting"]["role"] == "waits"
    });
    let found = json(&["status", "--json", &path]);
    assert_eq!(found["queue"][1]["role"], "acquires", "{found}");
}

#[test]
fn the_status_shows_the_last_runs() {
    let path = path("runs");
    let call = zklock(&["run", "--once-per", "day", &path, "sh", "-c", "exit 3"]).env("USER", "u");
    assert_eq!(call.start().wait(), 3);
    let text = output(&["status", &path]);
    assert!(text.contains("last runs of the job:\nPERIOD") && text.contains("failed: exit code 3"), "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    assert_eq!(json(&["status", "--json", &path])["runs"][0]["detail"], "exit code 3");
}

#[test]
fn a_long_queue_and_a_large_tree_are_shown_in_part() {
    let server = ZooKeeper::start();
    let (path, mut raw) = ("/many", RawClient::connect(&server.address(), 60_000));
    lock_nodes(&mut raw, path, &vec![&*curator("lock-"); MANY]);
    let call = |arguments: &[&str]| {
        let output = zklock_on(&server.address(), arguments).output();
        assert_eq!(output.status.code(), Some(0));
        String::from_utf8(output.stdout).unwrap()
    };
    let text = call(&["status", path]);
    assert_eq!(text.lines().count(), 103);
    assert!(text.starts_with("/many: mutex, 1 holder, 9999 waiting\n"), "{text}");
    assert!(text.ends_with("... 9900 more participants are not shown; --limit 10000 shows them\n"), "{text}");
    for at in 0..MANY {
        raw.create(&format!("/many/sub{at}"), b"", flags::PERSISTENT).unwrap();
    }
    lock_nodes(&mut raw, "/other", &[&curator("lock-")]);
    lock_nodes(&mut raw, "/other/more", &[&curator("lock-")]);
    let text = call(&["ls", "--limit", "1", "/"]);
    assert!(text.contains("many  mutex  9999") && text.contains("... 1 more lock is not shown"), "{text}");
    assert!(text.contains(" more nodes were not looked at; give the path of a part of the tree\n"), "{text}");
}

#[test]
fn a_node_that_may_not_be_read_does_not_hide_the_others() {
    let (root, mut raw) = (path("denied"), raw());
    let hidden = format!("{root}/hidden");
    lock_nodes(&mut raw, &format!("{root}/lock"), &[&curator("lock-")]);
    raw.create_with_acl(&hidden, b"", 0, &[(permissions::ALL & !permissions::READ, "world", "anyone")]).unwrap();
    let unreadable = format!("{root}/lock/{}", curator("lock-"));
    raw.create_unreadable(&unreadable, flags::EPHEMERAL_SEQUENTIAL).unwrap();
    let text = output(&["ls", &root]);
    assert!(text.contains("not readable") && text.contains("10.0.0.7"), "{text}");
    assert!(output(&["status", &format!("{root}/lock")]).contains("not readable"));
    assert_eq!(code(&["status", &hidden]).0, 77);
}

/// The list of the directory is longer than a client accepts.
#[test]
fn a_list_that_is_too_long_does_not_hide_the_other_locks() {
    let (root, mut raw) = (path("long"), raw());
    let crowded = format!("{root}/crowded");
    lock_nodes(&mut raw, &format!("{root}/lock"), &[&curator("lock-")]);
    raw.create(&crowded, b"", 0).unwrap();
    for number in 0..10 {
        raw.create(&format!("{crowded}/{number}{}", "x".repeat(900_000)), b"", 0).unwrap();
    }
    let problem = "the list of 10 nodes has 9000";
    for arguments in [&["ls", &root][..], &["ls", "--json", &root], &["top", "-n", "1", &root]] {
        let text = output(arguments);
        assert!(text.contains("10.0.0.7"), "{arguments:?}: {text}");
        assert!(text.contains("not readable: ") || text.contains(problem), "{arguments:?}: {text}");
    }
    let (exit, errors) = code(&["status", &crowded]);
    assert!(exit == 70 && errors.contains(problem), "{exit}: {errors}");
    let doctor = zklock(&["doctor", "--json", &crowded]).output();
    assert!(String::from_utf8(doctor.stdout).unwrap().contains(problem));
}

#[test]
fn a_directory_of_leases_that_may_not_be_read_does_not_hide_the_lock() {
    let (root, mut raw) = (path("leases"), raw());
    let lock = format!("{root}/lock");
    let leases = format!("{lock}/leases");
    lock_nodes(&mut raw, &lock, &[&curator("lock-")]);
    raw.create_with_acl(&leases, b"", 0, &[(permissions::ALL & !permissions::READ, "world", "anyone")]).unwrap();
    let text = output(&["ls", &root]);
    assert!(text.contains("mutex") && text.contains("10.0.0.7"), "{text}");
    let text = output(&["status", &lock]);
    assert!(text.contains(&format!("mutex, 1 holder, 0 waiting; {leases} is not readable")), "{text}");
    assert_eq!(json(&["status", "--json", &lock])["not_readable"], serde_json::json!([leases]));
    let (busy, errors) = code_in_time(&["wait", "-w", "3s", &lock]);
    assert_eq!(busy, 75, "{errors}");
    let (denied, errors) = code(&["wait", "-w", "60s", "--semaphore", "2", &lock]);
    assert!(denied == 77 && errors.contains(&leases), "{errors}");
    assert!(output(&["doctor", "--json", &lock]).contains("this client cannot list the directory"));
    assert!(output(&["revoke", &lock]).starts_with("asked 10.0.0.7 to release"));
    assert!(output(&["break", "--yes", &lock]).contains("deleted "));
    let text = output(&["break", &lock]);
    assert!(text.contains(&format!("nothing to delete; {leases} is not readable")), "{text}");
}

#[test]
fn text_of_others_does_not_reach_the_terminal_raw() {
    let (path, mut raw) = (path("escape"), raw());
    lock_nodes(&mut raw, &path, &[]);
    let text = "\u{1b}[31m\u{9b}31mred\u{202e}";
    let record = serde_json::json!({"zklock_runs": [{
        "period": "2026-01-01T00:00:00Z", "started": "2026-01-01T00:00:00Z", "ended": "2026-01-01T00:00:01Z",
        "result": "failed", "detail": text, "owner": text, "token": 1,
    }]});
    raw.create(&format!("{path}-runs"), record.to_string().as_bytes(), flags::PERSISTENT).unwrap();
    raw.create(&format!("{path}/{}", curator("lock-")), text.as_bytes(), flags::EPHEMERAL_SEQUENTIAL).unwrap();
    let (busy, errors) = code_in_time(&["run", "-w", "1s", &path, "true"]);
    assert_eq!(busy, 75);
    let shown = [output(&["status", &path]), output(&["ls", &path]), errors];
    for text in shown {
        assert!(text.contains("red") && !text.contains(['\u{1b}', '\u{9b}', '\u{202e}']), "{text:?}");
    }
}

#[test]
fn ls_finds_long_waits_shows_odd_names_and_names_root() {
    let (root, mut raw) = (path("monitor"), raw());
    assert_eq!(
        output(&["ls", "--longer-than", "1h", &root]),
        format!("{root} does not exist, so every lock below it is free\n")
    );
    let holder = zklock(&["run", &format!("{root}/odd\u{202e}name"), "sleep", "60"]).start();
    holder.wait_for_tree(1);
    // A client refuses a path with so many parts.
    let deep = format!("{root}{}", "/x".repeat(256));
    raw.create_with_ancestors(&deep, b"", flags::PERSISTENT).unwrap();
    let text = output(&["ls", "--longer-than", "1h", &root]);
    assert!(!text.contains("odd"), "{text}");
    assert!(output(&["ls", &root]).contains("odd\\u{202e}name"));
    wait_until(TEST_TIMEOUT, || code(&["ls", "--longer-than", "1s", &root]).0 == 75);
    let lock = format!("{root}/odd\u{202e}name");
    let is_root = rustix::process::geteuid().is_root();
    assert!(!is_root || output(&["status", &lock]).contains("(sleep) by root"), "{}", output(&["status", &lock]));
}

#[test]
fn wait_revoke_and_break_print_json() {
    let (path, mut raw) = (path("verbs"), raw());
    assert_eq!(json(&["wait", "--json", &path]), serde_json::json!({"path": path, "free": true}));
    lock_nodes(&mut raw, &path, &[&curator("lock-")]);
    let node = format!("{path}/{}", raw.children(&path).unwrap()[0]);
    let (busy, errors) = code(&["wait", "--json", "-w", "0", &path]);
    let event: Value = serde_json::from_str(&errors).unwrap();
    assert_eq!((busy, event["event"].as_str(), &event["exit_code"]), (75, Some("failed"), &75.into()));
    let asked = json(&["revoke", "--json", &path]);
    assert_eq!((&asked["asked"][0]["node"], &asked["not_asked"]), (&node.clone().into(), &serde_json::json!([])));
    let broken = json(&["break", "--json", "--yes", &path]);
    assert_eq!((&broken["deleted"], &broken["nodes"][0]["node"]), (&true.into(), &node.into()));
    let nothing = serde_json::json!({"path": path, "deleted": false, "nodes": []});
    assert_eq!(json(&["break", "--json", &path]), nothing);
}

#[test]
fn a_wait_ends_when_the_lock_is_free_and_writes_nothing() {
    let (path, mut raw) = (path("wait"), raw());
    assert_eq!(code(&["wait", &path]), (0, String::new()));
    let holder = zklock(&["run", &path, "sleep", "60"]).start();
    holder.wait_for_tree(1);
    let next = zklock(&["run", &path, "sleep", "60"]).start();
    wait_for_queue(&mut raw, &path, 2);
    let (busy, errors) = code_in_time(&["wait", "-w", "1s", &path]);
    assert_eq!(busy, 75);
    let expected = format!("zklock: {path}: not free within 1s; held by ");
    assert!(errors.starts_with(&expected) && errors.contains(&format!(":{} (sleep) for ", holder.pid())), "{errors}");
    assert_eq!(code(&["wait", "-w", "0", &path]).0, 75);
    let before = raw.stat(&path).unwrap().cversion;
    let mut wait = zklock(&["wait", "-w", "60s", &path]).start();
    holder.signal(libc::SIGTERM);
    wait_for_queue(&mut raw, &path, 1);
    next.wait_for_tree(1);
    assert_eq!(raw.stat(&path).unwrap().cversion, before + 1);
    assert!(!wait.processes().is_empty(), "the next participant holds the lock");
    next.signal(libc::SIGTERM);
    assert_eq!(wait.wait(), 0);
    assert_eq!(code(&["wait", "no/path"]).0, 64);
}

#[test]
fn all_verbs_ignore_children_that_only_resemble_lock_nodes() {
    let (path, mut raw) = (path("resemble"), raw());
    for name in ["block-0", "clock-", "lock-7", "x__READ__1", "__lock__a", "block-0000000001"] {
        raw.create_with_ancestors(&format!("{path}/{name}"), b"", flags::PERSISTENT).unwrap();
    }
    for arguments in [&["try", &*path, "true"][..], &["run", "-n", &path, "true"], &["run", "-n", "-s", &path, "true"]]
    {
        assert_eq!(code(arguments), (0, String::new()), "{arguments:?}");
    }
    assert_eq!(code(&["wait", "-w", "0", &path]), (0, String::new()));
    assert_eq!(output(&["status", &path]), format!("{path}: free\n"));
    assert!(output(&["break", &path]).contains("there is nothing to delete"));
    assert_eq!(code(&["doctor", &path]).0, 0);
}

#[test]
fn all_verbs_report_a_permanent_node_ahead_at_once() {
    let (path, mut raw) = (path("permanent"), raw());
    let node = format!("{path}/{}0000000000", curator("lock-"));
    raw.create_with_ancestors(&node, b"copied", flags::PERSISTENT).unwrap();
    for arguments in
        [&["try", &*path, "true"][..], &["run", "-n", &path, "true"], &["run", &path, "true"], &["wait", &path]]
    {
        let (status, errors) = code(arguments);
        assert!(status == 83 && errors.contains(&node), "{arguments:?}: {status} {errors}");
    }
    assert!(output(&["status", &path]).contains("copied [not ephemeral]"));
    let (status, findings) = code(&["doctor", &path]);
    assert_eq!(status, 69, "{findings}");
    assert!(output(&["break", "--yes", &path]).contains(&node));
    assert_eq!(code(&["try", &path, "true"]), (0, String::new()));
}

#[test]
fn a_silent_server_does_not_delay_the_end_of_a_wait() {
    let server = ZooKeeper::start();
    let (path, mut raw) = ("/silent", RawClient::connect(&server.address(), 60_000));
    lock_nodes(&mut raw, path, &[&curator("lock-")]);
    let proxy = Proxy::start(&server.address());
    let mut wait = zklock_on(&proxy.address(), &["wait", "-w", "3s", path]).start();
    wait_until(TEST_TIMEOUT, || server.watch_count() == 1);
    let since = Instant::now();
    proxy.black_hole(true);
    // If the client has not received the reply to its last request, it knows that no server answers.
    assert!([69, 75].contains(&wait.wait()));
    assert_not_late(since.elapsed(), Duration::from_secs(4));
    let proxy = Proxy::start(&server.address());
    proxy.hook(|direction, frame| {
        let is_list = direction == Direction::ToServer && frame.windows(7).any(|part| part == b"/silent");
        if is_list { Verdict::Drop } else { Verdict::Forward }
    });
    let since = Instant::now();
    assert_eq!(zklock_on(&proxy.address(), &["wait", "-w", "1s", path]).start().wait(), 69);
    assert_not_late(since.elapsed(), Duration::from_secs(3));
}

/// A check needs at least four round trips, which take longer than a silent server may delay the end.
#[test]
fn a_check_continues_while_answers_arrive() {
    let (path, mut raw) = (path("slow"), raw());
    lock_nodes(&mut raw, &path, &[&curator("lock-")]);
    let proxy = Proxy::start(&ZooKeeper::shared().address());
    proxy.delay(Direction::ToClient, Duration::from_millis(100));
    assert_eq!(zklock_on(&proxy.address(), &["wait", "-w", "0", &path]).start().wait(), 75);
}

/// Messages contain the paths of nodes. Such a node is no lock, and would look like a free lock.
#[test]
fn the_path_of_a_node_is_refused_with_the_path_of_its_lock() {
    let (path, mut raw) = (path("node"), raw());
    let (mutex, pool) = (format!("{path}/mutex"), format!("{path}/pool"));
    lock_nodes(&mut raw, &mutex, &[&curator("lock-")]);
    lock_nodes(&mut raw, &format!("{pool}/leases"), &[&curator("lease-")]);
    for (lock, directory) in [(&mutex, mutex.clone()), (&pool, format!("{pool}/leases"))] {
        let node = format!("{directory}/{}", raw.children(&directory).unwrap()[0]);
        for verb in [&["status"][..], &["wait", "-w", "0"], &["revoke"], &["break", "--yes"]] {
            let (code, errors) = code(&[verb, &[&*node]].concat());
            assert!(code == 64 && errors.contains(&format!("the lock is {lock}\n")), "{verb:?}: {code} {errors}");
        }
        assert_eq!(raw.children(&directory).unwrap().len(), 1);
    }
    // A lock can have any name.
    let odd = format!("{path}/job-lock-0000000001");
    lock_nodes(&mut raw, &odd, &[&curator("lock-")]);
    assert!(output(&["status", &odd]).contains("mutex, 1 holder"));
}

#[test]
fn a_wait_does_not_poll() {
    let server = ZooKeeper::start();
    let (path, mut raw) = ("/quiet", RawClient::connect(&server.address(), 60_000));
    lock_nodes(&mut raw, path, &[&curator("lock-")]);
    let node = format!("{path}/{}", raw.children(path).unwrap()[0]);
    let proxy = Proxy::start(&server.address());
    let mut wait = zklock_on(&proxy.address(), &["wait", path]).start();
    wait_until(TEST_TIMEOUT, || server.watch_count() == 1);
    let (lists, counted) = (Arc::new(AtomicU32::new(0)), 12_i32.to_be_bytes());
    let seen = Arc::clone(&lists);
    proxy.hook(move |way, frame| {
        if way == Direction::ToServer && frame.get(4..8) == Some(&counted) {
            seen.fetch_add(1, Ordering::Relaxed);
        }
        Verdict::Forward
    });
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(lists.load(Ordering::Relaxed), 0);
    assert_eq!(raw.delete(&node), 0);
    assert_eq!(wait.wait(), 0);
}

#[test]
fn a_wait_for_a_read_lock_or_a_lease_ignores_those_who_share() {
    let (rw, semaphore) = (path("wait-read"), path("wait-lease"));
    let reader = zklock(&["run", "-s", &rw, "sleep", "60"]).start();
    reader.wait_for_tree(1);
    assert_eq!(code(&["wait", "-w", "0", "-s", &rw]).0, 0);
    assert_eq!(code(&["wait", "-w", "0", &rw]).0, 75);
    let lease = zklock(&["run", "--semaphore", "2", &semaphore, "sleep", "60"]).start();
    lease.wait_for_tree(1);
    assert_eq!(code(&["wait", "-w", "10s", "--semaphore", "2", &semaphore]).0, 0);
    assert_eq!(code(&["wait", "-w", "0", "--semaphore", "2", "--qty", "2", &semaphore]).0, 75);
    let mut wait = zklock(&["wait", "--semaphore", "2", "--qty", "2", &semaphore]).start();
    lease.signal(libc::SIGTERM);
    assert_eq!(wait.wait(), 0);
}

/// The waiter without a lease has no node in the directory of the leases.
#[test]
fn a_wait_for_a_lease_ends_when_the_last_waiter_leaves() {
    let (path, mut raw) = (path("last-waiter"), raw());
    let lease = zklock(&["run", "--semaphore", "3", &path, "sleep", "60"]).start();
    lease.wait_for_tree(1);
    let locks = format!("{path}/locks");
    lock_nodes(&mut raw, &locks, &[&curator("lock-")]);
    let proxy = Proxy::start(&ZooKeeper::shared().address());
    let (watched, is_watched) = (locks.clone(), Arc::new(AtomicBool::new(false)));
    let flag = Arc::clone(&is_watched);
    proxy.hook(move |direction, frame| {
        // A request that lists the directory and sets a watch ends with its path and a one.
        if direction == Direction::ToServer && frame.ends_with(&[watched.as_bytes(), &[1]].concat()) {
            flag.store(true, Ordering::SeqCst);
        }
        Verdict::Forward
    });
    let mut wait = zklock_on(&proxy.address(), &["wait", "--semaphore", "3", &path]).start();
    wait_until(TEST_TIMEOUT, || is_watched.load(Ordering::SeqCst));
    for node in raw.children(&locks).unwrap() {
        assert_eq!(raw.delete(&format!("{locks}/{node}")), 0);
    }
    assert_eq!(wait.wait(), 0);
}

#[test]
fn a_limit_of_zero_and_a_record_with_other_data_are_explained() {
    let (root, mut raw) = (path("explained"), raw());
    let lock = format!("{root}/lock");
    lock_nodes(&mut raw, &lock, &[&curator("lock-")]);
    assert_eq!(output(&["ls", "--limit", "0", &root]), "... 1 more lock is not shown; a higher --limit shows it\n");
    let record = format!("{lock}-runs");
    raw.create(&record, b"something else", flags::PERSISTENT).unwrap();
    assert!(output(&["status", &lock]).contains(&format!("\nthe node {record} is no record of runs")));
    assert!(json(&["status", "--json", &lock])["runs_error"].as_str().unwrap().contains(&record));
    let (refused, errors) = code(&["wait", "--semaphore", "3", "--qty", "4", &lock]);
    assert!(refused == 64 && errors.contains("--qty 4 is more than the 3 leases"), "{errors}");
}

#[test]
fn an_answer_that_cannot_be_written_is_a_failure() {
    let free = path("free");
    for arguments in
        [&["status", "/"][..], &["ls"], &["status", "--json", "/"], &["--help"], &["revoke", &free], &["break", &free]]
    {
        let mut call = zklock(arguments);
        call.command().stdout(std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap());
        let output = call.command().output().unwrap();
        let errors = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(70), "{arguments:?}");
        assert!(errors.contains("writing to standard output failed: "), "{arguments:?}: {errors}");
    }
}

#[test]
fn the_findings_of_many_nodes_are_shortened() {
    let (path, mut raw) = (path("findings"), raw());
    lock_nodes(&mut raw, &path, &[]);
    for _ in 0..25 {
        raw.create(&format!("{path}/{}", curator("lock-")), b"copy", flags::SEQUENTIAL).unwrap();
    }
    let report = zklock(&["doctor", "--json", &path]).output();
    assert_eq!(report.status.code(), Some(69));
    let report: Value = serde_json::from_slice(&report.stdout).unwrap();
    let nodes = report["findings"].as_array().unwrap().iter().filter(|finding| finding["check"] == "node");
    let details: Vec<&str> = nodes.map(|finding| finding["detail"].as_str().unwrap()).collect();
    assert_eq!((details.len(), details[20]), (21, "5 more nodes have findings like those above"));
}

#[test]
fn a_record_of_runs_that_is_not_readable_hides_no_participant() {
    let (path, mut raw) = (path("secret"), raw());
    let holder = zklock(&["run", &path, "sleep", "60"]).start();
    holder.wait_for_tree(1);
    raw.create_with_acl(&format!("{path}-runs"), b"", 0, &[(permissions::ALL & !permissions::READ, "world", "anyone")])
        .unwrap();
    let status = json(&["status", "--json", &path]);
    assert_eq!(status["holders"], 1);
    assert!(status["runs_error"].as_str().unwrap().contains("r (read)"), "{status}");
}
