//! The states of clients and locks, and what is waited for, as members of the enums in `zklock/_states.py`.

use pyo3::prelude::*;
use zklock::{ClientState, LockState, WaitsFor};

use crate::needed::needed;

pub(crate) fn client_state(py: Python<'_>, state: ClientState) -> PyResult<Bound<'_, PyAny>> {
    needed(py)?.client_state.bind(py).call1((state as i32,))
}

pub(crate) fn lock_state(py: Python<'_>, state: LockState) -> PyResult<Bound<'_, PyAny>> {
    needed(py)?.lock_state.bind(py).call1((state as i32,))
}

pub(crate) fn waits_for(py: Python<'_>, waits_for: WaitsFor) -> PyResult<Bound<'_, PyAny>> {
    needed(py)?.waits_for.bind(py).call1((waits_for as i32,))
}
