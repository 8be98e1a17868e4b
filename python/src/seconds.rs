//! Durations, as Python has them: numbers of seconds.

use std::time::Duration;

use pyo3::exceptions::{PyOverflowError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBool;

/// A duration: an int, a float or whatever converts to a float; not negative. Infinity, and what is too long for the
/// core, stand for the longest duration there is.
#[derive(Clone, Copy)]
pub(crate) struct Seconds(Duration);

impl Seconds {
    /// A limit for a wait; `None` where there is none.
    pub(crate) fn limit(self) -> Option<Duration> {
        (self.0 < Duration::MAX).then_some(self.0)
    }

    /// In whole milliseconds, rounded up.
    pub(crate) fn milliseconds(self) -> Duration {
        let excess = self.0.subsec_nanos() % 1_000_000;
        if excess == 0 { self.0 } else { self.0.saturating_add(Duration::from_nanos(u64::from(1_000_000 - excess))) }
    }
}

pub(crate) fn session_timeout(value: &Bound<'_, PyAny>) -> PyResult<Option<Seconds>> {
    if value.is_none() { Ok(None) } else { parse("session_timeout", value, "more than zero").map(Some) }
}

pub(crate) fn connect_timeout(value: &Bound<'_, PyAny>) -> PyResult<Option<Seconds>> {
    if value.is_none() { Ok(None) } else { parse("connect_timeout", value, "more than zero").map(Some) }
}

pub(crate) fn lease_margin(value: &Bound<'_, PyAny>) -> PyResult<Option<Seconds>> {
    if value.is_none() { Ok(None) } else { parse("lease_margin", value, "zero or more").map(Some) }
}

pub(crate) fn timeout(value: &Bound<'_, PyAny>) -> PyResult<Option<Seconds>> {
    if value.is_none() { Ok(None) } else { parse("timeout", value, "zero or more").map(Some) }
}

pub(crate) fn seconds(value: &Bound<'_, PyAny>) -> PyResult<Seconds> {
    parse("seconds", value, "zero or more")
}

fn parse(argument: &str, value: &Bound<'_, PyAny>, expected: &str) -> PyResult<Seconds> {
    let seconds = number(argument, value)?;
    if seconds.is_nan() || seconds < 0.0 {
        return Err(PyValueError::new_err(format!("{argument}: {seconds} seconds; expected {expected}")));
    }
    let duration = Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX);
    // Zero has a meaning of its own: only zero is to become zero.
    Ok(Seconds(if seconds > 0.0 { duration.max(Duration::from_nanos(1)) } else { duration }))
}

fn number(argument: &str, value: &Bound<'_, PyAny>) -> PyResult<f64> {
    let py = value.py();
    let wrong = || {
        let kind = value.get_type().name().map_or_else(|_| "this".to_owned(), |name| name.to_string());
        PyTypeError::new_err(format!("{argument}: expected a number of seconds, not {kind}"))
    };
    if value.is_instance_of::<PyBool>() {
        return Err(wrong());
    }
    match value.extract() {
        Ok(seconds) => Ok(seconds),
        // An int beyond all floats.
        Err(error) if error.is_instance_of::<PyOverflowError>(py) => {
            Ok(if value.lt(0)? { f64::NEG_INFINITY } else { f64::INFINITY })
        }
        Err(error) if error.is_instance_of::<PyTypeError>(py) => Err(wrong()),
        Err(error) => Err(error),
    }
}
