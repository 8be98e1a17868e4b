//! The classes `zklock.Semaphore` and `zklock.Leases`. Leases have no owner, so this file must not identify the calling thread or
//! greenlet.

use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use zklock::internal::{check_exists, is_released, refuse_in_callback};
use zklock::{Listen, LockState, Status};

use crate::callback::{RevocationCallback, start_thread};
use crate::detached_drop::DetachedDrop;
use crate::display::{member_name, quoted};
use crate::errors::{EndedItem, OrRaise, end_block, ignore_forked, status_word};
use crate::event::{CallbackDispatcher, ClientEvents, Listener, Listeners};
use crate::greenlet::WaitTarget;
use crate::log;
use crate::participant::{self, Participant, Waiting};
use crate::resource_warning::{is_released_with_object, warn};
use crate::seconds::{self, AcquireTimeout, Seconds};
use crate::states::lock_state;
use crate::wait::{wait, wait_lost};
use crate::{int_args, text};

/// A semaphore, like Curator's ``InterProcessSemaphoreV2``. ``Client.semaphore()`` makes a Semaphore, and ``acquire()`` returns
/// Leases.
///
/// Leases do not belong to a thread: any thread may use and release the leases. Any thread may call the methods of a semaphore. All
/// methods except ``close()`` raise ClientClosed after the semaphore or its client is closed, and raise Forked in a forked child
/// process.
#[pyclass(frozen, weakref, module = "zklock")]
pub(crate) struct Semaphore {
    pub(crate) core: DetachedDrop<zklock::Semaphore>,
    path: String,
    /// The number of leases, for `repr()`.
    size: String,
    pub(crate) timeout: Option<Seconds>,
    callback: RevocationCallback,
    /// The `ClientEvents` of the client.
    events: Py<ClientEvents>,
}

impl Semaphore {
    pub(crate) fn new(
        semaphore: zklock::Semaphore,
        path: String,
        size: String,
        timeout: Option<Seconds>,
        events: Py<ClientEvents>,
    ) -> Self {
        Self {
            core: DetachedDrop::new(semaphore),
            path,
            size,
            timeout,
            callback: RevocationCallback::default(),
            events,
        }
    }

    /// Sets the revocation callback as `set_revocable()` does, but does not start the thread that calls callbacks.
    pub(crate) fn set_revocation_callback(&self, callback: &Bound<'_, PyAny>) -> PyResult<()> {
        let semaphore: &zklock::Semaphore = &self.core;
        self.callback.set(callback, |handler| semaphore.set_revocable(handler))
    }
}

#[pymethods]
impl Semaphore {
    /// Acquire ``quantity`` leases, and return a Leases object. The call acquires either all ``quantity`` leases or no lease. Use the
    /// Leases object in a ``with`` block, or call its ``release()`` method.
    ///
    /// ``timeout`` is a number of seconds. Without this argument, the call uses the ``timeout`` that the program chose when it made the
    /// semaphore. With a timeout of None or infinity, the call waits without limit. With a timeout of 0, the call makes one attempt and
    /// does not wait for other participants. The semaphore serves waiting calls in queue order, so a call
    /// that requests few leases cannot overtake an earlier call that requests many. Ctrl-C interrupts the wait. The library then
    /// removes the nodes of the interrupted call from the queue.
    ///
    /// Raises LockTimeout if the timeout passes, and ConnectionLost if no server answers within the timeout. Raises Canceled if
    /// ``cancel()`` ends the wait, and ClientClosed if the semaphore or its client is closed. Raises ValueError if ``quantity`` is
    /// greater than ``max_leases``. For a semaphore with a shared count, ``quantity`` may be greater than the count; the call then
    /// waits until the count is large enough. In a callback, the call raises Deadlock unless the timeout is 0. In the hub of gevent or
    /// eventlet, the call always raises Deadlock. In a greenlet without a hub, the call raises Unsupported unless the timeout is 0.
    #[pyo3(
        signature = (quantity=1, *, timeout=AcquireTimeout::Own),
        text_signature = "($self, quantity=1, *, timeout=...)"
    )]
    fn acquire(
        this: &Bound<'_, Self>,
        #[pyo3(from_py_with = int_args::quantity)] quantity: i32,
        #[pyo3(from_py_with = seconds::acquire_timeout)] timeout: AcquireTimeout,
    ) -> PyResult<Leases> {
        let timeout = timeout.or(this.get().timeout);
        let (py, semaphore) = (this.py(), &*this.get().core);
        log::sync_level(py)?;
        let limit = timeout.and_then(Seconds::limit);
        let start = || {
            refuse_in_callback(limit)?;
            semaphore.start_acquire(quantity, limit)
        };
        let leases = wait(py, WaitTarget::within(limit), start, drop)?.or_raise(py)?;
        Ok(Leases::new(leases, this.clone().unbind()))
    }

    /// Cancel all calls that wait for leases of this Semaphore. The cancelled calls raise Canceled. ``cancel()`` does
    /// not affect later calls. Does not block.
    fn cancel(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.core.cancel()).or_raise(py)
    }

    /// Return a list of the Participants from all processes. The list begins with the held leases, from the oldest to the newest. The
    /// waiters follow the held leases.
    ///
    /// The call blocks for at most the session timeout, and Ctrl-C interrupts the call. Raises ConnectionLost if no server answers
    /// within the session timeout.
    fn participants(&self, py: Python<'_>) -> PyResult<Vec<Participant>> {
        let semaphore: &zklock::Semaphore = &self.core;
        participant::all(py, || semaphore.start_participants())
    }

    /// Return a list of Waiting objects, one for each call that waits for leases of this object; see ``Lock.waiting()``. Does not
    /// block.
    fn waiting(&self, py: Python<'_>) -> PyResult<Vec<Waiting>> {
        Ok(participant::waiting(self.core.waiting().or_raise(py)?))
    }

    /// Set the data for the nodes that later calls create. If ``data`` is None, the nodes contain the address of this host, as in
    /// Curator.
    fn set_data(&self, py: Python<'_>, #[pyo3(from_py_with = text::data)] data: Option<PyBackedBytes>) -> PyResult<()> {
        self.core.set_data(data.as_deref()).or_raise(py)
    }

    /// Set the callback for revocation requests; None removes the callback. If a participant asks for the release of a
    /// lease, the library calls the callback with the node path of the lease; see ``Lock.set_revocable()``.
    fn set_revocable(&self, callback: &Bound<'_, PyAny>) -> PyResult<()> {
        if callback.is_callable() {
            start_thread(callback.py())?;
        }
        self.set_revocation_callback(callback)
    }

    /// Close the semaphore. Calls that are waiting for leases raise ClientClosed. All later calls also raise
    /// ClientClosed. Leases that are already held stay valid until their release. A program may call ``close()``
    /// several times. In a forked child process, ``close()`` does nothing. Does not block.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        ignore_forked(py.detach(|| self.core.close())).or_raise(py)
    }

    /// The semaphore's path, without the client's chroot.
    #[getter]
    fn path(&self) -> &str {
        &self.path
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        Ok(format!("<zklock.Semaphore {} {}>", quoted(py, &self.path)?, self.size))
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.events)?;
        self.callback.traverse(&visit)
    }
}

/// Leases of a semaphore. ``Semaphore.acquire()`` returns a Leases object.
///
/// The library releases all leases of the object together. The release happens when the program calls ``release()``, at the end of a
/// ``with`` block, or when the object is garbage-collected. If a Leases object is garbage-collected before its release, the library
/// issues a ResourceWarning and does not wait for the server.
///
/// Any thread may use and release the leases. All methods raise ClientClosed after the client is closed, and raise Forked in a forked
/// child process.
#[pyclass(frozen, weakref, module = "zklock")]
pub(crate) struct Leases {
    pub(crate) core: DetachedDrop<zklock::Hold>,
    /// This reference keeps the semaphore alive, because revocation requests for these leases go to the semaphore's callback.
    semaphore: Py<Semaphore>,
    listeners: Listeners,
}

impl Leases {
    pub(crate) fn new(leases: zklock::Hold, semaphore: Py<Semaphore>) -> Self {
        Self { core: DetachedDrop::new(leases), semaphore, listeners: Listeners::default() }
    }

    fn release_and_wait(&self, py: Python<'_>) -> PyResult<zklock::Result<()>> {
        let leases: &zklock::Hold = &self.core;
        wait(py, WaitTarget::Release, || leases.start_release(true), drop)
    }
}

impl Leases {
    pub(crate) fn listen(
        &self,
        callback: &Bound<'_, PyAny>,
        which: Listen,
        dispatcher: CallbackDispatcher,
    ) -> PyResult<Py<Listener>> {
        let (py, leases) = (callback.py(), &*self.core);
        self.listeners.listen(callback, dispatcher, |listener| {
            let handler = listener.handler(py, self.semaphore.get().events.get().names())?;
            Ok(vec![DetachedDrop::new(py.detach(|| leases.listen(which, handler)).or_raise(py)?)])
        })
    }
}

impl Drop for Leases {
    fn drop(&mut self) {
        if is_released_with_object(&self.core.state()) {
            let (path, quantity) = (&self.semaphore.get().path, self.core.quantity());
            let released = match quantity {
                1 => "1 lease was released because its object was garbage-collected".to_owned(),
                _ => format!("{quantity} leases were released because their object was garbage-collected"),
            };
            let hint = "keep the object and call release(), or use a with block";
            Python::try_attach(|py| warn(py, || Ok(format!("{}: {released}: {hint}", quoted(py, path)?))));
        }
    }
}

#[pymethods]
impl Leases {
    /// Release all leases of this object, and wait until the server has confirmed that their nodes are deleted.
    ///
    /// The call blocks for at most the session timeout. Ctrl-C interrupts the wait for the confirmation, but does not undo the release.
    /// Raises NotOwner if the leases were already released, and LockLost if one of the leases was lost. Raises ConnectionLost if no
    /// server confirmed the release within the session timeout, and Exhausted if the process had no descriptor for a connection. The
    /// release takes effect unless the call raises NotOwner.
    fn release(&self, py: Python<'_>) -> PyResult<()> {
        self.release_and_wait(py)?.or_raise(py)
    }

    /// Release all leases of this object. The call does not block, because the library removes the nodes in the background.
    ///
    /// The method raises NotOwner and LockLost in the same cases as ``release()``.
    fn release_nowait(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.core.release_nowait()).or_raise(py)
    }

    /// The number of leases. A release does not change ``quantity``.
    #[getter]
    fn quantity(&self) -> i32 {
        self.core.quantity()
    }

    /// Whether the leases are held and safe at this moment. Does not block.
    #[getter]
    fn is_held(&self, py: Python<'_>) -> PyResult<bool> {
        self.core.is_held().or_raise(py)
    }

    /// The state of the leases, a LockState. After a release, the state is FREE. Does not block.
    #[getter]
    fn state<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        lock_state(py, self.core.state().or_raise(py)?)
    }

    /// The number of seconds for which the leases stay safe even if no server answers. If the leases are not safe,
    /// ``remaining`` is zero. Does not block.
    #[getter]
    fn remaining(&self, py: Python<'_>) -> PyResult<f64> {
        Ok(self.core.remaining().or_raise(py)?.as_secs_f64())
    }

    /// The fencing token of the leases: an int that grows each time a client acquires leases of the semaphore. A store that compares
    /// tokens can refuse writers that have lost their leases.
    ///
    /// Does not block. Raises NotOwner if the leases were released, and LockLost if the leases were lost.
    #[getter]
    fn fencing_token(&self, py: Python<'_>) -> PyResult<i64> {
        self._check(py)?;
        Ok(self.core.token())
    }

    /// The fencing token of the leases, which does not change after a loss or a release. See ``fencing_token``. Does not block.
    #[getter]
    fn token(&self) -> i64 {
        self.core.token()
    }

    /// Whether the leases are unsafe and the program has not yet released them. ``is_lost`` is True if the state of the leases is
    /// UNCERTAIN or LOST, or if the client was closed before the release. Does not block.
    #[getter]
    fn is_lost(&self) -> bool {
        match self.core.state() {
            Ok(state) => matches!(state, LockState::Uncertain | LockState::Lost),
            Err(_) => !is_released(&self.core),
        }
    }

    /// Raise LockLost if the leases are not safe at this moment, and NotOwner if they were released. Does not block.
    fn check(&self, py: Python<'_>) -> PyResult<()> {
        self.core.check().or_raise(py)
    }

    /// The paths of the leases' nodes, without the client's chroot. Does not block. Raises the same errors as ``fencing_token``.
    #[getter]
    fn node_paths(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        self.core.node_paths().or_raise(py)
    }

    /// Wait until at least one of these leases is no longer safe, and then return True. Return False if all leases are still safe
    /// after ``timeout`` seconds. Any thread may wait.
    ///
    /// The documentation of ``Lock.wait_lost()`` describes the timeout and the errors. Raises NotOwner if the leases are released
    /// before or during the wait.
    #[pyo3(signature = (timeout=None))]
    fn wait_lost(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = seconds::timeout)] timeout: Option<Seconds>,
    ) -> PyResult<bool> {
        let leases: &zklock::Hold = &self.core;
        wait_lost(py, timeout, || leases.start_wait_lost())
    }

    /// Add a callback for losses of these leases, and return a Listener; see ``Lock.on_lost()``. Raises NotOwner if the leases were
    /// already released.
    fn on_lost(&self, callback: &Bound<'_, PyAny>) -> PyResult<Py<Listener>> {
        self.listen(callback, Listen::Loss, CallbackDispatcher::Thread)
    }

    /// Add a callback for every change in the state of these leases, and return a Listener; see ``Lock.on_event()``. Raises NotOwner
    /// if the leases were already released.
    fn on_event(&self, callback: &Bound<'_, PyAny>) -> PyResult<Py<Listener>> {
        self.listen(callback, Listen::All, CallbackDispatcher::Thread)
    }

    /// Return this object. Raises NotOwner if the leases were already released, and LockLost if the leases were lost.
    fn __enter__<'py>(this: PyRef<'py, Self>, py: Python<'py>) -> PyResult<PyRef<'py, Self>> {
        this._check(py)?;
        Ok(this)
    }

    /// Release the leases, unless the block has already released them. The errors are the same as for ``release()``, except in one
    /// case. If the leases were safe at the end of the block but no server confirms the release, the method logs a warning and raises no
    /// exception. If both the block and the release fail, the exception of the block propagates, with a note about the failed release.
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
        let was_safe = self.core.is_held().unwrap_or(false);
        match self.release_and_wait(py)? {
            Err(error) if error.status() == Status::NotOwner => Ok(()),
            released => {
                let path = Some(&*self.semaphore.get().path);
                let item = EndedItem { doing: "releasing the leases", path, was_safe };
                end_block(py, exc_value, &item, released)
            }
        }
    }

    /// Raise NotOwner if the leases were released, and LockLost if the leases were lost.
    fn _check(&self, py: Python<'_>) -> PyResult<()> {
        check_exists(&self.core).or_raise(py)
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let path = quoted(py, &self.semaphore.get().path)?;
        let quantity = self.core.quantity();
        match self.core.state() {
            Err(error) => Ok(format!("<zklock.Leases {path} quantity={quantity} {}>", status_word(error.status()))),
            Ok(state) => {
                let state = member_name(&lock_state(py, state)?)?;
                let token =
                    check_exists(&self.core).map(|()| format!(" token={}", self.core.token())).unwrap_or_default();
                Ok(format!("<zklock.Leases {path} quantity={quantity} {state}{token}>"))
            }
        }
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        self.listeners.traverse(&visit)?;
        visit.call(&self.semaphore)
    }
}
