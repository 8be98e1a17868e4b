//! The mutex on an ensemble of three real servers: leaders that die, and leaders that do not know that they are none any more.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test that fails is a test that fails"
)]

mod common;

use std::thread;
use std::time::{Duration, Instant};

use common::{SOON, client, client_with, path, queue, raw, wait_for_waiters};
use zklock::LockState;
use zklock_rig::{Ensemble, wait_until};

const SECOND: Duration = Duration::from_secs(1);

/// The leader dies, then the next one: the holder keeps its hold, the waiter its place.
#[test]
fn a_hold_and_a_place_outlive_the_leader() {
    let ensemble = Ensemble::start(500, 6);
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
        }
        assert_eq!(held.fencing_token().unwrap(), token);
        held.release().unwrap();
        assert!(waiter.join().unwrap() > token);
    });
    let server = &ensemble.servers()[ensemble.leader()];
    assert_eq!(queue(&mut raw(server), &path), Vec::<String>::new());
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
