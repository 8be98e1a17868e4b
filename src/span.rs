//! Spans for those who trace: one for each acquire, release and connect, from the call to its end. Where nobody traces they are none, and cost
//! next to nothing.

use tracing::Span;
use tracing::field::Empty;

use crate::engine::{Owner, Recipe};
use crate::error::Result;
use crate::lock::Timeout;
use crate::runtime::{LOCK, SESSION, now};

/// Of an acquire. Its outcome is the name of the status with which it ends.
pub(crate) fn acquire(
    path: &str,
    recipe: &Recipe,
    owner: Option<Owner>,
    quantity: Option<u32>,
    timeout: &Timeout,
) -> Span {
    let owner = owner.map(tracing::field::display);
    tracing::debug_span!(
        target: LOCK,
        "acquire",
        path,
        recipe = recipe.name(),
        owner,
        quantity,
        timeout_ms = timeout.milliseconds(),
        outcome = Empty,
        waited_us = Empty,
    )
}

/// Of a release; `confirmed`: it ends when a server has said that the node is gone.
pub(crate) fn release(path: &str, owner: Owner, confirmed: bool) -> Span {
    tracing::debug_span!(target: LOCK, "release", path, %owner, confirmed, outcome = Empty)
}

/// Of a client's first connection.
pub(crate) fn connect(servers: &str) -> Span {
    tracing::info_span!(target: SESSION, "connect", servers, outcome = Empty)
}

/// An acquire has ended.
pub(crate) fn acquired<T>(span: &Span, timeout: &Timeout, result: &Result<T>) {
    if !span.is_disabled() {
        let waited = now() - timeout.start;
        span.record("waited_us", u64::try_from(waited.as_micros()).unwrap_or(u64::MAX));
        ended(span, result);
    }
}

/// What the span is of has ended.
pub(crate) fn ended<T>(span: &Span, result: &Result<T>) {
    if !span.is_disabled() {
        span.record("outcome", result.as_ref().map_or_else(|error| error.status().name(), |_| "ZKL_OK"));
    }
}
