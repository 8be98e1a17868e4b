//! `zklock.Semaphore` and `zklock.Leases`.

use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyString;
use zklock::{Status, refuse_in_callback};

use crate::callback::{Callback, start_thread};
use crate::errors::{OrRaise, add_to, unless_forked, word};
use crate::event::Listener;
use crate::greenlet::Awaited;
use crate::lock::seconds_left;
use crate::log;
use crate::participant::{self, Participant};
use crate::parting::Parting;
use crate::seconds::{self, Seconds};
use crate::states::lock_state;
use crate::wait::wait;
use crate::waiting::{self, Waiting};
use crate::{text, whole};

/// A semaphore, made by ``Client.semaphore()``: Curator's ``InterProcessSemaphoreV2``. What it gives out are Leases.
///
/// Leases belong to whoever has them, not to a thread. Methods may be called from any thread. All methods raise ClientClosed
/// once the semaphore or its client is closed, and Forked in the child of a fork.
#[pyclass(frozen, weakref, module = "zklock")]
pub(crate) struct Semaphore {
    pub(crate) core: Parting<zklock::Semaphore>,
    path: String,
    /// For `repr()`: how many leases there are.
    size: String,
    callback: Callback,
    /// Kept, since it hears of the leases.
    listener: Option<Py<Listener>>,
}

impl Semaphore {
    pub(crate) fn new(
        semaphore: zklock::Semaphore,
        path: String,
        size: String,
        listener: Option<Py<Listener>>,
    ) -> Self {
        Self { core: Parting::new(semaphore), path, size, callback: Callback::default(), listener }
    }

    /// `set_revocable()`, for whoever sees to it that what is told gets called.
    pub(crate) fn tell_revocations(&self, callback: &Bound<'_, PyAny>) -> PyResult<()> {
        let semaphore: &zklock::Semaphore = &self.core;
        self.callback.set(callback, |handler| semaphore.set_revocable(handler))
    }
}

#[pymethods]
impl Semaphore {
    /// Acquires so many leases, all or none, for a ``with`` block or to be released.
    ///
    /// ``timeout`` is in seconds: None or infinity waits without limit, 0 looks once without waiting for anybody. Raises
    /// LockTimeout where time runs out: what comes back always holds leases. Requests are served in their order, whole: a
    /// large one is not overtaken by small ones. Ctrl-C interrupts the wait, and no node stays behind. Raises ConnectionLost
    /// where no server answers by then, Canceled, ClientClosed; ValueError for more than ``max_leases``. Where a count says how
    /// many there are, more are waited for: it may yet be raised.
    #[pyo3(signature = (quantity=1, timeout=None))]
    fn acquire(
        this: &Bound<'_, Self>,
        #[pyo3(from_py_with = whole::quantity)] quantity: u32,
        #[pyo3(from_py_with = seconds::timeout)] timeout: Option<Seconds>,
    ) -> PyResult<Leases> {
        let (py, semaphore) = (this.py(), &*this.get().core);
        log::look(py)?;
        let limit = timeout.and_then(Seconds::limit);
        let start = || {
            refuse_in_callback(limit)?;
            semaphore.start_acquire(quantity, limit)
        };
        let leases = wait(py, Awaited::within(limit), start, drop)?.or_raise(py)?;
        Ok(Leases::new(leases, this.clone().unbind()))
    }

    /// Wakes those that wait for leases of this handle now, with Canceled. Who waits later is not concerned. Does not block.
    fn cancel(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.core.cancel()).or_raise(py)
    }

    /// The leases that are out, the oldest first, and those who wait for some, whatever process they are in.
    ///
    /// Blocks for the session timeout at most; Ctrl-C interrupts it. Raises ConnectionLost where no server answers by then.
    fn participants(&self, py: Python<'_>) -> PyResult<Vec<Participant>> {
        let semaphore: &zklock::Semaphore = &self.core;
        participant::all(py, || semaphore.start_participants())
    }

    /// What those who wait for leases by this handle wait for, in any thread of this process; see ``Lock.waiting()``. Does not block.
    fn waiting(&self, py: Python<'_>) -> PyResult<Vec<Waiting>> {
        Ok(waiting::all(self.core.waiting().or_raise(py)?))
    }

    /// The data of the leases' nodes that later acquires create; None means this host's address, as in Curator.
    fn set_data(&self, py: Python<'_>, #[pyo3(from_py_with = text::data)] data: Option<PyBackedBytes>) -> PyResult<()> {
        self.core.set_data(data.as_deref()).or_raise(py)
    }

    /// Has ``callback`` called, with the path of the lease's node, whenever somebody asks for a lease to be given back; see
    /// ``Lock.set_revocable()``. None ends it.
    fn set_revocable(&self, callback: &Bound<'_, PyAny>) -> PyResult<()> {
        if callback.is_callable() {
            start_thread(callback.py())?;
        }
        self.tell_revocations(callback)
    }

    /// Takes it out of service: those that wait for leases wake with ClientClosed, as do later calls. Leases that are out stay
    /// out until they are given back. May be called again. Does nothing in the child of a fork. Does not block.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        unless_forked(py.detach(|| self.core.close())).or_raise(py)
    }

    /// The semaphore's path, without the client's chroot.
    #[getter]
    fn path(&self) -> &str {
        &self.path
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        Ok(format!("<zklock.Semaphore {} {}>", PyString::new(py, &self.path).repr()?, self.size))
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.listener)?;
        self.callback.traverse(&visit)
    }
}

/// Leases of a semaphore, made by ``Semaphore.acquire()``. They are given back as a whole: by ``release()``, at the end of a ``with``
/// block, or when they are garbage-collected, which does not wait for the server.
///
/// Any thread may use them and give them back. All methods raise ClientClosed once the client is closed, and Forked in the
/// child of a fork.
#[pyclass(frozen, weakref, module = "zklock")]
pub(crate) struct Leases {
    pub(crate) core: Parting<zklock::Leases>,
    /// Kept, since its callback is theirs.
    semaphore: Py<Semaphore>,
}

impl Leases {
    pub(crate) fn new(leases: zklock::Leases, semaphore: Py<Semaphore>) -> Self {
        Self { core: Parting::new(leases), semaphore }
    }

    fn give_back(&self, py: Python<'_>) -> PyResult<zklock::Result<()>> {
        let leases: &zklock::Leases = &self.core;
        wait(py, Awaited::Server, || leases.start_release(true), drop)
    }
}

#[pymethods]
impl Leases {
    /// Gives all of them back, and waits until the server has confirmed it.
    ///
    /// Blocks for the session timeout at most; Ctrl-C interrupts the wait for the confirmation, not the release. Raises
    /// NotOwner where they were given back before; LockLost where one of them had been lost, ConnectionLost where no server
    /// confirmed in time: they are given back all the same.
    fn release(&self, py: Python<'_>) -> PyResult<()> {
        self.give_back(py)?.or_raise(py)
    }

    /// Gives all of them back, and leaves the removal of the nodes to the library. Does not block.
    ///
    /// Raises NotOwner and LockLost as ``release()`` does.
    fn release_nowait(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.core.start_release(false)?.wait()).or_raise(py)
    }

    /// How many there are, or were.
    #[getter]
    fn quantity(&self) -> u32 {
        self.core.quantity()
    }

    /// Whether they are held, and safely so at this moment: their session is surely alive. Does not block.
    #[getter]
    fn is_held(&self, py: Python<'_>) -> PyResult<bool> {
        self.core.is_held().or_raise(py)
    }

    /// How they stand: a LockState. Does not block.
    #[getter]
    fn state<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        lock_state(py, self.core.state().or_raise(py)?)
    }

    /// For how many seconds they are safe without hearing from a server; 0.0 where they are not safely held. Does not block.
    #[getter]
    fn remaining(&self, py: Python<'_>) -> PyResult<f64> {
        seconds_left(py, self.core.remaining())
    }

    /// Their fencing token: an int that grows with the leases of the semaphore, for a store to refuse the stale.
    ///
    /// Does not block. Raises NotOwner where they were given back, LockLost where they were lost.
    #[getter]
    fn fencing_token(&self, py: Python<'_>) -> PyResult<i64> {
        self.core.fencing_token().or_raise(py)
    }

    /// The paths of their nodes, without the client's chroot. Does not block. Raises as ``fencing_token`` does.
    #[getter]
    fn node_paths(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        self.core.node_paths().or_raise(py)
    }

    /// Raises NotOwner where they were given back before, LockLost where they were lost.
    fn __enter__<'py>(this: PyRef<'py, Self>, py: Python<'py>) -> PyResult<PyRef<'py, Self>> {
        this.core.fencing_token().or_raise(py)?;
        Ok(this)
    }

    /// Gives them back, unless the block did, and raises what ``release()`` raises. An exception of the block is not masked:
    /// it gets a note.
    fn __exit__(
        &self,
        py: Python<'_>,
        exc_type: &Bound<'_, PyAny>,
        exc_value: &Bound<'_, PyAny>,
        traceback: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let _ = (exc_type, traceback);
        match self.give_back(py)? {
            Err(error) if error.status() == Status::NotOwner => Ok(()),
            Err(error) if !exc_value.is_none() => add_to(py, exc_value, "giving back the leases", &error),
            released => released.or_raise(py),
        }
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let path = PyString::new(py, &self.semaphore.get().path).repr()?;
        let quantity = self.core.quantity();
        match self.core.state() {
            Err(error) => Ok(format!("<zklock.Leases {path} quantity={quantity} {}>", word(error.status()))),
            Ok(state) => {
                let state = lock_state(py, state)?.getattr("name")?;
                let token = self.core.fencing_token().map(|token| format!(" token={token}")).unwrap_or_default();
                Ok(format!("<zklock.Leases {path} quantity={quantity} {state}{token}>"))
            }
        }
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.semaphore)
    }
}
