//! Tests of the peer processes: every command of every recipe does what its description says.

#![allow(clippy::unwrap_used, reason = "clippy exempts only test functions, not their helpers")]

use std::time::Duration;

use zklock_test_support::{
    CuratorPeer, CuratorVersion, KazooPeer, PeerProcess, PendingAnswer, RawClient, ZooKeeper, wait_until,
};

const SESSION: Duration = Duration::from_secs(20);
const TEST_TIMEOUT: Duration = Duration::from_secs(60);
const RAW_SESSION_MS: i32 = 60_000;

#[test]
fn curators_mutexes() {
    each_curator(|curator, root| {
        let path = format!("{root}/mutex");
        curator.run(&format!("mutex m {path} data=mine"));
        assert_eq!(curator.query("acquire t1 m"), "true");
        assert_eq!(curator.query("acquire t1 m 0"), "true", "it is re-entrant");
        assert_eq!(curator.query("acquire t2 m 50"), "false");
        let second = send_and_wait_for_nodes(curator, "acquire t2 m", &path, 2);
        assert_eq!(curator.query("participants m").split(' ').count(), 2);
        curator.run("release t1 m");
        assert!(!second.is_done());
        curator.run("release t1 m");
        assert_eq!(second.wait(TEST_TIMEOUT), "true");
        assert_eq!(query_all(curator, ["owned t1 m", "owned t2 m", "held m"]), ["false", "true", "true"]);
        let node = curator.query("path t2 m");
        assert_eq!(curator.query("participants m"), node);
        assert_eq!(curator.query("path t1 m"), "none");
        assert_eq!(raw().data(&node).unwrap(), b"mine");
        let error = curator.query("release t1 m");
        assert!(error.starts_with("error java.lang.IllegalMonitorStateException: You do not own"), "{error}");
        curator.run("release t2 m");

        curator.run(&format!("semaphore-mutex s {root}/semaphore-mutex"));
        assert_eq!(curator.query("acquire t1 s 1000"), "true");
        assert_eq!(curator.query("acquire t1 s 50"), "false", "it is not re-entrant");
        curator.run("release t2 s");
        assert_eq!(curator.query("held s"), "false");
    });
}

#[test]
fn curators_read_write_and_multi_locks() {
    each_curator(|curator, root| {
        curator.run(&format!("rw l {root}/rw data=mine"));
        assert_eq!(query_all(curator, ["acquire t1 l.read 1000", "acquire t2 l.read 1000"]), ["true", "true"]);
        assert_eq!(curator.query("acquire t3 l.write 50"), "false");
        curator.run("release t1 l.read");
        curator.run("release t2 l.read");
        assert_eq!(query_all(curator, ["acquire t3 l.write 1000", "acquire t3 l.read 1000"]), ["true", "true"]);
        assert!(curator.query("participants l.read").contains("__READ__"));
        assert_eq!(raw().data(&curator.query("path t3 l.write")).unwrap(), b"mine");
        curator.run("release t3 l.write");
        curator.run("release t3 l.read");

        curator.run(&format!("mutex b {root}/b"));
        curator.run(&format!("semaphore-mutex c {root}/c"));
        curator.run("multi named b c");
        curator.run(&format!("multi paths {root}/a {root}/b"));
        assert_eq!(curator.query("acquire t1 b 1000"), "true");
        assert_eq!(query_all(curator, ["acquire t2 paths 50", "acquire t2 named 50"]), ["false", "false"]);
        curator.run("release t1 b");
        assert_eq!(query_all(curator, ["acquire t1 named 1000", "held named"]), ["true", "true"]);
        curator.run("release t1 named");
        assert_eq!(curator.query("acquire t2 paths 1000"), "true");
        curator.run("release t2 paths");
    });
}

#[test]
fn curators_semaphores_and_counts() {
    each_curator(|curator, root| {
        curator.run(&format!("semaphore fixed {root}/fixed max=3 data=mine"));
        let leases = curator.query("lease t1 fixed 1000 quantity=2");
        let (first, second) = leases.split_once(' ').unwrap();
        assert!(first.contains("-lease-"), "{first}");
        assert_eq!(curator.query("lease t2 fixed 50 quantity=2"), "none");
        assert_eq!(curator.query(&format!("data fixed {first}")), "mine");
        curator.run(&format!("return t3 fixed {second}"));
        assert_eq!(curator.query("lease t2 fixed quantity=2").split(' ').count(), 2);
        assert_eq!(curator.query("participants fixed").split(' ').count(), 3);
        curator.run("return t1 fixed");
        assert_eq!(curator.query("participants fixed"), "");

        curator.run(&format!("count n {root}/count seed=1"));
        curator.run(&format!("semaphore counted {root}/counted count=n"));
        assert_ne!(curator.query("lease t1 counted 1000"), "none");
        let waiting = send_and_wait_for_nodes(curator, "lease t2 counted", &format!("{root}/counted/leases"), 2);
        curator.run("set n 2");
        assert_ne!(waiting.wait(TEST_TIMEOUT), "none");
        assert_eq!(curator.event("count n", TEST_TIMEOUT), "count n 2");
        assert_eq!(query_all(curator, ["get n", "versioned n"]), ["2", "2 1"]);
        assert_eq!(query_all(curator, ["try-set n 3", "try-set n 4"]), ["true", "false"]);
        assert_eq!(curator.event("count n", TEST_TIMEOUT), "count n 3");
        curator.run("close n");
    });
}

#[test]
fn curators_revocation_and_interruption() {
    each_curator(|curator, root| {
        let path = format!("{root}/revocable");
        curator.run(&format!("mutex m {path}"));
        curator.run("revocable m release=t1");
        assert_eq!(curator.query("acquire t1 m 1000"), "true");
        let second = send_and_wait_for_nodes(curator, "acquire t2 m", &path, 2);
        curator.run(&format!("revoke {}", curator.query("path t1 m")));
        assert_eq!(curator.event("revoked m", TEST_TIMEOUT), "revoked m");
        assert_eq!(curator.event("released m", TEST_TIMEOUT), "released m ok");
        assert_eq!(second.wait(TEST_TIMEOUT), "true");
        let third = send_and_wait_for_nodes(curator, "acquire t3 m", &path, 2);
        curator.run("interrupt t3");
        assert_eq!(third.wait(TEST_TIMEOUT), "error java.lang.InterruptedException");
        assert_eq!(curator.query("acquire t3 m 50"), "false", "its thread goes on");
    });
}

#[test]
fn curator_client_close_expiry_and_pause_are_reported() {
    each_curator(|curator, root| {
        let path = format!("{root}/m");
        curator.run("client other timeout=1000");
        assert_eq!(curator.event("state other", TEST_TIMEOUT), "state other CONNECTED");
        curator.run(&format!("mutex m {path}"));
        curator.run(&format!("mutex o {path} client=other"));
        assert_eq!(curator.query("acquire t1 o 10000"), "true");
        let waiting = send_and_wait_for_nodes(curator, "acquire t1 m", &path, 2);
        curator.run("close other");
        assert_eq!(waiting.wait(TEST_TIMEOUT), "true");
        let (id, password) = curator.session("main");
        RawClient::close_session(&ZooKeeper::shared().address(), id, &password);
        curator.event("state main LOST", TEST_TIMEOUT);
        curator.event("state main RECONNECTED", TEST_TIMEOUT);
        assert_eq!(raw().children(&path).unwrap_or_default(), [""; 0]);
        assert_eq!(curator.query("held m"), "true", "Curator does not notice");

        curator.pause();
        let late = curator.send("version");
        curator.resume();
        assert_ne!(late.wait(TEST_TIMEOUT), "null");
        curator.run("exit");
        wait_until(TEST_TIMEOUT, || curator.has_ended());
    });
}

#[test]
fn kazoos_recipes() {
    let kazoo = KazooPeer::start(&ZooKeeper::shared().address(), SESSION);
    for (name, verb) in [("m", "lock"), ("n", "lock"), ("r", "read-lock"), ("q", "read-lock"), ("w", "write-lock")] {
        kazoo.run(&format!("{verb} {name} /kazoo/lock data={name}"));
    }
    assert_eq!(kazoo.query("acquire t1 m"), "true");
    assert_eq!(kazoo.query("acquire t2 n 0"), "false");
    let timed_out = kazoo.query("acquire t2 n 50");
    assert!(timed_out.starts_with("error kazoo.exceptions.LockTimeout: Failed to acquire lock on"), "{timed_out}");
    let second = send_and_wait_for_nodes(&kazoo, "acquire t2 n", "/kazoo/lock", 2);
    assert_eq!(kazoo.query("contenders m"), "m n");
    kazoo.run("cancel n");
    assert_eq!(second.wait(TEST_TIMEOUT), "error kazoo.exceptions.CancelledError:");
    assert!(kazoo.query("node m").contains("__lock__"));
    assert_eq!(query_all(&kazoo, ["release t1 m", "held m"]), ["true", "false"]);
    assert_eq!(query_all(&kazoo, ["acquire t1 r 1000", "acquire t2 q 1000"]), ["true", "true"]);
    assert_eq!(kazoo.query("acquire t3 w 0"), "false");
    assert_eq!(query_all(&kazoo, ["release t1 r", "release t2 q"]), ["true", "true"]);
    assert_eq!(kazoo.query("acquire t3 w 1000"), "true");

    kazoo.run("semaphore s /kazoo/semaphore max=1 data=s");
    kazoo.run("semaphore z /kazoo/semaphore max=1 data=z");
    assert_eq!(query_all(&kazoo, ["acquire t1 s 1000", "acquire t2 z 0"]), ["true", "false"]);
    assert_eq!(kazoo.query("holders z"), "s");
    assert_eq!(kazoo.query("release t1 s"), "true");

    kazoo.run("client other timeout=1000");
    kazoo.run("lock o /kazoo/other client=other patterns=-lock-");
    let (id, password) = kazoo.session("other");
    RawClient::close_session(&ZooKeeper::shared().address(), id, &password);
    kazoo.event("state other LOST", TEST_TIMEOUT);
    kazoo.event("state other CONNECTED", TEST_TIMEOUT);
    assert_eq!(kazoo.query("acquire t1 o 10000"), "true");
    kazoo.run("close other");
    assert_eq!(raw().children("/kazoo/other").unwrap(), [""; 0]);
}

#[test]
fn kazoo_queues_behind_curator_that_was_killed_until_its_session_expires() {
    let zookeeper = ZooKeeper::options().tick_ms(100).start();
    let kazoo = KazooPeer::start(&zookeeper.address(), SESSION);
    let curators = CuratorVersion::ALL.map(|version| {
        let curator = CuratorPeer::start(version, &zookeeper.address(), Duration::from_secs(1));
        curator.run("mutex m /both");
        curator
    });
    assert_eq!(curators[0].query("acquire t1 m"), "true");
    let second = curators[1].send("acquire t1 m");
    wait_for_nodes(&zookeeper, "/both", 2);
    kazoo.run("lock k /both patterns=-lock-");
    let third = kazoo.send("acquire t1 k");
    wait_for_nodes(&zookeeper, "/both", 3);
    curators[0].kill();
    assert_eq!(second.wait(TEST_TIMEOUT), "true");
    assert!(!third.is_done());
    curators[1].run("exit");
    assert_eq!(third.wait(TEST_TIMEOUT), "true");
}

#[test]
#[should_panic(expected = "acquire t1 m: the peer has ended")]
fn a_test_does_not_wait_for_a_peer_that_is_gone() {
    let kazoo = KazooPeer::start(&ZooKeeper::shared().address(), SESSION);
    kazoo.run("exit");
    kazoo.query("acquire t1 m");
}

/// Runs the test with each version of Curator, each on its own path.
fn each_curator(test: impl Fn(&CuratorPeer, &str)) {
    let address = ZooKeeper::shared().address();
    let peers = CuratorVersion::ALL.map(|version| CuratorPeer::start(version, &address, SESSION));
    for (curator, version) in peers.iter().zip(CuratorVersion::ALL) {
        let test_name = std::thread::current().name().unwrap().to_owned();
        test(curator, &format!("/{test_name}-{version:?}"));
    }
}

fn query_all<const N: usize>(peer: &PeerProcess, commands: [&str; N]) -> [String; N] {
    commands.map(|command| peer.query(command))
}

/// Sends a command that creates a node and then waits for a lock. Returns when the directory has this number of nodes.
fn send_and_wait_for_nodes(peer: &PeerProcess, command: &str, path: &str, nodes: usize) -> PendingAnswer {
    let ticket = peer.send(command);
    wait_for_nodes(ZooKeeper::shared(), path, nodes);
    ticket
}

fn wait_for_nodes(zookeeper: &ZooKeeper, path: &str, count: usize) {
    let mut raw = RawClient::connect(&zookeeper.address(), RAW_SESSION_MS);
    wait_until(TEST_TIMEOUT, || raw.children(path).is_some_and(|children| children.len() == count));
}

fn raw() -> RawClient {
    RawClient::connect(&ZooKeeper::shared().address(), RAW_SESSION_MS)
}
