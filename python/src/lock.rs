//! What can be acquired and released: `zklock.Lock`, and one class for each recipe.
//!
//! The recipes differ in what they do, not in what can be asked of them. So all methods are `Lock`'s, and the classes below it have a
//! name and a description each: a program may take any lock, or say which it wants.

use std::time::Duration;

use pyo3::PyClass;
use pyo3::exceptions::{PyAttributeError, PyTypeError};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyString, PyTuple};
use zklock::{Call, LockState, Owner, Status, refuse_in_callback};

use crate::callback::{Callback, start_thread};
use crate::errors::{OrRaise, add_to, raise, word};
use crate::event::Listener;
use crate::greenlet::{self, Awaited};
use crate::log;
use crate::participant::{self, Participant};
use crate::parting::Parting;
use crate::seconds::{self, Seconds};
use crate::states::lock_state;
use crate::wait::wait;
use crate::waiting::{self, Waiting};
use crate::{text, whole};

/// A lock, made by a Client: a Mutex, SemaphoreMutex, ReadLock, WriteLock or MultiLock. All have the same methods.
///
/// Threads of one process exclude each other and queue fairly. Methods may be called from any thread. A handle that is
/// garbage-collected releases what is held by it. What is said of a thread applies to each greenlet of gevent or eventlet.
///
/// All methods raise ClientClosed once the client is closed, and Forked in the child of a fork.
#[pyclass(frozen, subclass, weakref, module = "zklock")]
pub(crate) struct Lock {
    pub(crate) core: Parting<zklock::Lock>,
    /// Of a multi-lock none: it has several.
    path: Option<String>,
    pub(crate) timeout: Option<Seconds>,
    /// Of a multi-lock: what it was made of.
    members: Vec<Py<Self>>,
    callback: Callback,
    /// Who hears of it. Of a multi-lock none: its locks have theirs.
    listener: Option<Py<Listener>>,
}

/// A mutex on a path, made by ``Client.mutex()``: Curator's ``InterProcessMutex``.
///
/// The holder is a thread. A thread that holds enters again at once, and must release as many times.
#[pyclass(frozen, extends = Lock, module = "zklock")]
pub(crate) struct Mutex;

/// A mutex that any thread may release and none may enter twice, made by ``Client.semaphore_mutex()``: Curator's
/// ``InterProcessSemaphoreMutex``.
///
/// A thread that holds it and acquires it again waits, as every other.
#[pyclass(frozen, extends = Lock, module = "zklock")]
pub(crate) struct SemaphoreMutex;

/// The half of an RwLock that is shared with other readers.
///
/// The holder is a thread, which may enter again. While it reads it can't write: Deadlock.
#[pyclass(frozen, extends = Lock, module = "zklock")]
pub(crate) struct ReadLock;

/// The half of an RwLock that excludes everybody else.
///
/// The holder is a thread, which may enter again. It may also read, and go on reading when it has released the write lock: no
/// writer gets in between.
#[pyclass(frozen, extends = Lock, module = "zklock")]
pub(crate) struct WriteLock;

/// Several locks as one, made by ``Client.multi()``: Curator's ``InterProcessMultiLock``.
///
/// It is acquired and released as a whole, within one deadline, and consists of these very locks: while it is held, each of
/// them is. What a thread holds of them already is entered once more. It stands as badly as the worst of them; of its
/// release all that is held is released, and the first error is raised.
///
/// Mutexes and read and write locks of one client are joined in one transaction: programs that name the same locks in another
/// order don't deadlock, and the fencing token is the same for all. Others are taken one after the other, in an order that is
/// the same for all programs that name the servers alike; then the fencing token is the smallest.
#[pyclass(frozen, extends = Lock, module = "zklock")]
pub(crate) struct MultiLock;

/// Makes a lock an object of one of these classes, which events name.
pub(crate) fn object<'py, T: PyClass<BaseType = Lock>>(
    py: Python<'py>,
    kind: T,
    lock: Lock,
) -> PyResult<Bound<'py, T>> {
    let object = Bound::new(py, (kind, lock))?;
    let lock = object.as_super().get();
    if let Some(listener) = &lock.listener {
        listener.get().add(lock.core.id(), object.as_any())?;
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
        listener: Option<Py<Listener>>,
    ) -> PyResult<Self> {
        if data.is_some() {
            lock.set_data(data).or_raise(py)?;
        }
        Ok(Self {
            core: Parting::new(lock),
            path: Some(path),
            timeout,
            members: Vec::new(),
            callback: Callback::default(),
            listener,
        })
    }

    /// Several locks as one.
    pub(crate) fn multi(locks: &Bound<'_, PyAny>, timeout: Option<Seconds>, in_order: bool) -> PyResult<Self> {
        let py = locks.py();
        let wrong = |found: &Bound<'_, PyAny>, hint: &str| {
            let kind = found.get_type().name().map_or_else(|_| "this".to_owned(), |name| name.to_string());
            PyTypeError::new_err(format!(
                "locks: expected locks of zklock, like [client.mutex(\"/a\")], not {kind}{hint}"
            ))
        };
        let mut members = Vec::new();
        for lock in locks.try_iter().map_err(|_| wrong(locks, ""))? {
            let lock = lock?;
            let hint = if lock.is_instance_of::<RwLock>() { "; take its .read or .write" } else { "" };
            members.push(lock.cast::<Self>().map_err(|_| wrong(&lock, hint))?.clone().unbind());
        }
        let parts: Vec<&zklock::Lock> = members.iter().map(|member| &*member.get().core).collect();
        let together = if in_order { zklock::Lock::multi_in_order } else { zklock::Lock::multi };
        let core = together(&parts).or_raise(py)?;
        let callback = Callback::default();
        Ok(Self { core: Parting::new(core), path: None, timeout, members, callback, listener: None })
    }

    /// What only a lock on one path has.
    fn one_of_several(what: &str, where_else: &str) -> PyErr {
        PyAttributeError::new_err(format!("a multi-lock has no {what} of its own; see {where_else}"))
    }

    /// For people.
    fn paths(&self) -> Vec<String> {
        let of = |member: &Py<Self>| member.get().paths();
        self.path.iter().cloned().chain(self.members.iter().flat_map(of)).collect()
    }

    /// `set_revocable()`, for whoever sees to it that what is told gets called.
    pub(crate) fn tell_revocations(&self, callback: &Bound<'_, PyAny>) -> PyResult<()> {
        if self.members.is_empty() {
            let lock: &zklock::Lock = &self.core;
            return self.callback.set(callback, |handler| lock.set_revocable(handler));
        }
        self.members.iter().try_for_each(|member| member.get().tell_revocations(callback))
    }

    fn wait_for_it(&self, py: Python<'_>, timeout: Option<Seconds>) -> PyResult<zklock::Result<()>> {
        log::look(py)?;
        let lock: &zklock::Lock = &self.core;
        let (owner, limit) = (greenlet::owner(py)?, timeout.and_then(Seconds::limit));
        let start = || {
            refuse_in_callback(limit)?;
            lock.start_acquire(owner, limit)
        };
        wait(py, Awaited::within(limit), start, |()| {
            let _ = lock.start_release(owner, false);
        })
    }

    pub(crate) fn node_path_of(&self, py: Python<'_>, owner: Owner) -> PyResult<String> {
        match &self.path {
            None => Err(Self::one_of_several("node_path", "node_paths")),
            Some(path) => {
                let node = self.core.node_paths_by(owner).or_raise(py)?.into_iter().next();
                node.ok_or_else(|| PyAttributeError::new_err(format!("{path}: its node is gone")))
            }
        }
    }

    /// What is asked of the calling greenlet's hold, or else of another's by this handle; outside of greenlets `any` begins with the
    /// calling thread's.
    fn own_or_any<T>(
        py: Python<'_>,
        own: impl FnOnce(Owner) -> zklock::Result<T>,
        any: impl FnOnce() -> zklock::Result<T>,
    ) -> PyResult<zklock::Result<T>> {
        Ok(match greenlet::own(py)?.map(own) {
            Some(Err(error)) if error.status() != Status::NotOwner => Err(error),
            Some(Ok(answer)) => Ok(answer),
            _ => any(),
        })
    }

    fn state_now(&self, py: Python<'_>) -> PyResult<zklock::Result<LockState>> {
        let own = |owner| match self.core.state_by(owner)? {
            LockState::Free => Err(Status::NotOwner.into()),
            state => Ok(state),
        };
        Self::own_or_any(py, own, || self.core.state())
    }

    fn token_now(&self, py: Python<'_>) -> PyResult<zklock::Result<i64>> {
        Self::own_or_any(py, |owner| self.core.fencing_token_by(owner), || self.core.fencing_token())
    }

    fn give_back(&self, py: Python<'_>) -> PyResult<zklock::Result<()>> {
        let lock: &zklock::Lock = &self.core;
        let owner = greenlet::owner(py)?;
        wait(py, Awaited::Server, || lock.start_release(owner, true), drop)
    }
}

#[pymethods]
impl Lock {
    /// Acquires the lock for the calling thread, or enters it once more. True if it was got, False if time ran out.
    ///
    /// ``timeout`` is in seconds: None or infinity waits without limit, 0 looks once without waiting for anybody. Ctrl-C
    /// interrupts the wait, and no node stays behind. Raises ConnectionLost where no server answers by then, Canceled,
    /// ClientClosed; LockLost where this thread's hold was lost and is not released yet; Deadlock where this thread would
    /// wait for itself: it holds the path by another handle, or wants to write where it reads; or in a callback, but for a
    /// timeout of 0; or in the hub of greenlets. Raises Error in a greenlet without a hub, but for a timeout of 0.
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

    /// Releases one entry of the calling thread, and waits until the server has confirmed that the node is gone, unless the lock was
    /// passed on to another thread of this process (``set_local_handover()``).
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
        let owner = greenlet::owner(py)?;
        py.detach(|| self.core.start_release(owner, false)?.wait()).or_raise(py)
    }

    /// Wakes those that wait on this handle now, with Canceled. Who waits later is not concerned. Does not block.
    fn cancel(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.core.cancel()).or_raise(py)
    }

    /// Who holds and who waits, in the order of the queue, whatever process they are in. Of a read/write lock, each half
    /// tells of its own kind, and ``RwLock.participants()`` of both; a multi-lock tells of one of its locks after the other.
    ///
    /// Blocks for the session timeout at most; Ctrl-C interrupts it. Raises ConnectionLost where no server answers by then.
    fn participants(&self, py: Python<'_>) -> PyResult<Vec<Participant>> {
        let lock: &zklock::Lock = &self.core;
        participant::all(py, || lock.start_participants())
    }

    /// What those who wait on this handle wait for, in any thread of this process, in the order in which they began. Those who wait
    /// for a multi-lock do so on its handle, and not on those of its locks.
    ///
    /// It is what the client knows: no server is asked, so it answers where none does. Who stands ahead in other processes,
    /// ``participants()`` tells, by the same paths. Who waits behind others of his process (``set_local_handover()``) has no node of
    /// his own: that which stands for all of them is ahead. Does not block.
    fn waiting(&self, py: Python<'_>) -> PyResult<Vec<Waiting>> {
        Ok(waiting::all(self.core.waiting().or_raise(py)?))
    }

    /// The data of the nodes that later acquires create; None means this host's address, as in Curator. Of a multi-lock: of
    /// all its locks.
    fn set_data(&self, py: Python<'_>, #[pyo3(from_py_with = text::data)] data: Option<PyBackedBytes>) -> PyResult<()> {
        self.core.set_data(data.as_deref()).or_raise(py)
    }

    /// Has ``callback`` called, with the path of the node that is asked for, whenever somebody asks for this lock to be given
    /// up (``Client.revoke()``, Curator's ``Revoker``), also while it is waited for. It is a request: nothing is taken away.
    ///
    /// The calls come one after the other, on a daemon thread of zklock's, which is not the holder: a callback can tell the
    /// holder, or ``cancel()``, but not wait for a lock: Deadlock. What it raises goes to ``sys.unraisablehook``. It keeps neither a
    /// client from closing nor the interpreter from ending. The callback stays until another takes its place or None does, or the lock is
    /// garbage-collected. Of a multi-lock: for each of its locks, in the place of their own.
    fn set_revocable(&self, callback: &Bound<'_, PyAny>) -> PyResult<()> {
        if callback.is_callable() {
            start_thread(callback.py())?;
        }
        self.tell_revocations(callback)
    }

    /// Lets the threads of this process that queue for this mutex pass it on among themselves, up to ``max_passes`` times in a row,
    /// before its node is given up; 0 as at first: never. It concerns acquires that begin later.
    ///
    /// One node stands for all who wait by this client's handles on the path that are set so, in the order in which they began, and a
    /// release gives it to the next of them without asking a server. Who waits in another process, behind that node, waits for at most
    /// ``max_passes`` holds more than without. Only a hold that is HELD is passed on. All of them have one fencing token, and differ
    /// in ``fencing_pass``. Does not block. Raises zklock.Error for all but a Mutex, ValueError for a negative number.
    fn set_local_handover(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = whole::max_passes)] max_passes: u32,
    ) -> PyResult<()> {
        self.core.set_local_handover(max_passes).or_raise(py)
    }

    /// Whether the calling thread holds the lock, and safely so at this moment: its session is surely alive. Does not block.
    #[getter]
    fn is_held(&self, py: Python<'_>) -> PyResult<bool> {
        self.core.is_held_by(greenlet::owner(py)?).or_raise(py)
    }

    /// Whether any thread of this process holds the lock by this handle, and safely so. Does not block.
    #[getter]
    fn is_held_in_process(&self, py: Python<'_>) -> PyResult<bool> {
        self.core.is_held_in_process().or_raise(py)
    }

    /// How the calling thread's hold stands, or else that of another thread by this handle: a LockState. Does not block.
    #[getter]
    fn state<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        lock_state(py, self.state_now(py)?.or_raise(py)?)
    }

    /// For how many seconds that hold is safe without hearing from a server; 0.0 where nobody holds safely. Does not block.
    #[getter]
    fn remaining(&self, py: Python<'_>) -> PyResult<f64> {
        let lock: &zklock::Lock = &self.core;
        seconds_left(py, Self::own_or_any(py, |owner| lock.remaining_by(owner), || lock.remaining())?)
    }

    /// The fencing token of that hold: an int that grows with every hold of the path, for a store to refuse the stale.
    ///
    /// Does not block. Raises NotOwner where nobody holds, LockLost where the hold was lost.
    #[getter]
    fn fencing_token(&self, py: Python<'_>) -> PyResult<i64> {
        self.token_now(py)?.or_raise(py)
    }

    /// How often the lock had been passed on in this process, with the same token, when that hold began
    /// (``set_local_handover()``); 0 for a hold that came through the queue. A store compares the token and then this.
    ///
    /// Does not block. Raises as ``fencing_token`` does.
    #[getter]
    fn fencing_pass(&self, py: Python<'_>) -> PyResult<u32> {
        let lock: &zklock::Lock = &self.core;
        Self::own_or_any(py, |owner| lock.fencing_pass_by(owner), || lock.fencing_pass())?.or_raise(py)
    }

    /// The path of the calling thread's node, without the client's chroot. A multi-lock has ``node_paths``.
    ///
    /// Does not block. Raises NotOwner in a thread that does not hold, LockLost where the hold was lost.
    #[getter]
    fn node_path(&self, py: Python<'_>) -> PyResult<String> {
        self.node_path_of(py, greenlet::owner(py)?)
    }

    /// The paths of the calling thread's nodes: one, or one for each lock of a multi-lock. For a transaction of one's own that is
    /// to fail once the lock is lost, by a ``check`` of them. Does not block. Raises as ``node_path`` does.
    #[getter]
    fn node_paths(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        self.core.node_paths_by(greenlet::owner(py)?).or_raise(py)
    }

    /// The lock's path, without the client's chroot. A multi-lock has several: those of its ``locks``.
    #[getter]
    fn path(&self) -> PyResult<&str> {
        self.path.as_deref().ok_or_else(|| Self::one_of_several("path", "those of its locks"))
    }

    /// Acquires, with the timeout that the lock was made with. Raises LockTimeout where it runs out, and what
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

    fn __repr__(this: &Bound<'_, Self>) -> PyResult<String> {
        let py = this.py();
        let (kind, lock) = (this.get_type().name()?, this.get());
        let paths = lock.paths().into_iter().map(|path| Ok(PyString::new(py, &path).repr()?.to_string()));
        let paths = paths.collect::<PyResult<Vec<_>>>()?.join(" ");
        match lock.state_now(py)? {
            Err(error) => Ok(format!("<zklock.{kind} {paths} {}>", word(error.status()))),
            Ok(state) => {
                let state = lock_state(py, state)?.getattr("name")?;
                let token = lock.token_now(py)?.map(|token| format!(" token={token}")).unwrap_or_default();
                Ok(format!("<zklock.{kind} {paths} {state}{token}>"))
            }
        }
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        self.members.iter().try_for_each(|member| visit.call(member))?;
        visit.call(&self.listener)?;
        self.callback.traverse(&visit)
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        if let Some(listener) = &self.listener {
            listener.get().remove(self.core.id());
        }
    }
}

/// For how many seconds a hold is safe.
pub(crate) fn seconds_left(py: Python<'_>, remaining: zklock::Result<Duration>) -> PyResult<f64> {
    match remaining {
        Err(error) if matches!(error.status(), Status::NotOwner | Status::Lost) => Ok(0.0),
        remaining => Ok(remaining.or_raise(py)?.as_secs_f64()),
    }
}

#[pymethods]
impl MultiLock {
    /// The locks that it was made of.
    #[getter]
    fn locks<'py>(this: &Bound<'py, Self>) -> PyResult<Bound<'py, PyTuple>> {
        let py = this.py();
        PyTuple::new(py, this.as_super().get().members.iter().map(|member| member.bind(py)))
    }
}

/// A lock with two halves, made by ``Client.rwlock()``: Curator's ``InterProcessReadWriteLock``, as of Curator 5.5.
///
/// Any number may read at a time, but nobody reads while somebody writes, and only one writes. Both halves are fair: they
/// stand in one queue. Each is like a mutex.
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
        listener: Option<Py<Listener>>,
    ) -> PyResult<Self> {
        let lock = |lock| {
            let listener = listener.as_ref().map(|listener| listener.clone_ref(py));
            Lock::new(py, lock, path.clone(), timeout, data, listener)
        };
        let read = object(py, ReadLock, lock(locks.read)?)?.unbind();
        let write = object(py, WriteLock, lock(locks.write)?)?.unbind();
        Ok(Self { read, write, path })
    }

    pub(crate) fn start_participants(&self, py: Python<'_>) -> zklock::Result<Call<Vec<zklock::Participant>>> {
        self.write.bind(py).as_super().get().core.start_queue()
    }
}

#[pymethods]
impl RwLock {
    /// The half for reading: a ReadLock, the same each time.
    #[getter]
    fn read(&self, py: Python<'_>) -> Py<ReadLock> {
        self.read.clone_ref(py)
    }

    /// The half for writing: a WriteLock, the same each time.
    #[getter]
    fn write(&self, py: Python<'_>) -> Py<WriteLock> {
        self.write.clone_ref(py)
    }

    /// Who holds and who waits, readers and writers together, in the order of the queue, whatever process they are in.
    ///
    /// Blocks for the session timeout at most; Ctrl-C interrupts it. Raises ConnectionLost where no server answers by then.
    fn participants(&self, py: Python<'_>) -> PyResult<Vec<Participant>> {
        let lock: &zklock::Lock = &self.write.bind(py).as_super().get().core;
        participant::all(py, || lock.start_queue())
    }

    /// The lock's path, without the client's chroot.
    #[getter]
    fn path(&self) -> &str {
        &self.path
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        Ok(format!("<zklock.RwLock {}>", PyString::new(py, &self.path).repr()?))
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.read)?;
        visit.call(&self.write)
    }
}
