//! Converts participants and waiting calls to objects of the classes in `zklock/_queue.py`, and waits for a list of participants.

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use zklock::{Operation, Result};

use crate::errors::OrRaise;
use crate::greenlet::WaitTarget;
use crate::imports::imports;
use crate::python_call::CallPython;
use crate::states::waits_for;
use crate::wait::wait;

/// Becomes a `zklock.Participant`.
pub(crate) struct Participant(zklock::Participant);

impl From<zklock::Participant> for Participant {
    fn from(participant: zklock::Participant) -> Self {
        Self(participant)
    }
}

impl<'py> IntoPyObject<'py> for Participant {
    type Target = PyAny;
    type Output = Bound<'py, PyAny>;
    type Error = PyErr;

    fn into_pyobject(self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let zklock::Participant { node_path, holds, session_id, czxid, data, .. } = self.0;
        imports(py)?.participant.bind(py).call_python((node_path, holds, session_id, czxid, PyBytes::new(py, &data)))
    }
}

/// Becomes a `zklock.Waiting`.
pub(crate) struct Waiting(zklock::Waiting);

impl<'py> IntoPyObject<'py> for Waiting {
    type Target = PyAny;
    type Output = Bound<'py, PyAny>;
    type Error = PyErr;

    fn into_pyobject(self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let zklock::Waiting { node_path, ahead, session_id, count, waited, left, .. } = self.0;
        let left = left.map(|left| left.as_secs_f64());
        let waits_for = waits_for(py, self.0.waits_for)?;
        let fields = (waits_for, node_path, ahead, session_id, count, waited.as_secs_f64(), left);
        imports(py)?.waiting.bind(py).call_python(fields)
    }
}

/// Waits for the list of participants.
pub(crate) fn all(
    py: Python<'_>,
    start: impl FnOnce() -> Result<Operation<Vec<zklock::Participant>>> + Send,
) -> PyResult<Vec<Participant>> {
    let participants = wait(py, WaitTarget::Server, start, drop)?.or_raise(py)?;
    Ok(participants.into_iter().map(Participant).collect())
}

pub(crate) fn waiting(calls: Vec<zklock::Waiting>) -> Vec<Waiting> {
    calls.into_iter().map(Waiting).collect()
}
