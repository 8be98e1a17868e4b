//! Converts Python objects to text for messages and for `repr()`. To format a Python object, Rust's `Display` calls `str()`, which
//! may run Python's signal handlers. `Display` discards the exception of a handler, so Ctrl-C would be lost. Other files must not format a
//! Python object.

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyString;

use crate::python_call::CallPython;

/// Returns the type name of an object.
pub(crate) fn type_name(value: &Bound<'_, PyAny>) -> String {
    value.get_type().name().map_or_else(|_| "this".to_owned(), |name| name.to_string_lossy().into_owned())
}

/// Returns the `repr()` of an object.
pub(crate) fn repr(value: &Bound<'_, PyAny>) -> PyResult<String> {
    Ok(value.repr()?.to_string_lossy().into_owned())
}

/// Returns a text in quotes, like Python's `repr()`. Unlike `repr()`, the function does not run Python's signal handlers, because a
/// destructor cannot raise the exception of a handler.
pub(crate) fn quoted(py: Python<'_>, text: &str) -> PyResult<String> {
    let quoted = PyString::new(py, text).call_python_method(intern!(py, "__repr__"), ())?;
    quoted.extract()
}

/// Returns the name of a Python enum member.
pub(crate) fn member_name(member: &Bound<'_, PyAny>) -> PyResult<String> {
    // In Python 3.11 and later, the attribute `name` runs Python code.
    member.getattr("_name_")?.extract()
}
