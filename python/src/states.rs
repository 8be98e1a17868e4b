//! The states of clients and locks, and what is waited for, as members of the enums in `zklock/_states.py`.

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use zklock::{ClientState, LockState, WaitsFor};

pub(crate) fn client_state(py: Python<'_>, state: ClientState) -> PyResult<Bound<'_, PyAny>> {
    static ENUM: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    member(py, &ENUM, "ClientState", state as i32)
}

pub(crate) fn lock_state(py: Python<'_>, state: LockState) -> PyResult<Bound<'_, PyAny>> {
    static ENUM: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    member(py, &ENUM, "LockState", state as i32)
}

pub(crate) fn waits_for(py: Python<'_>, waits_for: WaitsFor) -> PyResult<Bound<'_, PyAny>> {
    static ENUM: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    member(py, &ENUM, "WaitsFor", waits_for as i32)
}

fn member<'py>(
    py: Python<'py>,
    class: &'static PyOnceLock<Py<PyAny>>,
    name: &str,
    number: i32,
) -> PyResult<Bound<'py, PyAny>> {
    let class = class.get_or_try_init(py, || py.import("zklock._states")?.getattr(name).map(Bound::unbind))?;
    class.bind(py).call1((number,))
}
