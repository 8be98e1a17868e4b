//! The class `zklock.Lock`, and one subclass for each recipe.
//!
//! The class `Lock` has all methods, because all recipes offer the same operations. A subclass adds only a name and a docstring. A
//! program can accept any `Lock`, or require one of the subclasses.
//!
//! The methods that Python calls are in `lock/methods.rs`. The functions of this file take the owner of a hold as an
//! argument. These functions must not derive the owner from the calling thread.

mod methods;

use std::sync::{self, PoisonError};

use pyo3::PyClass;
use pyo3::exceptions::{PyAttributeError, PyTypeError};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString, PyTuple};
use zklock::internal::refuse_in_callback;
use zklock::{Error, HoldView, Listen, LockState, Owner, Status};

use crate::callback::RevocationCallback;
use crate::detached_drop::DetachedDrop;
use crate::display::{member_name, quoted, type_name};
use crate::errors::{OrRaise, status_word, wrong_type};
use crate::event::{CallbackDispatcher, ClientEvents, Listener, Listeners};
use crate::greenlet::WaitTarget;
use crate::held_locks::HeldLocks;
use crate::log;
use crate::participant::{self, Participant};
use crate::resource_warning::{is_released_with_object, warn};
use crate::seconds::Seconds;
use crate::states::lock_state;
use crate::wait::{wait, wait_lost};

/// A lock: a Mutex, SemaphoreMutex, ReadLock, WriteLock or MultiLock. A Client makes locks. All kinds of locks have the
/// same methods.
///
/// A lock coordinates the threads of one process in the same way as threads of different processes. Waiters acquire the
/// lock in queue order. Any thread may call the methods. In a program with gevent or eventlet, each greenlet counts as
/// a thread. Properties such as ``state`` and ``fencing_token`` describe the hold of the calling thread. A property whose name ends in
/// ``_in_process`` describes the hold that some thread of the process has through this lock object.
///
/// A hold is safe while the client is sure that the client's session has not expired. The state of a safe hold is HELD or SUSPENDED.
///
/// A lock that ``acquire()`` has acquired stays taken until its release or the end of its client, even if the program
/// drops the lock object. A Hold refers to its lock object, even after the release of the Hold. When a thread ends, the
/// library does not release its holds. After a thread has ended, no other thread can release its holds, except holds of
/// a SemaphoreMutex and the holds of Hold objects. A generator that may end on another thread should therefore use
/// ``with lock.hold():`` instead of ``with lock:``. The library issues a ResourceWarning, and logs a warning, if a
/// thread ends and no other thread can release its hold.
///
/// All methods raise ClientClosed after the client is closed, and raise Forked in a forked child process.
#[pyclass(frozen, subclass, weakref, module = "zklock")]
pub(crate) struct Lock {
    pub(crate) core: DetachedDrop<zklock::Lock>,
    /// The path of the lock, or `None` for a multi-lock.
    pub(crate) path: Option<String>,
    pub(crate) timeout: Option<Seconds>,
    /// The member locks of a multi-lock.
    members: Vec<Py<Self>>,
    callback: RevocationCallback,
    /// The `ClientEvents` of the client. For a multi-lock, the field is `None`, because a multi-lock uses the `ClientEvents` of its
    /// member locks.
    events: Option<Py<ClientEvents>>,
    listeners: Listeners,
    /// The latest owner that has acquired the lock, and its name for messages.
    latest_owner: sync::Mutex<Option<(Owner, String)>>,
}

/// A mutex on a path, like Curator's ``InterProcessMutex``. ``Client.mutex()`` makes a Mutex.
///
/// A mutex belongs to the thread that acquired it. The owner of a mutex may re-enter it. The owner must release the mutex as many times
/// as it acquired the mutex.
#[pyclass(frozen, extends = Lock, module = "zklock")]
pub(crate) struct Mutex;

/// A mutex that is not re-entrant and that any thread may release, like Curator's ``InterProcessSemaphoreMutex``.
/// ``Client.semaphore_mutex()`` makes a SemaphoreMutex.
///
/// If a thread already holds a SemaphoreMutex and acquires the lock again, the second call waits until the lock is released.
#[pyclass(frozen, extends = Lock, module = "zklock")]
pub(crate) struct SemaphoreMutex;

/// The read lock of an RwLock. Several readers may hold the read lock at the same time.
///
/// A hold of the read lock belongs to the thread that acquired the lock, and this thread may re-enter the lock. If a thread that holds
/// the read lock tries to acquire the write lock, the call raises Deadlock.
#[pyclass(frozen, extends = Lock, module = "zklock")]
pub(crate) struct ReadLock;

/// The write lock of an RwLock. While one owner holds the write lock, no other owner can acquire the read lock or the write lock.
///
/// A hold of the write lock belongs to the thread that acquired the lock, and this thread may re-enter the lock. A thread that holds
/// the write lock may also acquire the read lock, and then release the write lock. During such a change from the write lock to the
/// read lock, no other writer can acquire the write lock.
#[pyclass(frozen, extends = Lock, module = "zklock")]
pub(crate) struct WriteLock;

/// A lock that acquires and releases several member locks together, like Curator's ``InterProcessMultiLock``. ``Client.multi()`` makes
/// a MultiLock.
///
/// The timeout of ``acquire()`` limits the total time for all member locks. If the thread already holds a member lock,
/// ``acquire()`` re-enters that member lock. The state of a multi-lock is FREE unless the thread holds all member locks. If the
/// thread holds all member locks, the state of the multi-lock is the worst state of its member locks. ``release()`` releases
/// every member lock that the thread holds. If the release of one member lock fails, ``release()`` still releases the remaining
/// member locks, and then raises the first error.
///
/// If member locks are mutexes, read locks or write locks of the same client, these member locks join their queues in
/// one transaction. Member locks that join their queues in one transaction have the same fencing token. Programs that list such member
/// locks in different orders do not deadlock. The library acquires semaphore mutexes, and locks of different clients, one after the
/// other. This order is the same in all programs that use the same connect strings. If the member locks have different fencing tokens,
/// the token of the multi-lock is the smallest token.
#[pyclass(frozen, extends = Lock, module = "zklock")]
pub(crate) struct MultiLock;

/// Makes a Python object of the class `kind` for a lock. Events about the lock refer to this Python object.
pub(crate) fn object<'py, T: PyClass<BaseType = Lock>>(
    py: Python<'py>,
    kind: T,
    lock: Lock,
) -> PyResult<Bound<'py, T>> {
    let object = Bound::new(py, (kind, lock))?;
    let lock = object.as_super().get();
    if let Some(events) = &lock.events {
        events.get().names().add(lock.core.id(), object.as_any())?;
    }
    Ok(object)
}

impl Lock {
    pub(crate) fn new(
        py: Python<'_>,
        lock: zklock::Lock,
        path: String,
        timeout: Option<Seconds>,
        data: Option<&[u8]>,
        events: Py<ClientEvents>,
    ) -> PyResult<Self> {
        if data.is_some() {
            lock.set_data(data).or_raise(py)?;
        }
        Ok(Self {
            core: DetachedDrop::new(lock),
            path: Some(path),
            timeout,
            members: Vec::new(),
            callback: RevocationCallback::default(),
            events: Some(events),
            listeners: Listeners::default(),
            latest_owner: sync::Mutex::default(),
        })
    }

    /// Makes a multi-lock from paths and locks. The function `mutex` makes a member lock from a path.
    pub(crate) fn multi<'py>(
        locks: &Bound<'py, PyAny>,
        mutex: impl Fn(&Bound<'py, PyAny>) -> PyResult<Py<Self>>,
        timeout: Option<Seconds>,
        in_order: bool,
    ) -> PyResult<Self> {
        let py = locks.py();
        let wrong = |found: &Bound<'_, PyAny>, hint: &str| {
            let kind = type_name(found);
            wrong_type(format!(
                "locks: expected paths and locks of zklock, like [\"/a\", client.mutex(\"/b\")], not {kind}{hint}"
            ))
        };
        if locks.is_instance_of::<PyString>() || locks.is_instance_of::<PyBytes>() {
            return Err(wrong(locks, ""));
        }
        let is_no_iterable = |error: &PyErr| error.is_instance_of::<PyTypeError>(py);
        let mut members = Vec::new();
        for lock in locks.try_iter().map_err(|error| if is_no_iterable(&error) { wrong(locks, "") } else { error })? {
            let lock = lock?;
            if lock.is_instance_of::<PyString>() {
                members.push(mutex(&lock)?);
                continue;
            }
            let hint = if lock.is_instance_of::<RwLock>() { "; use its .read or .write" } else { "" };
            members.push(lock.cast::<Self>().map_err(|_| wrong(&lock, hint))?.clone().unbind());
        }
        let parts: Vec<&zklock::Lock> = members.iter().map(|member| &*member.get().core).collect();
        let together = if in_order { zklock::Lock::multi_in_order } else { zklock::Lock::multi };
        let core = together(&parts).or_raise(py)?;
        Ok(Self {
            core: DetachedDrop::new(core),
            path: None,
            timeout,
            members,
            callback: RevocationCallback::default(),
            events: None,
            listeners: Listeners::default(),
            latest_owner: sync::Mutex::default(),
        })
    }

    /// Returns the error for a property that a multi-lock does not have.
    fn multi_lock_attribute_error(what: &str, where_else: &str) -> PyErr {
        PyAttributeError::new_err(format!("a multi-lock has no {what} of its own; see {where_else}"))
    }

    /// Returns the path of the lock, or an error if the lock is a multi-lock.
    pub(crate) fn path_or_error(&self) -> PyResult<&str> {
        self.path.as_deref().ok_or_else(|| Self::multi_lock_attribute_error("path", "the paths of its member locks"))
    }

    /// Returns the paths of the lock, for messages and `repr()`.
    fn paths(&self) -> Vec<String> {
        let of = |member: &Py<Self>| member.get().paths();
        self.path.iter().cloned().chain(self.members.iter().flat_map(of)).collect()
    }

    /// Sets the revocation callback as `set_revocable()` does, but does not start the thread that calls callbacks.
    pub(crate) fn set_revocation_callback(&self, callback: &Bound<'_, PyAny>) -> PyResult<()> {
        if self.members.is_empty() {
            let lock: &zklock::Lock = &self.core;
            return self.callback.set(callback, |handler| lock.set_revocable(handler));
        }
        self.members.iter().try_for_each(|member| member.get().set_revocation_callback(callback))
    }

    pub(crate) fn acquire_and_wait(
        &self,
        py: Python<'_>,
        owner: Owner,
        timeout: Option<Seconds>,
    ) -> PyResult<zklock::Result<zklock::Hold>> {
        log::sync_level(py)?;
        let lock: &zklock::Lock = &self.core;
        let limit = timeout.and_then(Seconds::limit);
        let start = || {
            refuse_in_callback(limit)?;
            lock.start_acquire(owner, limit)
        };
        wait(py, WaitTarget::within(limit), start, drop)
    }

    /// Records the thread or greenlet that has acquired the lock.
    pub(crate) fn set_latest_owner(&self, owner: Owner, who: Option<&str>) {
        let owner = who.map(|who| (owner, who.to_owned()));
        *self.latest_owner.lock().unwrap_or_else(PoisonError::into_inner) = owner;
    }

    /// Adds the holder to the message of NOT_OWNER, if the holder is another thread or greenlet.
    fn name_holder(&self, released: zklock::Result<()>) -> zklock::Result<()> {
        let Err(error) = &released else { return released };
        let latest = self.latest_owner.lock().unwrap_or_else(PoisonError::into_inner);
        match &*latest {
            Some((owner, who))
                if error.status() == Status::NotOwner
                    && is_released_with_object(&self.core.view(*owner).map(state_of)) =>
            {
                let hint = "only the holder can release what acquire() took; any thread can release a Hold of hold()";
                Err(Error::new(Status::NotOwner, format!("{}; {who} holds it: {hint}", error.message())))
            }
            _ => released,
        }
    }

    /// Keeps the lock object alive until `drop_if_free` finds that the lock is free, or until its client ends.
    pub(crate) fn keep(this: &Bound<'_, Self>) {
        this.get().for_each_client(&|held| held.add(this.as_any()));
    }

    /// Drops the reference that `keep` has made, if no hold through this object is left.
    pub(crate) fn drop_if_free(this: &Bound<'_, Self>) {
        if matches!(this.get().core.state_in_process(), Ok(LockState::Free) | Err(_)) {
            this.get().for_each_client(&|held| held.remove(this.as_any()));
        }
    }

    fn for_each_client(&self, call: &impl Fn(&HeldLocks)) {
        if let Some(held) = self.events.as_ref().and_then(|events| events.get().held_locks()) {
            call(&held);
        }
        self.members.iter().for_each(|member| member.get().for_each_client(call));
    }

    pub(crate) fn node_path_of(&self, py: Python<'_>, owner: Owner) -> PyResult<String> {
        match &self.path {
            None => Err(Self::multi_lock_attribute_error("node_path", "node_paths")),
            Some(path) => {
                let node = self.core.node_paths_of(owner).or_raise(py)?.into_iter().next();
                node.ok_or_else(|| PyAttributeError::new_err(format!("{path}: its node is gone")))
            }
        }
    }

    pub(crate) fn listen(
        this: &Bound<'_, Self>,
        callback: &Bound<'_, PyAny>,
        which: Listen,
        dispatcher: CallbackDispatcher,
    ) -> PyResult<Py<Listener>> {
        this.get().listeners.listen(callback, dispatcher, |listener| this.get().register(this.py(), listener, which))
    }

    /// Registers the listener with the lock. For a multi-lock, the function registers the listener with each member lock. The member
    /// locks may belong to several clients. If one registration fails, the function removes the earlier registrations. This removal may
    /// wait for a running handler, and the handler may need the interpreter. The thread therefore detaches from the interpreter during
    /// the removal.
    fn register(
        &self,
        py: Python<'_>,
        listener: &Listener,
        which: Listen,
    ) -> PyResult<Vec<DetachedDrop<zklock::Listener>>> {
        let Some(events) = &self.events else {
            let of = |member: &Py<Self>| member.get().register(py, listener, which);
            return Ok(self.members.iter().map(of).collect::<PyResult<Vec<_>>>()?.into_iter().flatten().collect());
        };
        let handler = listener.handler(py, events.get().names())?;
        let lock: &zklock::Lock = &self.core;
        Ok(vec![DetachedDrop::new(py.detach(|| lock.listen(which, handler)).or_raise(py)?)])
    }

    pub(crate) fn wait_lost_as(&self, py: Python<'_>, owner: Owner, timeout: Option<Seconds>) -> PyResult<bool> {
        let lock: &zklock::Lock = &self.core;
        wait_lost(py, timeout, || lock.start_wait_lost(owner))
    }

    pub(crate) fn release_as(&self, py: Python<'_>, owner: Owner) -> PyResult<zklock::Result<()>> {
        let lock: &zklock::Lock = &self.core;
        wait(py, WaitTarget::Release, || lock.start_release(owner, true), drop)
    }

    /// Returns the text of `repr()`. The text contains the state of the hold that belongs to `owner`. If `owner` has no hold, the text shows the state of another
    /// owner's hold.
    pub(crate) fn describe(this: &Bound<'_, Self>, owner: Owner) -> PyResult<String> {
        let (py, lock) = (this.py(), this.get());
        let kind = type_name(this);
        let paths = lock.quoted(py)?;
        let states = (lock.core.view(owner), lock.core.state_in_process());
        let state = match states {
            (Err(error), _) | (_, Err(error)) => status_word(error.status()).to_owned(),
            (Ok(None), Ok(LockState::Free)) => "FREE".to_owned(),
            (Ok(None), Ok(other)) => format!("{} by another owner", member_name(&lock_state(py, other)?)?),
            (Ok(Some(own)), _) => {
                let token = if own.state == LockState::Lost { String::new() } else { format!(" token={}", own.token) };
                format!("{}{token}", member_name(&lock_state(py, own.state)?)?)
            }
        };
        Ok(format!("<zklock.{kind} {paths} {state}>"))
    }

    /// Returns the quoted path of the lock. For a multi-lock, the text contains the paths of all member locks.
    pub(crate) fn quoted(&self, py: Python<'_>) -> PyResult<String> {
        let paths = self.paths().into_iter().map(|path| quoted(py, &path));
        Ok(paths.collect::<PyResult<Vec<_>>>()?.join(" "))
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        if let Some(events) = &self.events {
            events.get().names().remove(self.core.id());
        }
        // A multi-lock causes no warning here, because each member lock causes its own warning.
        if self.members.is_empty() && is_released_with_object(&self.core.state_in_process()) {
            Python::try_attach(|py| {
                let why = "the lock was released because its object was garbage-collected";
                warn(py, || Ok(format!("{}: {why}: {KEEP}", self.quoted(py)?)));
            });
        }
    }
}

/// The advice given in the warning that the library has released a lock.
const KEEP: &str = "keep the object and call release(), or use a with block";

/// The state of the hold of an owner.
pub(crate) fn state_of(view: Option<HoldView>) -> LockState {
    view.map_or(LockState::Free, |view| view.state)
}

/// The number of seconds for which a hold is safe. The number is zero if there is no hold, or if the hold was lost.
pub(crate) fn seconds_left(view: Option<HoldView>) -> f64 {
    view.map_or(0.0, |view| view.remaining.as_secs_f64())
}

#[pymethods]
impl MultiLock {
    /// The member locks, as a tuple.
    #[getter]
    fn locks<'py>(this: &Bound<'py, Self>) -> PyResult<Bound<'py, PyTuple>> {
        let py = this.py();
        PyTuple::new(py, this.as_super().get().members.iter().map(|member| member.bind(py)))
    }
}

/// A read/write lock, like the ``InterProcessReadWriteLock`` of Curator 5.5. ``Client.rwlock()`` makes an RwLock.
///
/// Several readers may hold a read/write lock at the same time, but a writer holds the lock alone. The properties
/// ``read`` and ``write`` return the read lock and the write lock, which have the same methods as a mutex. Readers and
/// writers wait in one queue, so readers cannot starve writers, and writers cannot starve readers.
#[pyclass(frozen, weakref, module = "zklock")]
pub(crate) struct RwLock {
    read: Py<ReadLock>,
    write: Py<WriteLock>,
    path: String,
}

impl RwLock {
    pub(crate) fn new(
        py: Python<'_>,
        locks: zklock::RwLock,
        path: String,
        timeout: Option<Seconds>,
        data: Option<&[u8]>,
        events: Py<ClientEvents>,
    ) -> PyResult<Self> {
        let lock = |lock| Lock::new(py, lock, path.clone(), timeout, data, events.clone_ref(py));
        let read = object(py, ReadLock, lock(locks.read)?)?.unbind();
        let write = object(py, WriteLock, lock(locks.write)?)?.unbind();
        Ok(Self { read, write, path })
    }
}

#[pymethods]
impl RwLock {
    /// The read lock, a ReadLock. The property always returns the same object.
    #[getter]
    fn read(&self, py: Python<'_>) -> Py<ReadLock> {
        self.read.clone_ref(py)
    }

    /// The write lock, a WriteLock. The property always returns the same object.
    #[getter]
    fn write(&self, py: Python<'_>) -> Py<WriteLock> {
        self.write.clone_ref(py)
    }

    /// Return a list of Participants, in queue order. The list contains every reader and writer from every process, both
    /// holders and waiters.
    ///
    /// The call blocks for at most the session timeout, and Ctrl-C interrupts the call. Raises ConnectionLost if no server answers
    /// within the session timeout.
    fn queue(&self, py: Python<'_>) -> PyResult<Vec<Participant>> {
        let lock: &zklock::Lock = &self.write.bind(py).as_super().get().core;
        participant::all(py, || lock.start_queue())
    }

    /// The lock's path, without the client's chroot.
    #[getter]
    fn path(&self) -> &str {
        &self.path
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        Ok(format!("<zklock.RwLock {}>", quoted(py, &self.path)?))
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.read)?;
        visit.call(&self.write)
    }
}
