//! Writes the core's log records to the log through `tracing`. A slow subscriber delays no other thread, because the
//! writing thread holds no lock that other threads wait for. The core creates the log records, and the code in this
//! file determines the text of each line. The code in this file does not decide when a line is written.

use std::path::Path;
use std::time::Duration;

use tracing::level_filters::LevelFilter;
use tracing::{Span, debug, error, info, info_span, trace, warn};
use zklock_core::log_record::{Level, LogRecord};

/// The `tracing` target of log lines about sessions and connections.
pub(crate) const SESSION: &str = "zklock::session";
/// The `tracing` target of log lines about acquire operations and holds.
pub(crate) const LOCK: &str = "zklock::lock";
/// The `tracing` target of log lines about requests and about the answers of servers.
const REQUEST: &str = "zklock::request";

/// Returns the highest level of log records that a subscriber or logger currently accepts.
pub(super) fn enabled_level() -> Option<Level> {
    let traced = LevelFilter::current();
    // Without a `tracing` subscriber, `tracing` sends its events to the logger of the `log` crate.
    let logged = if tracing::dispatcher::has_been_set() { log::LevelFilter::Off } else { log::max_level() };
    match () {
        () if traced == LevelFilter::OFF && logged == log::LevelFilter::Off => None,
        () if traced == LevelFilter::TRACE || logged == log::LevelFilter::Trace => Some(Level::Trace),
        () if traced == LevelFilter::DEBUG || logged == log::LevelFilter::Debug => Some(Level::Debug),
        () if traced == LevelFilter::INFO || logged == log::LevelFilter::Info => Some(Level::Info),
        () if traced == LevelFilter::WARN || logged == log::LevelFilter::Warn => Some(Level::Warn),
        () => Some(Level::Error),
    }
}

/// Writes one record to the log. `span` is the span of the session. The first record of a session starts a new span,
/// and the last record of the session ends this span.
pub(super) fn emit(record: &LogRecord, span: &mut Span) {
    if let LogRecord::SessionBegun { server, session, timeout } = record {
        *span = info_span!(target: SESSION, parent: None, "session", session = %id(*session), timeout_ms = ms(*timeout), server = %server);
    }
    span.in_scope(|| line(record));
    if matches!(record, LogRecord::SessionLost { .. } | LogRecord::SessionClosed { .. }) {
        *span = Span::none();
    }
}

/// Logs a warning that a client does not verify the identity of its servers.
pub(super) fn unverified_servers() {
    warn!(target: SESSION, "servers are not verified, because tls.verify is none");
}

/// Logs a warning that other users may read or write a file with a secret.
pub(super) fn exposed_secret(what: &str, file: &Path, mode: u32) {
    let (file, mode) = (file.display(), format_args!("{mode:03o}"));
    warn!(target: SESSION, what, %file, %mode, "other users may read or write a file that contains a secret");
}

fn line(record: &LogRecord) {
    match record {
        LogRecord::Connecting { server } => debug!(target: SESSION, %server, "connecting"),
        LogRecord::AttemptFailed { server, cause } => {
            info!(target: SESSION, %server, %cause, "connection attempt failed");
        }
        LogRecord::SessionBegun { server, session, timeout } => {
            info!(target: SESSION, session = %id(*session), %server, timeout_ms = ms(*timeout), "session established");
        }
        LogRecord::Reconnected { server, session } => {
            info!(target: SESSION, session = %id(*session), %server, "reconnected");
        }
        LogRecord::ConnectionLost { server, session, cause } => {
            warn!(target: SESSION, session = %id(*session), %server, %cause, "connection lost");
        }
        LogRecord::SessionLost { session, replaced: false } => {
            warn!(target: SESSION, session = %id(*session), "session expired");
        }
        LogRecord::SessionLost { session, replaced: true } => {
            warn!(target: SESSION, session = %id(*session), "session replaced: no server reported that it had expired");
        }
        LogRecord::AuthRefused { server } => error!(target: SESSION, %server, "credentials refused"),
        LogRecord::SaslFailed { server, cause } => error!(target: SESSION, %server, %cause, "SASL failed"),
        LogRecord::LoadingFailed { error } => warn!(target: SESSION, %error, "loading credentials or TLS files failed"),
        LogRecord::ServersChanged { before, after, source } => {
            info!(target: SESSION, before, after, source, "server list changed");
        }
        LogRecord::ServerLeft { server, session } => {
            info!(target: SESSION, session = %id(*session), %server, "left the server to use the new server list");
        }
        LogRecord::ConfigUnusable { cause } => {
            warn!(target: SESSION, %cause, "cannot use the configuration of the ensemble");
        }
        LogRecord::SessionClosed { session } => info!(target: SESSION, session = %id(*session), "session closed"),
        LogRecord::RequestSent { op, xid, path } => {
            let path = path.as_deref().unwrap_or_default();
            trace!(target: REQUEST, ?op, xid, path, "request");
        }
        LogRecord::ReplyReceived { op, xid, zxid, took, failure: None } => {
            trace!(target: REQUEST, ?op, xid, zxid, took_us = us(*took), "answer");
        }
        LogRecord::ReplyReceived { op, xid, took, failure: Some(failure), .. } => {
            trace!(target: REQUEST, ?op, xid, took_us = us(*took), %failure, "answer");
        }
        LogRecord::WatchFired { kind, path } => trace!(target: REQUEST, ?kind, %path, "watch fired"),
        LogRecord::Acquired { path, owner, token, pass, waited, handed_over } => {
            debug!(target: LOCK, %path, %owner, token, pass, waited_us = us(*waited), handed_over, "acquired");
        }
        LogRecord::AcquireFailed { path, owner, waited, error } => {
            debug!(target: LOCK, %path, %owner, waited_us = us(*waited), status = error.status().name(), %error, "not acquired");
        }
        LogRecord::Released { path, owner, token, pass, held } => {
            debug!(target: LOCK, %path, %owner, token, pass, held_us = us(*held), "released");
        }
        LogRecord::HoldStateChanged { path, token, pass, state } => {
            debug!(target: LOCK, %path, token, pass, state, "hold state changed");
        }
        LogRecord::HoldUncertain { path, token, pass } => {
            warn!(target: LOCK, %path, token, pass, "session lease ended: the lock may be lost");
        }
        LogRecord::HoldLost { path, token, pass, held, cause } => {
            warn!(target: LOCK, %path, token, pass, held_us = us(*held), cause, "lock lost");
        }
        LogRecord::RevocationRequested { path, node } => info!(target: LOCK, %path, %node, "revocation requested"),
        LogRecord::DeleteRefused { error } => warn!(target: LOCK, %error, "a server refused to delete a node"),
        LogRecord::RecordsDropped { count } => warn!(target: "zklock::log", count, "lines dropped: too many at once"),
    }
}

/// Formats a session id as the servers' logs do.
fn id(session: i64) -> String {
    format!("{session:#x}")
}

fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn us(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}
