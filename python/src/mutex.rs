//! `zklock.Mutex`.

use pyo3::prelude::*;
use pyo3::types::PyString;
use zklock::{Acquiring, Call, Owner, Status};

use crate::errors::{OrRaise, add_to, raise, word};
use crate::participant::Participant;
use crate::parting::Parting;
use crate::seconds::{self, Seconds};
use crate::states::lock_state;
use crate::wait::wait;

/// A mutex on a path, made by ``Client.mutex()``: Curator's ``InterProcessMutex``.
///
/// The holder is a thread: threads of one process exclude each other and queue fairly, a thread that holds enters again
/// at once, and must release as many times. Methods may be called from any thread. A handle that is garbage-collected
/// releases what is held by it.
///
/// All methods raise ClientClosed once the client is closed, and Forked in the child of a fork.
#[pyclass(frozen, weakref, module = "zklock")]
pub(crate) struct Mutex {
    core: Parting<zklock::Lock>,
    path: String,
    timeout: Option<Seconds>,
}

impl Mutex {
    pub(crate) fn new(lock: zklock::Lock, path: String, timeout: Option<Seconds>) -> Self {
        Self { core: Parting::new(lock), path, timeout }
    }

    fn wait_for_it(&self, py: Python<'_>, timeout: Option<Seconds>) -> PyResult<zklock::Result<()>> {
        let lock: &zklock::Lock = &self.core;
        let limit = timeout.and_then(Seconds::limit);
        let start = || lock.start_acquire(Owner::current_thread(), limit);
        wait(py, start, Acquiring::wait_for, |()| {
            let _ = lock.release_nowait();
        })
    }

    fn give_back(&self, py: Python<'_>) -> PyResult<zklock::Result<()>> {
        let lock: &zklock::Lock = &self.core;
        wait(py, || lock.start_release(Owner::current_thread(), true), Call::wait_for, drop)
    }
}

#[pymethods]
impl Mutex {
    /// Acquires the lock for the calling thread, or enters it once more. True if it was got, False if time ran out.
    ///
    /// ``timeout`` is in seconds: None or infinity waits without limit, 0 looks once without waiting for anybody. Ctrl-C
    /// interrupts the wait, and no node stays behind. Raises ConnectionLost where no server answers by then, Canceled,
    /// ClientClosed; LockLost where this thread's hold was lost and is not released yet; Deadlock where this thread holds
    /// the path by another handle.
    #[pyo3(signature = (timeout=None))]
    fn acquire(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = seconds::timeout)] timeout: Option<Seconds>,
    ) -> PyResult<bool> {
        match self.wait_for_it(py, timeout)? {
            Ok(()) => Ok(true),
            Err(error) if error.status() == Status::Timeout => Ok(false),
            Err(error) => Err(raise(py, &error)),
        }
    }

    /// Releases one entry of the calling thread, and waits until the server has confirmed that the node is gone.
    ///
    /// Blocks for the session timeout at most; Ctrl-C interrupts the wait for the confirmation, not the release. Raises
    /// NotOwner in a thread that does not hold, and changes nothing then; LockLost where the hold had been lost,
    /// ConnectionLost where no server confirmed in time: it is released all the same.
    fn release(&self, py: Python<'_>) -> PyResult<()> {
        self.give_back(py)?.or_raise(py)
    }

    /// Releases one entry of the calling thread, and leaves the removal of the node to the library. Does not block.
    ///
    /// Raises NotOwner and LockLost as ``release()`` does.
    fn release_nowait(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.core.release_nowait()).or_raise(py)
    }

    /// Wakes those that wait on this handle now, with Canceled. Who waits later is not concerned. Does not block.
    fn cancel(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.core.cancel()).or_raise(py)
    }

    /// Who holds and who waits, in the order of the queue, whatever process they are in.
    ///
    /// Blocks for the session timeout at most; Ctrl-C interrupts it. Raises ConnectionLost where no server answers by then.
    fn participants(&self, py: Python<'_>) -> PyResult<Vec<Participant>> {
        let lock: &zklock::Lock = &self.core;
        let participants = wait(py, || lock.start_participants(), Call::wait_for, drop)?.or_raise(py)?;
        Ok(participants.into_iter().map(Participant::from).collect())
    }

    /// The data of the nodes that later acquires create; None means this host's address, as in Curator.
    fn set_data(&self, py: Python<'_>, data: Option<&[u8]>) -> PyResult<()> {
        self.core.set_data(data).or_raise(py)
    }

    /// Whether the calling thread holds the lock, and safely so at this moment: its session is surely alive. Does not block.
    #[getter]
    fn is_held(&self, py: Python<'_>) -> PyResult<bool> {
        self.core.is_held().or_raise(py)
    }

    /// Whether any thread of this process holds the lock by this handle, and safely so. Does not block.
    #[getter]
    fn is_held_in_process(&self, py: Python<'_>) -> PyResult<bool> {
        self.core.is_held_in_process().or_raise(py)
    }

    /// How the calling thread's hold stands, or else that of another thread by this handle: a LockState. Does not block.
    #[getter]
    fn state<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        lock_state(py, self.core.state().or_raise(py)?)
    }

    /// For how many seconds that hold is safe without hearing from a server; 0.0 where nobody holds safely. Does not block.
    #[getter]
    fn remaining(&self, py: Python<'_>) -> PyResult<f64> {
        match self.core.remaining() {
            Err(error) if matches!(error.status(), Status::NotOwner | Status::Lost) => Ok(0.0),
            remaining => Ok(remaining.or_raise(py)?.as_secs_f64()),
        }
    }

    /// The fencing token of that hold: an int that grows with every hold of the path, for a store to refuse the stale.
    ///
    /// Does not block. Raises NotOwner where nobody holds, LockLost where the hold was lost.
    #[getter]
    fn fencing_token(&self, py: Python<'_>) -> PyResult<i64> {
        self.core.fencing_token().or_raise(py)
    }

    /// The lock's path, without the client's chroot.
    #[getter]
    fn path(&self) -> &str {
        &self.path
    }

    /// Acquires, with the timeout that ``Client.mutex()`` was given. Raises LockTimeout where it runs out, and what
    /// ``acquire()`` raises.
    fn __enter__<'py>(this: PyRef<'py, Self>, py: Python<'py>) -> PyResult<PyRef<'py, Self>> {
        this.wait_for_it(py, this.timeout)?.or_raise(py)?;
        Ok(this)
    }

    /// Releases, and raises what ``release()`` raises. An exception of the block is not masked: it gets a note.
    fn __exit__(
        &self,
        py: Python<'_>,
        exc_type: &Bound<'_, PyAny>,
        exc_value: &Bound<'_, PyAny>,
        traceback: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let _ = (exc_type, traceback);
        match self.give_back(py)? {
            Err(error) if !exc_value.is_none() => add_to(py, exc_value, "releasing the lock", &error),
            released => released.or_raise(py),
        }
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let path = PyString::new(py, &self.path).repr()?;
        match self.core.state() {
            Err(error) => Ok(format!("<zklock.Mutex {path} {}>", word(error.status()))),
            Ok(state) => {
                let state = lock_state(py, state)?.getattr("name")?;
                let token = self.core.fencing_token().map(|token| format!(" token={token}")).unwrap_or_default();
                Ok(format!("<zklock.Mutex {path} {state}{token}>"))
            }
        }
    }
}
