//! Detects requests that are too large for a server.
//!
//! If a request exceeds a server's `jute.maxbuffer`, the server closes the connection without a reply. All other requests on the connection
//! are lost too. A server that stops also closes its connections without a reply. The session distinguishes the two cases by repeating the
//! request.
//!
//! After a server has closed a connection, the session *isolates* large requests: all requests that are at least as large as the smallest
//! request in flight at that time. The session never isolates very small requests. The session sends each isolated request alone, and only
//! after the server has answered a small transaction. The session counts the isolated requests after which the connection was lost. At
//! [`MAX_ISOLATED_LOSSES`] such requests, the session refuses requests of this size for some time. The session does not send a refused
//! request.
//!
//! An answer to a request shows that servers accept requests of this size. If the session mistakes the restart of a server for a refusal,
//! the cost is one round trip.

use std::fmt;

use zklock_proto::DEFAULT_FRAME_LIMIT;

use crate::limits::Limits;
use crate::time::Time;

/// The session counts the isolated requests after which the connection was lost. At this number, the session refuses requests of this size.
/// The lost connection that started the isolation does not count.
const MAX_ISOLATED_LOSSES: usize = 2;

/// The error of a request that is too large for a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TooLarge {
    /// The size of the request, in bytes.
    pub size: usize,
    /// The size of the smallest refused request, in bytes.
    pub refused: usize,
    /// The number of connections that were lost because of such requests.
    pub losses: usize,
}

impl fmt::Display for TooLarge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { size, refused, losses } = self;
        write!(f, "the request has {size} bytes, probably more than the server's jute.maxbuffer allows ")?;
        write!(f, "({DEFAULT_FRAME_LIMIT} by default); servers closed {losses} connections instead of answering ")?;
        if size == refused { write!(f, "it") } else { write!(f, "a request of {refused} bytes") }
    }
}

/// How to send a request of a certain size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SendMode {
    /// Send the request like any other request.
    Send,
    /// Send the request alone.
    Isolate,
    /// Do not send the request.
    Refuse(TooLarge),
}

/// The request sizes that servers may refuse.
#[derive(Debug, Default)]
pub(super) struct RequestSizes {
    /// The session isolates requests that have at least this number of bytes.
    suspected: Option<usize>,
    /// The sizes of the isolated requests after which the connection was lost, in ascending order.
    isolated_losses: Vec<usize>,
    /// The last time at which the session recorded a lost connection.
    last_loss: Time,
}

impl RequestSizes {
    /// Returns how the session must send a request of `size` bytes.
    pub(super) fn send_mode(&self, now: Time, size: usize, limits: &Limits) -> SendMode {
        if now >= self.last_loss + limits.suspicion || self.suspected.is_none_or(|suspected| size < suspected) {
            return SendMode::Send;
        }
        self.refusal(size).map_or(SendMode::Isolate, SendMode::Refuse)
    }

    /// Returns the error if the session must not send a request of `size` bytes again.
    pub(super) fn refusal(&self, size: usize) -> Option<TooLarge> {
        let &refused = self.isolated_losses.get(MAX_ISOLATED_LOSSES - 1).filter(|&&refused| refused <= size)?;
        Some(TooLarge { size, refused, losses: MAX_ISOLATED_LOSSES + 1 })
    }

    /// Records that a server closed a connection while requests of these sizes were in flight.
    pub(super) fn record_loss(&mut self, now: Time, sizes: impl Iterator<Item = usize>, limits: &Limits) {
        let Some(smallest) = sizes.filter(|&size| size >= limits.suspect_size).min() else { return };
        self.reset_if_stale(now, limits);
        self.suspected = Some(self.suspected.map_or(smallest, |suspected| suspected.min(smallest)));
    }

    /// Records that a server closed a connection after an isolated request of `size` bytes.
    pub(super) fn record_isolated_loss(&mut self, now: Time, size: usize, limits: &Limits) {
        self.record_loss(now, [size].into_iter(), limits);
        self.isolated_losses.push(size);
        self.isolated_losses.sort_unstable();
        self.isolated_losses.truncate(MAX_ISOLATED_LOSSES);
    }

    /// Records that a request of `size` bytes was answered.
    pub(super) fn record_answer(&mut self, size: usize) {
        if self.suspected.is_some_and(|suspected| suspected <= size) {
            self.suspected = Some(size + 1);
            self.isolated_losses.retain(|&refused| refused > size);
        }
    }

    /// Resets all fields if the last loss of a connection is long ago, because the servers may have been restarted with another limit.
    fn reset_if_stale(&mut self, now: Time, limits: &Limits) {
        if now >= self.last_loss + limits.suspicion {
            *self = Self::default();
        }
        self.last_loss = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: fn() -> Limits = Limits::default;

    fn at(seconds: u64) -> Time {
        Time::from_nanos(seconds * 1_000_000_000)
    }

    #[test]
    fn a_size_is_refused_after_two_isolated_losses_and_only_for_a_while() {
        let (mut oversize, now) = (RequestSizes::default(), at(1000));
        assert_eq!(oversize.send_mode(now, 100_000, &LIMITS()), SendMode::Send);
        oversize.record_loss(now, [100, 20_000, 100_000].into_iter(), &LIMITS());
        assert_eq!(oversize.send_mode(now, 19_999, &LIMITS()), SendMode::Send);
        assert_eq!(oversize.send_mode(now, 20_000, &LIMITS()), SendMode::Isolate);
        oversize.record_answer(20_000);
        assert_eq!(oversize.send_mode(now, 20_000, &LIMITS()), SendMode::Send, "the request was answered");
        oversize.record_isolated_loss(now, 100_000, &LIMITS());
        assert_eq!(oversize.send_mode(now, 100_000, &LIMITS()), SendMode::Isolate);
        oversize.record_isolated_loss(now, 100_000, &LIMITS());
        let SendMode::Refuse(too_large) = oversize.send_mode(now, 200_000, &LIMITS()) else { panic!("it was sent") };
        assert_eq!(too_large, TooLarge { size: 200_000, refused: 100_000, losses: 3 });
        assert_eq!(oversize.send_mode(now, 99_999, &LIMITS()), SendMode::Isolate, "the session sends smaller requests");
        assert_eq!(oversize.send_mode(now + LIMITS().suspicion, 200_000, &LIMITS()), SendMode::Send);
    }

    #[test]
    fn answer_clears_suspicion_of_sizes_up_to_its_own() {
        let (mut oversize, now) = (RequestSizes::default(), at(1000));
        oversize.record_loss(now, [50_000].into_iter(), &LIMITS());
        oversize.record_isolated_loss(now, 50_000, &LIMITS());
        oversize.record_answer(60_000);
        assert_eq!(oversize.send_mode(now, 60_000, &LIMITS()), SendMode::Send);
        oversize.record_loss(now, [50_000].into_iter(), &LIMITS());
        oversize.record_isolated_loss(now, 50_000, &LIMITS());
        assert_eq!(
            oversize.send_mode(now, 50_000, &LIMITS()),
            SendMode::Isolate,
            "the first strike does not count any more"
        );
    }

    #[test]
    fn losses_of_small_requests_cause_no_suspicion() {
        let mut oversize = RequestSizes::default();
        (0..10).for_each(|_| oversize.record_loss(at(1000), [10, LIMITS().suspect_size - 1].into_iter(), &LIMITS()));
        assert_eq!(oversize.send_mode(at(1000), usize::MAX, &LIMITS()), SendMode::Send);
    }
}
