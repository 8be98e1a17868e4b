//! The counters of one session.

use crate::histogram::Histogram;

/// Counters of one session. The documentation of a counter is in the field of [`Metrics`](crate::Metrics) with the same
/// name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[allow(missing_docs, reason = "the table of metrics describes these fields")]
pub(crate) struct Traffic {
    pub connection_attempts: u64,
    pub connections: u64,
    pub reconnects: u64,
    pub connections_lost: u64,
    pub sessions: u64,
    pub sessions_lost: u64,
    pub requests: u64,
    pub answers: u64,
    pub pings: u64,
    pub watch_events: u64,
    pub bytes_sent: u64,
    pub bytes_received: u64,
    pub round_trips: Histogram,
}
