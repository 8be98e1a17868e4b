//! ResourceWarnings about holds, leases and clients that a program does not release or close. This file decides which holds need a
//! warning, and issues the warnings. It must not release a hold.

use pyo3::exceptions::PyResourceWarning;
use pyo3::prelude::*;
use zklock::LockState;
use zklock::internal::log_hold_left;

use crate::imports::imports;
use crate::python_call::{CallPython, write_unraisable};

/// Issues a ResourceWarning about a hold, and logs its text.
pub(crate) fn warn(py: Python<'_>, message: impl FnOnce() -> PyResult<String>) {
    // Python hides a ResourceWarning by default. The thread that calls callbacks delivers the line, because a destructor
    // must not call the handlers of `logging`.
    warn_without_log(py, || message().inspect(|text| log_hold_left(text)));
}

/// Issues a ResourceWarning with the text that `message` returns. If a filter (`-W error`) turns the warning into an
/// exception, the function passes the exception to `sys.unraisablehook`. If Python is already raising an exception, the
/// function preserves that exception, also while it calls `message`.
pub(crate) fn warn_without_log(py: Python<'_>, message: impl FnOnce() -> PyResult<String>) {
    let raised = PyErr::take(py);
    let category = py.get_type::<PyResourceWarning>();
    let issue = |text: String| imports(py)?.warn.bind(py).call_python((text, category));
    if let Err(error) = message().and_then(issue) {
        write_unraisable(py, error, None);
    }
    if let Some(raised) = raised {
        raised.restore(py);
    }
}

/// Returns whether the library must release a hold in this state when the lock object is dropped. A lost hold needs no release.
pub(crate) const fn is_released_with_object(state: &zklock::Result<LockState>) -> bool {
    matches!(state, Ok(LockState::Held | LockState::Suspended | LockState::Uncertain))
}
