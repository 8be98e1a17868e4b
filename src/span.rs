//! Spans for programs that use `tracing`. Each acquire, release and connect operation has one span, which lasts until
//! the operation ends. Without a subscriber the spans are disabled and cost almost nothing. The library never bases a
//! decision on a span.

use tracing::Span;
use tracing::field::Empty;
use zklock_core::engine::{Owner, Recipe};
use zklock_core::error::Result;

use crate::runtime::{LOCK, SESSION, now};
use crate::timeout::Timeout;

/// Creates the `tracing` span for an acquire operation. When the operation ends, [`record_acquire_outcome`] records its
/// status in this span.
pub(crate) fn acquire(
    path: &str,
    recipe: &Recipe,
    owner: Option<Owner>,
    quantity: Option<i32>,
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

/// Creates the `tracing` span for a release operation. If `confirmed` is true, the span ends when a server has
/// confirmed that the node is deleted.
pub(crate) fn release(path: &str, owner: Owner, confirmed: bool) -> Span {
    tracing::debug_span!(target: LOCK, "release", path, %owner, confirmed, outcome = Empty)
}

/// Creates the `tracing` span for the operation that connects a new client.
pub(crate) fn connect(servers: &str) -> Span {
    tracing::info_span!(target: SESSION, "connect", servers, outcome = Empty)
}

/// Records the outcome and the waiting time of an acquire operation that has ended.
pub(crate) fn record_acquire_outcome<T>(span: &Span, timeout: &Timeout, result: &Result<T>) {
    if !span.is_disabled() {
        let waited = now() - timeout.start;
        span.record("waited_us", u64::try_from(waited.as_micros()).unwrap_or(u64::MAX));
        record_outcome(span, result);
    }
}

/// Records the outcome of a call that has ended.
pub(crate) fn record_outcome<T>(span: &Span, result: &Result<T>) {
    if !span.is_disabled() {
        span.record("outcome", result.as_ref().map_or_else(|error| error.status().name(), |_| "ZKL_OK"));
    }
}
