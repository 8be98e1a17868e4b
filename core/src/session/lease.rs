//! The session lease (rule 2 of the safety contract). Until the lease ends, the session cannot have expired. The client
//! measures the lease with its own clock.
//!
//! The leader expires a session if one session timeout has passed since the leader last recorded that the session is
//! alive. ZooKeeper calls this record a *touch*. If the client is connected to a follower, the leader touches the
//! session only when the follower answers the leader's next ping. The leader sends a ping to its followers every half
//! tick. A request that the follower forwards to the leader does not touch the session.
//!
//! Two conditions limit the lease. First, the server must still belong to the quorum. If a request needs a commit, its
//! reply proves that the server belonged to the quorum when the client sent the request. A reply to a ping, a read or a
//! `sync` proves nothing about the quorum (ZOOKEEPER-1675).
//!
//! Second, the leader must have touched the session. A reply shows that the server has received the packet. The leader
//! touches the session at most half a tick after this reply. A packet therefore counts for the lease if the server
//! answered it at least half a tick before the client sent the committed request. The handshake counts at once, because
//! the leader itself takes part in the handshake.
//!
//! Each condition gives a time, and the lease ends at the earlier one:
//!
//! - quorum: the time when the client sent the last committed request, plus the session timeout, minus the margin
//! - touch: the time when the client sent the last packet that caused a touch, plus the session timeout, minus a twelfth of the session
//!   timeout, or minus the margin if the margin is shorter
//!
//! The margin allows for late pings and for clocks that run at different rates.

use std::collections::VecDeque;
use std::time::Duration;

use crate::mutant::Mutant;
use crate::time::Time;

/// The lease of one session.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Lease {
    timeout: Duration,
    margin: Option<Duration>,
    end: Time,
}

/// The times that the reply to one committed request proves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Proof {
    /// The send time of the committed request.
    pub request_sent: Time,
    /// The send time of the newest packet for which the leader had touched the session before the committed request was
    /// sent.
    pub touch_sent: Time,
}

impl Lease {
    /// Creates the lease of a session whose handshake was sent at `handshake_sent`. The default margin is a third of
    /// the session timeout.
    pub(crate) fn new(handshake_sent: Time, timeout: Duration, margin: Option<Duration>) -> Self {
        let mut lease = Self { timeout, margin, end: Time::default() };
        lease.extend(Proof { request_sent: handshake_sent, touch_sent: handshake_sent });
        lease
    }

    /// Sets the timeout of a resumed session. A shorter timeout shortens the lease immediately. A longer timeout takes
    /// effect with the next proof.
    pub(crate) fn set_timeout(&mut self, timeout: Duration) {
        let shorter = self.timeout.saturating_sub(timeout);
        self.end = Time::default() + (self.end - Time::default()).saturating_sub(shorter);
        self.timeout = timeout;
    }

    /// Extends the lease with the times of a proof. A proof that is older than a previous proof changes nothing.
    pub(crate) fn extend(&mut self, proof: Proof) {
        self.end = self.end.max(self.end_with(proof));
    }

    /// Returns the time at which the lease would end if `proof` were the only proof.
    pub(crate) fn end_with(&self, proof: Proof) -> Time {
        let slack =
            if Mutant::ExpectPromptPings.is_active() { Duration::ZERO } else { self.margin().min(self.timeout / 12) };
        (proof.request_sent + self.length()).min(proof.touch_sent + (self.timeout - slack))
    }

    /// Returns the longest time from a committed request to the end of the lease.
    pub(crate) fn length(&self) -> Duration {
        // If the lease were shorter than the time between two proofs, no hold could stay safe.
        self.timeout.saturating_sub(self.margin()).max(self.timeout / 3)
    }

    fn margin(&self) -> Duration {
        self.margin.unwrap_or(self.timeout / 3)
    }

    /// Returns the end of the lease: the first time at which the session may have expired.
    pub(crate) fn end(&self) -> Time {
        self.end
    }

    /// Returns whether the session has certainly not expired.
    pub(crate) fn is_valid(&self, now: Time) -> bool {
        now < self.end
    }

    /// Returns the remaining time of the lease.
    pub(crate) fn remaining(&self, now: Time) -> Duration {
        self.end - now
    }
}

/// The packets of one connection. For each packet, the list contains the send time and the time of the answer.
#[derive(Debug)]
pub(super) struct SentPackets {
    timeout: Duration,
    /// The send time of the handshake, for which the leader touches the session at once.
    handshake: Time,
    /// The packets after the handshake, beginning with the oldest. The list omits packets that were sent shortly after
    /// another packet. Packets without an answer are at the end of the list.
    packets: VecDeque<SentPacket>,
}

#[derive(Debug)]
struct SentPacket {
    sent: Time,
    /// The time at which this packet or a later packet was answered. At this time, the server had already received this
    /// packet.
    answered: Option<Time>,
}

impl SentPackets {
    pub(super) fn new(handshake: Time, timeout: Duration) -> Self {
        Self { timeout, handshake, packets: VecDeque::new() }
    }

    /// Records that a packet is sent. All packets within 1/48 of the session timeout count as one packet.
    pub(super) fn note(&mut self, now: Time) {
        if self.packets.back().is_none_or(|last| now - last.sent >= self.timeout / 48) {
            self.packets.push_back(SentPacket { sent: now, answered: None });
        }
        // The lease needs only the newest packet for which the leader has certainly touched the session.
        while self.packets.get(1).is_some_and(|second| self.touched_at(second, now) <= now) {
            self.packets.pop_front();
        }
    }

    /// Records the answer to the packet that was sent at the time `sent`. A connection delivers packets in order, so
    /// the server has also received all earlier packets.
    pub(super) fn record_answer(&mut self, sent: Time, now: Time) {
        let open = self.packets.iter_mut().rev().take_while(|packet| packet.answered.is_none());
        open.filter(|packet| packet.sent <= sent).for_each(|packet| packet.answered = Some(now));
    }

    /// Suppose that the client sends a request `now`. This function considers the packets for which the leader touches
    /// the session before the request arrives, and returns the send time of the newest such packet.
    pub(super) fn last_touch_sent(&self, now: Time) -> Time {
        let touch_sent = self.packets.iter().rev().find(|packet| self.touched_at(packet, now) <= now);
        touch_sent.map_or(self.handshake, |packet| packet.sent)
    }

    /// Returns the shortest time after which the leader has certainly touched the session for a packet that
    /// `is_new_enough` accepts.
    pub(super) fn time_until_touch(&self, now: Time, is_new_enough: impl Fn(Time) -> bool) -> Duration {
        let next = SentPacket { sent: now, answered: None };
        let packet = self.packets.iter().find(|packet| is_new_enough(packet.sent)).unwrap_or(&next);
        self.touched_at(packet, now) - now
    }

    /// Returns the time after which the leader has certainly touched the session for a packet. If the packet has no
    /// answer yet, the function assumes that the answer comes `now`.
    ///
    /// The leader touches the session at most half a tick after the answer. Half a tick is at most a quarter of the
    /// session timeout, because servers grant timeouts of two ticks or more. The result is always at least a third of
    /// the timeout (two heartbeats) after the send time of the packet. Because of this minimum, the lease remains
    /// correct even if the leader's pings are late by a twelfth of the timeout. Answers that take up to a twelfth of
    /// the timeout do not shorten the lease.
    fn touched_at(&self, packet: &SentPacket, now: Time) -> Time {
        let answered = match packet.answered {
            _ if Mutant::TouchOnWrite.is_active() => packet.sent,
            answered => answered.unwrap_or(now),
        };
        if Mutant::TouchTooEarly.is_active() {
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

    const fn proof(committed: u64, touch_sent: u64) -> Proof {
        Proof { request_sent: at(committed), touch_sent: at(touch_sent) }
    }

    #[test]
    fn lease_counts_from_send_time_and_older_proof_changes_nothing() {
        let mut lease = Lease::new(at(100), Duration::from_secs(12), None);
        assert_eq!(lease.end(), at(108));
        lease.extend(proof(103, 103));
        lease.extend(proof(101, 101));
        assert_eq!(lease.end(), at(111));
        assert!(lease.is_valid(at(110)));
        assert!(!lease.is_valid(at(111)));
        assert_eq!(lease.remaining(at(109)), Duration::from_secs(2));
        assert_eq!(lease.remaining(at(200)), Duration::ZERO);
    }

    #[test]
    fn lease_is_bounded_by_last_touch_of_the_leader() {
        let mut lease = Lease::new(at(100), Duration::from_secs(12), None);
        lease.extend(proof(120, 100));
        assert_eq!(lease.end(), at(111));
        lease.extend(proof(120, 118));
        assert_eq!(lease.end(), at(128));
    }

    #[test]
    fn renegotiated_timeout_never_extends_lease() {
        let mut lease = Lease::new(at(100), Duration::from_secs(12), None);
        lease.set_timeout(Duration::from_secs(6));
        assert_eq!(lease.end(), at(102));
        lease.set_timeout(Duration::from_secs(60));
        assert_eq!(lease.end(), at(102));
    }

    #[test]
    fn margin_above_timeout_leaves_lease_of_one_third() {
        assert_eq!(Lease::new(at(1), Duration::from_secs(6), Some(Duration::from_secs(7))).end(), at(3));
    }

    #[test]
    fn margin_below_one_twelfth_replaces_ping_delay_allowance() {
        let end = |margin| {
            let mut lease = Lease::new(at(100), Duration::from_secs(24), margin);
            lease.extend(proof(123, 100));
            lease.end()
        };
        assert_eq!(end(None), at(122));
        assert_eq!(end(Some(Duration::from_secs(1))), at(123));
        assert_eq!(end(Some(Duration::ZERO)), at(124));
    }

    /// Records packets with a session timeout of 24 seconds. Half a tick is then 6 seconds and a heartbeat 4 seconds,
    /// and packets within half a second count as one packet.
    fn sent_on_a_connection() -> SentPackets {
        SentPackets::new(at(10), Duration::from_secs(24))
    }

    #[test]
    fn packet_counts_as_touch_half_a_tick_after_its_answer() {
        let mut sent = sent_on_a_connection();
        assert_eq!(sent.last_touch_sent(at(10)), at(10));
        sent.note(at(20));
        assert_eq!(sent.last_touch_sent(at(100)), at(10), "the request may still be in a buffer");
        sent.record_answer(at(20), at(25));
        assert_eq!(sent.last_touch_sent(at(30)), at(10));
        assert_eq!(sent.last_touch_sent(at(31)), at(20));
    }

    #[test]
    fn deliberate_bugs_are_found() {
        Mutant::ExpectPromptPings.assert_found_by(lease_is_bounded_by_last_touch_of_the_leader);
        Mutant::TouchTooEarly.assert_found_by(packet_counts_as_touch_half_a_tick_after_its_answer);
        Mutant::TouchOnWrite.assert_found_by(packet_counts_as_touch_half_a_tick_after_its_answer);
    }

    #[test]
    fn answer_covers_all_packets_sent_before() {
        let mut sent = sent_on_a_connection();
        for second in [20, 21, 22] {
            sent.note(at(second));
        }
        sent.record_answer(at(21), at(30));
        sent.record_answer(at(22), at(32));
        assert_eq!(sent.last_touch_sent(at(35)), at(10));
        assert_eq!(sent.last_touch_sent(at(36)), at(21), "the first answer counts");
        assert_eq!(sent.last_touch_sent(at(38)), at(22));
    }

    #[test]
    fn answers_within_one_twelfth_do_not_shorten_lease() {
        for answer in [0, 1, 2] {
            let mut sent = sent_on_a_connection();
            for second in (20..200).step_by(4) {
                if second >= 28 {
                    assert_eq!(sent.last_touch_sent(at(second)), at(second - 8), "the answer takes {answer}");
                }
                sent.note(at(second));
                sent.record_answer(at(second), at(second + answer));
            }
        }
    }

    /// The page docs/timeouts.md and the command rely on these lengths. A waiter sends a proof in every second heartbeat
    /// interval, and a ping in the other interval. A holder sends a proof in every interval.
    #[test]
    fn lease_of_a_holder_is_short_until_two_heartbeats_have_followed() {
        const TIMEOUT: u64 = 24;
        let length_after = |heartbeats: u64, grant: u64| {
            let mut sent = sent_on_a_connection();
            let mut lease = Lease::new(at(10), Duration::from_secs(TIMEOUT), None);
            let granted = 10 + 20 * TIMEOUT + grant;
            let waiting = (10..granted).step_by(4).skip(1).map(|second| (second, second % 8 == 2));
            let holding = (granted..=granted + 4 * heartbeats).step_by(4).map(|second| (second, true));
            for (second, is_proof) in waiting.chain(holding) {
                if is_proof {
                    lease.extend(Proof { request_sent: at(second), touch_sent: sent.last_touch_sent(at(second)) });
                }
                sent.note(at(second));
                sent.record_answer(at(second), at(second));
            }
            lease.remaining(at(granted + 4 * heartbeats)).as_secs()
        };
        for grant in 0..8 {
            for heartbeats in 0..2 {
                // A heartbeat later, the rest of the lease must still be a quarter of the timeout.
                assert!(length_after(heartbeats, grant) - TIMEOUT / 6 >= TIMEOUT / 4, "{heartbeats} {grant}");
            }
            assert_eq!(length_after(5, grant), 7 * TIMEOUT / 12);
        }
        let shortest = (0..8).flat_map(|grant| [length_after(0, grant), length_after(1, grant)]).min();
        // The grant came a second before the next heartbeat of the waiter.
        assert_eq!(shortest, Some(TIMEOUT / 4 + TIMEOUT / 6 + 1));
    }

    #[test]
    fn sent_packets_stay_bounded() {
        let mut sent = sent_on_a_connection();
        for tenth in 200..1000 {
            let now = Time::from_nanos(tenth * 100_000_000);
            sent.note(now);
            sent.record_answer(now, now);
        }
        assert!(sent.packets.len() < 20, "{}", sent.packets.len());
        assert_eq!(sent.last_touch_sent(at(100)), at(92));
    }

    #[test]
    fn time_until_touch_depends_on_send_and_answer_time() {
        let mut sent = sent_on_a_connection();
        let new_enough = |sent: Time| sent >= at(20);
        assert_eq!(sent.time_until_touch(at(20), new_enough), Duration::from_secs(8), "not sent yet");
        sent.note(at(20));
        assert_eq!(sent.time_until_touch(at(20), new_enough), Duration::from_secs(8));
        assert_eq!(sent.time_until_touch(at(28), new_enough), Duration::from_secs(6), "not answered yet");
        sent.record_answer(at(20), at(29));
        assert_eq!(sent.time_until_touch(at(28), new_enough), Duration::from_secs(7));
        assert_eq!(sent.last_touch_sent(at(35)), at(20));
    }
}
