//! Converts arguments that are text, bytes or flags. A value of the wrong type raises a TypeError that names the argument. The core
//! checks the content of a text.

use std::path::PathBuf;

use pyo3::exceptions::{PyTypeError, PyUnicodeEncodeError};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyBytes, PyString};

use crate::display::{repr, type_name};
use crate::errors::{wrong_type, wrong_value};

pub(crate) fn servers(value: &Bound<'_, PyAny>) -> PyResult<String> {
    text("servers", value, "str")
}

pub(crate) fn address(value: &Bound<'_, PyAny>) -> PyResult<String> {
    text("address", value, "str")
}

pub(crate) fn file(value: &Bound<'_, PyAny>) -> PyResult<PathBuf> {
    unless_type_error("file", value, "str or os.PathLike")
}

pub(crate) fn path(value: &Bound<'_, PyAny>) -> PyResult<String> {
    text("path", value, "str")
}

pub(crate) fn count_path(value: &Bound<'_, PyAny>) -> PyResult<Option<String>> {
    if value.is_none() { Ok(None) } else { text("count_path", value, "str or None").map(Some) }
}

pub(crate) fn period(value: &Bound<'_, PyAny>) -> PyResult<String> {
    text("period", value, "str")
}

pub(crate) fn zone(value: &Bound<'_, PyAny>) -> PyResult<Option<String>> {
    if value.is_none() { Ok(None) } else { text("zone", value, "str or None").map(Some) }
}

pub(crate) fn how(value: &Bound<'_, PyAny>) -> PyResult<String> {
    text("how", value, "str")
}

pub(crate) fn data(value: &Bound<'_, PyAny>) -> PyResult<Option<PyBackedBytes>> {
    if value.is_none() {
        return Ok(None);
    }
    let bytes = value.cast::<PyBytes>().map_err(|_| wrong("data", value, "bytes or None"))?;
    Ok(Some(bytes.clone().into()))
}

pub(crate) fn wait_for_kazoo(value: &Bound<'_, PyAny>) -> PyResult<bool> {
    flag("wait_for_kazoo", value)
}

pub(crate) fn in_order(value: &Bound<'_, PyAny>) -> PyResult<bool> {
    flag("in_order", value)
}

pub(crate) fn retry_failed(value: &Bound<'_, PyAny>) -> PyResult<bool> {
    flag("retry_failed", value)
}

fn text(argument: &str, value: &Bound<'_, PyAny>, expected: &str) -> PyResult<String> {
    content(argument, value.cast::<PyString>().map_err(|_| wrong(argument, value, expected))?)
}

/// Returns the content of a text. If the text contains a lone surrogate, the function returns a ValueError that contains the text.
pub(crate) fn content(argument: &str, text: &Bound<'_, PyString>) -> PyResult<String> {
    encode(text, || Ok(format!("{argument}: {UTF_8}, not {}", repr(text)?)))
}

/// Returns the content of a text that may be a password. If the text contains a lone surrogate, the function returns a ValueError that
/// does not contain the text.
pub(crate) fn secret(argument: &str, text: &Bound<'_, PyString>) -> PyResult<String> {
    encode(text, || Ok(format!("{argument}: {UTF_8}")))
}

const UTF_8: &str = "expected text that UTF-8 can encode";

fn encode(text: &Bound<'_, PyString>, message: impl FnOnce() -> PyResult<String>) -> PyResult<String> {
    text.extract().map_err(|error: PyErr| {
        // The text contains a lone surrogate.
        if error.is_instance_of::<PyUnicodeEncodeError>(text.py()) {
            message().map_or_else(|failure| failure, wrong_value)
        } else {
            error
        }
    })
}

fn flag(argument: &str, value: &Bound<'_, PyAny>) -> PyResult<bool> {
    unless_type_error(argument, value, "bool")
}

fn unless_type_error<'py, T>(argument: &str, value: &Bound<'py, PyAny>, expected: &str) -> PyResult<T>
where
    T: FromPyObjectOwned<'py, Error = PyErr>,
{
    value.extract().map_err(|error: PyErr| {
        if error.is_instance_of::<PyTypeError>(value.py()) { wrong(argument, value, expected) } else { error }
    })
}

fn wrong(argument: &str, value: &Bound<'_, PyAny>, expected: &str) -> PyErr {
    wrong_type(format!("{argument}: expected {expected}, not {}", type_name(value)))
}
