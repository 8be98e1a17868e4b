//! The class `zklock._zklock._TaskLock`, a lock from the point of view of one asyncio task. The methods of `zklock.Lock` act for the
//! calling thread instead. The methods of this file do not block.

use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use zklock::{HoldView, Owner};

use crate::errors::OrRaise;
use crate::lock::{Lock, seconds_left, state_of};
use crate::states::lock_state;

/// A lock from the point of view of one task. The properties describe the hold of this task. ``owner`` is the number of
/// the task, or 0 if there is no task.
#[pyclass(frozen, name = "_TaskLock", module = "zklock")]
pub(crate) struct TaskLock {
    pub(crate) lock: Py<Lock>,
    pub(crate) owner: Owner,
}

impl TaskLock {
    pub(crate) fn core(&self) -> &zklock::Lock {
        &self.lock.get().core
    }

    fn view(&self, py: Python<'_>) -> PyResult<Option<HoldView>> {
        self.core().view(self.owner).or_raise(py)
    }
}

#[pymethods]
impl TaskLock {
    #[new]
    fn new(lock: Py<Lock>, owner: u64) -> Self {
        Self { lock, owner: Owner::task(owner) }
    }

    /// Release the lock once. The call does not wait for the removal of the node.
    fn release_nowait(&self, py: Python<'_>) -> PyResult<()> {
        let released = self.core().start_release(self.owner, false).and_then(|release| release.wait());
        Lock::drop_if_free(self.lock.bind(py));
        released.or_raise(py)
    }

    /// Whether the task holds the lock and the hold is safe at this moment.
    #[getter]
    fn is_held(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.view(py)?.is_some_and(HoldView::is_safe))
    }

    /// The hold state of the task, a LockState.
    #[getter]
    fn state<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        lock_state(py, state_of(self.view(py)?))
    }

    /// The number of seconds for which the hold stays safe.
    #[getter]
    fn remaining(&self, py: Python<'_>) -> PyResult<f64> {
        Ok(seconds_left(self.view(py)?))
    }

    /// The fencing token of the hold.
    #[getter]
    fn fencing_token(&self, py: Python<'_>) -> PyResult<i64> {
        Ok(self.core().live_view(self.owner).or_raise(py)?.token)
    }

    /// The fencing pass of the hold.
    #[getter]
    fn fencing_pass(&self, py: Python<'_>) -> PyResult<u32> {
        Ok(self.core().live_view(self.owner).or_raise(py)?.fencing_pass)
    }

    /// The path of the node.
    #[getter]
    fn node_path(&self, py: Python<'_>) -> PyResult<String> {
        self.lock.get().node_path_of(py, self.owner)
    }

    /// The paths of the nodes.
    #[getter]
    fn node_paths(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        self.core().node_paths_of(self.owner).or_raise(py)
    }

    /// Raise NotOwner if the task has no hold, and LockLost if the hold was lost.
    fn _check(&self, py: Python<'_>) -> PyResult<()> {
        self.fencing_token(py).map(drop)
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        Lock::describe(self.lock.bind(py), self.owner)
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.lock)
    }
}
