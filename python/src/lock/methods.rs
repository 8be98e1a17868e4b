//! The methods of the class `zklock.Lock`. The methods act for the calling thread or greenlet, and record the holds of
//! the caller in a `HoldTracker`. Only Python may call these methods. The functions that other Rust files need are in
//! `lock.rs`.

use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyDict;
use zklock::{HoldView, Listen, Owner, Status};

use super::{Lock, SemaphoreMutex, seconds_left, state_of};
use crate::callback::start_thread;
use crate::errors::{EndedItem, OrRaise, end_block, to_py_err};
use crate::event::{CallbackDispatcher, Listener};
use crate::hold::{Hold, TryHold};
use crate::hold_tracker::{current_hold_tracker, current_owner};
use crate::participant::{self, Participant, Waiting};
use crate::seconds::{self, AcquireTimeout, Seconds};
use crate::states::lock_state;
use crate::{int_args, text, unknown_args};

impl Lock {
    /// Returns the hold of the calling thread or greenlet.
    fn view(&self, py: Python<'_>) -> PyResult<Option<HoldView>> {
        self.core.view(current_owner(py)?).or_raise(py)
    }
}

#[pymethods]
impl Lock {
    /// Acquire or re-enter the lock for the calling thread. Return True on success, and False if the timeout passes.
    ///
    /// ``timeout`` is a number of seconds. Without this argument, the call uses the ``timeout`` that the program chose when it made the
    /// lock. With a timeout of None or infinity, the call waits without limit. With a timeout of 0, the call makes one attempt and does
    /// not wait for other participants. Ctrl-C interrupts the wait. The library then removes the node
    /// of the interrupted call from the queue.
    ///
    /// Raises ConnectionLost if no server answers within the timeout, Canceled if ``cancel()`` ends the wait, and ClientClosed if
    /// the client is closed. Raises LockLost if an earlier hold of the thread on this lock object was lost, and the thread has not
    /// released the lost hold yet. Raises ForeignContender if an incompatible kind of lock uses the path. Raises Deadlock if the
    /// thread already holds the lock on this path through another lock object, or if the thread holds the read lock and tries to
    /// acquire the write lock. In a callback, the call raises Deadlock unless the timeout is 0. In the hub of gevent or eventlet,
    /// the call always raises Deadlock. In a greenlet without a hub, the call raises Unsupported unless the timeout is 0.
    #[pyo3(signature = (*, timeout=AcquireTimeout::Own, **unknown), text_signature = "($self, *, timeout=...)")]
    fn acquire(
        this: &Bound<'_, Self>,
        #[pyo3(from_py_with = seconds::acquire_timeout)] timeout: AcquireTimeout,
        unknown: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<bool> {
        unknown_args::refuse("acquire()", unknown)?;
        let timeout = timeout.or(this.get().timeout);
        match Self::acquire_for_caller(this, timeout)? {
            Ok(()) => Ok(true),
            Err(error) if error.status() == Status::Timeout => Ok(false),
            Err(error) => Err(to_py_err(this.py(), &error)),
        }
    }

    /// Acquire the lock, and return a Hold. Use the Hold in a ``with`` block, or call ``release()`` of the Hold::
    ///
    ///     with lock.hold(timeout=5.0) as hold:
    ///         store.write(value, fence=hold.token)
    ///
    /// The hold belongs to the calling thread, and this thread may re-enter the lock. Any thread may use, watch and release the Hold.
    ///
    /// ``timeout`` has the same meaning as for ``acquire()``. Raises LockTimeout if the timeout passes. The other errors are the same as
    /// for ``acquire()``.
    #[pyo3(signature = (*, timeout=AcquireTimeout::Own, **unknown), text_signature = "($self, *, timeout=...)")]
    fn hold(
        this: &Bound<'_, Self>,
        #[pyo3(from_py_with = seconds::acquire_timeout)] timeout: AcquireTimeout,
        unknown: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Hold> {
        unknown_args::refuse("hold()", unknown)?;
        let timeout = timeout.or(this.get().timeout);
        Hold::acquire(this, timeout)?.or_raise(this.py())
    }

    /// Acquire the lock if it is free, and return a Hold. If another participant holds the lock or waits for it, return an object that
    /// is false. In a ``with`` block, this object stands for None, so the block runs in both cases::
    ///
    ///     with lock.try_hold() as hold:
    ///         if hold:
    ///             store.write(value, fence=hold.token)
    ///
    /// The call blocks for at most one second. It raises ConnectionLost if no server answers within this second. The other errors are
    /// the same as for ``acquire()``.
    fn try_hold(this: &Bound<'_, Self>) -> PyResult<TryHold> {
        Hold::try_acquire(this)
    }

    /// Release the lock once for the calling thread. The last release of a hold waits until the server has confirmed the removal of the
    /// node. The call does not wait if it passes the lock to another thread of this process; see ``set_local_handover()``.
    ///
    /// The call blocks for at most the session timeout. Ctrl-C interrupts the wait for the confirmation, but does not
    /// undo the release. If the thread does not hold the lock, the call raises NotOwner and changes nothing. However, a
    /// MultiLock releases the member locks that the thread still holds. Raises LockLost if the hold was lost, and
    /// ConnectionLost if no server confirmed the release within the session timeout. Raises Exhausted if the process had
    /// no descriptor for a connection. The release takes effect even if the call raises LockLost, ConnectionLost or
    /// Exhausted.
    fn release(this: &Bound<'_, Self>) -> PyResult<()> {
        Self::release_for_caller(this)?.or_raise(this.py())
    }

    /// Release the lock once for the calling thread. The call does not block, because the library removes the node in the background.
    ///
    /// The method raises NotOwner and LockLost in the same cases as ``release()``.
    fn release_nowait(this: &Bound<'_, Self>) -> PyResult<()> {
        let (py, lock) = (this.py(), this.get());
        let owner = current_owner(py)?;
        let released = py.detach(|| lock.core.start_release(owner, false)?.wait());
        Self::untrack_if_free(this, owner)?;
        lock.name_holder(released).or_raise(py)
    }

    /// Cancel all calls that wait for this lock object. The cancelled calls raise Canceled. ``cancel()`` does not
    /// affect later calls. Does not block.
    fn cancel(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.core.cancel()).or_raise(py)
    }

    /// Return a list of Participants, in queue order. The list contains the holders and waiters of all processes.
    ///
    /// A read lock's list contains only readers, and a write lock's list contains only writers. ``queue()`` returns
    /// readers and writers. The list of a multi-lock contains the participants of the first member lock, then those of
    /// the second member lock, and so on. The call blocks for at most the session timeout, and Ctrl-C interrupts the
    /// call. Raises ConnectionLost if no server answers within the session timeout.
    fn participants(&self, py: Python<'_>) -> PyResult<Vec<Participant>> {
        let lock: &zklock::Lock = &self.core;
        participant::all(py, || lock.start_participants())
    }

    /// Return a list of Participants, in queue order. The list contains both the readers and the writers of a read/write lock. If the
    /// lock is not part of a read/write lock, ``queue()`` returns the same list as ``participants()``.
    ///
    /// The call blocks for at most the session timeout, and Ctrl-C interrupts the call. Raises ConnectionLost if no server answers
    /// within the session timeout.
    fn queue(&self, py: Python<'_>) -> PyResult<Vec<Participant>> {
        let lock: &zklock::Lock = &self.core;
        participant::all(py, || lock.start_queue())
    }

    /// Return a list of Waiting objects, one for each call that waits for this lock object. The list follows the order in which the
    /// calls began. Each Waiting describes what one call waits for.
    ///
    /// The list contains the calls of all threads of this process. A call that waits for a multi-lock appears in the
    /// list of the multi-lock, but not in the lists of the member locks. The method reports what the client currently
    /// knows. The method sends no request, and also works without a connection. Does not block.
    ///
    /// The node paths in the list are the same as in ``participants()``, which returns the nodes of all processes. With
    /// local hand-overs (``set_local_handover()``), several waiting threads share one node. If a thread shares the node
    /// of another thread, its Waiting has no ``node_path``. ``ahead`` of this Waiting is the path of the shared node.
    fn waiting(&self, py: Python<'_>) -> PyResult<Vec<Waiting>> {
        Ok(participant::waiting(self.core.waiting().or_raise(py)?))
    }

    /// Set the data for the nodes that later calls create. If ``data`` is None, the nodes contain the address of this host, as in
    /// Curator. For a multi-lock, the method sets the data of all member locks.
    fn set_data(&self, py: Python<'_>, #[pyo3(from_py_with = text::data)] data: Option<PyBackedBytes>) -> PyResult<()> {
        self.core.set_data(data.as_deref()).or_raise(py)
    }

    /// Set the callback for revocation requests; None removes the callback.
    ///
    /// The library calls ``callback`` when a participant asks for the release of this lock (``Client.revoke()``, Curator's
    /// ``Revoker``). Requests can arrive while the lock is held, and also while a call waits for the lock. The argument of the callback
    /// is the path of the node that the request names. The request itself does not release the lock; the program decides whether to
    /// release the lock.
    ///
    /// The library's daemon threads call the callbacks, for each client one at a time. The callback
    /// may notify the thread that holds the lock, or call ``cancel()``. If the callback calls a method that waits for a
    /// lock, the method raises Deadlock. If the callback raises an exception, the library passes it to ``sys.unraisablehook``. A client
    /// can be closed, and the interpreter can end, even if a callback does not return. The callback remains registered until the
    /// program sets another callback or None, or until the lock object is garbage-collected. For a multi-lock, the method replaces the
    /// callback of each member lock.
    fn set_revocable(&self, callback: &Bound<'_, PyAny>) -> PyResult<()> {
        if callback.is_callable() {
            start_thread(callback.py())?;
        }
        self.set_revocation_callback(callback)
    }

    /// Wait until the calling thread's hold is no longer safe, and then return True. Return False if the hold is still safe after
    /// ``timeout`` seconds.
    ///
    /// The wait ends when the state of the hold becomes UNCERTAIN or LOST, even if the state changes back to HELD afterwards. With a
    /// timeout of None or infinity, the call waits without limit. With a timeout of 0, the call checks the hold once. Ctrl-C
    /// interrupts the wait. To watch another thread's hold, call ``wait_lost()`` on the Hold that ``hold()`` returned.
    ///
    /// Raises NotOwner if the thread has no hold, or if the hold is released during the wait. Raises ClientClosed if the client is
    /// closed. In a callback, the call raises Deadlock unless the timeout is 0.
    #[pyo3(signature = (timeout=None))]
    fn wait_lost(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = seconds::timeout)] timeout: Option<Seconds>,
    ) -> PyResult<bool> {
        self.wait_lost_as(py, current_owner(py)?, timeout)
    }

    /// Add a callback for losses of this lock, and return a Listener. The Listener's ``stop()`` method removes the callback.
    ///
    /// The library calls the callback with a LockEvent when a hold of this lock is no longer safe, that is, when the state of the
    /// hold becomes UNCERTAIN or LOST. If the program closes the client while a thread holds the lock, the library calls the
    /// callback with an event whose state is FREE. The callback receives events for all threads that hold the lock through this
    /// lock object. The ``token`` of an event identifies the hold. The callback runs on the same thread and under the same rules
    /// as the ``on_event`` callback of ``Client``. Add the callback before the program acquires the lock, because the callback
    /// may receive no events for earlier changes. A lock may have any number of callbacks. For a multi-lock, the library calls
    /// the callback for each member lock. Does not block.
    fn on_lost(this: &Bound<'_, Self>, callback: &Bound<'_, PyAny>) -> PyResult<Py<Listener>> {
        Self::listen(this, callback, Listen::Loss, CallbackDispatcher::Thread)
    }

    /// Add a callback for every change in the state of a hold of this lock, and return a Listener. The callback receives a LockEvent
    /// for each change. The rules for the callback are the same as for ``on_lost()``.
    fn on_event(this: &Bound<'_, Self>, callback: &Bound<'_, PyAny>) -> PyResult<Py<Listener>> {
        Self::listen(this, callback, Listen::All, CallbackDispatcher::Thread)
    }

    /// Let the threads of this process pass this mutex to each other up to ``max_passes`` times before the library
    /// removes the mutex's node. The default 0 forbids local hand-overs.
    ///
    /// The setting applies to acquire calls that begin later. If several lock objects of this client have the same path
    /// and allow local hand-overs, the waiters of all these objects share one node. A local hand-over passes the lock
    /// to the waiter whose call began first, without a request to a server. Because of local hand-overs, a waiter of
    /// another process may have to wait for up to ``max_passes`` additional holds. A release passes the lock to a
    /// waiter of this process only if the state of the hold is HELD and no revocation request has arrived. All holds
    /// under the shared node have the same fencing token, but different values of ``fencing_pass``. Does not block.
    /// Raises Unsupported if the lock is not a Mutex, and ValueError for a negative number.
    fn set_local_handover(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = int_args::max_passes)] max_passes: u32,
    ) -> PyResult<()> {
        self.core.set_local_handover(max_passes).or_raise(py)
    }

    /// Whether the calling thread holds the lock and the hold is safe at this moment. Does not block.
    #[getter]
    fn is_held(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.view(py)?.is_some_and(HoldView::is_safe))
    }

    /// Whether some thread holds the lock through this lock object and the hold is safe at this moment. Does not block.
    #[getter]
    fn is_held_in_process(&self, py: Python<'_>) -> PyResult<bool> {
        self.core.is_held_in_process().or_raise(py)
    }

    /// The state of the calling thread's hold, a LockState. The state is FREE if the thread has no hold. Does not block.
    #[getter]
    fn state<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        lock_state(py, state_of(self.view(py)?))
    }

    /// The state of the hold that any thread has through this lock object, as a LockState. The state is FREE if no thread has a hold.
    /// Does not block.
    #[getter]
    fn state_in_process<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        lock_state(py, self.core.state_in_process().or_raise(py)?)
    }

    /// The number of seconds for which the calling thread's hold stays safe even if no server answers. If the thread
    /// has no hold, or the hold is not safe, ``remaining`` is zero. Does not block.
    #[getter]
    fn remaining(&self, py: Python<'_>) -> PyResult<f64> {
        Ok(seconds_left(self.view(py)?))
    }

    /// The fencing token of the calling thread's hold: an int that grows with every hold of the path. A store that compares tokens
    /// can refuse writers that have lost the lock. For a read lock that its owner acquired under the write lock, send the token of
    /// the write lock.
    ///
    /// Does not block. Raises NotOwner if the thread has no hold, even if another thread holds the lock. Raises LockLost if the
    /// thread's hold was lost.
    #[getter]
    fn fencing_token(&self, py: Python<'_>) -> PyResult<i64> {
        Ok(self.core.live_view(current_owner(py)?).or_raise(py)?.token)
    }

    /// The number of local hand-overs that preceded the calling thread's hold under the same fencing token; see
    /// ``set_local_handover()``. If the hold did not begin with a local hand-over, ``fencing_pass`` is zero. If two writes have the
    /// same token, a store must also compare the values of ``fencing_pass``.
    ///
    /// Does not block. Raises the same errors as ``fencing_token``.
    #[getter]
    fn fencing_pass(&self, py: Python<'_>) -> PyResult<u32> {
        Ok(self.core.live_view(current_owner(py)?).or_raise(py)?.fencing_pass)
    }

    /// The path of the calling thread's node, without the client's chroot. For a multi-lock, this property raises AttributeError; use
    /// ``node_paths``.
    ///
    /// Does not block. Raises NotOwner if the thread has no hold, and LockLost if the thread's hold was lost.
    #[getter]
    fn node_path(&self, py: Python<'_>) -> PyResult<String> {
        self.node_path_of(py, current_owner(py)?)
    }

    /// The paths of the calling thread's nodes, as a list. The list of a multi-lock contains a path for each member
    /// lock, and the list of any other lock contains one path. A ZooKeeper transaction can check that these nodes
    /// exist. If the lock was lost, a transaction with this check fails. Does not block. Raises the same errors as
    /// ``node_path``.
    #[getter]
    fn node_paths(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        self.core.node_paths_of(current_owner(py)?).or_raise(py)
    }

    /// The lock's path, without the client's chroot. For a multi-lock, this property raises AttributeError; read the
    /// paths of the member locks in ``locks``.
    #[getter]
    fn path(&self) -> PyResult<&str> {
        self.path_or_error()
    }

    /// Acquire the lock. The call uses the ``timeout`` that the program chose when it made the lock. Raises LockTimeout
    /// if the timeout passes. The other errors are the same as for ``acquire()``.
    fn __enter__<'py>(this: &Bound<'py, Self>) -> PyResult<Bound<'py, Self>> {
        Self::acquire_for_caller(this, this.get().timeout)?.or_raise(this.py())?;
        Ok(this.clone())
    }

    /// Release the lock. The errors are the same as for ``release()``, except in one case. If the hold was safe at the
    /// end of the block and no server confirms the release, the method only logs a warning. If both the block and the
    /// release fail, the exception of the block propagates, with a note about the failed release.
    /// If Python closes a generator during the block, Python discards this exception, so the method also logs the failed
    /// release.
    fn __exit__(
        this: &Bound<'_, Self>,
        exc_type: &Bound<'_, PyAny>,
        exc_value: &Bound<'_, PyAny>,
        traceback: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let (py, _) = (this.py(), (exc_type, traceback));
        let was_safe = this.get().view(py).ok().flatten().is_some_and(HoldView::is_safe);
        let released = Self::release_for_caller(this)?;
        let item = EndedItem { doing: "releasing the lock", path: this.get().path.as_deref(), was_safe };
        end_block(py, exc_value, &item, released)
    }

    fn __repr__(this: &Bound<'_, Self>) -> PyResult<String> {
        Self::describe(this, current_owner(this.py())?)
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        self.members.iter().try_for_each(|member| visit.call(member))?;
        visit.call(&self.events)?;
        self.listeners.traverse(&visit)?;
        self.callback.traverse(&visit)
    }
}

impl Lock {
    /// Acquires the lock for the calling thread or greenlet. The owner's `HoldTracker` records the hold.
    fn acquire_for_caller(this: &Bound<'_, Self>, timeout: Option<Seconds>) -> PyResult<zklock::Result<()>> {
        let (py, lock) = (this.py(), this.get());
        // Any thread may release a semaphore mutex. The library therefore issues no warning when the thread that
        // acquired a semaphore mutex ends.
        if Self::has_no_owner(this) {
            let acquired = lock.acquire_and_wait(py, current_owner(py)?, timeout)?;
            if acquired.is_ok() {
                Self::keep(this);
            }
            return Ok(acquired.map(|hold| _ = hold.leave_to_owner()));
        }
        let tracker = current_hold_tracker(py)?;
        let entered = lock.acquire_and_wait(py, tracker.get().owner(), timeout)?;
        if entered.is_ok() {
            Self::keep(this);
            lock.set_latest_owner(tracker.get().owner(), tracker.get().who());
            tracker.get().add(this)?;
        }
        Ok(entered.map(|hold| _ = hold.leave_to_owner()))
    }

    fn has_no_owner(this: &Bound<'_, Self>) -> bool {
        let members = &this.get().members;
        this.is_instance_of::<SemaphoreMutex>()
            || (!members.is_empty() && members.iter().all(|member| Self::has_no_owner(member.bind(this.py()))))
    }

    fn release_for_caller(this: &Bound<'_, Self>) -> PyResult<zklock::Result<()>> {
        let py = this.py();
        let owner = current_owner(py)?;
        let released = this.get().release_as(py, owner);
        Self::untrack_if_free(this, owner)?;
        Ok(this.get().name_holder(released?))
    }

    /// Decrements the hold count in the owner's `HoldTracker`, or removes the count if the hold is over.
    fn untrack_if_free(this: &Bound<'_, Self>, owner: Owner) -> PyResult<()> {
        let is_over = matches!(this.get().core.view(owner), Ok(None));
        Self::drop_if_free(this);
        current_hold_tracker(this.py())?.get().remove(this, is_over);
        Ok(())
    }
}
