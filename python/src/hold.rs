//! The class `zklock.Hold`. Any thread may use a Hold, so the methods must not depend on the calling thread. The
//! methods pass the owner of the hold to the core.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use zklock::internal::{HoldIds, held_parts, hold_view, release_flags, start_release_of};
use zklock::{Call, Error, LockState, Owner, Status, WaitLost};
use zklock_core::engine::{HoldId, HoldView};

use crate::display::member_name;
use crate::errors::{EndedItem, OrRaise, end_block, status_word};
use crate::greenlet::WaitTarget;
use crate::hold_tracker::current_hold_tracker;
use crate::lock::Lock;
use crate::resource_warning::{is_released_with_object, warn};
use crate::seconds::{self, Seconds};
use crate::states::lock_state;
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
    owner: Owner,
    token: i64,
    pass: u32,
    /// Identifies the hold on each member lock, or on the lock. The owner may have released a member lock through its
    /// lock object, and may have acquired it again.
    ids: HoldIds,
    /// True after this object has released the hold.
    is_released: AtomicBool,
    /// For each member lock, or for the lock, whether the program has released the hold, for example through the lock
    /// object. The flags need no lock, so a forked child can read them.
    release_flags: Vec<Arc<AtomicBool>>,
}

impl Hold {
    pub(crate) fn acquire(lock: &Bound<'_, Lock>, timeout: Option<Seconds>) -> PyResult<Self> {
        let py = lock.py();
        let tracker = current_hold_tracker(py)?;
        let owner = tracker.get().owner();
        let ids = lock.get().acquire_and_wait(py, owner, timeout)?.or_raise(py)?;
        lock.get().set_latest_owner(tracker.get().owner(), tracker.get().who());
        Self::of_acquired(lock, owner, ids)
    }

    /// Makes a Hold for an owner that has just acquired the lock.
    pub(crate) fn of_acquired(lock: &Bound<'_, Lock>, owner: Owner, ids: HoldIds) -> PyResult<Self> {
        let py = lock.py();
        let HoldId { token, fencing_pass } =
            ids.smallest().ok_or_else(|| Error::from(Status::Internal)).or_raise(py)?;
        let (is_released, no_flags) = (AtomicBool::new(false), Vec::new());
        let lock = lock.clone().unbind();
        let mut hold = Self { lock, owner, token, pass: fencing_pass, ids, is_released, release_flags: no_flags };
        // The lock may have been lost since the acquire.
        let found = release_flags(hold.core(), &hold.ids);
        if let Err(error) = found.and_then(|flags| {
            hold.release_flags = flags;
            hold.check()
        }) {
            let _ = py.detach(|| hold.start_release_of(false));
            hold.is_released.store(true, Ordering::Release);
            return Err(error).or_raise(py);
        }
        Ok(hold)
    }

    fn core(&self) -> &zklock::Lock {
        &self.lock.get().core
    }

    /// Returns the state of this hold, or FREE if a part of the hold was released.
    fn current_state(&self) -> zklock::Result<LockState> {
        Ok(self.view()?.map_or(LockState::Free, |view| view.state))
    }

    /// Returns this hold, or `None` if a part of the hold was released.
    fn view(&self) -> zklock::Result<Option<HoldView>> {
        let view = hold_view(self.core(), &self.ids)?;
        Ok(view.filter(|_| !self.is_released.load(Ordering::Acquire)))
    }

    /// Returns whether the program has released the hold or a part of it. The method also works after the client is
    /// closed, and in a forked child.
    fn was_released(&self) -> bool {
        let mut flags = std::iter::once(&self.is_released).chain(self.release_flags.iter().map(Arc::as_ref));
        flags.any(|flag| flag.load(Ordering::Acquire))
    }

    fn released_error(&self) -> Error {
        Error::new(Status::NotOwner, format!("{}: this hold was already released", self.core().path()))
    }

    /// Returns true if every lock of the hold is already released. If the owner has released only some of a multi-lock's member locks,
    /// the multi-lock's hold is not over.
    fn is_over(&self) -> bool {
        self.is_released.load(Ordering::Acquire)
            || held_parts(self.core(), &self.ids).is_ok_and(|parts| parts.into_iter().all(|is_held| !is_held))
    }

    /// Fails with NOT_OWNER if the hold was released, and with LOST if it was lost.
    fn check(&self) -> zklock::Result<()> {
        match self.current_state()? {
            LockState::Free => Err(self.released_error()),
            LockState::Lost => self.core().fencing_token_as(self.owner).map(drop),
            _ => Ok(()),
        }
    }

    pub(crate) fn start_wait_lost(&self) -> zklock::Result<WaitLost> {
        match self.current_state()? {
            LockState::Free => Err(self.released_error()),
            _ => self.core().start_wait_lost(self.owner),
        }
    }

    /// Starts a release. The call ends when the server has confirmed the release.
    pub(crate) fn start_release(&self, py: Python<'_>) -> zklock::Result<Call<()>> {
        self.begin_release()?;
        let release = self.start_release_of(true);
        Lock::drop_if_free(self.lock.bind(py));
        if let Err(error) = &release {
            self.end_release(&Err(error.clone()));
        }
        release
    }

    fn start_release_of(&self, confirmed: bool) -> zklock::Result<Call<()>> {
        start_release_of(self.core(), &self.ids, confirmed)
    }

    /// Waits until the server has confirmed the release.
    fn release_confirmed(&self, py: Python<'_>) -> PyResult<zklock::Result<()>> {
        self.release_and_wait(py, || wait(py, WaitTarget::Release, || self.start_release_of(true), drop))
    }

    /// Calls `release` if the hold is not over, and otherwise returns an error.
    fn release_and_wait(
        &self,
        py: Python<'_>,
        release: impl FnOnce() -> PyResult<zklock::Result<()>>,
    ) -> PyResult<zklock::Result<()>> {
        if let Err(error) = self.begin_release() {
            return Ok(Err(error));
        }
        let released = release();
        Lock::drop_if_free(self.lock.bind(py));
        match &released {
            Ok(result) => self.end_release(result),
            // The release did not start, or an exception interrupted the wait for the confirmation.
            Err(_) => self.update_is_released(),
        }
        released
    }

    /// Marks the hold as released. Fails with NOT_OWNER if the hold is already over.
    fn begin_release(&self) -> zklock::Result<()> {
        let is_over = self.is_over();
        // If several threads release the hold at the same time, only one thread succeeds.
        if self.is_released.swap(true, Ordering::AcqRel) || is_over { Err(self.released_error()) } else { Ok(()) }
    }

    /// Removes the mark of `begin_release` if `released` says that the release was refused.
    fn end_release(&self, released: &zklock::Result<()>) {
        if let Err(error) = released
            && matches!(error.status(), Status::Closed | Status::Forked)
        {
            self.update_is_released();
        }
    }

    fn update_is_released(&self) {
        self.is_released.store(false, Ordering::Release);
        self.is_released.store(self.is_over(), Ordering::Release);
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
        let release = || self.start_release_of(false)?.wait();
        self.release_and_wait(py, || Ok(py.detach(release)))?.or_raise(py)
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
        self.token
    }

    /// The number of local hand-overs under the hold's fencing token before the hold began; see
    /// ``Lock.set_local_handover()``. If the hold did not begin with a local hand-over, ``fencing_pass`` is zero. If
    /// two writes have the same token, a store must also compare the values of ``fencing_pass``.
    #[getter]
    fn fencing_pass(&self) -> u32 {
        self.pass
    }

    /// The state of this hold, a LockState. After a release, the state is FREE. For a multi-lock, the state is FREE after the
    /// release of any one member lock. Does not block.
    #[getter]
    fn state<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        lock_state(py, self.current_state().or_raise(py)?)
    }

    /// The number of seconds for which this hold stays safe even if no server answers. If the hold is not safe,
    /// ``remaining`` is zero. Does not block.
    #[getter]
    fn remaining(&self, py: Python<'_>) -> PyResult<f64> {
        Ok(self.view().or_raise(py)?.map_or(0.0, |view| view.remaining.as_secs_f64()))
    }

    /// Whether this hold is safe at this moment. The property is False after the hold is released or lost, and after the client is
    /// closed. Does not block.
    #[getter]
    fn is_held(&self) -> bool {
        matches!(self.current_state(), Ok(LockState::Held | LockState::Suspended))
    }

    /// Whether this hold is unsafe and the program has not yet released it. ``is_lost`` is True if the state of the hold is UNCERTAIN
    /// or LOST, or if the client was closed during the hold. Does not block.
    #[getter]
    fn is_lost(&self) -> bool {
        match self.current_state() {
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

    /// Return this Hold. Raises NotOwner if the hold was already released, and LockLost if the hold was lost.
    fn __enter__<'py>(this: PyRef<'py, Self>, py: Python<'py>) -> PyResult<PyRef<'py, Self>> {
        this.check().or_raise(py)?;
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
        let item = EndedItem { doing: "releasing the lock", path: self.lock.get().path.as_deref(), was_safe };
        end_block(py, exc_value, &item, released)
    }

    /// Whether ``release()`` or ``release_nowait()`` of this Hold has released the lock.
    #[getter]
    fn _is_released(&self) -> bool {
        self.is_released.load(Ordering::Acquire)
    }

    /// Raise NotOwner if the hold was released, and LockLost if it was lost.
    fn _check(&self, py: Python<'_>) -> PyResult<()> {
        self.check().or_raise(py)
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let state = match self.current_state() {
            Err(error) => status_word(error.status()).to_owned(),
            Ok(state) => member_name(&lock_state(py, state)?)?,
        };
        Ok(format!("<zklock.Hold {} {state} token={}>", self.lock.get().quoted(py)?, self.token))
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.lock)
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if *self.is_released.get_mut() {
            return;
        }
        let state = self.current_state();
        if state.is_err() || self.is_over() {
            return;
        }
        Python::try_attach(|py| {
            let _ = py.detach(|| self.start_release_of(false));
            if is_released_with_object(&state) || state == Ok(LockState::Free) {
                let why = "the lock was released because its Hold was garbage-collected";
                let hint = "use a with or async with block, or keep the Hold and call release()";
                warn(py, || Ok(format!("{}: {why}: {hint}", self.lock.get().quoted(py)?)));
            }
        });
    }
}
