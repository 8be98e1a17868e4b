//! Converts the core's states, its reasons for waiting and its results of runs to members of the enums in `zklock/_states.py`. The
//! functions find a member by its value. No other file may contain the values of the enum members.

use std::fmt::Debug;

use pyo3::prelude::*;
use pyo3::types::PyDict;
use zklock::{ClientState, Error, LockState, RunResult, Status, WaitsFor};

use crate::errors::to_py_err;
use crate::imports::imports;

pub(crate) fn client_state(py: Python<'_>, state: ClientState) -> PyResult<Bound<'_, PyAny>> {
    let value = match state {
        ClientState::Connecting => "connecting",
        ClientState::Connected => "connected",
        ClientState::Suspended => "suspended",
        ClientState::Lost => "lost",
        ClientState::Closed => "closed",
        state => return Err(unknown(py, state)),
    };
    find(py, &imports(py)?.client_states, value)
}

pub(crate) fn lock_state(py: Python<'_>, state: LockState) -> PyResult<Bound<'_, PyAny>> {
    let value = match state {
        LockState::Free => "free",
        LockState::Held => "held",
        LockState::Suspended => "suspended",
        LockState::Uncertain => "uncertain",
        LockState::Lost => "lost",
        state => return Err(unknown(py, state)),
    };
    find(py, &imports(py)?.lock_states, value)
}

pub(crate) fn waits_for(py: Python<'_>, waits_for: WaitsFor) -> PyResult<Bound<'_, PyAny>> {
    let value = match waits_for {
        WaitsFor::Connection => "connection",
        WaitsFor::Server => "server",
        WaitsFor::Node => "node",
        WaitsFor::Leases => "leases",
        WaitsFor::Count => "count",
        WaitsFor::OwnHold => "own_hold",
        waits_for => return Err(unknown(py, waits_for)),
    };
    find(py, &imports(py)?.waits_for, value)
}

pub(crate) fn run_result<'py>(py: Python<'py>, result: &RunResult) -> PyResult<Bound<'py, PyAny>> {
    let value = match result {
        RunResult::Running => "running",
        RunResult::Succeeded => "succeeded",
        RunResult::Failed(_) => "failed",
    };
    find(py, &imports(py)?.run_results, value)
}

fn find<'py>(py: Python<'py>, members: &Py<PyDict>, value: &str) -> PyResult<Bound<'py, PyAny>> {
    members.bind(py).get_item(value)?.ok_or_else(|| unknown(py, value))
}

/// Returns the error for a Rust value that has no member in the Python enum.
fn unknown(py: Python<'_>, value: impl Debug) -> PyErr {
    to_py_err(py, &Error::new(Status::Internal, format!("the package has no name for the value {value:?}")))
}
