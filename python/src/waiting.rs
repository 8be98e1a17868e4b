//! The class `zklock.Waiting`, which describes a call that waits for a lock. A Waiting is a copy, and must not refer to its lock or
//! client.

use pyo3::prelude::*;

use crate::display::member_name;
use crate::states::waits_for;

/// The description of a call that waits for a lock or for leases; see ``Lock.waiting()``. Waitings are immutable, comparable and
/// hashable.
#[pyclass(frozen, eq, hash, skip_from_py_object, module = "zklock")]
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct Waiting(zklock::Waiting);

pub(crate) fn all(waiting: Vec<zklock::Waiting>) -> Vec<Waiting> {
    waiting.into_iter().map(Waiting).collect()
}

#[pymethods]
impl Waiting {
    /// The reason why the call waits, as a WaitsFor.
    #[getter]
    fn waits_for<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        waits_for(py, self.0.waits_for)
    }

    /// The path of the node that the call has created, or None if the call has no node. ``participants()`` returns the same path for
    /// the node. If the call has created several nodes, the property returns the path of the first node that has to wait.
    #[getter]
    fn node_path(&self) -> Option<&str> {
        self.0.node_path.as_deref()
    }

    /// The path of the node for which the call waits, or None if the path is not known. If the call waits in a queue,
    /// this node is the nearest node ahead. If the call waits for leases, this node is the directory of the leases. If
    /// the call waits for a shared count, this node contains the count. Without a connection, the property returns the
    /// last known path.
    #[getter]
    fn ahead(&self) -> Option<&str> {
        self.0.ahead.as_deref()
    }

    /// The id of the session that owns the node ahead, or 0 if the id is not known.
    #[getter]
    fn session_id(&self) -> i64 {
        self.0.session_id
    }

    /// The number of nodes ahead in the queue. If ``waits_for`` is LEASES, ``count`` is the number of leases that other
    /// holders must release first. If ``waits_for`` is COUNT, the shared count must first increase by ``count``. The
    /// client reports the last known number, or zero if no number is known.
    #[getter]
    fn count(&self) -> u64 {
        self.0.count
    }

    /// The number of seconds for which the call has waited.
    #[getter]
    fn waited(&self) -> f64 {
        self.0.waited.as_secs_f64()
    }

    /// The number of seconds until the call times out, or None if the call has no time limit.
    #[getter]
    fn left(&self) -> Option<f64> {
        self.0.left.map(|left| left.as_secs_f64())
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let name = member_name(&self.waits_for(py)?)?;
        let ahead = self.ahead().map(|ahead| format!(" {ahead:?}")).unwrap_or_default();
        Ok(format!("<zklock.Waiting for {name}{ahead} since {:.3} s>", self.waited()))
    }
}
