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

fn text(argument: &str, value: &Bound<'_, PyAny>, expected: &str) -> PyResult<String> {
    let text = value.cast::<PyString>().map_err(|_| wrong(argument, value, expected))?;
    text.extract().map_err(|error: PyErr| {
        // The text contains a lone surrogate.
        if error.is_instance_of::<PyUnicodeEncodeError>(value.py()) {
            match repr(text) {
                Ok(given) => wrong_value(format!("{argument}: expected text that UTF-8 can encode, not {given}")),
                Err(failure) => failure,
            }
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
