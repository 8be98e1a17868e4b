//! The class `zklock.Client`, and the settings of a client. This file converts arguments, and makes locks and
//! semaphores. The core alone manages the session. No call may block while its thread is attached to the interpreter.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{self, Arc, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use pyo3::exceptions::PyTypeError;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyDict, PyMapping, PyString};
use zeroize::Zeroizing;
use zklock::internal::{self, FileOption, PerProcess, configure};
use zklock::{ClientState, Config, Status, WeakClient};

use crate::auth::{self, AuthPairs};
use crate::callback::{callable, is_callback_thread, set_thread_notifier, start_thread, wait_until_returned};
use crate::detached_drop::DetachedDrop;
use crate::display::{member_name, quoted, repr, type_name};
use crate::errors::{EndedItem, OrRaise, end_block, ignore_forked, status_word, wrong_type};
use crate::event::{CallbackDispatcher, ClientEvents, Listener};
use crate::greenlet::{GreenletWait, Hub, WaitTarget};
use crate::held_locks::HeldLocks;
use crate::imports::imports;
use crate::lock::{self, Lock, MultiLock, Mutex, RwLock, SemaphoreMutex};
use crate::log;
use crate::metrics;
use crate::once::{self, PastRunRecord};
use crate::python_call::CallPython;
use crate::resource_warning::warn_without_log;
use crate::seconds::{self, Seconds};
use crate::semaphore::Semaphore;
use crate::states::client_state;
use crate::wait::{set_exiting, wait};
use crate::{int_args, text, unknown_args};

/// A client has one ZooKeeper session. Any number of locks and threads may share the client.
///
/// ``servers`` is a connect string such as ``"host:2181,host:2181/chroot"``. All durations are in seconds, as an int or a float. The
/// other arguments are:
///
/// * ``session_timeout``: the servers end the session if they receive no message from the client within this time. The servers
///   may choose a different timeout. None means 10 s.
/// * ``connect_timeout``: the time limit for the constructor to connect. None means 10 s.
/// * ``lease_margin``: the session lease is shorter than the session timeout by at least this time. By default,
///   ``lease_margin`` is a third of the negotiated session timeout.
/// * ``auth``: pairs of scheme and credentials, for instance ``[("digest", "user:password")]``. Instead of the credentials, a pair can
///   contain a callable that takes no arguments and returns the credentials as bytes or str. Before each attempt to connect, the
///   library calls the callable on a separate daemon thread. The callable may block, but must not wait for a lock. If the callable
///   raises an exception before the first connection, the constructor raises AuthFailed with the text of the exception. If the callable
///   raises an exception later, the client tries again.
/// * ``wait_for_kazoo``: if True, mutexes and read/write locks of this client wait in one queue with kazoo's locks on
///   the same path. If False, and the option ``locks.wait_for_kazoo`` is not set either, a call that acquires a mutex or
///   a read/write lock raises ForeignContender if a kazoo lock uses the path. ``wait_for_kazoo`` is for programs that
///   migrate from kazoo to zklock. The kazoo program must also configure its locks to wait for the nodes of zklock. On
///   the path of a mutex, a kazoo lock needs ``extra_lock_patterns=["-lock-"]``. On the path of a read/write lock, a
///   kazoo lock needs ``extra_lock_patterns=["__READ__", "__WRIT__"]``.
/// * ``on_event``: a callback for events. The library calls the callback with a ClientEvent whenever the session changes state, and
///   with a LockEvent whenever a hold changes state.
/// * ``options``: a mapping of option names to values, for instance ``{"session.timeout": "5000"}``. The page
///   ``docs/options.md`` lists all options. If ``options`` and another argument set the same option, the other argument
///   takes precedence. ``from_file()`` reads options from a file.
///
/// The constructor waits for the session to begin, but no longer than ``connect_timeout``. Ctrl-C interrupts the wait. The
/// constructor raises ConnectionLost if no server answers within ``connect_timeout``, and AuthFailed if a server refuses the
/// credentials. The constructor raises ServerError if the chroot does not exist (see the ``chroot.create`` option), and
/// ValueError or TypeError for wrong arguments. The constructor also raises ValueError if it cannot read a file with credentials
/// (see the ``auth.digest_file`` option).
///
/// The library's daemon thread calls the callbacks of ``on_event`` and ``set_revocable()``. If a client has a loss in its
/// queue while this thread is busy, a second daemon thread calls the callbacks of this client. The callbacks of one client
/// run one at a time. The callback receives events in the order in which the changes happened. If the states of a
/// hold and of the session change at the same moment, the callback receives the event of the hold first. If a callback
/// raises an exception, the library passes the exception to ``sys.unraisablehook``.
///
/// A callback must not wait for a lock, for leases or for a loss. While a callback waits, the client may be unable to
/// deliver the event that would end the wait. In a callback, ``wait_lost()`` and every call that acquires a lock or
/// leases therefore raise Deadlock, unless the timeout is 0. A callback may call every method that does not wait for a
/// lock, for leases or for a loss.
///
/// While a callback runs, later events wait in a queue. If about a thousand events wait in the queue, the client merges any further
/// events of each hold. The client also merges any further events of the session. Merged events still report the last state of
/// every hold, and the loss of every lost hold. If several sessions are lost one after the other, merged events may report only one
/// of these losses. ``close()`` waits at most 2 seconds for the delivery of the last events. After a client and all its locks,
/// semaphores and leases are garbage-collected without ``close()``, its callbacks receive no more events. The thread that drops the
/// last of these objects may wait up to 2 seconds for the server. The interpreter can end even if a callback does not return.
///
/// The session ends when the program calls ``close()``, at the end of a ``with`` block, when the client and all its locks are
/// garbage-collected, or when the interpreter ends (``atexit``). The methods may be called from any thread. In a forked child
/// process, every method except ``close()`` raises Forked. The child process must make a new client.
#[pyclass(frozen, weakref, module = "zklock")]
pub(crate) struct Client {
    pub(crate) core: DetachedDrop<zklock::Client>,
    /// The server list with the chroot, for ``repr()``.
    servers: sync::Mutex<String>,
    events: Py<ClientEvents>,
    /// The other references to this value are weak, so that the locks are dropped with the client object.
    held_locks: Arc<HeldLocks>,
    /// Whether the object belongs to a `zklock.aio.Client`, which issues the ResourceWarning for an open client itself.
    is_of_loop: bool,
}

impl Drop for Client {
    fn drop(&mut self) {
        let is_open = self.core.state().is_ok_and(|state| state != ClientState::Closed);
        if is_open && !self.is_of_loop {
            let servers = std::mem::take(&mut *self.servers.lock().unwrap_or_else(PoisonError::into_inner));
            let hint = "was not closed; use a with block, or call close()";
            Python::try_attach(|py| {
                warn_without_log(py, || Ok(format!("the client of {} {hint}", quoted(py, &servers)?)));
            });
        }
    }
}

impl Client {
    pub(crate) fn events(&self, py: Python<'_>) -> Py<ClientEvents> {
        self.events.clone_ref(py)
    }

    fn has_listeners(&self) -> bool {
        self.events.get().names().are_used()
    }

    /// Makes the Python object for a client that has just connected.
    pub(crate) fn of(
        client: zklock::Client,
        servers: String,
        events: Py<ClientEvents>,
        dispatcher: CallbackDispatcher,
    ) -> Self {
        register_for_exit(&client, dispatcher);
        let held_locks = Arc::default();
        events.get().set_held_locks(&held_locks);
        let is_of_loop = matches!(dispatcher, CallbackDispatcher::Loop);
        Self { core: DetachedDrop::new(client), servers: sync::Mutex::new(servers), events, held_locks, is_of_loop }
    }

    /// Drops the references to the locks that a closed client no longer holds.
    pub(crate) fn drop_held_locks(&self) {
        self.held_locks.clear();
    }

    /// Closes the session, and delivers the last events within the time limit. In a forked child process, the function does nothing.
    fn close_unless_forked(&self, py: Python<'_>) -> PyResult<zklock::Result<()>> {
        let ended = if is_forked(&self.core) { Ok(()) } else { self.close_blocking(py)? };
        self.drop_held_locks();
        // This process may be a child that a callback has just forked.
        Ok(ignore_forked(ended))
    }

    fn close_blocking(&self, py: Python<'_>) -> PyResult<zklock::Result<()>> {
        let hub = Hub::find(py, WaitTarget::ClientClose);
        match hub.and_then(|hub| hub.map(|hub| hub.start_wait()).transpose()) {
            Ok(None) => {}
            Ok(Some(in_hub)) => return self.close_in_greenlet(py, &in_hub),
            Err(interrupt) => {
                let _ = py.detach(|| self.core.start_close());
                return Err(interrupt);
            }
        }
        Ok(py.detach(|| {
            let start = Instant::now();
            let closed = self.core.close();
            if self.has_listeners() {
                wait_until_returned(&internal::event_source(&self.core)?, CLOSE_LIMIT.saturating_sub(start.elapsed()));
            }
            closed
        }))
    }

    /// Closes the session, and lets other greenlets run during the close. A callback may wait for another greenlet. If closing the
    /// client blocked that greenlet, the callback could not return.
    fn close_in_greenlet(&self, py: Python<'_>, in_hub: &GreenletWait<'_>) -> PyResult<zklock::Result<()>> {
        let (start, ended) = (Instant::now(), Arc::new(sync::Mutex::new(None)));
        // If a client callback calls this function, the function must not wait for that callback to return.
        let handlers =
            (self.has_listeners() && !is_callback_thread()).then(|| internal::event_source(&self.core)).transpose();
        let handlers = handlers.or_raise(py)?;
        let (waker, end) = (in_hub.waker(), Arc::clone(&ended));
        let hook = move |closed| {
            if let Some(handlers) = handlers {
                wait_until_returned(&handlers, CLOSE_LIMIT.saturating_sub(start.elapsed()));
            }
            *end.lock().unwrap_or_else(PoisonError::into_inner) = Some(closed);
            waker.wake();
        };
        if let Err(error) = py.detach(|| internal::close_and_then(&self.core, hook)) {
            return Ok(Err(error));
        }
        loop {
            if let Some(closed) = ended.lock().unwrap_or_else(PoisonError::into_inner).take() {
                return Ok(closed);
            }
            in_hub.wait(None)?;
        }
    }
}

/// Returns whether a client belongs to the parent of this forked process.
fn is_forked(client: &zklock::Client) -> bool {
    client.state().is_err_and(|error| error.status() == Status::Forked)
}

/// The number of leases of a semaphore.
pub(crate) enum SemaphoreSize {
    Fixed(i32),
    Counted { count_path: String, initial: i32 },
}

impl SemaphoreSize {
    pub(crate) fn of(max_leases: Option<i32>, count_path: Option<String>, initial: Option<i32>) -> PyResult<Self> {
        let wrong = |message: &'static str| Err(wrong_type(message));
        match (max_leases, count_path, initial) {
            (Some(max), None, None) => Ok(Self::Fixed(max)),
            (None, Some(count_path), Some(initial)) => Ok(Self::Counted { count_path, initial }),
            (None, None, _) => wrong("semaphore: expected max_leases, or count_path and initial"),
            (Some(_), Some(_), _) => wrong("semaphore: expected max_leases or count_path, not both"),
            (Some(_), None, Some(_)) => wrong("semaphore: expected initial only with count_path, not with max_leases"),
            (None, Some(_), None) => wrong(
                "semaphore: expected initial with count_path: the number of leases if the count does not exist yet",
            ),
        }
    }
}

impl Client {
    /// Makes a semaphore. If the semaphore has a shared count, this function calls `counted` to make it.
    pub(crate) fn make_semaphore(
        &self,
        py: Python<'_>,
        path: String,
        size: SemaphoreSize,
        timeout: Option<Seconds>,
        counted: impl FnOnce(Python<'_>, &str, &str, i32) -> PyResult<zklock::Result<zklock::Semaphore>>,
    ) -> PyResult<Semaphore> {
        let (semaphore, size) = match size {
            SemaphoreSize::Fixed(max) => (self.core.semaphore(&path, max), format!("max_leases={max}")),
            SemaphoreSize::Counted { count_path, initial } => {
                let size = format!("count_path={}", quoted(py, &count_path)?);
                (counted(py, &path, &count_path, initial)?, size)
            }
        };
        Ok(Semaphore::new(semaphore.or_raise(py)?, path, size, timeout, self.events(py)))
    }
}

/// Returns the path of `node`, which is a text or a Participant.
pub(crate) fn path_of(node: &Bound<'_, PyAny>) -> PyResult<String> {
    let is_participant = node.is_instance(imports(node.py())?.participant.bind(node.py()))?;
    let path = if is_participant { node.getattr(intern!(node.py(), "node_path"))? } else { node.clone() };
    if let Ok(path) = path.cast::<PyString>() {
        return text::content("node", path);
    }
    let kind = type_name(node);
    Err(wrong_type(format!("node: expected a Participant or the path of a node, not {kind}")))
}

/// The keyword arguments of a client that is about to connect.
pub(crate) struct Keywords {
    pub(crate) session_timeout: Option<Seconds>,
    pub(crate) connect_timeout: Option<Seconds>,
    pub(crate) lease_margin: Option<Seconds>,
    pub(crate) auth: AuthPairs,
    pub(crate) wait_for_kazoo: bool,
    pub(crate) options: Vec<FileOption>,
}

impl Keywords {
    /// Returns the settings of the client. The keyword arguments take precedence over the options of a file.
    pub(crate) fn config(&self, py: Python<'_>, file: &[FileOption]) -> PyResult<Config> {
        let mut config = Config::new();
        for (name, value) in file.iter().chain(&self.options) {
            config.set(name, value).or_raise(py)?;
        }
        if self.wait_for_kazoo {
            config = config.wait_for_kazoo(true);
        }
        if let Some(timeout) = self.session_timeout {
            configure(&mut config, |config| config.session_timeout(timeout.milliseconds())).or_raise(py)?;
        }
        if let Some(timeout) = self.connect_timeout {
            configure(&mut config, |config| config.connect_timeout(timeout.milliseconds())).or_raise(py)?;
        }
        if let Some(margin) = self.lease_margin {
            configure(&mut config, |config| config.lease_margin(margin.milliseconds())).or_raise(py)?;
        }
        self.auth.add_to(py, &mut config)?;
        Ok(config)
    }

    pub(crate) fn clone_ref(&self, py: Python<'_>) -> Self {
        Self { auth: self.auth.clone_ref(py), options: self.options.clone(), ..*self }
    }
}

impl Client {
    /// Connects a client.
    fn connect(
        py: Python<'_>,
        servers: String,
        config: Config,
        auth: &AuthPairs,
        on_event: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        prepare_exit(py)?;
        // If a greenlet drops the last handle of the client, the other greenlets of the thread must not wait until the client is
        // closed.
        let mut config = config.end_in_background(Hub::find(py, WaitTarget::Server)?.is_some());
        set_thread_notifier(&mut config);
        let events = ClientEvents::new(py, auth.slots(py))?;
        if let Some(on_event) = on_event
            && let Some(callback) = callable("on_event", on_event)?
        {
            start_thread(py)?;
            events.get().set_first_callback(py, callback, &mut config, false)?;
        }
        let start = || zklock::Client::start_connect(&servers, &config);
        let client = wait(py, WaitTarget::Server, start, drop)?.or_raise(py)?;
        Ok(Self::of(client, servers, events, CallbackDispatcher::Thread))
    }
}

/// The longest time for which `close()` waits.
const CLOSE_LIMIT: Duration = Duration::from_secs(2);

#[pymethods]
impl Client {
    #[new]
    #[pyo3(
        signature = (servers=None, *, session_timeout=None, connect_timeout=None, lease_margin=None, auth=None, wait_for_kazoo=false, on_event=None, options=None, **unknown),
        text_signature = "(servers, *, session_timeout=None, connect_timeout=None, lease_margin=None, auth=(), wait_for_kazoo=False, on_event=None, options=None)"
    )]
    #[expect(clippy::too_many_arguments, reason = "keywords, in Python")]
    fn new(
        py: Python<'_>,
        servers: Option<&Bound<'_, PyAny>>,
        #[pyo3(from_py_with = seconds::session_timeout)] session_timeout: Option<Seconds>,
        #[pyo3(from_py_with = seconds::connect_timeout)] connect_timeout: Option<Seconds>,
        #[pyo3(from_py_with = seconds::lease_margin)] lease_margin: Option<Seconds>,
        auth: Option<&Bound<'_, PyAny>>,
        #[pyo3(from_py_with = text::wait_for_kazoo)] wait_for_kazoo: bool,
        on_event: Option<&Bound<'_, PyAny>>,
        options: Option<&Bound<'_, PyAny>>,
        unknown: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Self> {
        unknown_args::refuse("Client()", unknown)?;
        let missing = || PyTypeError::new_err("Client() missing 1 required positional argument: 'servers'");
        let servers = text::servers(servers.ok_or_else(missing)?)?;
        log::sync_level(py)?;
        let (auth, options) = (auth_of(auth)?, options_of(options)?);
        let keywords = Keywords { session_timeout, connect_timeout, lease_margin, auth, wait_for_kazoo, options };
        let config = keywords.config(py, &[])?;
        Self::connect(py, servers, config, &keywords.auth, on_event)
    }

    /// Make a client with options from a file. The file contains at most 64 KiB of UTF-8 text, with one ``name = value`` on each line.
    ///
    /// The method ignores empty lines, and lines that begin with ``#``. The keyword arguments are the same as for ``Client``, and take
    /// precedence over the file. ``from_file()`` waits at most ``connect_timeout`` until the session begins, and raises the same errors
    /// as the constructor of ``Client``. ``from_file()`` also raises ValueError if the file cannot be read or a line is wrong.
    #[staticmethod]
    #[pyo3(
        signature = (servers, file, *, session_timeout=None, connect_timeout=None, lease_margin=None, auth=None, wait_for_kazoo=false, on_event=None, options=None),
        text_signature = "(servers, file, *, session_timeout=None, connect_timeout=None, lease_margin=None, auth=(), wait_for_kazoo=False, on_event=None, options=None)"
    )]
    #[expect(clippy::too_many_arguments, reason = "keywords, in Python")]
    fn from_file(
        py: Python<'_>,
        #[pyo3(from_py_with = text::servers)] servers: String,
        #[pyo3(from_py_with = text::file)] file: PathBuf,
        #[pyo3(from_py_with = seconds::session_timeout)] session_timeout: Option<Seconds>,
        #[pyo3(from_py_with = seconds::connect_timeout)] connect_timeout: Option<Seconds>,
        #[pyo3(from_py_with = seconds::lease_margin)] lease_margin: Option<Seconds>,
        auth: Option<&Bound<'_, PyAny>>,
        #[pyo3(from_py_with = text::wait_for_kazoo)] wait_for_kazoo: bool,
        on_event: Option<&Bound<'_, PyAny>>,
        options: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        log::sync_level(py)?;
        let (auth, options) = (auth_of(auth)?, options_of(options)?);
        let keywords = Keywords { session_timeout, connect_timeout, lease_margin, auth, wait_for_kazoo, options };
        // Check the arguments before the file. If an argument and the file are both wrong, the error names the argument.
        drop(keywords.config(py, &[])?);
        if let Some(on_event) = on_event {
            callable("on_event", on_event)?;
        }
        let file = py.detach(|| internal::read_options(file)).or_raise(py)?;
        let config = keywords.config(py, &file)?;
        Self::connect(py, servers, config, &keywords.auth, on_event)
    }

    /// Make a re-entrant mutex on a path, like Curator's ``InterProcessMutex``. The method sends nothing to a server.
    ///
    /// A ``with`` block, and a call of ``acquire()`` or ``hold()`` without the argument ``timeout``, waits for the mutex
    /// for at most ``timeout`` seconds, or without limit if ``timeout`` is None. ``data`` is the content of each node that the mutex creates. If ``data`` is None, the nodes contain the address of this host, as
    /// in Curator. ``local_handover`` is the maximum number of consecutive local hand-overs between threads of this
    /// process; see ``Lock.set_local_handover()``. Raises ValueError for a path that ZooKeeper does not accept, and
    /// ClientClosed if the client is closed.
    #[pyo3(signature = (path, *, timeout=None, data=None, local_handover=0))]
    fn mutex<'py>(
        &self,
        py: Python<'py>,
        #[pyo3(from_py_with = text::path)] path: String,
        #[pyo3(from_py_with = seconds::timeout)] timeout: Option<Seconds>,
        #[pyo3(from_py_with = text::data)] data: Option<PyBackedBytes>,
        #[pyo3(from_py_with = int_args::local_handover)] local_handover: u32,
    ) -> PyResult<Bound<'py, Mutex>> {
        let lock = self.core.mutex(&path).or_raise(py)?;
        lock.set_local_handover(local_handover).or_raise(py)?;
        lock::object(py, Mutex, Lock::new(py, lock, path, timeout, data.as_deref(), self.events(py))?)
    }

    /// Lead other processes: yield a Hold for each term of this process as the leader on ``path``. ::
    ///
    ///     for term in client.lead("/leader"):
    ///         while term.is_held:
    ///             work(fence=term.token)
    ///
    /// Only one process leads at a time. Each step of the loop waits without limit until this process is the leader, and then
    /// yields the Hold of a mutex on the path. The next step, ``break``, and an exception end the term: the library releases the
    /// Hold, or forgets the Hold if the leadership was lost, and another process may lead. ``data`` has the same meaning as for
    /// ``mutex()``. The iteration ends when the client is closed. Use the iterator in one thread.
    #[pyo3(signature = (path, *, data=None))]
    fn lead<'py>(
        &self,
        py: Python<'py>,
        #[pyo3(from_py_with = text::path)] path: String,
        #[pyo3(from_py_with = text::data)] data: Option<PyBackedBytes>,
    ) -> PyResult<Bound<'py, PyAny>> {
        imports(py)?.terms.bind(py).call_python((self.mutex(py, path, None, data, 0)?,))
    }

    /// Make a mutex that is not re-entrant and that any thread may release, like Curator's ``InterProcessSemaphoreMutex``. The method
    /// sends nothing to a server. The arguments have the same meaning as for ``mutex()``.
    #[pyo3(signature = (path, *, timeout=None, data=None))]
    fn semaphore_mutex<'py>(
        &self,
        py: Python<'py>,
        #[pyo3(from_py_with = text::path)] path: String,
        #[pyo3(from_py_with = seconds::timeout)] timeout: Option<Seconds>,
        #[pyo3(from_py_with = text::data)] data: Option<PyBackedBytes>,
    ) -> PyResult<Bound<'py, SemaphoreMutex>> {
        let lock = self.core.semaphore_mutex(&path).or_raise(py)?;
        lock::object(py, SemaphoreMutex, Lock::new(py, lock, path, timeout, data.as_deref(), self.events(py))?)
    }

    /// Make a read/write lock, like Curator's ``InterProcessReadWriteLock``. The method sends nothing to a server. The arguments have
    /// the same meaning as for ``mutex()``, and apply to the read lock and to the write lock.
    #[pyo3(signature = (path, *, timeout=None, data=None))]
    fn rwlock(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = text::path)] path: String,
        #[pyo3(from_py_with = seconds::timeout)] timeout: Option<Seconds>,
        #[pyo3(from_py_with = text::data)] data: Option<PyBackedBytes>,
    ) -> PyResult<RwLock> {
        let locks = self.core.rwlock(&path).or_raise(py)?;
        RwLock::new(py, locks, path, timeout, data.as_deref(), self.events(py))
    }

    /// Make a lock that acquires and releases several locks together, like Curator's ``InterProcessMultiLock``. The method sends
    /// nothing to a server.
    ///
    /// ``locks`` is an iterable of locks and paths. For each path in ``locks``, the method creates a mutex that belongs to this client.
    /// Each lock in ``locks`` is a mutex, a semaphore mutex, a read lock, a write lock or another multi-lock, and may belong to any
    /// client. ``timeout`` has the same meaning as for ``mutex()``. Raises ValueError if ``locks`` is empty, or if two locks have the
    /// same path.
    ///
    /// Two multi-locks of zklock do not deadlock with each other, even if they list the same locks in different orders.
    /// A Curator multi-lock acquires its locks one after the other. To avoid a deadlock with a Curator multi-lock, a zklock multi-lock
    /// leaves its queues and joins them again later. If ``in_order`` is True, the library acquires the locks one after the other in the
    /// given order, like Curator. Use ``in_order`` if Curator multi-locks use the same paths in the same order.
    #[pyo3(signature = (locks, *, timeout=None, in_order=false))]
    fn multi<'py>(
        &self,
        py: Python<'py>,
        locks: &Bound<'py, PyAny>,
        #[pyo3(from_py_with = seconds::timeout)] timeout: Option<Seconds>,
        #[pyo3(from_py_with = text::in_order)] in_order: bool,
    ) -> PyResult<Bound<'py, MultiLock>> {
        let mutex = |path: &Bound<'py, PyAny>| {
            let lock = self.mutex(py, text::path(path)?, None, None, 0)?;
            Ok(lock.into_super().unbind())
        };
        Bound::new(py, (MultiLock, Lock::multi(locks, mutex, timeout, in_order)?))
    }

    /// Make a semaphore on a path, like Curator's ``InterProcessSemaphoreV2``.
    ///
    /// Pass either ``max_leases``, or both ``count_path`` and ``initial``. ``max_leases`` is the number of leases that the
    /// semaphore can grant at the same time. All programs that use the semaphore must pass the same ``max_leases``.
    /// ``count_path`` is the path of a shared count (see ``shared_count_set()`` and Curator's ``SharedCount``). With
    /// ``count_path``, the number of leases is always the current value of the shared count. If the shared count does not exist,
    /// the call creates the count with the value ``initial``. If a program lowers the shared count, leases that are already held
    /// stay valid. A call of ``acquire()`` without the argument ``timeout`` waits for at most ``timeout`` seconds, or without limit
    /// if ``timeout`` is None.
    ///
    /// With ``max_leases``, the call sends nothing to a server. With ``count_path``, the call blocks for at most the session timeout,
    /// and Ctrl-C interrupts the call. Raises ConnectionLost if no server answers within the session timeout, and TypeError for a
    /// wrong combination of arguments.
    #[pyo3(signature = (path, max_leases=None, *, count_path=None, initial=None, timeout=None))]
    fn semaphore(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = text::path)] path: String,
        #[pyo3(from_py_with = int_args::max_leases)] max_leases: Option<i32>,
        #[pyo3(from_py_with = text::count_path)] count_path: Option<String>,
        #[pyo3(from_py_with = int_args::initial)] initial: Option<i32>,
        #[pyo3(from_py_with = seconds::timeout)] timeout: Option<Seconds>,
    ) -> PyResult<Semaphore> {
        let client: &zklock::Client = &self.core;
        self.make_semaphore(
            py,
            path,
            SemaphoreSize::of(max_leases, count_path, initial)?,
            timeout,
            |py, path, count_path, initial| {
                let start = || client.start_semaphore_counted(path, count_path, initial);
                wait(py, WaitTarget::Server, start, drop)
            },
        )
    }

    /// Return the value of a shared count, like Curator's ``SharedCount``.
    ///
    /// The call blocks for at most the session timeout, and Ctrl-C interrupts the call. Raises ServerError if the count does not
    /// exist, and ValueError if the node does not contain a count. Raises ConnectionLost if no server answers within the session
    /// timeout.
    fn shared_count_get(&self, py: Python<'_>, #[pyo3(from_py_with = text::path)] path: String) -> PyResult<i32> {
        wait(py, WaitTarget::Server, || self.core.start_shared_count_get(&path), drop)?.or_raise(py)
    }

    /// Set a shared count to a value from -2147483648 to 2147483647. If the shared count does not exist, the call creates the count.
    ///
    /// The call blocks for at most the session timeout, and Ctrl-C interrupts the call. If Ctrl-C interrupts the call, the shared
    /// count may have the old value or the new value.
    fn shared_count_set(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = text::path)] path: String,
        #[pyo3(from_py_with = int_args::value)] value: i32,
    ) -> PyResult<()> {
        wait(py, WaitTarget::Server, || self.core.start_shared_count_set(&path, value), drop)?.or_raise(py)
    }

    /// Return the last runs of the job of a lock, from the newest to the oldest, as a list of PastRun. The record contains at most ten
    /// runs. ``Hold.once_per()`` and the command ``zklock run --once-per`` write the record.
    ///
    /// The call blocks for at most the session timeout, and Ctrl-C interrupts the call. Raises ValueError if the node of the record
    /// contains other data, and ConnectionLost if no server answers within the session timeout.
    fn past_runs(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = text::path)] path: String,
    ) -> PyResult<Vec<PastRunRecord>> {
        once::past_runs(py, || self.core.start_past_runs(&path))
    }

    /// Ask the ensemble whether a fencing token belongs to a current holder of the lock on a path. Return True if any
    /// client holds the lock with this token.
    ///
    /// The path may belong to a mutex, a read/write lock, a semaphore, a semaphore mutex, or a member lock of a multi-lock. The holder
    /// may use zklock or Curator, and may be one of several readers. ``fence_check()`` returns False for the token of a waiter, and
    /// for a path that does not exist.
    ///
    /// The result was correct at some moment during the call, even if the client's server lags behind the other servers. The result may
    /// already be outdated when the call returns, so a store must still compare tokens. To check a hold of this client, read
    /// ``is_held``, which sends no request.
    ///
    /// The call blocks for at most the session timeout, and Ctrl-C interrupts the call. Raises ValueError for a token below 1, and
    /// ConnectionLost if no server answers within the session timeout.
    fn fence_check(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = text::path)] path: String,
        #[pyo3(from_py_with = int_args::token)] token: i64,
    ) -> PyResult<bool> {
        wait(py, WaitTarget::Server, || self.core.start_fence_check(&path, token), drop)?.or_raise(py)
    }

    /// Add a callback for every later change in the state of the session or of a hold, and return a Listener. The Listener's
    /// ``stop()`` method removes the callback. The argument of the callback is a ClientEvent or a LockEvent.
    ///
    /// The documentation of ``Client`` describes the rules for callbacks. A client may have any number of callbacks. Does not block.
    fn on_event(&self, callback: &Bound<'_, PyAny>) -> PyResult<Py<Listener>> {
        self.events.get().listen(callback, &self.core, CallbackDispatcher::Thread)
    }

    /// Ask the owner of a node to release the lock, like Curator's ``Revoker``. ``node`` is a Participant or the path of a node.
    ///
    /// An owner receives the request only if the owner has called ``set_revocable()``. The owner decides whether to release the lock.
    /// If the node does not exist, the call succeeds, because the lock was already released. The call blocks for at most the session
    /// timeout, and Ctrl-C interrupts the call. If Ctrl-C interrupts the call, the owner of the node may still receive the request.
    fn revoke(&self, py: Python<'_>, node: &Bound<'_, PyAny>) -> PyResult<()> {
        let path = path_of(node)?;
        wait(py, WaitTarget::Server, || self.core.start_revoke(&path), drop)?.or_raise(py)
    }

    /// The state of the session, a ClientState. Does not block.
    #[getter]
    fn state<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        client_state(py, self.core.state().or_raise(py)?)
    }

    /// The id of the session, or 0 if the client has no session. After a session has expired, the next session has a
    /// different id. Does not block.
    #[getter]
    pub(crate) fn session_id(&self, py: Python<'_>) -> PyResult<i64> {
        self.core.session_id().or_raise(py)
    }

    /// Replace the server list. ``servers`` is a connect string, with or without the client's chroot. The client's chroot does
    /// not change.
    ///
    /// The client keeps its session, all holds, and the queue positions of all waiters. The client stays connected to its server,
    /// except in two cases. If the new list does not contain the client's current server, the client connects to a server from
    /// the new list. If the new list is longer than the old list, some clients connect to an added server, so that each server
    /// has about the same number of clients. While a client connects to another server, its holds are SUSPENDED. A hold is lost
    /// only if the client reaches no server of the new list before the session ends.
    ///
    /// Raises ValueError if the list is not valid or contains a different chroot, and ClientClosed if the client is
    /// closed. Does not block.
    fn set_servers(&self, py: Python<'_>, #[pyo3(from_py_with = text::servers)] servers: String) -> PyResult<()> {
        py.detach(|| self.core.set_servers(&servers)).or_raise(py)?;
        let mut shown = self.servers.lock().unwrap_or_else(PoisonError::into_inner);
        let chroot = shown.find('/').map_or("", |at| &shown[at..]);
        *shown = if servers.contains('/') { servers } else { format!("{servers}{chroot}") };
        Ok(())
    }

    /// Return a Metrics object. The object contains counters, histograms and gauges about the activity and the current
    /// state of the client.
    ///
    /// ``metrics()`` sends no request, and also works after the session is lost or the client is closed. Does not block.
    fn metrics<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        metrics::object(py, &self.core.metrics().or_raise(py)?)
    }

    /// Return ``metrics()`` in the Prometheus text format (exposition format, version 0.0.4).
    ///
    /// Serve the text as ``text/plain; version=0.0.4``. The method adds ``labels`` to every sample, so that a program can distinguish
    /// its clients. Does not block. Raises ValueError for label names that Prometheus does not accept, or that the metrics of zklock
    /// already use.
    #[pyo3(signature = (labels=None))]
    fn prometheus(&self, py: Python<'_>, labels: Option<&Bound<'_, PyAny>>) -> PyResult<String> {
        let labels = metrics::labels(labels)?;
        Ok(self.core.metrics().or_raise(py)?.prometheus(&labels))
    }

    /// End the session and all holds. Calls that are waiting raise ClientClosed. Later calls that need the session also
    /// raise ClientClosed.
    ///
    /// The call waits for at most 2 seconds until the server has confirmed the end of the session and ``on_event`` has received the
    /// last event. A program may call ``close()`` several times. In a forked child process, ``close()`` does nothing, because the
    /// session belongs to the parent.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.close_unless_forked(py)?.or_raise(py)
    }

    fn __enter__(this: PyRef<'_, Self>) -> PyRef<'_, Self> {
        this
    }

    /// Close the client. If the block raised an exception and ``close()`` fails too, the exception of the block
    /// propagates, with a note about the failed close. If Python closes a generator during the block, Python discards
    /// this exception, so the method also logs the failed close.
    fn __exit__(
        &self,
        py: Python<'_>,
        exc_type: &Bound<'_, PyAny>,
        exc_value: &Bound<'_, PyAny>,
        traceback: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let _ = (exc_type, traceback);
        let item = EndedItem { doing: "closing the client", path: None, was_safe: false };
        end_block(py, exc_value, &item, self.close_unless_forked(py)?)
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        // The thread must not call Python code while it has locked the mutex.
        let servers = self.servers.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let servers = quoted(py, &servers)?;
        match (self.core.state(), self.core.session_id()) {
            (Ok(state), Ok(id)) => {
                let state = member_name(&client_state(py, state)?)?;
                Ok(format!("<zklock.Client {servers} {state} session={id:#x}>"))
            }
            (Err(error), _) | (_, Err(error)) => {
                Ok(format!("<zklock.Client {servers} {}>", status_word(error.status())))
            }
        }
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.events)?;
        self.held_locks.traverse(&visit)
    }

    fn __clear__(&self) {
        self.drop_held_locks();
    }
}

/// The clients that may still be open when the interpreter ends.
static OPEN_CLIENTS: PerProcess<sync::Mutex<Vec<(WeakClient, CallbackDispatcher)>>> =
    PerProcess::new(sync::Mutex::default);

/// Makes sure that this process closes its clients when it ends. Each function that makes a client calls this function first.
pub(crate) fn prepare_exit(py: Python<'_>) -> PyResult<()> {
    static IS_PREPARED: PerProcess<AtomicBool> = PerProcess::new(AtomicBool::default);
    let is_prepared = IS_PREPARED.get();
    if is_prepared.swap(true, Ordering::AcqRel) {
        return Ok(());
    }
    let registered = imports(py)?.register_child.bind(py).call_python(());
    registered.map(drop).inspect_err(|_| is_prepared.store(false, Ordering::Release))
}

fn register_for_exit(client: &zklock::Client, dispatcher: CallbackDispatcher) {
    let mut live = OPEN_CLIENTS.get().lock().unwrap_or_else(PoisonError::into_inner);
    live.retain(|(client, _)| internal::has_users(client));
    live.push((client.downgrade(), dispatcher));
}

/// Closes all clients in parallel when the interpreter ends. If a client stayed open, a waiting daemon thread could still acquire a
/// lock, although the process no longer does any work.
#[pyfunction]
pub(crate) fn _close_all(py: Python<'_>) {
    set_exiting();
    let live = std::mem::take(&mut *OPEN_CLIENTS.get().lock().unwrap_or_else(PoisonError::into_inner));
    py.detach(|| {
        thread::scope(|scope| {
            for (client, dispatcher) in
                live.iter().filter_map(|(client, dispatcher)| Some((client.upgrade()?, dispatcher)))
            {
                if *dispatcher == CallbackDispatcher::Loop {
                    let _ = internal::discard_handlers(&client);
                }
                let own = client.clone();
                if thread::Builder::new().spawn_scoped(scope, move || own.close()).is_err() {
                    let _ = client.close();
                }
            }
        });
        auth::wait_until_detached();
        log::flush(CLOSE_LIMIT);
    });
}

/// Returns the names and values in `options`.
pub(crate) fn options_of(options: Option<&Bound<'_, PyAny>>) -> PyResult<Vec<FileOption>> {
    let Some(options) = options else { return Ok(Vec::new()) };
    // The message must not contain the value, because the value may be a password.
    let wrong = |what: &str, given: &Bound<'_, PyAny>| {
        let kind = type_name(given);
        let expected = "expected names and values that are str, like {\"session.timeout\": \"5000\"}";
        wrong_type(format!("{what}: {expected}, not {kind}"))
    };
    let items = options.cast::<PyMapping>().map_err(|_| wrong("options", options))?.items()?;
    let pair = |item: Bound<'_, PyAny>| {
        let (name, value) = item.extract::<(Bound<'_, PyAny>, Bound<'_, PyAny>)>()?;
        let what = format!("options: {}", repr(&name)?);
        match (name.cast::<PyString>(), value.cast::<PyString>()) {
            (Ok(name), Ok(value)) => Ok((text::content("options", name)?, Zeroizing::new(text::secret(&what, value)?))),
            (Err(_), _) => Err(wrong(&what, &name)),
            (_, Err(_)) => Err(wrong(&what, &value)),
        }
    };
    items.iter().map(pair).collect()
}

/// Returns the pairs of the argument `auth`.
pub(crate) fn auth_of(auth: Option<&Bound<'_, PyAny>>) -> PyResult<AuthPairs> {
    auth.map_or_else(|| Ok(AuthPairs::default()), AuthPairs::of)
}
