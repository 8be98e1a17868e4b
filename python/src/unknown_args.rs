//! Keyword arguments that a function does not have. Programs that come from kazoo or from `threading` use other names.

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};

/// The names of other libraries, and what to write instead.
const ELSEWHERE: [(&str, &str); 6] = [
    ("blocking", "timeout=0 makes one attempt, and without timeout the call waits"),
    ("blocking_timeout", "the argument is called timeout"),
    ("hosts", "the argument is called servers"),
    ("auth_data", "the argument is called auth"),
    ("sasl_options", "pass options={\"sasl.mechanism\": ...}"),
    ("use_ssl", "pass options={\"tls.enabled\": \"true\"}"),
];

/// Raises the TypeError that Python raises for an unknown keyword argument. The message says what to write instead of a
/// name of another library.
pub(crate) fn refuse(function: &str, unknown: Option<&Bound<'_, PyDict>>) -> PyResult<()> {
    let Some(name) = unknown.and_then(|unknown| unknown.keys().iter().next()) else { return Ok(()) };
    let name = name.cast_into::<PyString>()?.to_string();
    let hint = ELSEWHERE.iter().find(|(other, _)| *other == name).map(|(_, hint)| format!("; {hint}"));
    Err(PyTypeError::new_err(format!(
        "{function} got an unexpected keyword argument {name:?}{}",
        hint.unwrap_or_default()
    )))
}
