//! Tells the log, which is `tracing`'s, what the core has noted. Whoever listens there may take his time: no lock is held that others wait for.

use std::time::Duration;

use tracing::level_filters::LevelFilter;
use tracing::{Span, debug, error, info, info_span, trace, warn};

use crate::note::{Level, Note};

/// Sessions and connections.
pub(crate) const SESSION: &str = "zklock::session";
/// Acquires and holds.
pub(crate) const LOCK: &str = "zklock::lock";
/// What goes to servers and what comes from them.
const REQUEST: &str = "zklock::request";

/// How much anybody listens to at the moment.
pub(super) fn wanted() -> Option<Level> {
    let traced = LevelFilter::current();
    // Where nobody traces, what is traced goes to the loggers of the crate `log`.
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

/// Tells one of them. `span` is that of the session, which begins and ends with it.
pub(super) fn report(note: &Note, span: &mut Span) {
    if let Note::SessionBegun { server, session, timeout } = note {
        *span = info_span!(target: SESSION, parent: None, "session", session = %id(*session), timeout_ms = ms(*timeout), server = %server);
    }
    span.in_scope(|| line(note));
    if matches!(note, Note::SessionLost { .. } | Note::SessionClosed { .. }) {
        *span = Span::none();
    }
}

fn line(note: &Note) {
    match note {
        Note::Connecting { server } => debug!(target: SESSION, %server, "connecting"),
        Note::AttemptFailed { server, cause } => {
            info!(target: SESSION, %server, %cause, "no connection");
        }
        Note::SessionBegun { server, session, timeout } => {
            info!(target: SESSION, session = %id(*session), %server, timeout_ms = ms(*timeout), "session begun");
        }
        Note::Reconnected { server, session } => {
            info!(target: SESSION, session = %id(*session), %server, "connected again");
        }
        Note::ConnectionLost { server, session, cause } => {
            warn!(target: SESSION, session = %id(*session), %server, %cause, "connection lost");
        }
        Note::SessionLost { session, replaced: false } => {
            warn!(target: SESSION, session = %id(*session), "session expired");
        }
        Note::SessionLost { session, replaced: true } => {
            warn!(target: SESSION, session = %id(*session), "session replaced: no server said that it has expired");
        }
        Note::AuthRefused { server } => error!(target: SESSION, %server, "credentials refused"),
        Note::SessionClosed { session } => info!(target: SESSION, session = %id(*session), "session closed"),
        Note::Sent { op, xid, path } => {
            let path = path.as_deref().unwrap_or_default();
            trace!(target: REQUEST, ?op, xid, path, "request");
        }
        Note::Answered { op, xid, zxid, took, failure: None } => {
            trace!(target: REQUEST, ?op, xid, zxid, took_us = us(*took), "answer");
        }
        Note::Answered { op, xid, took, failure: Some(failure), .. } => {
            trace!(target: REQUEST, ?op, xid, took_us = us(*took), %failure, "answer");
        }
        Note::Fired { kind, path } => trace!(target: REQUEST, ?kind, %path, "watch fired"),
        Note::Acquired { path, owner, token, pass, waited, handed_over } => {
            debug!(target: LOCK, %path, %owner, token, pass, waited_us = us(*waited), handed_over, "acquired");
        }
        Note::GaveUp { path, owner, waited, error } => {
            debug!(target: LOCK, %path, %owner, waited_us = us(*waited), status = error.status().name(), %error, "not acquired");
        }
        Note::Released { path, owner, token, pass, held } => {
            debug!(target: LOCK, %path, %owner, token, pass, held_us = us(*held), "released");
        }
        Note::LockStands { path, token, pass, state } => {
            debug!(target: LOCK, %path, token, pass, state, "hold stands differently");
        }
        Note::Uncertain { path, token, pass } => {
            warn!(target: LOCK, %path, token, pass, "lease over: the lock may be lost");
        }
        Note::Lost { path, token, pass, held, cause } => {
            warn!(target: LOCK, %path, token, pass, held_us = us(*held), cause, "lock lost");
        }
        Note::AskedBack { path, node } => info!(target: LOCK, %path, %node, "asked back"),
        Note::DeleteRefused { error } => warn!(target: LOCK, %error, "a server refuses to delete a node"),
        Note::Skipped { count } => warn!(target: "zklock::log", count, "not logged: too much at once"),
    }
}

/// A session as servers' logs have it.
fn id(session: i64) -> String {
    format!("{session:#x}")
}

fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn us(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}
