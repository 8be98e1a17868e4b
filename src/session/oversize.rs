//! Requests that are too large for a server.
//!
//! A server closes the connection when it reads the length of a request that is larger than its `jute.maxbuffer`. It sends no answer,
//! and all other requests on the connection are lost too. A server that stops closes its connections in the same way. Repetition tells the two
//! apart: after a server has closed a connection, requests as large as the ones that were in flight are *isolated*. Each of them is
//! sent alone, and only after the server has answered a small transaction. If the server closes the connection on isolated requests
//! [`STRIKES`] times, requests of that size are refused here for a while.
//!
//! An answer to a request proves that its size is accepted. So the price of a restart that was taken for a refusal is one more round
//! trip.

use std::fmt;

use crate::limits::Limits;
use crate::proto::DEFAULT_FRAME_LIMIT;
use crate::time::Time;

/// Number of isolated requests that must lose their connection. The loss that led to their isolation comes on top.
const STRIKES: usize = 2;

/// Why a request was given up that is too large for a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooLarge {
    /// The size of the request, in bytes.
    pub size: usize,
    /// The size of the smallest request that counts as refused.
    pub refused: usize,
    /// Number of connections that such requests have cost.
    pub losses: usize,
}

impl fmt::Display for TooLarge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { size, refused, losses } = self;
        write!(f, "the request takes {size} bytes, probably more than the server's jute.maxbuffer allows ")?;
        write!(f, "({DEFAULT_FRAME_LIMIT} by default): {losses} connections were closed instead of answering ")?;
        if size == refused { write!(f, "it") } else { write!(f, "a request of {refused} bytes") }
    }
}

/// What to do with a request of a certain size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Handling {
    /// It is not suspected.
    Send,
    /// Send it alone.
    Isolate,
    /// Do not send it.
    Refuse(TooLarge),
}

/// The request sizes that are suspected, and why.
#[derive(Debug, Default)]
pub(super) struct Oversize {
    /// Requests of at least this many bytes are isolated.
    suspected: Option<usize>,
    /// The sizes of isolated requests that lost their connection, the smallest first.
    strikes: Vec<usize>,
    /// When the last connection was lost that counts.
    last_loss: Time,
}

impl Oversize {
    /// How to send a request of `size` bytes.
    pub(super) fn handling(&self, now: Time, size: usize, limits: &Limits) -> Handling {
        if now >= self.last_loss + limits.suspicion || self.suspected.is_none_or(|suspected| size < suspected) {
            return Handling::Send;
        }
        self.refusal(size).map_or(Handling::Isolate, Handling::Refuse)
    }

    /// Why a request of `size` bytes is not sent again.
    pub(super) fn refusal(&self, size: usize) -> Option<TooLarge> {
        let &refused = self.strikes.get(STRIKES - 1).filter(|&&refused| refused <= size)?;
        Some(TooLarge { size, refused, losses: STRIKES + 1 })
    }

    /// A server closed a connection on which requests of these sizes were in flight.
    pub(super) fn closed(&mut self, now: Time, sizes: impl Iterator<Item = usize>, limits: &Limits) {
        let Some(smallest) = sizes.filter(|&size| size >= limits.suspect_size).min() else { return };
        self.renew(now, limits);
        self.suspected = Some(self.suspected.map_or(smallest, |suspected| suspected.min(smallest)));
    }

    /// A server closed a connection on an isolated request of `size` bytes.
    pub(super) fn closed_on(&mut self, now: Time, size: usize, limits: &Limits) {
        self.closed(now, [size].into_iter(), limits);
        self.strikes.push(size);
        self.strikes.sort_unstable();
        self.strikes.truncate(STRIKES);
    }

    /// A request of `size` bytes was answered.
    pub(super) fn answered(&mut self, size: usize) {
        if self.suspected.is_some_and(|suspected| suspected <= size) {
            self.suspected = Some(size + 1);
            self.strikes.retain(|&refused| refused > size);
        }
    }

    /// Servers may have been restarted with another limit since.
    fn renew(&mut self, now: Time, limits: &Limits) {
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
        let (mut oversize, now) = (Oversize::default(), at(1000));
        assert_eq!(oversize.handling(now, 100_000, &LIMITS()), Handling::Send);
        oversize.closed(now, [100, 20_000, 100_000].into_iter(), &LIMITS());
        assert_eq!(oversize.handling(now, 19_999, &LIMITS()), Handling::Send);
        assert_eq!(oversize.handling(now, 20_000, &LIMITS()), Handling::Isolate);
        oversize.answered(20_000);
        assert_eq!(oversize.handling(now, 20_000, &LIMITS()), Handling::Send, "it was answered");
        oversize.closed_on(now, 100_000, &LIMITS());
        assert_eq!(oversize.handling(now, 100_000, &LIMITS()), Handling::Isolate);
        oversize.closed_on(now, 100_000, &LIMITS());
        let Handling::Refuse(too_large) = oversize.handling(now, 200_000, &LIMITS()) else { panic!("it was sent") };
        assert_eq!(too_large, TooLarge { size: 200_000, refused: 100_000, losses: 3 });
        assert_eq!(oversize.handling(now, 99_999, &LIMITS()), Handling::Isolate, "smaller ones are tried");
        assert_eq!(oversize.handling(now + LIMITS().suspicion, 200_000, &LIMITS()), Handling::Send);
    }

    #[test]
    fn an_answer_clears_all_that_is_not_larger() {
        let (mut oversize, now) = (Oversize::default(), at(1000));
        oversize.closed(now, [50_000].into_iter(), &LIMITS());
        oversize.closed_on(now, 50_000, &LIMITS());
        oversize.answered(60_000);
        assert_eq!(oversize.handling(now, 60_000, &LIMITS()), Handling::Send);
        oversize.closed(now, [50_000].into_iter(), &LIMITS());
        oversize.closed_on(now, 50_000, &LIMITS());
        assert_eq!(
            oversize.handling(now, 50_000, &LIMITS()),
            Handling::Isolate,
            "the first strike does not count any more"
        );
    }

    #[test]
    fn losses_of_small_requests_mean_nothing() {
        let mut oversize = Oversize::default();
        (0..10).for_each(|_| oversize.closed(at(1000), [10, LIMITS().suspect_size - 1].into_iter(), &LIMITS()));
        assert_eq!(oversize.handling(at(1000), usize::MAX, &LIMITS()), Handling::Send);
    }
}
