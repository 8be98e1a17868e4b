//! The Python objects that the native module uses. The native module imports all these objects when Python imports the
//! native module. A destructor may need one of these objects while the interpreter is shutting down. An import would fail at that time.
//! A destructor, and the code that a destructor calls, must therefore not import anything.

use pyo3::exceptions::PyImportError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyDict;

use crate::python_call::CallPython;

pub(crate) struct Imports {
    /// The exceptions of `zklock/_errors.py`, by their names.
    pub(crate) errors: Py<PyDict>,
    /// The members of the enums in `zklock/_states.py`, by their values. A lookup runs no Python code, unlike a call of the enum.
    pub(crate) client_states: Py<PyDict>,
    pub(crate) lock_states: Py<PyDict>,
    pub(crate) waits_for: Py<PyDict>,
    pub(crate) run_results: Py<PyDict>,
    /// The classes of `zklock/_events.py`.
    pub(crate) client_event: Py<PyAny>,
    pub(crate) lock_event: Py<PyAny>,
    /// The classes of `zklock/_queue.py`.
    pub(crate) participant: Py<PyAny>,
    pub(crate) waiting: Py<PyAny>,
    /// The class of `zklock/_once.py`.
    pub(crate) past_run: Py<PyAny>,
    /// A function of `zklock/_work.py`.
    pub(crate) terms: Py<PyAny>,
    /// A function and a class of `zklock/_metrics.py`.
    pub(crate) metrics: Py<PyAny>,
    pub(crate) histogram: Py<PyAny>,
    /// Functions of `zklock/_logs.py`.
    pub(crate) log_level: Py<PyAny>,
    pub(crate) log_deliver: Py<PyAny>,
    pub(crate) log_failed_end: Py<PyAny>,
    /// Functions of `zklock/_greenlets.py`.
    pub(crate) hub_waits: Py<PyAny>,
    pub(crate) name_of: Py<PyAny>,
    pub(crate) at_end: Py<PyAny>,
    /// Functions of `zklock/_threads.py`.
    pub(crate) thread_name: Py<PyAny>,
    pub(crate) is_main_thread: Py<PyAny>,
    /// A function of `zklock/_exit.py`.
    pub(crate) register_child: Py<PyAny>,
    /// `warnings.warn`.
    pub(crate) warn: Py<PyAny>,
    /// A `threading.local()` that stores the `HoldTracker` of each thread.
    pub(crate) thread: Py<PyAny>,
    /// `threading.get_native_id`.
    pub(crate) get_native_id: Py<PyAny>,
    /// `sys.modules`. Each interpreter of a process has a separate dict of modules.
    pub(crate) modules: Py<PyDict>,
}

/// Returns an error unless the caller runs in the first interpreter of the process. The list of clients and other data of the library
/// belong to the first interpreter, and exist only until this interpreter ends.
pub(crate) fn check_interpreter(py: Python<'_>) -> PyResult<()> {
    if modules(py)?.is(&imports(py)?.modules) {
        return Ok(());
    }
    Err(PyImportError::new_err(
        "another interpreter of this process has already imported zklock; only one interpreter of a process can use zklock",
    ))
}

fn modules(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    Ok(py.import("sys")?.getattr("modules")?.cast_into()?)
}

/// Returns the members of a Python enum, by their values.
fn members(class: &Bound<'_, PyAny>) -> PyResult<Py<PyDict>> {
    let members = PyDict::new(class.py());
    for member in class.try_iter()? {
        let member = member?;
        members.set_item(member.getattr("_value_")?, member)?;
    }
    Ok(members.unbind())
}

/// Returns the objects that the native module uses. The first call happens during the import of the native module, and imports these
/// objects.
pub(crate) fn imports(py: Python<'_>) -> PyResult<&'static Imports> {
    static NEEDED: PyOnceLock<Imports> = PyOnceLock::new();
    NEEDED.get_or_try_init(py, || {
        let (states, events) = (py.import("zklock._states")?, py.import("zklock._events")?);
        let queue = py.import("zklock._queue")?;
        let (metrics, logs, threading) =
            (py.import("zklock._metrics")?, py.import("zklock._logs")?, py.import("threading")?);
        let (greenlets, threads) = (py.import("zklock._greenlets")?, py.import("zklock._threads")?);
        Ok(Imports {
            errors: py.import("zklock._errors")?.dict().copy()?.unbind(),
            client_states: members(&states.getattr("ClientState")?)?,
            lock_states: members(&states.getattr("LockState")?)?,
            waits_for: members(&states.getattr("WaitsFor")?)?,
            run_results: members(&states.getattr("RunResult")?)?,
            client_event: events.getattr("ClientEvent")?.unbind(),
            lock_event: events.getattr("LockEvent")?.unbind(),
            participant: queue.getattr("Participant")?.unbind(),
            waiting: queue.getattr("Waiting")?.unbind(),
            past_run: py.import("zklock._once")?.getattr("PastRun")?.unbind(),
            terms: py.import("zklock._work")?.getattr("terms")?.unbind(),
            metrics: metrics.getattr("metrics_of")?.unbind(),
            histogram: metrics.getattr("Histogram")?.unbind(),
            log_level: logs.getattr("effective_level")?.unbind(),
            log_deliver: logs.getattr("emit")?.unbind(),
            log_failed_end: logs.getattr("log_failed_end")?.unbind(),
            hub_waits: greenlets.getattr("hub_waits")?.unbind(),
            name_of: greenlets.getattr("greenlet_name")?.unbind(),
            at_end: greenlets.getattr("call_at_end")?.unbind(),
            thread_name: threads.getattr("thread_name")?.unbind(),
            is_main_thread: threads.getattr("is_main_thread")?.unbind(),
            register_child: py.import("zklock._exit")?.getattr("register_child")?.unbind(),
            warn: py.import("warnings")?.getattr("warn")?.unbind(),
            thread: threading.getattr("local")?.call_python(())?.unbind(),
            get_native_id: threading.getattr("get_native_id")?.unbind(),
            modules: modules(py)?.unbind(),
        })
    })
}
