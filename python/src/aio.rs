//! The native part of `zklock/aio`: functions that start an operation for a task, and a completion queue that the event loop watches.
//! The functions of this module do not block.

use std::os::fd::RawFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pyo3::IntoPyObjectExt;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::PyList;
use zklock::internal::{self, EventSource, ForkEpoch, read_options, semaphore_counted_nowait, set_event_notifier};
use zklock::{Config, Listen, Operation, PastRun, Result, RunStart, Status};
use zklock_core::session::ConnectString;

use crate::callback::{callable, collect_bound_calls};
use crate::client::{self, Client, Keywords, SemaphoreSize};
use crate::display::type_name;
use crate::errors::{OrRaise, wrong_type, wrong_value};
use crate::event::{CallbackDispatcher, ClientEvents, Listener};
use crate::hold::Hold;
use crate::lock::Lock;
use crate::log;
use crate::once::{OncePer, PastRunRecord, Run, failure_of};
use crate::participant::Participant;
use crate::seconds::{self, AcquireTimeout, Seconds};
use crate::semaphore::{Leases, Semaphore};
use crate::task_lock::TaskLock;
use crate::{int_args, text};

/// The settings of a client that is about to connect. The constructor takes the same arguments as ``zklock.Client``,
/// and checks these arguments.
#[pyclass(frozen, name = "_Settings", module = "zklock")]
pub(crate) struct Settings {
    servers: String,
    keywords: Keywords,
    config: Config,
}

#[pymethods]
impl Settings {
    #[new]
    #[pyo3(
        signature = (servers, *, session_timeout=None, connect_timeout=None, lease_margin=None, auth=None, wait_for_kazoo=false, options=None),
        text_signature = "(servers, *, session_timeout=None, connect_timeout=None, lease_margin=None, auth=(), wait_for_kazoo=False, options=None)"
    )]
    #[expect(clippy::too_many_arguments, reason = "keywords, in Python")]
    fn new(
        py: Python<'_>,
        #[pyo3(from_py_with = text::servers)] servers: String,
        #[pyo3(from_py_with = seconds::session_timeout)] session_timeout: Option<Seconds>,
        #[pyo3(from_py_with = seconds::connect_timeout)] connect_timeout: Option<Seconds>,
        #[pyo3(from_py_with = seconds::lease_margin)] lease_margin: Option<Seconds>,
        auth: Option<&Bound<'_, PyAny>>,
        #[pyo3(from_py_with = text::wait_for_kazoo)] wait_for_kazoo: bool,
        options: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let (auth, options) = (client::auth_of(auth)?, client::options_of(options)?);
        let keywords = Keywords { session_timeout, connect_timeout, lease_margin, auth, wait_for_kazoo, options };
        let config = keywords.config(py, &[])?;
        ConnectString::parse(&servers).or_raise(py)?;
        Ok(Self::of(servers, keywords, config))
    }

    /// Return a copy of these settings, with additional options from a file. The arguments of the constructor take
    /// precedence over the file. The method blocks the calling thread while it reads the file.
    fn with_file(&self, py: Python<'_>, #[pyo3(from_py_with = text::file)] file: PathBuf) -> PyResult<Self> {
        let file = py.detach(|| read_options(file)).or_raise(py)?;
        let config = self.keywords.config(py, &file)?;
        Ok(Self::of(self.servers.clone(), self.keywords.clone_ref(py), config))
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> std::result::Result<(), PyTraverseError> {
        self.keywords.auth.traverse(&visit)
    }
}

impl Settings {
    fn of(servers: String, keywords: Keywords, config: Config) -> Self {
        // Close the client in the background. The thread that drops the last handle may run an event loop, so the drop must not block.
        Self { servers, keywords, config: config.end_in_background(true) }
    }
}

/// The completion queue of a client. The queue collects finished operations and pending callbacks. An event loop watches the queue
/// through one descriptor. A method that starts an operation returns an ``_Op``. When the operation is over, ``take()`` returns the key
/// of the ``_Op``.
#[pyclass(frozen, weakref, name = "_CompletionQueue", module = "zklock")]
pub(crate) struct CompletionQueue(Arc<SharedQueue>);

/// The part of a completion queue that other threads write to. A thread may write to the `SharedQueue` while the thread
/// is detached from the interpreter.
struct SharedQueue {
    epoch: ForkEpoch,
    last_key: AtomicU64,
    items: internal::CompletionQueue<QueueItem>,
}

enum QueueItem {
    /// The operation with this key is over.
    Completed(u64),
    /// The client has pending callbacks.
    EventReady(EventSource),
}

/// The maximum number of items that one call of `take()` removes. The limit lets the event loop do other work between calls.
const MAX_ITEMS_PER_TAKE: usize = 256;

impl CompletionQueue {
    /// Registers an operation that has started. When the operation ends, the library puts the operation's key into the queue. If the
    /// operation is already over, the library does not put the key into the queue.
    fn track<T: Send + 'static>(
        &self,
        py: Python<'_>,
        operation: Result<Operation<T>>,
        convert: impl Convert<T>,
    ) -> PyResult<Op> {
        let operation = operation.or_raise(py)?;
        let key = self.0.last_key.fetch_add(1, Ordering::Relaxed) + 1;
        if !operation.is_over() {
            let shared = Arc::clone(&self.0);
            operation.on_done(move || shared.items.push(QueueItem::Completed(key))).or_raise(py)?;
        }
        Ok(Op { key, work: Mutex::new(Some(Box::new(Pending { operation, convert }))) })
    }
}

#[pymethods]
impl CompletionQueue {
    /// Make a completion queue. Raises Exhausted if the process has no descriptor left.
    #[new]
    fn new(py: Python<'_>) -> PyResult<Self> {
        let items = internal::CompletionQueue::new().or_raise(py)?;
        Ok(Self(Arc::new(SharedQueue { epoch: ForkEpoch::current(), last_key: AtomicU64::new(0), items })))
    }

    /// Return the descriptor of the queue. The descriptor is readable while the queue contains an item. The caller must neither
    /// read from the descriptor nor close the descriptor.
    fn fileno(&self, py: Python<'_>) -> PyResult<RawFd> {
        self.0.items.descriptor().or_raise(py)
    }

    /// Raise Forked in a child of the process that made this queue.
    fn check(&self, py: Python<'_>) -> PyResult<()> {
        self.0.epoch.check().or_raise(py)
    }

    /// Move the oldest items from the queue to two lists: the keys of the finished operations to ``over``, and the pending callbacks
    /// with their arguments to ``calls``. One call moves a limited number of items.
    fn take(&self, py: Python<'_>, over: &Bound<'_, PyList>, calls: &Bound<'_, PyList>) -> PyResult<()> {
        self.check(py)?;
        for item in self.0.items.take(MAX_ITEMS_PER_TAKE) {
            match item {
                QueueItem::Completed(key) => over.append(key)?,
                QueueItem::EventReady(handlers) => {
                    collect_bound_calls(py, &handlers).into_iter().try_for_each(|call| calls.append(call))?;
                }
            }
        }
        Ok(())
    }

    /// Connect a client. The result of the operation is a Client. If ``listens`` is true, ``on_event`` receives all events of the
    /// client. If ``listens`` is false, ``on_event`` receives no events until ``start_listening()`` is called.
    fn connect(&self, py: Python<'_>, settings: &Settings, on_event: &Bound<'_, PyAny>, listens: bool) -> PyResult<Op> {
        self.check(py)?;
        client::prepare_exit(py)?;
        log::sync_level(py)?;
        let on_event = callable("on_event", on_event)?.ok_or_else(|| wrong_type("on_event: None"))?;
        let events = ClientEvents::new(py, settings.keywords.auth.slots(py))?;
        let mut config = settings.config.clone();
        let shared = Arc::clone(&self.0);
        set_event_notifier(&mut config, move |handlers| shared.items.push(QueueItem::EventReady(handlers)));
        events.get().set_first_callback(py, on_event, &mut config, !listens)?;
        let connecting = zklock::Client::start_connect(&settings.servers, &config);
        self.track(py, connecting, ConnectedClient { servers: settings.servers.clone(), events })
    }

    /// End a client's session. The result of the operation is None. The operation ends when the server has confirmed the end of the
    /// session and `take()` has returned the last events. The operation takes at most 2 seconds.
    fn close_client(&self, py: Python<'_>, client: &Client) -> PyResult<Op> {
        let closing = self.track(py, client.core.start_close(), |()| ())?;
        client.drop_held_locks();
        Ok(closing)
    }

    /// Acquire or re-enter a lock. The result of the operation is True, or False if the timeout passes.
    #[pyo3(signature = (lock, timeout=AcquireTimeout::Own), text_signature = "($self, lock, timeout=...)")]
    fn acquire(
        &self,
        py: Python<'_>,
        lock: &TaskLock,
        #[pyo3(from_py_with = seconds::acquire_timeout)] timeout: AcquireTimeout,
    ) -> PyResult<Op> {
        self.start_acquire(py, lock, timeout, AcquireResult::Bool(lock.lock.clone_ref(py)))
    }

    /// Acquire or re-enter a lock. The call uses the ``timeout`` that the program chose when it made the lock. The result
    /// of the operation is True. If the timeout passes, the operation raises LockTimeout.
    fn acquire_or_raise(&self, py: Python<'_>, lock: &TaskLock) -> PyResult<Op> {
        self.start_acquire(py, lock, AcquireTimeout::Own, AcquireResult::True(lock.lock.clone_ref(py)))
    }

    /// Acquire or re-enter a lock. The result of the operation is a Hold. If the timeout passes, the operation raises
    /// LockTimeout.
    #[pyo3(signature = (lock, timeout=AcquireTimeout::Own), text_signature = "($self, lock, timeout=...)")]
    fn hold(
        &self,
        py: Python<'_>,
        lock: &TaskLock,
        #[pyo3(from_py_with = seconds::acquire_timeout)] timeout: AcquireTimeout,
    ) -> PyResult<Op> {
        self.start_acquire(py, lock, timeout, AcquireResult::Hold(lock.lock.clone_ref(py)))
    }

    /// Release a lock once. The result of the operation is None. The release takes effect at once. The operation ends when
    /// the server has confirmed the release.
    fn release(&self, py: Python<'_>, lock: &TaskLock) -> PyResult<Op> {
        let release = lock.core().start_release(lock.owner, true);
        Lock::drop_if_free(lock.lock.bind(py));
        self.track(py, release, |()| ())
    }

    /// Release a Hold. The result of the operation is None. The release takes effect at once. The operation ends when the
    /// server has confirmed the release.
    fn release_hold(&self, py: Python<'_>, hold: &Hold) -> PyResult<Op> {
        self.track(py, hold.start_release(py), |()| ())
    }

    /// Acquire leases. The result of the operation is a Leases object.
    #[pyo3(
        signature = (semaphore, quantity=1, timeout=AcquireTimeout::Own),
        text_signature = "($self, semaphore, quantity=1, timeout=...)"
    )]
    fn acquire_leases(
        &self,
        py: Python<'_>,
        semaphore: &Bound<'_, Semaphore>,
        #[pyo3(from_py_with = int_args::quantity)] quantity: i32,
        #[pyo3(from_py_with = seconds::acquire_timeout)] timeout: AcquireTimeout,
    ) -> PyResult<Op> {
        log::sync_level(py)?;
        let limit = timeout.or(semaphore.get().timeout).and_then(Seconds::limit);
        let acquire = semaphore.get().core.start_acquire(quantity, limit);
        self.track(py, acquire, AcquiredLeases(semaphore.clone().unbind()))
    }

    /// Release leases. The result of the operation is None. The release takes effect at once. The operation ends when the server has
    /// confirmed the release.
    fn release_leases(&self, py: Python<'_>, leases: &Leases) -> PyResult<Op> {
        self.track(py, leases.core.start_release(true), |()| ())
    }

    /// Wait until a hold or leases are no longer safe. The result of the operation is True. ``of`` is a ``_TaskLock``, a
    /// Hold or a Leases object. Raises NotOwner if there is no hold, or if the hold is released during the wait.
    fn wait_lost(&self, py: Python<'_>, of: &Bound<'_, PyAny>) -> PyResult<Op> {
        let wait = if let Ok(lock) = of.cast::<TaskLock>() {
            lock.get().core().start_wait_lost(lock.get().owner)
        } else if let Ok(hold) = of.cast::<Hold>() {
            hold.get().start_wait_lost()
        } else if let Ok(leases) = of.cast::<Leases>() {
            leases.get().core.start_wait_lost()
        } else {
            return Err(wrong_type(format!("of: expected a lock, a hold or leases, not {}", type_name(of))));
        };
        self.track(py, wait, |()| true)
    }

    /// List the participants of a Lock or a Semaphore. A read lock's list contains only readers, and a write lock's list contains
    /// only writers.
    fn participants(&self, py: Python<'_>, of: &Bound<'_, PyAny>) -> PyResult<Op> {
        let call = if let Ok(lock) = of.cast::<Lock>() {
            lock.get().core.start_participants()
        } else if let Ok(semaphore) = of.cast::<Semaphore>() {
            semaphore.get().core.start_participants()
        } else {
            return Err(wrong_type(format!("of: expected a lock, not {}", type_name(of))));
        };
        self.track(py, call, participants_of)
    }

    /// List all participants of a lock, both readers and writers.
    fn queue(&self, py: Python<'_>, lock: &Lock) -> PyResult<Op> {
        self.track(py, lock.core.start_queue(), participants_of)
    }

    /// Read a shared count. The result of the operation is an int.
    fn shared_count_get(
        &self,
        py: Python<'_>,
        client: &Client,
        #[pyo3(from_py_with = text::path)] path: String,
    ) -> PyResult<Op> {
        self.track(py, client.core.start_shared_count_get(&path), |value| value)
    }

    /// Set a shared count. The result of the operation is None.
    fn shared_count_set(
        &self,
        py: Python<'_>,
        client: &Client,
        #[pyo3(from_py_with = text::path)] path: String,
        #[pyo3(from_py_with = int_args::value)] value: i32,
    ) -> PyResult<Op> {
        self.track(py, client.core.start_shared_count_set(&path, value), |()| ())
    }

    /// Begin the run of a OncePer. The result of the operation is a Run, or None if the job has already run.
    fn begin_run(&self, py: Python<'_>, once_per: &Bound<'_, OncePer>) -> PyResult<Op> {
        self.track(py, once_per.get().start(), BegunRun(once_per.clone().unbind()))
    }

    /// End a run. The result of the operation is None. ``exception`` is an exception, or None if the job succeeded.
    fn end_run(&self, py: Python<'_>, run: &Run, exception: &Bound<'_, PyAny>) -> PyResult<Op> {
        self.track(py, run.start_finish(failure_of(exception).as_deref()), |()| ())
    }

    /// End a run whose job failed. The result of the operation is None.
    fn fail_run(&self, py: Python<'_>, run: &Run, #[pyo3(from_py_with = text::how)] how: String) -> PyResult<Op> {
        self.track(py, run.start_finish(Some(&how)), |()| ())
    }

    /// Read the last runs of a job. The result of the operation is a list of PastRun.
    fn past_runs(
        &self,
        py: Python<'_>,
        client: &Client,
        #[pyo3(from_py_with = text::path)] path: String,
    ) -> PyResult<Op> {
        let runs_of = |all: Vec<PastRun>| all.into_iter().map(PastRunRecord::from).collect::<Vec<_>>();
        self.track(py, client.core.start_past_runs(&path), runs_of)
    }

    /// Ask the ensemble whether a fencing token belongs to a current holder. The result of the operation is a bool.
    fn fence_check(
        &self,
        py: Python<'_>,
        client: &Client,
        #[pyo3(from_py_with = text::path)] path: String,
        #[pyo3(from_py_with = int_args::token)] token: i64,
    ) -> PyResult<Op> {
        self.track(py, client.core.start_fence_check(&path, token), |holds| holds)
    }

    /// Ask the owner of a node to release the lock. The result of the operation is None.
    fn revoke(&self, py: Python<'_>, client: &Client, node: &Bound<'_, PyAny>) -> PyResult<Op> {
        self.track(py, client.core.start_revoke(&client::path_of(node)?), |()| ())
    }

    /// Report all later events of a client to the ``on_event`` that ``connect()`` received.
    fn start_listening(&self, py: Python<'_>, client: &Client) -> PyResult<()> {
        client.events(py).get().start_listening(py, &client.core)
    }
}

impl CompletionQueue {
    fn start_acquire(
        &self,
        py: Python<'_>,
        lock: &TaskLock,
        timeout: AcquireTimeout,
        result: AcquireResult,
    ) -> PyResult<Op> {
        log::sync_level(py)?;
        let limit = timeout.or(lock.lock.get().timeout).and_then(Seconds::limit);
        self.track(py, lock.core().start_acquire(lock.owner, limit), result)
    }
}

/// A pending operation. If the caller drops an ``_Op`` that acquires a lock or leases, the library abandons the acquire
/// call. If the call has already succeeded, the library releases the lock or the leases. If the caller drops any other
/// ``_Op``, the operation continues.
#[pyclass(frozen, weakref, name = "_Op", module = "zklock")]
pub(crate) struct Op {
    key: u64,
    work: Mutex<Option<Box<dyn PendingOp>>>,
}

#[pymethods]
impl Op {
    /// The key of the operation. When the operation is over, ``take()`` of the completion queue returns this key.
    #[getter]
    fn key(&self) -> u64 {
        self.key
    }

    /// Whether the operation is over. If the operation ends as soon as it starts, the completion queue never returns its key.
    #[getter]
    fn is_over(&self) -> bool {
        self.lock().as_ref().is_none_or(|work| work.is_over())
    }

    /// Return the operation's result, or raise its exception. The caller may call this method once, after the operation is over. The
    /// caller must release a lock or leases that the operation has acquired.
    fn result(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let mut place = self.lock();
        let over = place.take_if(|work| work.is_over());
        drop(place);
        match over {
            Some(work) => work.result(py),
            None => Err(wrong_value("this call has not ended, or its result was already taken")),
        }
    }

    /// Abandon the operation. This has the same effect as dropping the ``_Op``. Does not block.
    fn abandon(&self) {
        let work = self.lock().take();
        drop(work);
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> std::result::Result<(), PyTraverseError> {
        let work = self.work.try_lock().ok();
        work.as_deref().and_then(Option::as_ref).map_or(Ok(()), |work| work.traverse(&visit))
    }
}

impl Op {
    fn lock(&self) -> MutexGuard<'_, Option<Box<dyn PendingOp>>> {
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An operation of any kind, whose result becomes a Python object.
trait PendingOp: Send + 'static {
    fn is_over(&self) -> bool;
    /// Returns the result. The caller must call this function only after the operation is over.
    fn result(&self, py: Python<'_>) -> PyResult<Py<PyAny>>;
    fn traverse(&self, visit: &PyVisit<'_>) -> std::result::Result<(), PyTraverseError>;
}

struct Pending<T, C> {
    operation: Operation<T>,
    convert: C,
}

impl<T: Send + 'static, C: Convert<T>> PendingOp for Pending<T, C> {
    fn is_over(&self) -> bool {
        self.operation.is_over()
    }

    fn result(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let result = self.operation.wait_for(Duration::ZERO).unwrap_or_else(|| Err(Status::Internal.into()));
        self.convert.convert(py, result)
    }

    fn traverse(&self, visit: &PyVisit<'_>) -> std::result::Result<(), PyTraverseError> {
        self.convert.traverse(visit)
    }
}

/// Converts the result of an operation to a Python object.
trait Convert<T>: Send + 'static {
    fn convert(&self, py: Python<'_>, result: Result<T>) -> PyResult<Py<PyAny>>;

    fn traverse(&self, _: &PyVisit<'_>) -> std::result::Result<(), PyTraverseError> {
        Ok(())
    }
}

impl<T, P: for<'py> IntoPyObject<'py>, F: Fn(T) -> P + Send + 'static> Convert<T> for F {
    fn convert(&self, py: Python<'_>, result: Result<T>) -> PyResult<Py<PyAny>> {
        self(result.or_raise(py)?).into_py_any(py)
    }
}

fn participants_of(all: Vec<zklock::Participant>) -> Vec<Participant> {
    all.into_iter().map(Participant::from).collect()
}

/// The result of an acquire operation.
enum AcquireResult {
    /// True, or False if the timeout passes.
    Bool(Py<Lock>),
    /// True. After a timeout, the operation raises an exception.
    True(Py<Lock>),
    /// A Hold of the owner. After a timeout, the operation raises an exception.
    Hold(Py<Lock>),
}

impl Convert<zklock::Hold> for AcquireResult {
    fn convert(&self, py: Python<'_>, result: Result<zklock::Hold>) -> PyResult<Py<PyAny>> {
        match (result, self) {
            (Err(error), Self::Bool(_)) if error.status() == Status::Timeout => false.into_py_any(py),
            (acquired, Self::Bool(lock) | Self::True(lock)) => {
                let hold = acquired.or_raise(py)?;
                Lock::keep(lock.bind(py));
                hold.leave_to_owner();
                true.into_py_any(py)
            }
            (acquired, Self::Hold(lock)) => Hold::of_acquired(lock.bind(py), acquired.or_raise(py)?)?.into_py_any(py),
        }
    }

    fn traverse(&self, visit: &PyVisit<'_>) -> std::result::Result<(), PyTraverseError> {
        match self {
            Self::Bool(lock) | Self::True(lock) | Self::Hold(lock) => visit.call(lock),
        }
    }
}

/// The result is a Leases object of this semaphore.
struct AcquiredLeases(Py<Semaphore>);

impl Convert<zklock::Hold> for AcquiredLeases {
    fn convert(&self, py: Python<'_>, result: Result<zklock::Hold>) -> PyResult<Py<PyAny>> {
        Leases::new(result.or_raise(py)?, self.0.clone_ref(py)).into_py_any(py)
    }

    fn traverse(&self, visit: &PyVisit<'_>) -> std::result::Result<(), PyTraverseError> {
        visit.call(&self.0)
    }
}

/// The result is a Run, or None if the job has already run.
struct BegunRun(Py<OncePer>);

impl Convert<RunStart> for BegunRun {
    fn convert(&self, py: Python<'_>, result: Result<RunStart>) -> PyResult<Py<PyAny>> {
        self.0.get().begun(py, result.or_raise(py)?)?.into_py_any(py)
    }

    fn traverse(&self, visit: &PyVisit<'_>) -> std::result::Result<(), PyTraverseError> {
        visit.call(&self.0)
    }
}

/// The result is a Client.
struct ConnectedClient {
    servers: String,
    events: Py<ClientEvents>,
}

impl Convert<zklock::Client> for ConnectedClient {
    fn convert(&self, py: Python<'_>, result: Result<zklock::Client>) -> PyResult<Py<PyAny>> {
        let (client, events) = (result.or_raise(py)?, self.events.clone_ref(py));
        Client::of(client, self.servers.clone(), events, CallbackDispatcher::Loop).into_py_any(py)
    }

    fn traverse(&self, visit: &PyVisit<'_>) -> std::result::Result<(), PyTraverseError> {
        visit.call(&self.events)
    }
}

/// Set the revocation callback of a Lock or a Semaphore. For each revocation request, ``_CompletionQueue.take()`` returns the callback
/// with its argument. The event loop then calls the callback.
#[pyfunction]
pub(crate) fn _set_revocable(of: &Bound<'_, PyAny>, callback: &Bound<'_, PyAny>) -> PyResult<()> {
    if let Ok(lock) = of.cast::<Lock>() {
        lock.get().set_revocation_callback(callback)
    } else if let Ok(semaphore) = of.cast::<Semaphore>() {
        semaphore.get().set_revocation_callback(callback)
    } else {
        Err(wrong_type(format!("of: expected a lock or a semaphore, not {}", type_name(of))))
    }
}

/// Add an event callback to a Client, a Lock or a Leases object. If ``losses`` is true, the callback receives only the losses of a Lock
/// or a Leases object. For each event, ``_CompletionQueue.take()`` returns the callback with its argument. The event loop then calls the
/// callback.
#[pyfunction]
#[pyo3(signature = (of, callback, *, losses=false))]
pub(crate) fn _listen(of: &Bound<'_, PyAny>, callback: &Bound<'_, PyAny>, losses: bool) -> PyResult<Py<Listener>> {
    let which = if losses { Listen::Loss } else { Listen::All };
    if let Ok(lock) = of.cast::<Lock>() {
        Lock::listen(lock, callback, which, CallbackDispatcher::Loop)
    } else if let Ok(leases) = of.cast::<Leases>() {
        leases.get().listen(callback, which, CallbackDispatcher::Loop)
    } else if let Ok(client) = of.cast::<Client>() {
        let client = client.get();
        client.events(of.py()).get().listen(callback, &client.core, CallbackDispatcher::Loop)
    } else {
        Err(wrong_type(format!("of: expected a client, a lock or leases, not {}", type_name(of))))
    }
}

/// Make a semaphore without waiting. If the shared count does not exist, the library creates the count in the background.
#[pyfunction]
#[pyo3(signature = (client, path, max_leases=None, *, count_path=None, initial=None, timeout=None))]
pub(crate) fn _semaphore_nowait(
    py: Python<'_>,
    client: &Client,
    #[pyo3(from_py_with = text::path)] path: String,
    #[pyo3(from_py_with = int_args::max_leases)] max_leases: Option<i32>,
    #[pyo3(from_py_with = text::count_path)] count_path: Option<String>,
    #[pyo3(from_py_with = int_args::initial)] initial: Option<i32>,
    #[pyo3(from_py_with = seconds::timeout)] timeout: Option<Seconds>,
) -> PyResult<Semaphore> {
    client.make_semaphore(
        py,
        path,
        SemaphoreSize::of(max_leases, count_path, initial)?,
        timeout,
        |_, path, count_path, initial| Ok(semaphore_counted_nowait(&client.core, path, count_path, initial)),
    )
}

/// Check a timeout. Return the timeout in seconds, or None for a wait without limit.
#[pyfunction]
pub(crate) fn _timeout(#[pyo3(from_py_with = seconds::timeout)] timeout: Option<Seconds>) -> Option<f64> {
    timeout.and_then(Seconds::limit).map(|limit| limit.as_secs_f64())
}
