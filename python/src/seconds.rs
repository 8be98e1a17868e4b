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
    pub(crate) const fn new(seconds: u64) -> Self {
        Self(Duration::from_secs(seconds))
    }

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

impl<'py> FromPyObject<'_, 'py> for Seconds {
    type Error = PyErr;

    fn extract(value: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        if value.is_instance_of::<PyBool>() {
            return Err(PyTypeError::new_err("a bool is not a duration; expected a number of seconds"));
        }
        let seconds = match value.extract::<f64>() {
            Ok(seconds) => seconds,
            Err(error) if error.is_instance_of::<PyOverflowError>(value.py()) => {
                if value.lt(0)? {
                    f64::NEG_INFINITY
                } else {
                    f64::INFINITY
                }
            }
            Err(error) => return Err(error),
        };
        if seconds.is_nan() || seconds < 0.0 {
            return Err(PyValueError::new_err(format!("a duration of {seconds} seconds; expected zero or more")));
        }
        let duration = Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX);
        // Zero has a meaning of its own: only zero is to become zero.
        Ok(Self(if seconds > 0.0 { duration.max(Duration::from_nanos(1)) } else { duration }))
    }
}
