//! The lease clock (rule 2 of the safety contract): how long the session is surely alive, by our own clock alone.
//!
//! A quorum expires a session no earlier than its timeout after it last heard of it. So whatever was answered after a
//! quorum had COMMITTED it proves the session alive until the moment we SENT that request, plus the timeout. A ping or a read
//! is answered by a single server, and so, in effect, is a `sync`: a leader that was cut off from its followers goes on
//! answering it (ZOOKEEPER-1675) while the others have elected another one, which expires the session. The margin covers what
//! we can't see: a follower passes news of a session on only with the leader's next ping, and clocks do not run alike.

use std::time::Duration;

use crate::time::Time;

/// The lease of one session.
#[derive(Debug, Clone, Copy)]
pub struct Lease {
    proven: Time,
    length: Duration,
}

impl Lease {
    /// Of a session whose handshake was sent at `proven`. The default margin is a third of the timeout. A third of the
    /// timeout is left in any case, since a lease shorter than the pause between two proofs could never be held.
    pub fn new(proven: Time, timeout: Duration, margin: Option<Duration>) -> Self {
        let length = timeout.saturating_sub(margin.unwrap_or(timeout / 3));
        Self { proven, length: length.max(timeout / 3) }
    }

    /// The session goes on with another timeout: what was proven stays proven, for as long as the new one allows.
    pub fn resume(&mut self, timeout: Duration, margin: Option<Duration>) {
        *self = Self::new(self.proven, timeout, margin);
    }

    /// A request sent at `sent` was answered, having been committed. An older one lengthens nothing.
    pub fn prove(&mut self, sent: Time) {
        self.proven = self.proven.max(sent);
    }

    /// The first moment at which the session may be gone.
    pub fn end(&self) -> Time {
        self.proven + self.length
    }

    /// Whether the session is surely alive.
    pub fn runs(&self, now: Time) -> bool {
        now < self.end()
    }

    /// How long it will surely be alive without another answer.
    pub fn remaining(&self, now: Time) -> Duration {
        self.end() - now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(seconds: u64) -> Time {
        Time::from_nanos(seconds * 1_000_000_000)
    }

    #[test]
    fn counts_from_the_send_time_and_never_back() {
        let mut lease = Lease::new(at(100), Duration::from_secs(9), None);
        assert_eq!(lease.end(), at(106));
        lease.prove(at(103));
        lease.prove(at(101));
        assert_eq!(lease.end(), at(109));
        assert!(lease.runs(at(108)));
        assert!(!lease.runs(at(109)));
        assert_eq!(lease.remaining(at(107)), Duration::from_secs(2));
        assert_eq!(lease.remaining(at(200)), Duration::ZERO);
    }

    #[test]
    fn a_shorter_timeout_shortens_it() {
        let mut lease = Lease::new(at(100), Duration::from_secs(12), None);
        lease.resume(Duration::from_secs(3), None);
        assert_eq!(lease.end(), at(102));
    }

    #[test]
    fn a_margin_beyond_the_negotiated_timeout_leaves_a_third() {
        assert_eq!(Lease::new(at(1), Duration::from_secs(6), Some(Duration::from_secs(7))).end(), at(3));
    }
}
