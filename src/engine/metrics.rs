//! What a client has done so far, in numbers: what is counted, and what each number is called.

use std::time::Duration;

use super::holds::{Hold, Trust};
use super::{Engine, Kind, Machine, Op, Role};
use crate::histogram::Histogram;
use crate::session::{ClientState, Traffic};

/// One number, or histogram, of [`Metrics`].
#[derive(Debug, Clone, Copy)]
pub struct Metric {
    /// The field of [`Metrics`], which is called so in C and Python as well.
    pub field: &'static str,
    /// Its name in Prometheus; several have one name where a label tells them apart.
    pub name: &'static str,
    /// That label.
    pub label: Option<(&'static str, &'static str)>,
    /// What it is, in a line.
    pub help: &'static str,
    /// What those of one name are together.
    pub family: &'static str,
    value: fn(&Metrics) -> Value<'_>,
}

/// What a metric is at one moment.
#[derive(Debug, Clone, Copy)]
pub enum Value<'a> {
    /// So many.
    Number(u64),
    /// So long.
    Span(Duration),
    /// How long each took.
    Histogram(&'a Histogram),
    /// How the session stands.
    State(ClientState),
}

impl Metric {
    /// What it is in these metrics.
    pub fn value<'a>(&self, of: &'a Metrics) -> Value<'a> {
        (self.value)(of)
    }
}

/// Makes the struct, and the table that all who show it go by.
macro_rules! metrics {
    ($($(#[doc = $help:literal])+ $field:ident: $kind:ident($type:ty) = $name:literal $([$label:literal = $as:literal, $family:literal])?;)+) => {
        /// What a client has done since it was made, and how it stands, at one moment. Counters only grow.
        ///
        /// A multi-lock that is joined in one transaction is one acquire, and a hold for each of its locks; one that is taken step by step
        /// is an acquire for each step, in the client of that step. Calls that are refused for their arguments are not counted.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
        #[non_exhaustive]
        pub struct Metrics {
            $($(#[doc = $help])+ pub $field: $type,)+
        }

        impl Metrics {
            /// All there are, those of one name in a row.
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
    /// Acquires that got their lock or leases, by a hold of their own.
    acquires_ok: Number(u64) = "zklock_acquires_total" ["outcome" = "ok", "Acquires that ended, by how they ended."];
    /// Acquires that ended with TIMEOUT: others were ahead until their time was over, or at their one look.
    acquires_timeout: Number(u64) = "zklock_acquires_total" ["outcome" = "timeout", "Acquires that ended, by how they ended."];
    /// Acquires that the program itself ended: CANCELED, or CLOSED where the handle or the client was.
    acquires_canceled: Number(u64) = "zklock_acquires_total" ["outcome" = "canceled", "Acquires that ended, by how they ended."];
    /// Acquires that ended with CONNECTION: no server answered in time.
    acquires_connection: Number(u64) = "zklock_acquires_total" ["outcome" = "connection", "Acquires that ended, by how they ended."];
    /// Acquires that failed in another way: DENIED, AUTH, FOREIGN, EXHAUSTED, DEADLOCK, LOST, SERVER.
    acquires_failed: Number(u64) = "zklock_acquires_total" ["outcome" = "failed", "Acquires that ended, by how they ended."];
    /// Times that a hold was entered once more by its owner.
    reentries: Number(u64) = "zklock_reentries_total";
    /// How long acquires that got what they wanted took, from the call to the grant.
    waits: Histogram(Histogram) = "zklock_wait_seconds";
    /// How long holds lasted that are over, from the grant to the release or the loss.
    holds: Histogram(Histogram) = "zklock_hold_seconds";
    /// Acquires that got their lock after they had waited for another contender, those that it was passed on to in this process among them.
    handovers: Number(u64) = "zklock_handovers_total";
    /// Times that a lock was passed on to another thread of this process, without a server.
    local_passes: Number(u64) = "zklock_local_passes_total";
    /// Holds that the program gave back, or that ended with their handle or client.
    releases: Number(u64) = "zklock_releases_total";
    /// Holds that were lost since their session ended.
    losses_session: Number(u64) = "zklock_losses_total" ["cause" = "session", "Holds that were lost, by what became of their nodes."];
    /// Holds that were lost since somebody else deleted their node.
    losses_deleted: Number(u64) = "zklock_losses_total" ["cause" = "deleted", "Holds that were lost, by what became of their nodes."];
    /// Times that a hold became SUSPENDED: safe, but without a connection, or not confirmed since it came back.
    suspensions: Number(u64) = "zklock_suspensions_total";
    /// Times that a hold became UNCERTAIN: its lease was over.
    uncertainties: Number(u64) = "zklock_uncertainties_total";
    /// Times that a server refused to delete a node of ours. It is asked again until it does.
    deletes_refused: Number(u64) = "zklock_deletes_refused_total";
    /// Attempts to connect to a server.
    connection_attempts: Number(u64) = "zklock_connection_attempts_total";
    /// Connections that came to stand: the server took the session and the credentials.
    connections: Number(u64) = "zklock_connections_total";
    /// Those of them that took the place of one before.
    reconnects: Number(u64) = "zklock_reconnects_total";
    /// Connections that stood and were lost.
    connections_lost: Number(u64) = "zklock_connections_lost_total";
    /// Sessions that were begun.
    sessions: Number(u64) = "zklock_sessions_total";
    /// Sessions that ended, and were not closed: what was held was lost with them.
    sessions_lost: Number(u64) = "zklock_sessions_lost_total";
    /// Requests that were sent to servers; neither pings nor handshakes.
    requests: Number(u64) = "zklock_requests_total";
    /// Requests that were answered.
    answers: Number(u64) = "zklock_answers_total";
    /// Pings that were sent to servers.
    pings: Number(u64) = "zklock_pings_total";
    /// Changes of watched nodes that servers told of.
    watch_events: Number(u64) = "zklock_watch_events_total";
    /// Bytes that were sent to servers, or are about to be.
    bytes_sent: Number(u64) = "zklock_sent_bytes_total";
    /// Bytes that came from servers.
    bytes_received: Number(u64) = "zklock_received_bytes_total";
    /// How long servers took to answer requests, from the sending to the moment at which the answer was read.
    round_trips: Histogram(Histogram) = "zklock_round_trip_seconds";
    /// Holds that there are now, safe or not; those that were lost are not among them.
    held: Number(u64) = "zklock_held";
    /// Acquires that wait now.
    waiting: Number(u64) = "zklock_waiting";
    /// Contenders whose nodes are to go, and no server has confirmed it yet.
    leaving: Number(u64) = "zklock_leaving";
    /// Watches that a server is believed to keep for the session.
    watches: Number(u64) = "zklock_watches";
    /// The session timeout in force.
    session_timeout: Span(Duration) = "zklock_session_timeout_seconds";
    /// How the session stands.
    state: State(ClientState) = "zklock_client_state";
}

impl Engine {
    /// What this client has done so far, and how it stands.
    pub fn metrics(&self) -> Metrics {
        let Traffic {
            connection_attempts,
            connections,
            reconnects,
            connections_lost,
            sessions,
            sessions_lost,
            requests,
            answers,
            pings,
            watch_events,
            bytes_sent,
            bytes_received,
            round_trips,
        } = *self.session.traffic();
        let is_leaving =
            |machine: &&Machine| matches!(machine, Machine::Contender(_, Role::Leaving(_) | Role::Stranded));
        let is_live = |hold: &&Hold| !matches!(hold.trust, Trust::Lost(_));
        let waits = |op: &Op| matches!(op.kind, Kind::Acquire { .. } | Kind::Reenter { .. });
        Metrics {
            connection_attempts,
            connections,
            reconnects,
            connections_lost,
            sessions,
            sessions_lost,
            requests,
            answers,
            pings,
            watch_events,
            bytes_sent,
            bytes_received,
            round_trips,
            held: number(self.locks.values().flat_map(|lock| &lock.holds).filter(is_live).count()),
            waiting: number(self.ops.values().filter(|op| waits(op)).count()),
            leaving: number(self.machines.values().filter(is_leaving).count()),
            watches: number(self.session.watch_count()),
            session_timeout: self.session.timeout(),
            state: self.session.state(),
            ..self.tally
        }
    }
}

fn number(count: usize) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}
