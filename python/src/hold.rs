//! The class `zklock.Hold`. Any thread may use a Hold, so the methods must not depend on the calling thread. The
//! methods pass the owner of the hold to the core.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use zklock::internal::{check_exists, is_released, release_flags};
use zklock::{LockState, Operation, Period, Status};

use crate::detached_drop::DetachedDrop;
use crate::display::member_name;
use crate::errors::{EndedItem, OrRaise, end_block, status_word};
use crate::greenlet::WaitTarget;
use crate::hold_tracker::current_hold_tracker;
use crate::lock::Lock;
use crate::once::OncePer;
use crate::resource_warning::{is_released_with_object, warn};
use crate::seconds::{self, Seconds};
use crate::states::lock_state;
use crate::text;
use crate::wait::{wait, wait_lost};

/// A hold of a lock. ``Lock.hold()`` returns a Hold.
///
/// A Hold ends when the program calls ``release()``, at the end of a ``with`` block, or when the Hold is garbage-collected. If a
/// Hold is garbage-collected before its release, the library releases the lock, does not wait for the server, and issues a
/// ResourceWarning.
///
/// Any thread may use a Hold, for instance a thread that watches the hold of another thread. ``token``, ``fencing_pass``, ``is_lost``
/// and ``is_held`` also work after the client is closed, and in a forked child process. The methods of a Hold, and the properties
/// ``state`` and ``remaining``, raise ClientClosed after the client is closed, and raise Forked in a forked child process.
#[pyclass(frozen, weakref, module = "zklock")]
pub(crate) struct Hold {
    lock: Py<Lock>,
    core: DetachedDrop<zklock::Hold>,
    /// For each member lock, or for the lock, whether the program has released the hold, for example through the lock
    /// object. The flags need no lock, so a forked child can read them.
    release_flags: Vec<Arc<AtomicBool>>,
}

/// The result of ``Lock.try_hold()``.
#[derive(IntoPyObject)]
pub(crate) enum TryHold {
    Held(Hold),
    Busy(Busy),
}

/// The result of ``Lock.try_hold()`` if the lock is busy. The object is false, and stands for None in a ``with`` block.
#[pyclass(frozen, name = "_Busy", module = "zklock")]
pub(crate) struct Busy {
    /// The quoted path of the lock.
    path: String,
}

#[pymethods]
impl Busy {
    fn __bool__(&self) -> bool {
        false
    }

    /// Return None.
    const fn __enter__(&self) {}

    /// Do nothing.
    fn __exit__(&self, exc_type: &Bound<'_, PyAny>, exc_value: &Bound<'_, PyAny>, traceback: &Bound<'_, PyAny>) {
        let _ = (exc_type, exc_value, traceback);
    }

    fn __repr__(&self) -> String {
        format!("<zklock: {} is busy>", self.path)
    }
}

impl Hold {
    pub(crate) fn acquire(lock: &Bound<'_, Lock>, timeout: Option<Seconds>) -> PyResult<zklock::Result<Self>> {
        let py = lock.py();
        let tracker = current_hold_tracker(py)?;
        let owner = tracker.get().owner();
        match lock.get().acquire_and_wait(py, owner, timeout)? {
            Err(error) => Ok(Err(error)),
            Ok(hold) => {
                lock.get().set_latest_owner(owner, tracker.get().who());
                Self::of_acquired(lock, hold).map(Ok)
            }
        }
    }

    /// Acquires the lock if it is free.
    pub(crate) fn try_acquire(lock: &Bound<'_, Lock>) -> PyResult<TryHold> {
        match Self::acquire(lock, Some(Seconds::ZERO))? {
            Err(error) if error.status() == Status::Timeout => {
                Ok(TryHold::Busy(Busy { path: lock.get().quoted(lock.py())? }))
            }
            held => held.or_raise(lock.py()).map(TryHold::Held),
        }
    }

    /// Makes a Hold for an owner that has just acquired the lock.
    pub(crate) fn of_acquired(lock: &Bound<'_, Lock>, hold: zklock::Hold) -> PyResult<Self> {
        let (py, core) = (lock.py(), DetachedDrop::new(hold));
        // The lock may have been lost since the acquire. The hold is then released here.
        let release_flags = check_exists(&core).and_then(|()| release_flags(&core)).or_raise(py)?;
        Ok(Self { lock: lock.clone().unbind(), core, release_flags })
    }

    /// Returns whether the program has released the hold or a part of it. The method also works after the client is
    /// closed, and in a forked child.
    fn was_released(&self) -> bool {
        is_released(&self.core) || self.release_flags.iter().any(|flag| flag.load(Ordering::Acquire))
    }

    /// Returns the path of the lock, or `None` for a multi-lock.
    fn path_or_none(&self) -> Option<&str> {
        self.lock.get().path.as_deref()
    }

    pub(crate) fn start_wait_lost(&self) -> zklock::Result<Operation<()>> {
        self.core.start_wait_lost()
    }

    /// Starts a release. The operation ends when the server has confirmed the release.
    pub(crate) fn start_release(&self, py: Python<'_>) -> zklock::Result<Operation<()>> {
        let release = self.core.start_release(true);
        Lock::drop_if_free(self.lock.bind(py));
        release
    }

    /// Waits until the server has confirmed the release.
    fn release_confirmed(&self, py: Python<'_>) -> PyResult<zklock::Result<()>> {
        let core: &zklock::Hold = &self.core;
        let released = wait(py, WaitTarget::Release, || core.start_release(true), drop);
        Lock::drop_if_free(self.lock.bind(py));
        released
    }
}

#[pymethods]
impl Hold {
    /// Release the lock, and wait until the server has confirmed the removal of the node. The call does not wait if it passes the lock
    /// to another thread of this process; see ``Lock.set_local_handover()``. Any thread may call this method.
    ///
    /// The call blocks for at most the session timeout. Ctrl-C interrupts the wait for the confirmation, but does not undo the release.
    /// Raises NotOwner if the hold was already released, and LockLost if the hold was lost. Raises ConnectionLost if no server
    /// confirmed the release within the session timeout, and Exhausted if the process had no descriptor for a connection. The release takes
    /// effect unless the call raises NotOwner. If a member lock of a multi-lock was already released, the call releases the other member
    /// locks, and then raises NotOwner. The call never releases a later hold of a member lock.
    fn release(&self, py: Python<'_>) -> PyResult<()> {
        self.release_confirmed(py)?.or_raise(py)
    }

    /// Release the lock. The call does not block, because the library removes the node in the background. Any thread may call this
    /// method.
    ///
    /// The method raises NotOwner and LockLost in the same cases as ``release()``.
    fn release_nowait(&self, py: Python<'_>) -> PyResult<()> {
        let core: &zklock::Hold = &self.core;
        let released = py.detach(|| core.release_nowait());
        Lock::drop_if_free(self.lock.bind(py));
        released.or_raise(py)
    }

    /// The lock to which this hold belongs.
    #[getter]
    fn lock(&self, py: Python<'_>) -> Py<Lock> {
        self.lock.clone_ref(py)
    }

    /// The lock's path, without the client's chroot. For a multi-lock, this property raises AttributeError.
    #[getter]
    fn path(&self) -> PyResult<&str> {
        self.lock.get().path_or_error()
    }

    /// The fencing token of this hold: an int that grows with every hold of the path. A store that compares tokens can refuse
    /// writers that have lost the lock. For a read lock that its owner acquired under the write lock, send the token of the write
    /// lock. The token of a Hold does not change after a loss or a release.
    #[getter]
    fn token(&self) -> i64 {
        self.core.token()
    }

    /// The number of local hand-overs under the hold's fencing token before the hold began; see
    /// ``Lock.set_local_handover()``. If the hold did not begin with a local hand-over, ``fencing_pass`` is zero. If
    /// two writes have the same token, a store must also compare the values of ``fencing_pass``.
    #[getter]
    fn fencing_pass(&self) -> u32 {
        self.core.fencing_pass()
    }

    /// The state of this hold, a LockState. After a release, the state is FREE. For a multi-lock, the state is FREE after the
    /// release of any one member lock. Does not block.
    #[getter]
    fn state<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        lock_state(py, self.core.state().or_raise(py)?)
    }

    /// The number of seconds for which this hold stays safe even if no server answers. If the hold is not safe,
    /// ``remaining`` is zero. Does not block.
    #[getter]
    fn remaining(&self, py: Python<'_>) -> PyResult<f64> {
        Ok(self.core.remaining().or_raise(py)?.as_secs_f64())
    }

    /// Whether this hold is safe at this moment. The property is False after the hold is released or lost, and after the client is
    /// closed. Does not block.
    #[getter]
    fn is_held(&self) -> bool {
        self.core.is_held().unwrap_or(false)
    }

    /// Whether this hold is unsafe and the program has not yet released it. ``is_lost`` is True if the state of the hold is UNCERTAIN
    /// or LOST, or if the client was closed during the hold. Does not block.
    #[getter]
    fn is_lost(&self) -> bool {
        match self.core.state() {
            Ok(state) => matches!(state, LockState::Uncertain | LockState::Lost),
            Err(_) => !self.was_released(),
        }
    }

    /// Wait until this hold is no longer safe, and then return True. Return False if the hold is still safe after ``timeout`` seconds.
    /// Any thread may wait.
    ///
    /// The wait ends when the state of the hold becomes UNCERTAIN or LOST, even if the state changes back to HELD afterwards. With a
    /// timeout of None or infinity, the call waits without limit. With a timeout of 0, the call checks the hold once. Ctrl-C interrupts
    /// the wait. If the owner has re-entered the lock, the wait continues until the owner's last release.
    ///
    /// Raises NotOwner if the hold is released before or during the wait. Raises ClientClosed if the client is closed. In a callback,
    /// the call raises Deadlock unless the timeout is 0.
    #[pyo3(signature = (timeout=None))]
    fn wait_lost(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = seconds::timeout)] timeout: Option<Seconds>,
    ) -> PyResult<bool> {
        wait_lost(py, timeout, || self.start_wait_lost())
    }

    /// Raise LockLost if this hold is not safe at this moment, and NotOwner if the hold was released. Call ``check()`` between the
    /// steps of the work. Does not block.
    fn check(&self, py: Python<'_>) -> PyResult<()> {
        self.core.check().or_raise(py)
    }

    /// Return a block for the work of a job that runs once in each period. Many programs can start the job, and one of them then runs it
    /// in each period::
    ///
    ///     with lock.hold() as hold, hold.once_per("day", zone="UTC") as run:
    ///         if run is not None:
    ///             work(fence=hold.token)
    ///
    /// The block receives a Run, or None if the job has already run in this period. The end of the block records that the job succeeded.
    /// If the block raises an exception, it records that the job failed. The record of runs is the data of the node ``<path>-runs``, which
    /// the command ``zklock run --once-per`` also uses. For a multi-lock, the path is that of its first member lock. The servers write the
    /// record only while this hold exists.
    ///
    /// ``period`` is ``minute``, ``hour``, ``day``, ``week``, ``month``, ``@hourly``, ``@daily``, ``@midnight``, ``@weekly``, ``@monthly``,
    /// or a time in whole seconds such as ``30m`` or ``2h``. ``zone`` is the time zone of hours, days, weeks and months, for example
    /// ``Europe/Berlin``. None means the zone of this host. By default, a run that failed or was interrupted also counts. If
    /// ``retry_failed`` is true, the job runs again in this case. A run counts as interrupted if its process died or lost the lock. All
    /// programs that start the job must use the same period, the same zone and the same kind of lock.
    ///
    /// The beginning of the block blocks for at most three times the session timeout, and Ctrl-C interrupts it. The library then
    /// removes the run from the record. The call raises ValueError if an argument is not valid. The beginning of the block raises
    /// ValueError if several participants can hold the lock at the same time, for example a read lock, or if the node of the record
    /// contains other data. It raises LockLost if the hold was lost, NotOwner if the program has released it, ForeignContender if the
    /// last run still holds another kind of lock on this path, and ConnectionLost if no server answered.
    #[pyo3(signature = (period, *, retry_failed=false, zone=None), text_signature = "($self, period, *, retry_failed=False, zone=None)")]
    fn once_per(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = text::period)] period: String,
        #[pyo3(from_py_with = text::retry_failed)] retry_failed: bool,
        #[pyo3(from_py_with = text::zone)] zone: Option<String>,
    ) -> PyResult<OncePer> {
        let mut period = Period::new(&period).or_raise(py)?;
        if let Some(zone) = zone {
            period = period.in_zone(&zone).or_raise(py)?;
        }
        let (hold, quoted) = (zklock::Hold::clone(&self.core), self.lock.get().quoted(py)?);
        Ok(OncePer::new(hold, self.path_or_none(), quoted, period, retry_failed))
    }

    /// Return this Hold. Raises NotOwner if the hold was already released, and LockLost if the hold was lost.
    fn __enter__<'py>(this: PyRef<'py, Self>, py: Python<'py>) -> PyResult<PyRef<'py, Self>> {
        check_exists(&this.core).or_raise(py)?;
        Ok(this)
    }

    /// Release the lock, unless the block has already called ``release()`` of this Hold. The errors are the same as for
    /// ``release()``, except in one case. If the hold was safe at the end of the block and no server confirms the
    /// release, the method only logs a warning. If both the block and the release fail, the exception of the block
    /// propagates, with a note about the failed release.
    /// If Python closes a generator during the block, Python discards this exception, so the method also logs the failed
    /// release.
    fn __exit__(
        &self,
        py: Python<'_>,
        exc_type: &Bound<'_, PyAny>,
        exc_value: &Bound<'_, PyAny>,
        traceback: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let _ = (exc_type, traceback);
        if self._is_released() {
            return Ok(());
        }
        let was_safe = self.is_held();
        let released = self.release_confirmed(py)?;
        let item = EndedItem { doing: "releasing the lock", path: self.path_or_none(), was_safe };
        end_block(py, exc_value, &item, released)
    }

    /// Whether ``release()`` or ``release_nowait()`` of this Hold has released the lock.
    #[getter]
    fn _is_released(&self) -> bool {
        is_released(&self.core)
    }

    /// Raise NotOwner if the hold was released, and LockLost if it was lost.
    fn _check(&self, py: Python<'_>) -> PyResult<()> {
        check_exists(&self.core).or_raise(py)
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let state = match self.core.state() {
            Err(error) => status_word(error.status()).to_owned(),
            Ok(state) => member_name(&lock_state(py, state)?)?,
        };
        Ok(format!("<zklock.Hold {} {state} token={}>", self.lock.get().quoted(py)?, self.core.token()))
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.lock)
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let state = self.core.state();
        // A hold of a multi-lock is FREE if some of its member locks were released.
        let is_partly_held =
            state == Ok(LockState::Free) && !self.release_flags.iter().all(|flag| flag.load(Ordering::Acquire));
        if !is_released(&self.core) && (is_released_with_object(&state) || is_partly_held) {
            Python::try_attach(|py| {
                let why = "the lock was released because its Hold was garbage-collected";
                let hint = "use a with or async with block, or keep the Hold and call release()";
                warn(py, || Ok(format!("{}: {why}: {hint}", self.lock.get().quoted(py)?)));
            });
        }
    }
}
