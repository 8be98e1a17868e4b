//! The class `zklock.Participant`, and the code that waits for a list of participants. A Participant is a copy, and must not refer to
//! its lock or client.

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use zklock::{Call, Result};

use crate::errors::OrRaise;
use crate::greenlet::WaitTarget;
use crate::wait::wait;

/// A participant of a lock: the node of a holder or a waiter in the lock's queue. Participants are immutable, comparable and hashable.
#[pyclass(frozen, eq, hash, skip_from_py_object, module = "zklock")]
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct Participant(zklock::Participant);

impl From<zklock::Participant> for Participant {
    fn from(participant: zklock::Participant) -> Self {
        Self(participant)
    }
}

/// Waits for the list of participants.
pub(crate) fn all(
    py: Python<'_>,
    start: impl FnOnce() -> Result<Call<Vec<zklock::Participant>>> + Send,
) -> PyResult<Vec<Participant>> {
    let participants = wait(py, WaitTarget::Server, start, drop)?.or_raise(py)?;
    Ok(participants.into_iter().map(Participant::from).collect())
}

#[pymethods]
impl Participant {
    /// The path of the node, without the client's chroot.
    #[getter]
    pub(crate) fn node_path(&self) -> &str {
        &self.0.node_path
    }

    /// Whether this participant holds the lock. The value is False for a waiter.
    #[getter]
    fn holds(&self) -> bool {
        self.0.holds
    }

    /// The id of the session that owns the node.
    #[getter]
    fn session_id(&self) -> i64 {
        self.0.session_id
    }

    /// The zxid of the transaction that created the node. For a holder, the czxid is the fencing token.
    #[getter]
    fn czxid(&self) -> i64 {
        self.0.czxid
    }

    /// The data of the node. By default, the data is the host address of the participant.
    #[getter]
    fn data<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.0.data)
    }

    fn __repr__(&self) -> String {
        let zklock::Participant { node_path, holds, session_id, .. } = &self.0;
        format!("<zklock.Participant {node_path:?} {} session={session_id:#x}>", if *holds { "holds" } else { "waits" })
    }
}
