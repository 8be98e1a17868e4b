//! Who stands in a lock's queue.

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use zklock::{Call, Result};

use crate::errors::OrRaise;
use crate::greenlet::Awaited;
use crate::wait::wait;

/// One of those who hold a lock or wait for it, as ``participants()`` found it. Immutable; comparable and hashable.
#[pyclass(frozen, eq, hash, skip_from_py_object, module = "zklock")]
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct Participant(zklock::Participant);

impl From<zklock::Participant> for Participant {
    fn from(participant: zklock::Participant) -> Self {
        Self(participant)
    }
}

/// Waits until it is known who they are.
pub(crate) fn all(
    py: Python<'_>,
    start: impl FnOnce() -> Result<Call<Vec<zklock::Participant>>> + Send,
) -> PyResult<Vec<Participant>> {
    let participants = wait(py, Awaited::Server, start, drop)?.or_raise(py)?;
    Ok(participants.into_iter().map(Participant::from).collect())
}

#[pymethods]
impl Participant {
    /// The path of its node, without the client's chroot.
    #[getter]
    pub(crate) fn node_path(&self) -> &str {
        &self.0.node_path
    }

    /// True if it holds the lock, False if it waits.
    #[getter]
    fn holds(&self) -> bool {
        self.0.holds
    }

    /// The session that owns the node.
    #[getter]
    fn session_id(&self) -> i64 {
        self.0.session_id
    }

    /// The zxid that created the node: the fencing token of its hold.
    #[getter]
    fn czxid(&self) -> i64 {
        self.0.czxid
    }

    /// The node's data; by default its host's address.
    #[getter]
    fn data<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.0.data)
    }

    fn __repr__(&self) -> String {
        let zklock::Participant { node_path, holds, session_id, .. } = &self.0;
        format!("<zklock.Participant {node_path:?} {} session={session_id:#x}>", if *holds { "holds" } else { "waits" })
    }
}
