//! Decides how a session sends requests that may be too large for a server.
//!
//! If a request exceeds a server's `jute.maxbuffer`, the server closes the connection without a reply. All other
//! requests on the connection are lost too. A server that stops also closes its connections without a reply. The
//! session distinguishes the two cases by repeating the request.
//!
//! After a server has closed a connection, the session *isolates* large requests: all requests that are at least as
//! large as the smallest request in flight at that time. The session never isolates very small requests. It sends each
//! isolated request alone, and only after the server has answered a small transaction, the *probe*. At
//! [`MAX_ISOLATED_LOSSES`] isolated requests after which the connection was lost, the session refuses requests of this
//! size, and does not send them.
//!
//! No time is involved. A size is isolated or refused until a server answers a request that is at least as large, until
//! the servers change, or until the program sets the same servers again. If the session isolates a size by mistake, the
//! cost is one round trip. A size is refused by mistake only if two connections break for another reason while an
//! isolated request is in flight.
//!
//! [`LargeRequests`] owns the deferred requests. It must not encode requests, and does not know their purpose.
//! [`WatchBatch`] limits the requests that restore watches, which the session never isolates.

use std::collections::VecDeque;
use std::fmt;

/// The number of isolated requests with a lost connection at which the session refuses requests of this size. The lost
/// connection that started the isolation does not count.
const MAX_ISOLATED_LOSSES: usize = 2;

/// The error of a request that is too large for a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TooLarge {
    /// The size of the request, in bytes.
    pub size: usize,
    /// The size of the smallest refused request, in bytes.
    pub refused: usize,
    /// The size of the largest request that a server has answered, in bytes.
    pub accepted: usize,
    /// The number of connections that were lost because of such requests.
    pub losses: usize,
}

impl fmt::Display for TooLarge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { size, refused, accepted, losses } = self;
        write!(f, "the request has {size} bytes, probably more than the server's jute.maxbuffer allows: ")?;
        write!(f, "servers closed {losses} connections instead of answering ")?;
        if size == refused { write!(f, "it") } else { write!(f, "a request of {refused} bytes") }?;
        write!(f, ", and the largest request that they answered has {accepted} bytes")
    }
}

/// The requests that the session has sent on this connection and that are not answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pending {
    None,
    /// One isolated request.
    Isolated,
    Others,
}

/// What the session must do with a new request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Submission {
    /// Send the request now.
    Send,
    /// Pass the request to [`LargeRequests::defer`].
    Defer,
    /// Do not send the request.
    Refuse(TooLarge),
}

/// What the session must send next.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next<R> {
    /// Nothing, until a server has answered.
    Wait,
    /// The probe.
    Probe,
    /// A deferred request.
    Request { request: R, is_isolated: bool },
}

/// The deferred requests, and the sizes that servers may refuse. `R` is an encoded request.
#[derive(Debug)]
pub(super) struct LargeRequests<R> {
    /// The session never isolates smaller requests.
    min_suspected: usize,
    /// The session isolates requests that have at least this number of bytes.
    suspected: Option<usize>,
    /// The sizes of the isolated requests after which the connection was lost, in ascending order.
    isolated_losses: Vec<usize>,
    /// The size of the largest request that a server has answered.
    accepted: usize,
    /// The requests to send later, each with its size: an isolated request, and all requests after it.
    deferred: VecDeque<(usize, R)>,
    /// True if the session has sent the probe for the next isolated request on this connection.
    is_probe_sent: bool,
}

impl<R> LargeRequests<R> {
    pub(super) const fn new(min_suspected: usize) -> Self {
        Self {
            min_suspected,
            suspected: None,
            isolated_losses: Vec::new(),
            accepted: 0,
            deferred: VecDeque::new(),
            is_probe_sent: false,
        }
    }

    /// Returns what to do with a new request of `size` bytes.
    pub(super) fn submit(&self, size: usize, pending: Pending) -> Submission {
        if let Some(too_large) = self.refusal(size) {
            return Submission::Refuse(too_large);
        }
        let must_wait = self.is_suspected(size) || pending == Pending::Isolated || !self.deferred.is_empty();
        if must_wait { Submission::Defer } else { Submission::Send }
    }

    /// Adds a request of `size` bytes to the deferred requests.
    pub(super) fn defer(&mut self, size: usize, request: R) {
        self.deferred.push_back((size, request));
    }

    /// Returns what to send next. Deferred requests keep their order. An isolated request follows its probe, after all
    /// earlier requests are answered. Later requests wait until the isolated request is answered.
    pub(super) fn next(&mut self, pending: Pending) -> Next<R> {
        let Some(&(size, _)) = self.deferred.front() else { return Next::Wait };
        let is_isolated = self.is_suspected(size);
        let must_wait = if is_isolated { pending != Pending::None } else { pending == Pending::Isolated };
        if must_wait {
            return Next::Wait;
        }
        if is_isolated && !self.is_probe_sent {
            self.is_probe_sent = true;
            return Next::Probe;
        }
        self.is_probe_sent &= !is_isolated;
        self.deferred.pop_front().map_or(Next::Wait, |(_, request)| Next::Request { request, is_isolated })
    }

    pub(super) fn has_deferred(&self) -> bool {
        !self.deferred.is_empty()
    }

    pub(super) fn deferred_mut(&mut self) -> impl Iterator<Item = &mut R> {
        self.deferred.iter_mut().map(|(_, request)| request)
    }

    /// Removes all deferred requests, because the connection has ended. The next connection needs its own probe.
    pub(super) fn take_deferred(&mut self) -> impl Iterator<Item = R> + use<R> {
        self.is_probe_sent = false;
        std::mem::take(&mut self.deferred).into_iter().map(|(_, request)| request)
    }

    /// Records that a server closed a connection while requests of these sizes were in flight.
    pub(super) fn record_loss(&mut self, sizes: impl Iterator<Item = usize>) {
        let Some(smallest) = sizes.filter(|&size| size >= self.min_suspected).min() else { return };
        self.suspected = Some(self.suspected.map_or(smallest, |suspected| suspected.min(smallest)));
    }

    /// Records that a server closed a connection after an isolated request of `size` bytes. Returns an error if the
    /// session must not send the request again.
    pub(super) fn record_isolated_loss(&mut self, size: usize) -> Option<TooLarge> {
        self.isolated_losses.push(size);
        self.isolated_losses.sort_unstable();
        self.isolated_losses.truncate(MAX_ISOLATED_LOSSES);
        self.refusal(size)
    }

    /// Records that a server answered a request of `size` bytes.
    pub(super) fn record_answer(&mut self, size: usize) {
        self.accepted = self.accepted.max(size);
        if self.suspected.is_some_and(|suspected| suspected <= size) {
            self.suspected = Some(size + 1);
            self.isolated_losses.retain(|&refused| refused > size);
        }
    }

    /// Forgets the sizes.
    pub(super) fn forget_sizes(&mut self) {
        self.suspected = None;
        self.isolated_losses.clear();
        self.accepted = 0;
    }

    fn is_suspected(&self, size: usize) -> bool {
        self.suspected.is_some_and(|suspected| suspected <= size)
    }

    fn refusal(&self, size: usize) -> Option<TooLarge> {
        let &refused = self.isolated_losses.get(MAX_ISOLATED_LOSSES - 1).filter(|&&refused| refused <= size)?;
        Some(TooLarge { size, refused, accepted: self.accepted, losses: MAX_ISOLATED_LOSSES + 1 })
    }
}

/// The number of path bytes in one request that restores watches. A server may refuse a large request, and the client
/// has to restore all watches, so the client sends smaller requests instead.
#[derive(Debug)]
pub(super) struct WatchBatch {
    bytes: usize,
    least: usize,
    /// The size never grows above this number.
    ceiling: usize,
    /// The size at which the connection was lost, until requests of at least this size were answered.
    lost_at: usize,
}

impl WatchBatch {
    pub(super) const fn new(largest: usize, least: usize) -> Self {
        Self { bytes: largest, least, ceiling: largest, lost_at: usize::MAX }
    }

    pub(super) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Records that a server closed the connection after a request of this size. At the second loss with the same size,
    /// the size does not grow to this value again.
    pub(super) fn record_loss(&mut self) {
        let smaller = (self.bytes / 2).max(self.least).min(self.bytes);
        if self.lost_at == self.bytes {
            self.ceiling = smaller;
        }
        self.lost_at = self.bytes;
        self.bytes = smaller;
    }

    /// Records that a server answered all requests of this size. If the size became smaller because of a broken
    /// network, it grows again.
    pub(super) fn record_answer(&mut self) {
        if self.bytes >= self.lost_at {
            self.lost_at = usize::MAX;
        }
        self.bytes = self.bytes.saturating_mul(2).min(self.ceiling);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn large_requests() -> LargeRequests<&'static str> {
        LargeRequests::new(1_000)
    }

    fn refuse(requests: &mut LargeRequests<&'static str>, size: usize) {
        requests.record_loss([100, size].into_iter());
        assert_eq!(requests.record_isolated_loss(size), None);
        assert!(requests.record_isolated_loss(size).is_some());
    }

    #[test]
    fn size_is_refused_after_two_isolated_losses_until_a_larger_one_is_answered() {
        let mut requests = large_requests();
        requests.record_answer(30_000);
        assert_eq!(requests.submit(100_000, Pending::None), Submission::Send);
        requests.record_loss([100, 20_000, 100_000].into_iter());
        assert_eq!(requests.submit(19_999, Pending::Others), Submission::Send);
        assert_eq!(requests.submit(20_000, Pending::None), Submission::Defer);
        requests.record_answer(20_000);
        assert_eq!(requests.submit(20_000, Pending::None), Submission::Send, "the request was answered");
        refuse(&mut requests, 100_000);
        let Submission::Refuse(too_large) = requests.submit(200_000, Pending::None) else { panic!("it was sent") };
        assert_eq!(too_large, TooLarge { size: 200_000, refused: 100_000, accepted: 30_000, losses: 3 });
        assert_eq!(requests.submit(99_999, Pending::None), Submission::Defer, "the session sends smaller requests");
        requests.record_answer(100_000);
        assert_eq!(requests.submit(100_000, Pending::None), Submission::Send);
    }

    #[test]
    fn refused_sizes_are_sent_again_after_the_program_has_set_the_servers() {
        let mut requests = large_requests();
        refuse(&mut requests, 50_000);
        requests.forget_sizes();
        assert_eq!(requests.submit(50_000, Pending::None), Submission::Send);
    }

    #[test]
    fn isolated_request_follows_all_earlier_answers_and_its_probe() {
        let mut requests = large_requests();
        requests.record_loss([5_000].into_iter());
        requests.defer(5_000, "large");
        assert_eq!(requests.submit(10, Pending::Others), Submission::Defer, "requests keep their order");
        requests.defer(10, "small");
        assert_eq!(requests.next(Pending::Others), Next::Wait);
        assert_eq!(requests.next(Pending::None), Next::Probe);
        assert_eq!(requests.next(Pending::Others), Next::Wait);
        assert_eq!(requests.next(Pending::None), Next::Request { request: "large", is_isolated: true });
        assert_eq!(requests.next(Pending::Isolated), Next::Wait);
        assert_eq!(requests.next(Pending::None), Next::Request { request: "small", is_isolated: false });
        assert_eq!(requests.next(Pending::Others), Next::Wait);
    }

    #[test]
    fn each_connection_needs_its_own_probe() {
        let mut requests = large_requests();
        requests.record_loss([5_000].into_iter());
        requests.defer(5_000, "first");
        assert_eq!(requests.next(Pending::None), Next::Probe);
        assert_eq!(requests.take_deferred().collect::<Vec<_>>(), ["first"]);
        requests.defer(5_000, "second");
        assert_eq!(requests.next(Pending::None), Next::Probe);
    }

    #[test]
    fn answer_clears_losses_of_sizes_up_to_its_own() {
        let mut requests = large_requests();
        requests.record_loss([50_000].into_iter());
        assert_eq!(requests.record_isolated_loss(50_000), None);
        requests.record_answer(60_000);
        requests.record_loss([50_000].into_iter());
        assert_eq!(requests.record_isolated_loss(50_000), None, "the first loss does not count any more");
    }

    #[test]
    fn losses_of_small_requests_isolate_nothing() {
        let mut requests = large_requests();
        (0..10).for_each(|_| requests.record_loss([10, 999].into_iter()));
        assert_eq!(requests.submit(usize::MAX, Pending::None), Submission::Send);
    }

    #[test]
    fn watch_batch_shrinks_below_the_limit_of_the_server_and_stays_there() {
        let mut batch = WatchBatch::new(32_000, 1_000);
        let mut losses = 0;
        for _ in 0..100 {
            // A server that accepts at most 10,000 bytes.
            if batch.bytes() > 10_000 {
                batch.record_loss();
                losses += 1;
            } else {
                batch.record_answer();
            }
        }
        assert!((5_000..=10_000).contains(&batch.bytes()), "{batch:?}");
        assert!(losses <= 4, "{losses} lost connections");
    }

    #[test]
    fn watch_batch_grows_again_after_the_network_has_broken() {
        let mut batch = WatchBatch::new(32_000, 1_000);
        for losses in 1..=5 {
            (0..losses).for_each(|_| batch.record_loss());
            assert_eq!(batch.bytes(), 32_000 >> losses);
            (0..=losses).for_each(|_| batch.record_answer());
            assert_eq!(batch.bytes(), 32_000);
        }
    }
}
