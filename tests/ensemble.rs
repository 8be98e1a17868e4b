//! Locks on an ensemble of three real servers: leaders that die, leaders that do not know that they are none any more, and all of them away.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test that fails is a test that fails"
)]

mod common;

use std::io::{BufRead, BufReader, Write, stdin};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use common::{SOON, client, client_with, path, queue, raw, wait_for_waiters};
use zklock::LockState;
use zklock_rig::{Ensemble, ZooKeeper, wait_until};

const SECOND: Duration = Duration::from_secs(1);

/// The leader dies, then the next one: the holder keeps its hold, the waiter its place.
#[test]
fn a_hold_and_a_place_outlive_the_leader() {
    let ensemble = Ensemble::start_with(&ZooKeeper::options().tick_ms(500).newest(), 6);
    let path = path("leader");
    let (one, two) = (client(&ensemble.address()), client(&ensemble.address()));
    let (held, waiting) = (one.mutex(&path).unwrap(), two.mutex(&path).unwrap());
    held.acquire(None).unwrap();
    let token = held.fencing_token().unwrap();
    thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            waiting.acquire(Some(3 * SOON)).unwrap();
            let token = waiting.fencing_token().unwrap();
            waiting.release().unwrap();
            token
        });
        wait_for_waiters(&held, 2);
        let before = held.participants().unwrap();
        for _ in 0..2 {
            let leader = ensemble.leader();
            ensemble.servers()[leader].stop();
            wait_until(SOON, || {
                let state = held.state().unwrap();
                assert_ne!(state, LockState::Lost);
                state == LockState::Held && held.participants().is_ok_and(|now| now == before)
            });
            ensemble.servers()[leader].restart();
            // One that is only just coming back takes its time to elect.
            wait_until(SOON, || ensemble.is_whole());
        }
        assert_eq!(held.fencing_token().unwrap(), token);
        held.release().unwrap();
        assert!(waiter.join().unwrap() > token);
    });
    let server = &ensemble.servers()[ensemble.leader()];
    assert_eq!(queue(&mut raw(server), &path), Vec::<String>::new());
}

/// A follower that lags does not know of a hold yet, and still knows of one that has ended: the question goes through a quorum first.
#[test]
fn a_token_is_checked_against_the_ensemble_and_not_against_a_server_that_lags() {
    let ensemble = Ensemble::start(500, 20);
    let leader = ensemble.leader();
    let follower = (leader + 1) % 3;
    let address = |server: usize| ensemble.servers()[server].address();
    let (path, one, other) = (path("lagging"), client(&address(leader)), client(&address(follower)));
    let lock = one.mutex(&path).unwrap();
    lock.acquire(None).unwrap();
    lock.release().unwrap();
    let mut stale = raw(&ensemble.servers()[follower]);
    wait_until(SOON, || stale.exists(&path));
    ensemble.lag(follower, leader, SECOND / 2);
    lock.acquire(None).unwrap();
    let token = lock.fencing_token().unwrap();
    assert_eq!(queue(&mut stale, &path).len(), 0, "it does not know yet");
    assert!(other.fence_check(&path, token).unwrap());
    assert_eq!(queue(&mut stale, &path).len(), 1);
    lock.release().unwrap();
    assert_eq!(queue(&mut stale, &path).len(), 1, "it does not know yet");
    assert!(!other.fence_check(&path, token).unwrap());
}

/// The leader hears of a follower's sessions with the follower's next ping, and not from what the follower passes on. A process
/// that stood still acquires, and its server dies before it has told the leader of anything but the acquire itself.
#[test]
fn an_acquire_after_a_silence_is_as_safe_as_any() {
    let ensemble = Ensemble::start(500, 10);
    let path = path("silence");
    let leader = ensemble.leader();
    let [follower, other] = [1, 2].map(|step| (leader + step) % 3);
    let client = client(&ensemble.servers()[other].address());
    let wanted = client.mutex(&path).unwrap();
    wanted.acquire(Some(SOON)).unwrap();
    wanted.release().unwrap();

    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child", "--ignored", "--nocapture"])
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
    // Almost until its next ping, which then comes late.
    thread::sleep(T * 65 / 100 - SECOND / 10);
    signal(&child, "-STOP");
    thread::sleep(T / 2);
    signal(&child, "-CONT");
    writeln!(hears, "acquire").unwrap();
    said("acquired");
    ensemble.servers()[follower].stop();
    wanted.acquire(Some(SOON)).unwrap();
    writeln!(hears, "look").unwrap();
    assert_eq!(said("held"), "held false", "two holds are safe");
    child.kill().unwrap();
    child.wait().unwrap();
}

/// Curator: `TestInterProcessSemaphoreCluster.testCluster` and `testKilledServerWithEnsembleProvider`.
#[test]
fn leases_while_a_whole_ensemble_is_away() {
    let ensemble = Ensemble::start(500, 6);
    let (path, stop) = (path("cluster"), AtomicBool::new(false));
    let (held, turns) = (AtomicUsize::new(0), AtomicUsize::new(0));
    thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| {
                let client = client_with(&ensemble.address(), T);
                let semaphore = client.semaphore(&path, 1).unwrap();
                while !stop.load(Ordering::SeqCst) {
                    let Ok(lease) = semaphore.acquire(1, Some(SECOND * 5)) else { continue };
                    if lease.is_held().unwrap() {
                        let others = held.fetch_add(1, Ordering::SeqCst);
                        assert_eq!(others, 0, "one lease, and another holds it");
                        turns.fetch_add(1, Ordering::SeqCst);
                        thread::sleep(SECOND / 100);
                        held.fetch_sub(1, Ordering::SeqCst);
                    }
                    let _ = lease.release();
                }
            });
        }
        wait_until(SOON, || turns.load(Ordering::SeqCst) > 12);
        ensemble.servers().iter().for_each(ZooKeeper::stop);
        let before = turns.load(Ordering::SeqCst);
        // Longer than any lease: whoever got one before has said so by now.
        thread::sleep(T);
        assert!(turns.load(Ordering::SeqCst) <= before + 1, "nobody is given what no server can give");
        // Two of three are enough.
        (0..2).for_each(|server| ensemble.relaunch(server));
        let after = turns.load(Ordering::SeqCst);
        wait_until(SOON * 3, || turns.load(Ordering::SeqCst) > after + 12);
        stop.store(true, Ordering::SeqCst);
    });
}

/// The session timeout of the process that stands still.
const T: Duration = Duration::from_secs(4);

fn signal(child: &Child, signal: &str) {
    assert!(Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap().success());
}

#[test]
#[ignore = "a process of its own, started by the test above"]
fn child() {
    let env = |name| std::env::var(name).unwrap();
    let client = client_with(&env("SERVERS"), T);
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

/// A leader is cut off and does not notice; its followers come back, elect another one, and expire the holder's session. The old
/// leader goes on answering its client: pings, reads, syncs and handshakes. At no time are two holds safe.
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
            wanted.acquire(Some(3 * SOON)).unwrap();
            let seen = (Instant::now(), held.is_held_in_process().unwrap());
            wanted.release().unwrap();
            seen
        });
        wait_until(SOON, || held.state().unwrap() == LockState::Uncertain);
        println!("uncertain {:?} after the cut", start.elapsed());
        let (acquired, two_hold) = waiter.join().unwrap();
        println!("acquired by the other {:?} after the cut", acquired - start);
        assert!(!two_hold, "both holds claim to be safe");
        let opinion = ensemble.servers()[leader].four_letter_word("srvr");
        assert!(opinion.contains("Mode: leader"), "it still takes itself for the leader: {opinion}");
        ensemble.rejoin(leader);
        wait_until(3 * SOON, || held.state().unwrap() == LockState::Lost);
    });
}
