//! From the core's errors to Python's exceptions, by the core's own table.

use pyo3::exceptions::{PyBaseException, PyValueError};
use pyo3::prelude::*;
use zklock::{Error, Status};

use crate::needed::needed;

/// The exception that stands for an error of the core.
pub(crate) fn raise(py: Python<'_>, error: &Error) -> PyErr {
    match error.status().python() {
        "ValueError" => PyValueError::new_err(error.message().to_owned()),
        name => make(py, name, error).unwrap_or_else(|failure| failure),
    }
}

fn make(py: Python<'_>, name: &str, error: &Error) -> PyResult<PyErr> {
    let exception = needed(py)?.errors.bind(py).as_any().get_item(name)?.call1((error.message(),))?;
    // The plain Error stands for more than one status.
    if exception.getattr("status")?.extract::<i32>()? != error.status().number() {
        exception.setattr("status", error.status().number())?;
    }
    Ok(PyErr::from_value(exception))
}

/// `?` for results of the core.
pub(crate) trait OrRaise<T> {
    fn or_raise(self, py: Python<'_>) -> PyResult<T>;
}

impl<T> OrRaise<T> for zklock::Result<T> {
    fn or_raise(self, py: Python<'_>) -> PyResult<T> {
        self.map_err(|error| raise(py, &error))
    }
}

/// What came of ending something. In the child of a fork that does nothing, like `*_free` in C.
pub(crate) fn unless_forked(ended: zklock::Result<()>) -> zklock::Result<()> {
    ended.or_else(|error| if error.status() == Status::Forked { Ok(()) } else { Err(error) })
}

/// Where `with` ends although the way out failed too: the block's own exception goes on, and says what failed besides. Who calls
/// `__exit__` by hand may give anything in its place.
pub(crate) fn add_to(py: Python<'_>, blocks: &Bound<'_, PyAny>, doing: &str, error: &Error) -> PyResult<()> {
    if !blocks.is_instance_of::<PyBaseException>() {
        return Err(raise(py, error));
    }
    if let Ok(add_note) = blocks.getattr("add_note") {
        add_note.call1((format!("zklock: {doing}: {}", error.message()),))?;
    } else if blocks.getattr("__context__")?.is_none() {
        blocks.setattr("__context__", raise(py, error))?;
    }
    Ok(())
}

/// One word for a handle that does not even answer a question.
pub(crate) const fn word(status: Status) -> &'static str {
    match status {
        Status::Closed => "CLOSED",
        Status::Forked => "FORKED",
        _ => "?",
    }
}
