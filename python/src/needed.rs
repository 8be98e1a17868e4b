//! What the native module needs of Python's modules. It is imported with it: when the interpreter ends and destructors have
//! their turn, nothing can be imported any more, and modules are emptied.

use pyo3::exceptions::PyImportError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyDict;

pub(crate) struct Needed {
    /// The exceptions of `zklock/_errors.py`, by their names.
    pub(crate) errors: Py<PyDict>,
    /// Of `zklock/_states.py`.
    pub(crate) client_state: Py<PyAny>,
    pub(crate) lock_state: Py<PyAny>,
    pub(crate) waits_for: Py<PyAny>,
    /// Of `zklock/_events.py`.
    pub(crate) client_event: Py<PyAny>,
    pub(crate) lock_event: Py<PyAny>,
    /// Of `zklock/_metrics.py`.
    pub(crate) metrics: Py<PyAny>,
    pub(crate) histogram: Py<PyAny>,
    /// Of `zklock/_logs.py`.
    pub(crate) log_level: Py<PyAny>,
    pub(crate) log_deliver: Py<PyAny>,
    /// Of `zklock/_greenlets.py`.
    pub(crate) hub_wait: Py<PyAny>,
    /// Of `threading`.
    pub(crate) get_ident: Py<PyAny>,
    pub(crate) get_native_id: Py<PyAny>,
    pub(crate) main_thread: Py<PyAny>,
    /// `sys.modules`, which every interpreter of a process has for itself.
    pub(crate) modules: Py<PyDict>,
}

/// Refuses other interpreters than the one that was first. What is shared by all, the list of clients above all, has its end with
/// that one.
pub(crate) fn check_interpreter(py: Python<'_>) -> PyResult<()> {
    if modules(py)?.is(&needed(py)?.modules) {
        return Ok(());
    }
    Err(PyImportError::new_err(
        "zklock is another interpreter's: one of a process can have it, and no subinterpreter beside it",
    ))
}

fn modules(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    Ok(py.import("sys")?.getattr("modules")?.cast_into()?)
}

/// Imported when it is asked for first, which is when the module is imported.
pub(crate) fn needed(py: Python<'_>) -> PyResult<&'static Needed> {
    static NEEDED: PyOnceLock<Needed> = PyOnceLock::new();
    NEEDED.get_or_try_init(py, || {
        let (states, events) = (py.import("zklock._states")?, py.import("zklock._events")?);
        let (metrics, logs, threading) =
            (py.import("zklock._metrics")?, py.import("zklock._logs")?, py.import("threading")?);
        Ok(Needed {
            errors: py.import("zklock._errors")?.dict().copy()?.unbind(),
            client_state: states.getattr("ClientState")?.unbind(),
            lock_state: states.getattr("LockState")?.unbind(),
            waits_for: states.getattr("WaitsFor")?.unbind(),
            client_event: events.getattr("ClientEvent")?.unbind(),
            lock_event: events.getattr("LockEvent")?.unbind(),
            metrics: metrics.getattr("Metrics")?.unbind(),
            histogram: metrics.getattr("Histogram")?.unbind(),
            log_level: logs.getattr("level")?.unbind(),
            log_deliver: logs.getattr("deliver")?.unbind(),
            hub_wait: py.import("zklock._greenlets")?.getattr("hub_wait")?.unbind(),
            get_native_id: threading.getattr("get_native_id")?.unbind(),
            get_ident: threading.getattr("get_ident")?.unbind(),
            main_thread: threading.getattr("main_thread")?.unbind(),
            modules: modules(py)?.unbind(),
        })
    })
}
