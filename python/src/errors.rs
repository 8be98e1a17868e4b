//! Converts errors of the core to Python exceptions. A table in the core maps each status to the name of its exception class. This
//! file imports only `imports.rs` and `python_call.rs`, so all other files can import it to report errors.

use pyo3::exceptions::{PyBaseException, PyException, PyGeneratorExit};
use pyo3::prelude::*;
use zklock::{Error, Status};

use crate::imports::imports;
use crate::python_call::{CallPython, write_unraisable};

/// Returns the exception for an error of the core.
pub(crate) fn to_py_err(py: Python<'_>, error: &Error) -> PyErr {
    make(py, error.status().python(), error.message())
}

/// Makes an InvalidType exception. The caller must be attached to the interpreter.
pub(crate) fn wrong_type(message: impl AsRef<str>) -> PyErr {
    Python::attach(|py| make(py, "InvalidType", message.as_ref()))
}

/// Makes an InvalidArgument exception. The caller must be attached to the interpreter.
pub(crate) fn wrong_value(message: impl AsRef<str>) -> PyErr {
    Python::attach(|py| make(py, "InvalidArgument", message.as_ref()))
}

/// Returns whether an exception is a `zklock.Error`.
pub(crate) fn is_library_error(py: Python<'_>, error: &PyErr) -> bool {
    let class = imports(py).and_then(|imports| imports.errors.bind(py).as_any().get_item("Error"));
    class.is_ok_and(|class| error.is_instance(py, &class))
}

fn make(py: Python<'_>, name: &str, message: &str) -> PyErr {
    let made = || imports(py)?.errors.bind(py).as_any().get_item(name)?.call_python((message,));
    made().map_or_else(|failure| failure, PyErr::from_value)
}

/// Converts the error in a result of the core to a Python exception, so that a caller can use the `?` operator on the result.
pub(crate) trait OrRaise<T> {
    fn or_raise(self, py: Python<'_>) -> PyResult<T>;
}

impl<T> OrRaise<T> for zklock::Result<T> {
    fn or_raise(self, py: Python<'_>) -> PyResult<T> {
        self.map_err(|error| to_py_err(py, &error))
    }
}

/// Converts the error FORKED to success. In a forked child process, the functions that close an object do nothing, like the `*_free`
/// functions in C.
pub(crate) fn ignore_forked(ended: zklock::Result<()>) -> zklock::Result<()> {
    ended.or_else(|error| if error.status() == Status::Forked { Ok(()) } else { Err(error) })
}

/// Handles an error of `__exit__`. If the `with` block raised an exception, the function adds the error to this
/// exception as a note. If `block_error` is not an exception, for example because it is None, the function raises the error.
fn attach_to_exception(py: Python<'_>, block_error: &Bound<'_, PyAny>, doing: &str, error: &Error) -> PyResult<()> {
    if !block_error.is_instance_of::<PyBaseException>() {
        return Err(to_py_err(py, error));
    }
    if let Ok(add_note) = block_error.getattr("add_note") {
        add_note.call_python((format!("zklock: {doing}: {}", error.message()),))?;
    } else if block_error.getattr("__context__")?.is_none() {
        block_error.setattr("__context__", to_py_err(py, error))?;
    }
    Ok(())
}

/// What a `with` block released or closed at its end.
pub(crate) struct EndedItem<'a> {
    /// What the end of the block does, for messages.
    pub(crate) doing: &'a str,
    /// The path of the lock, or `None` for a multi-lock and for a client.
    pub(crate) path: Option<&'a str>,
    /// Whether the hold was safe at the end of the block. False for a client.
    pub(crate) was_safe: bool,
}

/// Handles `ended`, which is the result of the release or of the close at the end of a `with` block.
///
/// A release takes effect even if no server confirms it. If the hold was safe, the lock has protected the whole block.
/// An exception would wrongly suggest that the block has failed, so the function only logs the missing confirmation.
///
/// If the block belongs to a generator that Python closes, Python discards the exception of the block, and the note in
/// this exception. The function therefore also logs the failure, unless the client is closed or belongs to the parent
/// process. Then the process has no hold that could remain.
pub(crate) fn end_block(
    py: Python<'_>,
    block_error: &Bound<'_, PyAny>,
    item: &EndedItem<'_>,
    ended: zklock::Result<()>,
) -> PyResult<()> {
    let Err(error) = ended else { return Ok(()) };
    let is_unconfirmed = item.was_safe && matches!(error.status(), Status::Connection | Status::Exhausted);
    if block_error.is_none() {
        return if is_unconfirmed { log_failed_end(py, true, item, &error) } else { Err(error).or_raise(py) };
    }
    attach_to_exception(py, block_error, item.doing, &error)?;
    let has_ended = matches!(error.status(), Status::Closed | Status::Forked);
    if block_error.is_instance_of::<PyGeneratorExit>() && !has_ended {
        log_failed_end(py, is_unconfirmed, item, &error)
    } else {
        Ok(())
    }
}

/// Logs a failed end of a block. An exception of a log filter or a log handler must not replace the result of the
/// block, so the function passes the exception to `sys.unraisablehook`. It returns only exceptions such as
/// KeyboardInterrupt.
fn log_failed_end(py: Python<'_>, is_unconfirmed: bool, item: &EndedItem<'_>, error: &Error) -> PyResult<()> {
    let log = imports(py)?.log_failed_end.bind(py);
    match log.call_python((is_unconfirmed, item.doing, item.path, error.message())) {
        Err(failure) if failure.is_instance_of::<PyException>(py) => {
            write_unraisable(py, failure, Some(log));
            Ok(())
        }
        logged => logged.map(drop),
    }
}

/// Returns the text that `repr()` shows instead of a state. `status` is the error of the call that should have returned the state.
pub(crate) const fn status_word(status: Status) -> &'static str {
    match status {
        Status::Closed => "CLOSED",
        Status::Forked => "FORKED",
        _ => "?",
    }
}
