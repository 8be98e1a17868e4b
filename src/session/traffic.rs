//! What a session has done so far, counted.

use crate::histogram::Histogram;

/// See the module's description. What each number means stands at its namesake in [`Metrics`](crate::Metrics).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[allow(missing_docs, reason = "they are described once, as metrics")]
pub struct Traffic {
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
