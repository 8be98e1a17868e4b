//! The lease clock (rule 2 of the safety contract): how long the session is surely alive, by our own clock alone.
//!
//! The leader expires a session no earlier than its timeout after it last HEARD of it. It hears of a session that is connected to
//! a follower when the follower answers the leader's next ping, twice a tick, and not from the requests the follower passes on.
//! So two things are to be known. That the server we talk to still belongs to the quorum: what was answered after a quorum had
//! COMMITTED it shows that, for the moment we sent it; a ping, a read or a `sync` does not (ZOOKEEPER-1675). And what the leader
//! had heard by then: everything on that connection that had been answered half a tick before, since an answer shows that the
//! server has the packet; and the handshake, about which it is asked itself.
//!
//! The lease ends the timeout after the send time of what the leader had heard, and the timeout less the margin after the send
//! time of what was committed, whichever comes first. What margin there is covers pings that are late and clocks that do not run
//! alike.

use std::collections::VecDeque;
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
        let slack = if Mutant::ExpectPromptPings.lives() { Duration::ZERO } else { margin.min(self.timeout / 12) };
        (proof.committed + length).min(proof.heard + (self.timeout - slack))
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

/// What was sent on one connection, when, and when it was answered.
#[derive(Debug)]
pub(super) struct Sent {
    timeout: Duration,
    /// The handshake, of which the leader hears at once.
    handshake: Time,
    /// Later packets, not all, the oldest first; those without an answer are the last ones.
    packets: VecDeque<Packet>,
}

#[derive(Debug)]
struct Packet {
    sent: Time,
    /// When it, or one that was sent after it, was answered: the server had it by then.
    answered: Option<Time>,
}

impl Sent {
    pub(super) fn new(handshake: Time, timeout: Duration) -> Self {
        Self { timeout, handshake, packets: VecDeque::new() }
    }

    /// A packet goes out. Those that follow each other closely are taken for one.
    pub(super) fn note(&mut self, now: Time) {
        if self.packets.back().is_none_or(|last| now - last.sent >= self.timeout / 48) {
            self.packets.push_back(Packet { sent: now, answered: None });
        }
        // Only the newest of which the leader has surely heard is ever asked for.
        while self.packets.get(1).is_some_and(|second| self.heard_at(second, now) <= now) {
            self.packets.pop_front();
        }
    }

    /// What was sent at `sent` is answered. A connection keeps the order, so what was sent before has arrived too.
    pub(super) fn answered(&mut self, sent: Time, now: Time) {
        let open = self.packets.iter_mut().rev().take_while(|packet| packet.answered.is_none());
        open.filter(|packet| packet.sent <= sent).for_each(|packet| packet.answered = Some(now));
    }

    /// The send time of the newest packet of which the leader has surely heard before a request that is sent `now`.
    pub(super) fn heard(&self, now: Time) -> Time {
        let heard = self.packets.iter().rev().find(|packet| self.heard_at(packet, now) <= now);
        heard.map_or(self.handshake, |packet| packet.sent)
    }

    /// How long it takes, for all that is known, until the leader has surely heard of a packet that is new enough.
    pub(super) fn hears_in(&self, now: Time, is_new_enough: impl Fn(Time) -> bool) -> Duration {
        let next = Packet { sent: now, answered: None };
        let packet = self.packets.iter().find(|packet| is_new_enough(packet.sent)).unwrap_or(&next);
        self.heard_at(packet, now) - now
    }

    /// When the leader has surely heard of a packet, if an answer that is missing comes `now`: half a tick after the answer, which
    /// is a quarter of the timeout at most, since that is two ticks at least; and no sooner than two heartbeats, a third, after it
    /// was sent. So a leader's pings may be late by a twelfth where answers come at once, and an answer that takes no longer than
    /// a twelfth costs nothing.
    fn heard_at(&self, packet: &Packet, now: Time) -> Time {
        let answered = match packet.answered {
            _ if Mutant::HearOnWrite.lives() => packet.sent,
            answered => answered.unwrap_or(now),
        };
        if Mutant::HearTooSoon.lives() {
            return answered + self.timeout / 6;
        }
        (answered + self.timeout / 4).max(packet.sent + self.timeout / 6 * 2)
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
    fn a_margin_below_a_twelfth_replaces_the_twelfth() {
        let end = |margin| {
            let mut lease = Lease::new(at(100), Duration::from_secs(24), margin);
            lease.prove(proof(123, 100));
            lease.end()
        };
        assert_eq!(end(None), at(122));
        assert_eq!(end(Some(Duration::from_secs(1))), at(123));
        assert_eq!(end(Some(Duration::ZERO)), at(124));
    }

    /// With a timeout of 24 seconds: half a tick is 6 seconds, a heartbeat comes every 4, and packets within half a second are one.
    fn sent_on_a_connection() -> Sent {
        Sent::new(at(10), Duration::from_secs(24))
    }

    #[test]
    fn heard_is_what_was_answered_half_a_tick_before() {
        let mut sent = sent_on_a_connection();
        assert_eq!(sent.heard(at(10)), at(10));
        sent.note(at(20));
        assert_eq!(sent.heard(at(100)), at(10), "it may stand in a buffer");
        sent.answered(at(20), at(25));
        assert_eq!(sent.heard(at(30)), at(10));
        assert_eq!(sent.heard(at(31)), at(20));
    }

    #[test]
    fn an_answer_speaks_for_what_was_sent_before() {
        let mut sent = sent_on_a_connection();
        for second in [20, 21, 22] {
            sent.note(at(second));
        }
        sent.answered(at(21), at(30));
        sent.answered(at(22), at(32));
        assert_eq!(sent.heard(at(35)), at(10));
        assert_eq!(sent.heard(at(36)), at(21), "the first answer counts");
        assert_eq!(sent.heard(at(38)), at(22));
    }

    #[test]
    fn answers_that_take_no_longer_than_a_twelfth_cost_nothing() {
        for answer in [0, 1, 2] {
            let mut sent = sent_on_a_connection();
            for second in (20..200).step_by(4) {
                if second >= 28 {
                    assert_eq!(sent.heard(at(second)), at(second - 8), "answers take {answer}");
                }
                sent.note(at(second));
                sent.answered(at(second), at(second + answer));
            }
        }
    }

    #[test]
    fn only_what_may_be_asked_for_is_remembered() {
        let mut sent = sent_on_a_connection();
        for tenth in 200..1000 {
            let now = Time::from_nanos(tenth * 100_000_000);
            sent.note(now);
            sent.answered(now, now);
        }
        assert!(sent.packets.len() < 20, "{}", sent.packets.len());
        assert_eq!(sent.heard(at(100)), at(92));
    }

    #[test]
    fn how_long_it_takes_to_be_heard() {
        let mut sent = sent_on_a_connection();
        let new_enough = |sent: Time| sent >= at(20);
        assert_eq!(sent.hears_in(at(20), new_enough), Duration::from_secs(8), "not sent yet");
        sent.note(at(20));
        assert_eq!(sent.hears_in(at(20), new_enough), Duration::from_secs(8));
        assert_eq!(sent.hears_in(at(28), new_enough), Duration::from_secs(6), "not answered yet");
        sent.answered(at(20), at(29));
        assert_eq!(sent.hears_in(at(28), new_enough), Duration::from_secs(7));
        assert_eq!(sent.heard(at(35)), at(20));
    }
}
