//! Durations as numbers of seconds. The functions check only whether a value is a duration. The core checks the limits of each
//! setting.

use std::time::Duration;

use pyo3::exceptions::{PyOverflowError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyEllipsis};

use crate::display::type_name;
use crate::errors::{wrong_type, wrong_value};

/// A duration from an int, a float or another type that converts to a float. The duration is not negative. A duration
/// that is infinite or too long for the core is shortened to the longest duration that the core allows.
#[derive(Clone, Copy)]
pub(crate) struct Seconds(Duration);

impl Seconds {
    pub(crate) const ZERO: Self = Self(Duration::ZERO);

    /// Returns the time limit for a wait, or `None` for no limit.
    pub(crate) fn limit(self) -> Option<Duration> {
        (self.0 < Duration::MAX).then_some(self.0)
    }

    /// Returns the duration in whole milliseconds, rounded up.
    pub(crate) fn milliseconds(self) -> Duration {
        let excess = self.0.subsec_nanos() % 1_000_000;
        if excess == 0 { self.0 } else { self.0.saturating_add(Duration::from_nanos(u64::from(1_000_000 - excess))) }
    }
}

/// The largest number of seconds that a setting of a client can have. ZooKeeper's protocol has a signed number of 32 bits for the
/// session timeout in milliseconds.
const MAX_SETTING: f64 = i32::MAX as f64 / 1000.0;

pub(crate) fn session_timeout(value: &Bound<'_, PyAny>) -> PyResult<Option<Seconds>> {
    setting("session_timeout", value, "more than zero")
}

pub(crate) fn connect_timeout(value: &Bound<'_, PyAny>) -> PyResult<Option<Seconds>> {
    setting("connect_timeout", value, "more than zero")
}

pub(crate) fn lease_margin(value: &Bound<'_, PyAny>) -> PyResult<Option<Seconds>> {
    setting("lease_margin", value, "zero or more")
}

/// Parses a setting of a client. The core checks all limits, and its messages are in milliseconds. An infinite number of seconds has no
/// number of milliseconds.
fn setting(argument: &str, value: &Bound<'_, PyAny>, expected: &str) -> PyResult<Option<Seconds>> {
    if value.is_none() {
        return Ok(None);
    }
    let seconds = number(argument, value)?;
    if seconds > MAX_SETTING {
        return Err(wrong_value(format!("{argument}: {seconds} seconds; expected at most {MAX_SETTING}")));
    }
    parse(argument, value, expected).map(Some)
}

pub(crate) fn timeout(value: &Bound<'_, PyAny>) -> PyResult<Option<Seconds>> {
    if value.is_none() { Ok(None) } else { parse("timeout", value, "zero or more").map(Some) }
}

/// The argument `timeout` of a call that acquires a lock or leases.
#[derive(Clone, Copy)]
pub(crate) enum AcquireTimeout {
    /// The program passed no timeout, or an ellipsis. The call uses the timeout of the lock or the semaphore.
    Own,
    Given(Option<Seconds>),
}

impl AcquireTimeout {
    /// Returns the timeout of the call. `own` is the timeout of the lock or the semaphore.
    pub(crate) fn or(self, own: Option<Seconds>) -> Option<Seconds> {
        match self {
            Self::Own => own,
            Self::Given(timeout) => timeout,
        }
    }
}

pub(crate) fn acquire_timeout(value: &Bound<'_, PyAny>) -> PyResult<AcquireTimeout> {
    if value.is(PyEllipsis::get(value.py())) {
        return Ok(AcquireTimeout::Own);
    }
    timeout(value).map(AcquireTimeout::Given)
}

pub(crate) fn seconds(value: &Bound<'_, PyAny>) -> PyResult<Seconds> {
    parse("seconds", value, "zero or more")
}

fn parse(argument: &str, value: &Bound<'_, PyAny>, expected: &str) -> PyResult<Seconds> {
    let seconds = number(argument, value)?;
    if seconds.is_nan() || seconds < 0.0 {
        return Err(wrong_value(format!("{argument}: {seconds} seconds; expected {expected}")));
    }
    let duration = Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX);
    // Zero has a special meaning, so a small positive number must not be rounded to zero.
    Ok(Seconds(if seconds > 0.0 { duration.max(Duration::from_nanos(1)) } else { duration }))
}

fn number(argument: &str, value: &Bound<'_, PyAny>) -> PyResult<f64> {
    let py = value.py();
    let wrong = || {
        let kind = type_name(value);
        wrong_type(format!("{argument}: expected a number of seconds, not {kind}"))
    };
    if value.is_instance_of::<PyBool>() {
        return Err(wrong());
    }
    match value.extract() {
        Ok(seconds) => Ok(seconds),
        // The value is an int that is too large for a float.
        Err(error) if error.is_instance_of::<PyOverflowError>(py) => {
            Ok(if value.lt(0)? { f64::NEG_INFINITY } else { f64::INFINITY })
        }
        Err(error) if error.is_instance_of::<PyTypeError>(py) => Err(wrong()),
        Err(error) => Err(error),
    }
}
