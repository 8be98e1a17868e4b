//! The lease clock (rule 2 of the safety contract): how long the session is surely alive, by our own clock alone.
//!
//! The leader expires a session no earlier than its timeout after it last HEARD of it. It hears of a session that is connected to
//! a follower when the follower answers the leader's next ping, twice a tick, and not from the requests the follower passes on.
//! So two things are to be known. That the server we talk to still belongs to the quorum: what was answered after a quorum had
//! COMMITTED it shows that, for the moment we sent it; a ping, a read or a `sync` does not (ZOOKEEPER-1675). And what the leader
//! had heard by then: everything sent on that connection long enough before, and the handshake, about which it is asked itself.
//!
//! The lease ends the timeout after the send time of what the leader had heard, and the timeout less the margin after the send
//! time of what was committed, whichever comes first. What margin there is covers pings that are late and clocks that do not run
//! alike.

use std::time::Duration;

use crate::mutant::Mutant;
use crate::time::Time;

/// The lease of one session.
#[derive(Debug, Clone, Copy)]
pub struct Lease {
    timeout: Duration,
    margin: Option<Duration>,
    end: Time,
}

/// What is known from one answer that a quorum stood behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Proof {
    /// When the request was sent.
    pub committed: Time,
    /// When the newest packet was sent of which the leader had heard by then.
    pub heard: Time,
}

impl Lease {
    /// Of a session whose handshake was sent at `proven`. The default margin is a third of the timeout.
    pub fn new(proven: Time, timeout: Duration, margin: Option<Duration>) -> Self {
        let mut lease = Self { timeout, margin, end: Time::default() };
        lease.prove(Proof { committed: proven, heard: proven });
        lease
    }

    /// The session goes on with another timeout. A shorter one shortens what was proven; a longer one needs a new proof.
    pub fn resume(&mut self, timeout: Duration) {
        let shorter = self.timeout.saturating_sub(timeout);
        self.end = Time::default() + (self.end - Time::default()).saturating_sub(shorter);
        self.timeout = timeout;
    }

    /// An older proof lengthens nothing.
    pub fn prove(&mut self, proof: Proof) {
        self.end = self.end.max(self.end_by(proof));
    }

    /// When the lease ends that this would prove.
    pub fn end_by(&self, proof: Proof) -> Time {
        let margin = self.margin.unwrap_or(self.timeout / 3);
        // A lease shorter than the pause between two proofs could never be held.
        let length = self.timeout.saturating_sub(margin).max(self.timeout / 3);
        let slack = margin.min(self.timeout / 12);
        (proof.committed + length).min(proof.heard + (self.timeout - slack))
    }

    /// How long a packet may be on its way to the leader's attention. Half a tick, which is a quarter of the timeout at most,
    /// since that is two ticks at least; and a twelfth for packets that travel more slowly than those behind them.
    pub fn relay(&self) -> Duration {
        if Mutant::HearTooSoon.lives() {
            return self.timeout / 4;
        }
        self.timeout / 3
    }

    /// The first moment at which the session may be gone.
    pub fn end(&self) -> Time {
        self.end
    }

    /// Whether the session is surely alive.
    pub fn runs(&self, now: Time) -> bool {
        now < self.end
    }

    /// How long it will surely be alive without another answer.
    pub fn remaining(&self, now: Time) -> Duration {
        self.end - now
    }
}

/// What was sent on one connection, and when.
#[derive(Debug)]
pub(super) struct Sent {
    /// The handshake, of which the leader hears at once.
    handshake: Time,
    /// Later packets, not all, the oldest first.
    packets: std::collections::VecDeque<Time>,
}

impl Sent {
    pub(super) fn new(handshake: Time) -> Self {
        Self { handshake, packets: std::collections::VecDeque::new() }
    }

    /// A packet goes out. Those that follow each other closely are taken for one.
    pub(super) fn note(&mut self, now: Time, relay: Duration) {
        if self.packets.back().is_none_or(|&last| now - last >= relay / 16) {
            self.packets.push_back(now);
        }
        // Only the newest of which the leader has surely heard is ever asked for.
        while self.packets.get(1).is_some_and(|&second| second + relay <= now) {
            self.packets.pop_front();
        }
    }

    /// The send time of the newest packet of which the leader has surely heard before a request that is sent `now`.
    pub(super) fn heard(&self, now: Time, relay: Duration) -> Time {
        self.packets
            .iter()
            .rev()
            .copied()
            .find(|&sent| sent + relay <= now)
            .unwrap_or(self.handshake)
            .max(self.handshake)
    }

    /// The send times of all packets that are remembered, the oldest first.
    pub(super) fn iter(&self) -> impl Iterator<Item = Time> {
        self.packets.iter().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(seconds: u64) -> Time {
        Time::from_nanos(seconds * 1_000_000_000)
    }

    const fn proof(committed: u64, heard: u64) -> Proof {
        Proof { committed: at(committed), heard: at(heard) }
    }

    #[test]
    fn counts_from_the_send_time_and_never_back() {
        let mut lease = Lease::new(at(100), Duration::from_secs(12), None);
        assert_eq!(lease.end(), at(108));
        lease.prove(proof(103, 103));
        lease.prove(proof(101, 101));
        assert_eq!(lease.end(), at(111));
        assert!(lease.runs(at(110)));
        assert!(!lease.runs(at(111)));
        assert_eq!(lease.remaining(at(109)), Duration::from_secs(2));
        assert_eq!(lease.remaining(at(200)), Duration::ZERO);
    }

    #[test]
    fn a_commit_proves_no_more_than_what_the_leader_had_heard() {
        let mut lease = Lease::new(at(100), Duration::from_secs(12), None);
        lease.prove(proof(120, 100));
        assert_eq!(lease.end(), at(111));
        lease.prove(proof(120, 118));
        assert_eq!(lease.end(), at(128));
    }

    #[test]
    fn another_timeout_never_lengthens_it() {
        let mut lease = Lease::new(at(100), Duration::from_secs(12), None);
        lease.resume(Duration::from_secs(6));
        assert_eq!(lease.end(), at(102));
        lease.resume(Duration::from_secs(60));
        assert_eq!(lease.end(), at(102));
    }

    #[test]
    fn a_margin_beyond_the_negotiated_timeout_leaves_a_third() {
        assert_eq!(Lease::new(at(1), Duration::from_secs(6), Some(Duration::from_secs(7))).end(), at(3));
    }

    #[test]
    fn what_the_leader_heard() {
        let relay = Duration::from_secs(2);
        let mut sent = Sent::new(at(10));
        assert_eq!(sent.heard(at(10), relay), at(10));
        for second in [11, 12, 14, 20] {
            sent.note(at(second), relay);
        }
        assert_eq!(sent.heard(at(20), relay), at(14));
        assert_eq!(sent.heard(at(22), relay), at(20));
        assert_eq!(sent.iter().collect::<Vec<_>>(), [at(14), at(20)]);
    }
}
