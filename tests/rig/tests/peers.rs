//! The peers do each recipe of their libraries once: what the interop tests tell them, they do.

#![allow(clippy::unwrap_used, reason = "clippy exempts only test functions, not the helpers between them")]

use std::time::Duration;

use zklock_rig::{CuratorPeer, CuratorVersion, KazooPeer, Peer, Raw, Ticket, ZooKeeper, wait_until};

const SESSION: Duration = Duration::from_secs(20);
const SOON: Duration = Duration::from_secs(20);
const LONG_MS: i32 = 60_000;

#[test]
fn curators_mutexes() {
    each_curator(|curator, root| {
        let path = format!("{root}/mutex");
        curator.tell(&format!("mutex m {path} data=mine"));
        assert_eq!(curator.ask("acquire t1 m"), "true");
        assert_eq!(curator.ask("acquire t1 m 0"), "true", "it is re-entrant");
        assert_eq!(curator.ask("acquire t2 m 50"), "false");
        let second = waits(curator, "acquire t2 m", &path, 2);
        assert_eq!(curator.ask("participants m").split(' ').count(), 2);
        curator.tell("release t1 m");
        assert!(!second.is_done());
        curator.tell("release t1 m");
        assert_eq!(second.wait(SOON), "true");
        assert_eq!(answers(curator, ["owned t1 m", "owned t2 m", "held m"]), ["false", "true", "true"]);
        let node = curator.ask("path t2 m");
        assert_eq!(curator.ask("participants m"), node);
        assert_eq!(curator.ask("path t1 m"), "none");
        assert_eq!(raw().data(&node).unwrap(), b"mine");
        let error = curator.ask("release t1 m");
        assert!(error.starts_with("error java.lang.IllegalMonitorStateException: You do not own"), "{error}");
        curator.tell("release t2 m");

        curator.tell(&format!("semaphore-mutex s {root}/semaphore-mutex"));
        assert_eq!(curator.ask("acquire t1 s 1000"), "true");
        assert_eq!(curator.ask("acquire t1 s 50"), "false", "it is not re-entrant");
        curator.tell("release t2 s");
        assert_eq!(curator.ask("held s"), "false");
    });
}

#[test]
fn curators_read_write_and_multi_locks() {
    each_curator(|curator, root| {
        curator.tell(&format!("rw l {root}/rw data=mine"));
        assert_eq!(answers(curator, ["acquire t1 l.read 1000", "acquire t2 l.read 1000"]), ["true", "true"]);
        assert_eq!(curator.ask("acquire t3 l.write 50"), "false");
        curator.tell("release t1 l.read");
        curator.tell("release t2 l.read");
        assert_eq!(answers(curator, ["acquire t3 l.write 1000", "acquire t3 l.read 1000"]), ["true", "true"]);
        assert!(curator.ask("participants l.read").contains("__READ__"));
        assert_eq!(raw().data(&curator.ask("path t3 l.write")).unwrap(), b"mine");
        curator.tell("release t3 l.write");
        curator.tell("release t3 l.read");

        curator.tell(&format!("mutex b {root}/b"));
        curator.tell(&format!("semaphore-mutex c {root}/c"));
        curator.tell("multi named b c");
        curator.tell(&format!("multi paths {root}/a {root}/b"));
        assert_eq!(curator.ask("acquire t1 b 1000"), "true");
        assert_eq!(answers(curator, ["acquire t2 paths 50", "acquire t2 named 50"]), ["false", "false"]);
        curator.tell("release t1 b");
        assert_eq!(answers(curator, ["acquire t1 named 1000", "held named"]), ["true", "true"]);
        curator.tell("release t1 named");
        assert_eq!(curator.ask("acquire t2 paths 1000"), "true");
        curator.tell("release t2 paths");
    });
}

#[test]
fn curators_semaphores_and_counts() {
    each_curator(|curator, root| {
        curator.tell(&format!("semaphore fixed {root}/fixed max=3 data=mine"));
        let leases = curator.ask("lease t1 fixed 1000 quantity=2");
        let (first, second) = leases.split_once(' ').unwrap();
        assert!(first.contains("-lease-"), "{first}");
        assert_eq!(curator.ask("lease t2 fixed 50 quantity=2"), "none");
        assert_eq!(curator.ask(&format!("data fixed {first}")), "mine");
        curator.tell(&format!("return t3 fixed {second}"));
        assert_eq!(curator.ask("lease t2 fixed quantity=2").split(' ').count(), 2);
        assert_eq!(curator.ask("participants fixed").split(' ').count(), 3);
        curator.tell("return t1 fixed");
        assert_eq!(curator.ask("participants fixed"), "");

        curator.tell(&format!("count n {root}/count seed=1"));
        curator.tell(&format!("semaphore counted {root}/counted count=n"));
        assert_ne!(curator.ask("lease t1 counted 1000"), "none");
        let waiting = waits(curator, "lease t2 counted", &format!("{root}/counted/leases"), 2);
        curator.tell("set n 2");
        assert_ne!(waiting.wait(SOON), "none");
        assert_eq!(curator.event("count n", SOON), "count n 2");
        assert_eq!(answers(curator, ["get n", "versioned n"]), ["2", "2 1"]);
        assert_eq!(answers(curator, ["try-set n 3", "try-set n 4"]), ["true", "false"]);
        assert_eq!(curator.event("count n", SOON), "count n 3");
        curator.tell("close n");
    });
}

#[test]
fn curators_revocation_and_interruption() {
    each_curator(|curator, root| {
        let path = format!("{root}/revocable");
        curator.tell(&format!("mutex m {path}"));
        curator.tell("revocable m release=t1");
        assert_eq!(curator.ask("acquire t1 m 1000"), "true");
        let second = waits(curator, "acquire t2 m", &path, 2);
        curator.tell(&format!("revoke {}", curator.ask("path t1 m")));
        assert_eq!(curator.event("revoked m", SOON), "revoked m");
        assert_eq!(curator.event("released m", SOON), "released m ok");
        assert_eq!(second.wait(SOON), "true");
        let third = waits(curator, "acquire t3 m", &path, 2);
        curator.tell("interrupt t3");
        assert_eq!(third.wait(SOON), "error java.lang.InterruptedException");
        assert_eq!(curator.ask("acquire t3 m 50"), "false", "its thread goes on");
    });
}

#[test]
fn curators_processes_and_clients_come_and_go() {
    each_curator(|curator, root| {
        let path = format!("{root}/m");
        curator.tell("client other timeout=1000");
        assert_eq!(curator.event("state other", SOON), "state other CONNECTED");
        curator.tell(&format!("mutex m {path}"));
        curator.tell(&format!("mutex o {path} client=other"));
        assert_eq!(curator.ask("acquire t1 o 10000"), "true");
        let waiting = waits(curator, "acquire t1 m", &path, 2);
        curator.tell("close other");
        assert_eq!(waiting.wait(SOON), "true");
        let (id, password) = curator.session("main");
        Raw::close_session(&ZooKeeper::shared().address(), id, &password);
        curator.event("state main LOST", SOON);
        curator.event("state main RECONNECTED", SOON);
        assert_eq!(raw().children(&path).unwrap_or_default(), [""; 0]);
        assert_eq!(curator.ask("held m"), "true", "Curator does not notice");

        curator.pause();
        let late = curator.send("version");
        curator.resume();
        assert_ne!(late.wait(SOON), "null");
        curator.tell("exit");
        wait_until(SOON, || curator.has_ended());
    });
}

#[test]
fn kazoos_recipes() {
    let kazoo = KazooPeer::start(&ZooKeeper::shared().address(), SESSION);
    for (name, verb) in [("m", "lock"), ("n", "lock"), ("r", "read-lock"), ("q", "read-lock"), ("w", "write-lock")] {
        kazoo.tell(&format!("{verb} {name} /kazoo/lock data={name}"));
    }
    assert_eq!(kazoo.ask("acquire t1 m"), "true");
    assert_eq!(kazoo.ask("acquire t2 n 0"), "false");
    let timed_out = kazoo.ask("acquire t2 n 50");
    assert!(timed_out.starts_with("error kazoo.exceptions.LockTimeout: Failed to acquire lock on"), "{timed_out}");
    let second = waits(&kazoo, "acquire t2 n", "/kazoo/lock", 2);
    assert_eq!(kazoo.ask("contenders m"), "m n");
    kazoo.tell("cancel n");
    assert_eq!(second.wait(SOON), "error kazoo.exceptions.CancelledError:");
    assert!(kazoo.ask("node m").contains("__lock__"));
    assert_eq!(answers(&kazoo, ["release t1 m", "held m"]), ["true", "false"]);
    assert_eq!(answers(&kazoo, ["acquire t1 r 1000", "acquire t2 q 1000"]), ["true", "true"]);
    assert_eq!(kazoo.ask("acquire t3 w 0"), "false");
    assert_eq!(answers(&kazoo, ["release t1 r", "release t2 q"]), ["true", "true"]);
    assert_eq!(kazoo.ask("acquire t3 w 1000"), "true");

    kazoo.tell("semaphore s /kazoo/semaphore max=1 data=s");
    kazoo.tell("semaphore z /kazoo/semaphore max=1 data=z");
    assert_eq!(answers(&kazoo, ["acquire t1 s 1000", "acquire t2 z 0"]), ["true", "false"]);
    assert_eq!(kazoo.ask("holders z"), "s");
    assert_eq!(kazoo.ask("release t1 s"), "true");

    kazoo.tell("client other timeout=1000");
    kazoo.tell("lock o /kazoo/other client=other patterns=-lock-");
    let (id, password) = kazoo.session("other");
    Raw::close_session(&ZooKeeper::shared().address(), id, &password);
    kazoo.event("state other LOST", SOON);
    kazoo.event("state other CONNECTED", SOON);
    assert_eq!(kazoo.ask("acquire t1 o 10000"), "true");
    kazoo.tell("close other");
    assert_eq!(raw().children("/kazoo/other").unwrap(), [""; 0]);
}

#[test]
fn kazoo_queues_behind_curator_that_was_killed_until_its_session_expires() {
    let zookeeper = ZooKeeper::options().tick_ms(100).start();
    let kazoo = KazooPeer::start(&zookeeper.address(), SESSION);
    let curators = CuratorVersion::ALL.map(|version| {
        let curator = CuratorPeer::start(version, &zookeeper.address(), Duration::from_secs(1));
        curator.tell("mutex m /both");
        curator
    });
    assert_eq!(curators[0].ask("acquire t1 m"), "true");
    let second = curators[1].send("acquire t1 m");
    wait_for_nodes(&zookeeper, "/both", 2);
    kazoo.tell("lock k /both patterns=-lock-");
    let third = kazoo.send("acquire t1 k");
    wait_for_nodes(&zookeeper, "/both", 3);
    curators[0].kill();
    assert_eq!(second.wait(SOON), "true");
    assert!(!third.is_done());
    curators[1].tell("exit");
    assert_eq!(third.wait(SOON), "true");
}

#[test]
#[should_panic(expected = "acquire t1 m: the peer has ended")]
fn a_test_does_not_wait_for_a_peer_that_is_gone() {
    let kazoo = KazooPeer::start(&ZooKeeper::shared().address(), SESSION);
    kazoo.tell("exit");
    kazoo.ask("acquire t1 m");
}

/// Does it with each version of Curator, on paths of its own.
fn each_curator(test: impl Fn(&CuratorPeer, &str)) {
    let address = ZooKeeper::shared().address();
    let peers = CuratorVersion::ALL.map(|version| CuratorPeer::start(version, &address, SESSION));
    for (curator, version) in peers.iter().zip(CuratorVersion::ALL) {
        let test_name = std::thread::current().name().unwrap().to_owned();
        test(curator, &format!("/{test_name}-{version:?}"));
    }
}

fn answers<const N: usize>(peer: &Peer, commands: [&str; N]) -> [String; N] {
    commands.map(|command| peer.ask(command))
}

/// Sends a command that puts a node into a directory and then waits, once it does.
fn waits(peer: &Peer, command: &str, path: &str, nodes: usize) -> Ticket {
    let ticket = peer.send(command);
    wait_for_nodes(ZooKeeper::shared(), path, nodes);
    ticket
}

fn wait_for_nodes(zookeeper: &ZooKeeper, path: &str, count: usize) {
    let mut raw = Raw::connect(&zookeeper.address(), LONG_MS);
    wait_until(SOON, || raw.children(path).is_some_and(|children| children.len() == count));
}

fn raw() -> Raw {
    Raw::connect(&ZooKeeper::shared().address(), LONG_MS)
}
