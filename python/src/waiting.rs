//! What those who wait wait for.

use pyo3::prelude::*;

use crate::states::waits_for;

/// An acquire that waits, as ``waiting()`` found it. Immutable; comparable and hashable.
#[pyclass(frozen, eq, hash, skip_from_py_object, module = "zklock")]
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct Waiting(zklock::Waiting);

pub(crate) fn all(waiting: Vec<zklock::Waiting>) -> Vec<Waiting> {
    waiting.into_iter().map(Waiting).collect()
}

#[pymethods]
impl Waiting {
    /// What it waits for: a WaitsFor.
    #[getter]
    fn waits_for<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        waits_for(py, self.0.waits_for)
    }

    /// The path of its own node, as ``participants()`` shows it, or None while it has none. Of several: where it has to wait.
    #[getter]
    fn node_path(&self) -> Option<&str> {
        self.0.node_path.as_deref()
    }

    /// What is in its way: the path of the nearest node ahead, as ``participants()`` shows it, of the leases' directory, or of the
    /// count; None where that is not known. Without a connection: what was, when there was one.
    #[getter]
    fn ahead(&self) -> Option<&str> {
        self.0.ahead.as_deref()
    }

    /// The session that owns the node ahead; 0 where that is not known.
    #[getter]
    fn session_id(&self) -> i64 {
        self.0.session_id
    }

    /// How many there are to go before, when they were last counted: nodes ahead, leases that have to come back, or that the count
    /// is too low by; 0 where that is not known.
    #[getter]
    fn count(&self) -> u64 {
        self.0.count
    }

    /// For how many seconds it has waited.
    #[getter]
    fn waited(&self) -> f64 {
        self.0.waited.as_secs_f64()
    }

    /// For how many seconds it will wait at most; None without a limit.
    #[getter]
    fn left(&self) -> Option<f64> {
        self.0.left.map(|left| left.as_secs_f64())
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let name = self.waits_for(py)?.getattr("name")?;
        let ahead = self.ahead().map(|ahead| format!(" {ahead:?}")).unwrap_or_default();
        Ok(format!("<zklock.Waiting for {name}{ahead} since {:.3} s>", self.waited()))
    }
}
