//! Locks on an ensemble of three real servers: the leader fails, a deposed leader continues to answer, or all servers
//! stop.

use std::io::{BufRead, BufReader, Write, stdin};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::{TEST_TIMEOUT, client, client_with, path, queue, raw, wait_for_waiters};
use zklock::LockState;
use zklock_test_support::{Ensemble, ZooKeeper, pause, resume, wait_until};

const SECOND: Duration = Duration::from_secs(1);

/// The leader stops, and then the next leader stops. The holder keeps its hold, and the waiter keeps its position.
#[test]
fn hold_and_queue_position_survive_leader_failures() {
    let ensemble = Ensemble::start_with(&ZooKeeper::options().tick_ms(500).newest(), 6);
    let path = path("leader");
    let (one, two) = (client(&ensemble.address()), client(&ensemble.address()));
    let (held, waiting) = (one.mutex(&path).unwrap(), two.mutex(&path).unwrap());
    held.acquire(None).unwrap();
    let token = held.fencing_token().unwrap();
    thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            waiting.acquire(Some(3 * TEST_TIMEOUT)).unwrap();
            let token = waiting.fencing_token().unwrap();
            waiting.release().unwrap();
            token
        });
        wait_for_waiters(&held, 2);
        let before = held.participants().unwrap();
        for _ in 0..2 {
            let leader = ensemble.leader();
            ensemble.servers()[leader].stop();
            wait_until(3 * TEST_TIMEOUT, || {
                let state = held.state().unwrap();
                assert_ne!(state, LockState::Lost);
                state == LockState::Held && held.participants().is_ok_and(|now| now == before)
            });
            ensemble.servers()[leader].restart();
            // A server that has just restarted needs some time for an election.
            wait_until(3 * TEST_TIMEOUT, || ensemble.is_serving());
        }
        assert_eq!(held.fencing_token().unwrap(), token);
        held.release().unwrap();
        assert!(waiter.join().unwrap() > token);
    });
    let server = &ensemble.servers()[ensemble.leader()];
    assert_eq!(queue(&mut raw(server), &path), Vec::<String>::new());
}

/// A server without a quorum closes the connection during the handshake, as a server without data does. The session
/// and its nodes are in the snapshots of the servers.
#[test]
fn a_long_outage_ends_no_session() {
    let ensemble = Ensemble::start_with(&ZooKeeper::options().tick_ms(500).newest(), 6);
    // After the outage, each client must connect within one session timeout, also on a busy machine.
    let (path, timeout) = (path("outage"), 4 * SECOND);
    let (one, two) = (client_with(&ensemble.address(), timeout), client_with(&ensemble.address(), timeout));
    let (held, waiting) = (one.mutex(&path).unwrap(), two.mutex(&path).unwrap());
    held.acquire(None).unwrap();
    thread::scope(|scope| {
        let waiter = scope.spawn(|| waiting.acquire(None));
        wait_for_waiters(&held, 2);
        let before = held.participants().unwrap();
        for stopped in [&ensemble.servers()[..2], ensemble.servers()] {
            stopped.iter().for_each(ZooKeeper::stop);
            let since = Instant::now();
            wait_until(TEST_TIMEOUT, || {
                assert_ne!(held.state().unwrap(), LockState::Lost, "after {:?}", since.elapsed());
                since.elapsed() > 5 * timeout
            });
            let all = 0..stopped.len();
            all.for_each(|server| ensemble.relaunch(server));
            wait_until(3 * TEST_TIMEOUT, || {
                let state = held.state().unwrap();
                assert_ne!(state, LockState::Lost, "after the outage");
                state == LockState::Held
            });
            wait_until(3 * TEST_TIMEOUT, || held.participants().is_ok_and(|now| now == before));
        }
        held.release().unwrap();
        waiter.join().unwrap().unwrap();
    });
    assert_eq!((one.metrics().unwrap().sessions_lost, two.metrics().unwrap().sessions_lost), (0, 0));
}

/// The servers were set up again, or restored from a backup: none of them knows the session.
#[test]
fn servers_without_data_end_the_session_and_can_be_used() {
    let server = ZooKeeper::start();
    let (path, timeout) = (path("empty"), SECOND);
    let client = client_with(&server.address(), timeout);
    let lock = client.mutex(&path).unwrap();
    lock.acquire(None).unwrap();
    server.restart_empty();
    wait_until(TEST_TIMEOUT, || lock.state().unwrap() == LockState::Lost);
    let _ = lock.release();
    lock.acquire(Some(TEST_TIMEOUT)).unwrap();
}

/// A lagging follower does not yet see a new hold, and still sees a hold that has ended. The fence check must go
/// through a quorum.
#[test]
fn fence_check_goes_through_the_quorum_not_a_lagging_follower() {
    let ensemble = Ensemble::start(500, 20);
    let leader = ensemble.leader();
    let follower = (leader + 1) % 3;
    let address = |server: usize| ensemble.servers()[server].address();
    // A client closes a connection without answers after a third of its session timeout, and the answers of the
    // follower are late.
    let (path, one, other) = (path("lagging"), client(&address(leader)), client_with(&address(follower), 30 * SECOND));
    let lock = one.mutex(&path).unwrap();
    let mut stale = raw(&ensemble.servers()[follower]);
    lock.acquire(None).unwrap();
    // The servers may delete the empty directory soon after the release.
    wait_until(TEST_TIMEOUT, || stale.exists(&path));
    lock.release().unwrap();
    wait_until(TEST_TIMEOUT, || queue(&mut stale, &path).is_empty());
    ensemble.delay_follower(follower, leader, 3 * SECOND);
    lock.acquire(None).unwrap();
    let token = lock.fencing_token().unwrap();
    assert_eq!(queue(&mut stale, &path).len(), 0, "the server has not noticed yet");
    assert!(other.fence_check(&path, token).unwrap());
    assert_eq!(queue(&mut stale, &path).len(), 1);
    lock.release().unwrap();
    assert_eq!(queue(&mut stale, &path).len(), 1, "the server has not noticed yet");
    assert!(!other.fence_check(&path, token).unwrap());
}

/// The leader learns about the sessions of a follower from the follower's next ping, not from forwarded requests. A
/// process acquires a lock after a pause, and its server stops before it has sent such a ping to the leader.
#[test]
fn lease_after_a_pause_does_not_outlive_the_session() {
    let ensemble = Ensemble::start(500, 10);
    let path = path("silence");
    let leader = ensemble.leader();
    let [follower, other] = [1, 2].map(|step| (leader + step) % 3);
    let client = client(&ensemble.servers()[other].address());
    let wanted = client.mutex(&path).unwrap();
    wanted.acquire(Some(TEST_TIMEOUT)).unwrap();
    wanted.release().unwrap();

    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "ensemble::child", "--ignored", "--nocapture"])
        .env("SERVERS", ensemble.servers()[follower].address())
        .env("LOCK", &path)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut says, mut hears) = (BufReader::new(child.stdout.take().unwrap()), child.stdin.take().unwrap());
    let mut said = |wanted: &str| {
        let mut line = String::new();
        while !line.starts_with(wanted) {
            line.clear();
            assert_ne!(says.read_line(&mut line).unwrap(), 0, "the child is gone");
        }
        line.trim().to_owned()
    };
    said("connected");
    // The pause lasts almost until the next ping, which is therefore late.
    thread::sleep(SESSION_TIMEOUT * 65 / 100 - SECOND / 10);
    pause(child.id() as i32);
    thread::sleep(SESSION_TIMEOUT / 2);
    resume(child.id() as i32);
    writeln!(hears, "acquire").unwrap();
    said("acquired");
    ensemble.servers()[follower].stop();
    wanted.acquire(Some(TEST_TIMEOUT)).unwrap();
    writeln!(hears, "look").unwrap();
    assert_eq!(said("held"), "held false", "two holds are safe");
    child.kill().unwrap();
    child.wait().unwrap();
}

/// Curator: `TestInterProcessSemaphoreCluster.testCluster` and `testKilledServerWithEnsembleProvider`.
#[test]
fn semaphore_waits_until_the_ensemble_returns() {
    let ensemble = Ensemble::start(500, 6);
    let (path, stop) = (path("cluster"), AtomicBool::new(false));
    let (held, turns) = (AtomicUsize::new(0), AtomicUsize::new(0));
    // A client that connects later could find no server for longer than its connect timeout.
    let clients = [(); 6].map(|()| client_with(&ensemble.address(), SESSION_TIMEOUT));
    thread::scope(|scope| {
        for client in &clients {
            scope.spawn(|| {
                let semaphore = client.semaphore(&path, 1).unwrap();
                while !stop.load(Ordering::SeqCst) {
                    let Ok(lease) = semaphore.acquire(1, Some(SECOND * 5)) else { continue };
                    if lease.is_held().unwrap() {
                        let others = held.fetch_add(1, Ordering::SeqCst);
                        assert_eq!(others, 0, "another owner holds the only lease");
                        turns.fetch_add(1, Ordering::SeqCst);
                        thread::sleep(SECOND / 100);
                        held.fetch_sub(1, Ordering::SeqCst);
                    }
                    let _ = lease.release();
                }
            });
        }
        wait_until(TEST_TIMEOUT, || turns.load(Ordering::SeqCst) > 12);
        ensemble.servers().iter().for_each(ZooKeeper::stop);
        let before = turns.load(Ordering::SeqCst);
        // This is longer than any session lease, so every acquire that succeeded before has been counted.
        thread::sleep(SESSION_TIMEOUT);
        assert!(turns.load(Ordering::SeqCst) <= before + 1, "an acquire succeeded without a quorum");
        // Two of three servers form a quorum.
        (0..2).for_each(|server| ensemble.relaunch(server));
        let after = turns.load(Ordering::SeqCst);
        wait_until(TEST_TIMEOUT * 3, || turns.load(Ordering::SeqCst) > after + 12);
        stop.store(true, Ordering::SeqCst);
    });
}

/// The session timeout of the process that is paused.
const SESSION_TIMEOUT: Duration = Duration::from_secs(4);

#[test]
#[ignore = "a process of its own, started by the test above"]
fn child() {
    let env = |name| std::env::var(name).unwrap();
    let client = client_with(&env("SERVERS"), SESSION_TIMEOUT);
    let lock = client.mutex(&env("LOCK")).unwrap();
    println!("\nconnected");
    for line in stdin().lines() {
        match line.unwrap().as_str() {
            "acquire" => {
                lock.acquire(None).unwrap();
                println!("acquired");
            }
            _ => println!("held {}", lock.is_held().unwrap()),
        }
    }
}

/// A leader is isolated and does not notice. Its followers elect another leader, which expires the session of the
/// holder. The old leader continues to answer its client: pings, reads, syncs and handshakes. There must never be two
/// safe holds.
#[test]
fn a_leader_that_was_cut_off_keeps_no_hold_safe() {
    let ensemble = Ensemble::start(500, 120);
    let path = path("cut-off");
    let leader = ensemble.leader();
    let alone = ensemble.servers()[leader].address();
    let others: Vec<usize> = (0..3).filter(|&server| server != leader).collect();
    let (one, two) = (
        client_with(&alone, 4 * SECOND),
        client(&others.iter().map(|&server| ensemble.servers()[server].address()).collect::<Vec<_>>().join(",")),
    );
    let (held, wanted) = (one.mutex(&path).unwrap(), two.mutex(&path).unwrap());
    held.acquire(None).unwrap();
    thread::scope(|scope| {
        ensemble.isolate(leader);
        let start = Instant::now();
        for &server in &others {
            ensemble.relaunch(server);
        }
        let waiter = scope.spawn(|| {
            wanted.acquire(Some(3 * TEST_TIMEOUT)).unwrap();
            let seen = (Instant::now(), held.is_held_in_process().unwrap());
            wanted.release().unwrap();
            seen
        });
        wait_until(TEST_TIMEOUT, || held.state().unwrap() == LockState::Uncertain);
        println!("uncertain {:?} after the cut", start.elapsed());
        let (acquired, two_hold) = waiter.join().unwrap();
        println!("acquired by the other {:?} after the cut", acquired - start);
        assert!(!two_hold, "both holds are reported as safe");
        let opinion = ensemble.servers()[leader].four_letter_word("srvr");
        assert!(opinion.contains("Mode: leader"), "the server still regards itself as the leader: {opinion}");
        ensemble.end_isolation(leader);
        wait_until(3 * TEST_TIMEOUT, || held.state().unwrap() == LockState::Lost);
    });
}
