//! The metrics of a client: their values, names and descriptions.

use std::time::Duration;

use crate::histogram::Histogram;
use crate::session::ClientState;

/// The description of one number or histogram in [`Metrics`].
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Metric {
    /// The name of the field of [`Metrics`], which is the same in C and Python.
    pub field: &'static str,
    /// The name for Prometheus. Several metrics have the same name if a label distinguishes them.
    pub name: &'static str,
    /// The label and its value, if the metric has one.
    pub label: Option<(&'static str, &'static str)>,
    /// A description of one line.
    pub help: &'static str,
    /// The common description of all metrics with this name.
    pub family: &'static str,
    value: fn(&Metrics) -> Value<'_>,
}

/// The value of a metric.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub enum Value<'a> {
    /// A number.
    Number(u64),
    /// A duration.
    Span(Duration),
    /// The distribution of durations.
    Histogram(&'a Histogram),
    /// The state of the session.
    State(ClientState),
}

impl Metric {
    /// Returns the value of this metric.
    pub fn value<'a>(&self, of: &'a Metrics) -> Value<'a> {
        (self.value)(of)
    }
}

/// Defines the struct and the table of metrics. All output formats use this table.
macro_rules! metrics {
    ($($(#[doc = $help:literal])+ $field:ident: $kind:ident($type:ty) = $name:literal $([$label:literal = $as:literal, $family:literal])?;)+) => {
        /// The metrics of a client since its creation, and its state at one time. Counters never decrease.
        ///
        /// An acquire of a multi-lock in one transaction counts as one acquire, and as one hold for each member lock.
        /// If the members are acquired step by step, each step counts as one acquire of its client. Operations with
        /// invalid arguments are not counted.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
        #[non_exhaustive]
        pub struct Metrics {
            $($(#[doc = $help])+ pub $field: $type,)+
        }

        impl Metrics {
            /// All metrics. Metrics with the same name are adjacent.
            pub const ALL: &[Metric] = &[$(Metric {
                field: stringify!($field),
                name: $name,
                label: metrics!(@label $($label, $as)?),
                help: concat!($($help),+).trim_ascii_start(),
                family: metrics!(@family concat!($($help),+).trim_ascii_start() $(, $family)?),
                value: |metrics| metrics!(@value $kind metrics.$field),
            }),+];
        }
    };
    (@label) => { None };
    (@label $label:literal, $value:literal) => { Some(($label, $value)) };
    (@family $help:expr) => { $help };
    (@family $help:expr, $family:literal) => { $family };
    (@value Histogram $metrics:ident.$field:ident) => { Value::Histogram(&$metrics.$field) };
    (@value $kind:ident $metrics:ident.$field:ident) => { Value::$kind($metrics.$field) };
}

metrics! {
    /// Number of acquires that succeeded with a new hold.
    acquires_ok: Number(u64) = "zklock_acquires_total" ["outcome" = "ok", "Number of acquires that have ended, by outcome."];
    /// Number of acquires that ended with TIMEOUT because other participants were ahead.
    acquires_timeout: Number(u64) = "zklock_acquires_total" ["outcome" = "timeout", "Number of acquires that have ended, by outcome."];
    /// Number of acquires that the program ended: with CANCELED, or with CLOSED because it closed the lock, the acquire
    /// or the client.
    acquires_canceled: Number(u64) = "zklock_acquires_total" ["outcome" = "canceled", "Number of acquires that have ended, by outcome."];
    /// Number of acquires that ended with CONNECTION because no server answered in time.
    acquires_connection: Number(u64) = "zklock_acquires_total" ["outcome" = "connection", "Number of acquires that have ended, by outcome."];
    /// Number of acquires that failed with another status: DENIED, AUTH, FOREIGN, EXHAUSTED, DEADLOCK, LOST or SERVER.
    acquires_failed: Number(u64) = "zklock_acquires_total" ["outcome" = "failed", "Number of acquires that have ended, by outcome."];
    /// Number of acquires that re-entered a hold.
    reentries: Number(u64) = "zklock_reentries_total";
    /// Durations of the acquires that succeeded with a new hold, from the call to the grant.
    waits: Histogram(Histogram) = "zklock_wait_seconds";
    /// Durations of the holds that have ended, from the grant to the release or the loss.
    holds: Histogram(Histogram) = "zklock_hold_seconds";
    /// Number of acquires that succeeded after they had waited for another participant, including local hand-overs.
    handovers: Number(u64) = "zklock_handovers_total";
    /// Number of local hand-overs: releases that passed the lock to another owner of the same client without a server.
    local_passes: Number(u64) = "zklock_local_passes_total";
    /// Number of holds that the program released, or that ended because it closed the lock or the client.
    releases: Number(u64) = "zklock_releases_total";
    /// Number of holds that were lost because their session ended.
    losses_session: Number(u64) = "zklock_losses_total" ["cause" = "session", "Number of holds that were lost, by cause."];
    /// Number of holds that were lost because another client or an operator deleted their node.
    losses_deleted: Number(u64) = "zklock_losses_total" ["cause" = "deleted", "Number of holds that were lost, by cause."];
    /// Number of times that a hold became SUSPENDED: safe, but the client has no connection or has not verified the
    /// hold since it reconnected.
    suspensions: Number(u64) = "zklock_suspensions_total";
    /// Number of times that a hold became UNCERTAIN because the session lease ended.
    uncertainties: Number(u64) = "zklock_uncertainties_total";
    /// Number of times that a server refused to delete a node of this client. The client repeats the request until the
    /// node is deleted.
    deletes_refused: Number(u64) = "zklock_deletes_refused_total";
    /// Number of attempts to connect to a server.
    connection_attempts: Number(u64) = "zklock_connection_attempts_total";
    /// Number of established connections: the server accepted the session and the credentials.
    connections: Number(u64) = "zklock_connections_total";
    /// Number of established connections that replaced an earlier connection.
    reconnects: Number(u64) = "zklock_reconnects_total";
    /// Number of established connections that were lost.
    connections_lost: Number(u64) = "zklock_connections_lost_total";
    /// Number of sessions that began.
    sessions: Number(u64) = "zklock_sessions_total";
    /// Number of sessions that ended even though the program did not close the client. All holds of such a session were
    /// lost.
    sessions_lost: Number(u64) = "zklock_sessions_lost_total";
    /// Number of requests that the client sent to servers, not counting pings and handshakes.
    requests: Number(u64) = "zklock_requests_total";
    /// Number of requests that servers answered.
    answers: Number(u64) = "zklock_answers_total";
    /// Number of pings that the client sent to servers.
    pings: Number(u64) = "zklock_pings_total";
    /// Number of watch events that servers sent.
    watch_events: Number(u64) = "zklock_watch_events_total";
    /// Number of bytes that the client sent to servers or is about to send.
    bytes_sent: Number(u64) = "zklock_sent_bytes_total";
    /// Number of bytes that the client received from servers.
    bytes_received: Number(u64) = "zklock_received_bytes_total";
    /// Durations of requests, from the sending of the request to the moment at which the client read the answer.
    round_trips: Histogram(Histogram) = "zklock_round_trip_seconds";
    /// Current number of holds, including holds that are not safe, but excluding lost holds.
    held: Number(u64) = "zklock_held";
    /// Current number of waiting acquires.
    waiting: Number(u64) = "zklock_waiting";
    /// Current number of contenders that are leaving their queues: no server has confirmed the deletion of their nodes
    /// yet.
    leaving: Number(u64) = "zklock_leaving";
    /// Number of watches that a server keeps for the session, according to the client.
    watches: Number(u64) = "zklock_watches";
    /// The session timeout in effect.
    session_timeout: Span(Duration) = "zklock_session_timeout_seconds";
    /// The state of the client.
    state: State(ClientState) = "zklock_client_state";
}
