//! `zklock.Client`.

use std::path::PathBuf;
use std::sync::{self, Arc, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use pyo3::exceptions::PyTypeError;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{IntoPyDict, PyBytes, PyDict, PyMapping, PyString};
use zklock::{Config, PerProcess, Status, WeakClient};

use crate::callback::{callable, is_calling, settle, take_calls};
use crate::errors::{OrRaise, add_to, unless_forked, word};
use crate::event::Listener;
use crate::greenlet::{Awaited, Bell, Hub};
use crate::lock::{self, Lock, MultiLock, Mutex, RwLock, SemaphoreMutex};
use crate::log;
use crate::metrics;
use crate::participant::Participant;
use crate::parting::Parting;
use crate::seconds::{self, Seconds};
use crate::semaphore::Semaphore;
use crate::states::client_state;
use crate::wait::{End, interpreter_ends, wait};
use crate::{text, whole};

/// A client: one ZooKeeper session, shared by any number of locks and threads.
///
/// ``servers`` is a connect string like ``"host:2181,host:2181/chroot"``. All durations are seconds, as int or float:
///
/// * ``session_timeout``: how long the servers keep a session they do not hear of; they may negotiate another value. None means 10 s.
/// * ``connect_timeout``: how long this call may take. None means 10 s.
/// * ``lease_margin``: how long before the session can end its locks cease to count as held; None means a third of the
///   negotiated session timeout.
/// * ``auth``: pairs of scheme and credentials, for instance ``[("digest", "user:password")]``.
/// * ``wait_for_kazoo``: mutexes and read/write locks queue with kazoo's locks on the same path, for programs that move from
///   kazoo, instead of raising ForeignContender. kazoo has to wait for ours likewise: its locks need
///   ``extra_lock_patterns=["-lock-"]`` beside a mutex, ``["__READ__", "__WRIT__"]`` beside a read/write lock.
/// * ``on_event``: is called with a ClientEvent or a LockEvent for every change in how the session or a hold stands.
/// * ``options``: options by name, for instance ``{"session.timeout": "5000"}``; the page on options has all of them. The keywords above are
///   shorthands for the same options, and take precedence. ``from_file()`` reads options from a file.
///
/// The calls of ``on_event`` come one after the other, in the order in which things happened (where both change at one moment, holds
/// before the session), on the daemon thread that also calls what ``set_revocable()`` was given. What it raises goes to
/// ``sys.unraisablehook``. A callback may call everything but what waits for other contenders, since what would end the wait may have
/// to be told first: ``with`` a lock, and ``acquire()`` with another timeout than 0, raise Deadlock there. While one does not return, about a
/// thousand events of a client wait as they came; those on top of that are joined, so that each hold and the session are told fewer
/// steps, but no other end, and always that they were lost. ``close()`` waits until the last ones were told, 2 seconds at most; a client
/// that is garbage-collected instead tells nothing any more. No callback keeps the interpreter from ending.
///
/// Waits for the session, ``connect_timeout`` at most. Ctrl-C interrupts the wait. Raises ConnectionLost where no server
/// answers in time, AuthFailed where one refuses the credentials, ServerError if the chroot does not exist (the option ``chroot.create``), ValueError and TypeError for wrong arguments.
///
/// The session ends with ``close()``, at the end of a ``with`` block, when the client and all its locks are gone, or with the
/// interpreter (``atexit``).
/// Methods may be called from any thread. In the child of a fork every call but ``close()`` raises Forked: make a client there.
#[pyclass(frozen, weakref, module = "zklock")]
pub(crate) struct Client {
    pub(crate) core: Parting<zklock::Client>,
    servers: String,
    /// Who hears of its events.
    listener: Option<Py<Listener>>,
}

impl Client {
    pub(crate) fn listener(&self, py: Python<'_>) -> Option<Py<Listener>> {
        self.listener.as_ref().map(|listener| listener.clone_ref(py))
    }

    /// Of a session that was just made.
    pub(crate) fn of(client: zklock::Client, servers: String, listener: Option<Py<Listener>>, teller: Teller) -> Self {
        remember(&client, teller);
        Self { core: Parting::new(client), servers, listener }
    }

    /// Closes the session, and delivers the last events as far as there is time. In the child of a fork there is nothing to end.
    fn end(&self, py: Python<'_>) -> PyResult<zklock::Result<()>> {
        let ended = if is_parents(&self.core) { Ok(()) } else { self.end_here(py)? };
        // A callback may have forked meanwhile, and this be the child.
        Ok(unless_forked(ended))
    }

    fn end_here(&self, py: Python<'_>) -> PyResult<zklock::Result<()>> {
        if let Some(hub) = Hub::find(py, Awaited::End)? {
            return self.end_with(py, &hub);
        }
        Ok(py.detach(|| {
            let start = Instant::now();
            let closed = self.core.close();
            if self.listener.is_some() {
                settle(&self.core.handlers()?, PATIENCE.saturating_sub(start.elapsed()));
            }
            closed
        }))
    }

    /// The same while other greenlets run: callbacks may need them.
    fn end_with(&self, py: Python<'_>, hub: &Hub<'_>) -> PyResult<zklock::Result<()>> {
        let (start, bell, ended) = (Instant::now(), Bell::new(py)?, Arc::new(sync::Mutex::new(None)));
        // A callback that closes its client does not wait for its own end.
        let handlers = (self.listener.is_some() && !is_calling()).then(|| self.core.handlers()).transpose();
        let handlers = handlers.or_raise(py)?;
        let (rung, end) = (bell.clone(), Arc::clone(&ended));
        let hook = move |closed| {
            if let Some(handlers) = handlers {
                settle(&handlers, PATIENCE.saturating_sub(start.elapsed()));
            }
            *end.lock().unwrap_or_else(PoisonError::into_inner) = Some(closed);
            rung.ring();
        };
        if let Err(error) = py.detach(|| self.core.close_in_background(hook)) {
            return Ok(Err(error));
        }
        loop {
            if let Some(closed) = ended.lock().unwrap_or_else(PoisonError::into_inner).take() {
                return Ok(closed);
            }
            hub.wait(&bell)?;
        }
    }
}

/// Whether a client belongs to the parent of this forked process.
fn is_parents(client: &zklock::Client) -> bool {
    client.state().is_err_and(|error| error.status() == Status::Forked)
}

/// How many leases a semaphore has.
pub(crate) enum Size {
    Fixed(i32),
    Counted { count_path: String, initial: i32 },
}

impl Size {
    pub(crate) fn of(max_leases: Option<i32>, count_path: Option<String>, initial: Option<i32>) -> PyResult<Self> {
        let wrong = |message: &'static str| Err(PyTypeError::new_err(message));
        match (max_leases, count_path, initial) {
            (Some(max), None, None) => Ok(Self::Fixed(max)),
            (None, Some(count_path), Some(initial)) => Ok(Self::Counted { count_path, initial }),
            (None, None, _) => wrong("semaphore: expected max_leases, or count_path and initial"),
            (Some(_), Some(_), _) => wrong("semaphore: expected max_leases or count_path, not both"),
            (Some(_), None, Some(_)) => wrong("semaphore: initial is for a count_path, not for max_leases"),
            (None, Some(_), None) => {
                wrong("semaphore: count_path needs initial, the number of leases where the count is not there yet")
            }
        }
    }
}

impl Client {
    /// A semaphore; `counted` makes one whose count is at a path.
    pub(crate) fn semaphore_of(
        &self,
        py: Python<'_>,
        path: String,
        size: Size,
        counted: impl FnOnce(Python<'_>, &str, &str, i32) -> PyResult<zklock::Result<zklock::Semaphore>>,
    ) -> PyResult<Semaphore> {
        let (semaphore, size) = match size {
            Size::Fixed(max) => (self.core.semaphore(&path, max), format!("max_leases={max}")),
            Size::Counted { count_path, initial } => {
                let size = format!("count_path={}", PyString::new(py, &count_path).repr()?);
                (counted(py, &path, &count_path, initial)?, size)
            }
        };
        Ok(Semaphore::new(semaphore.or_raise(py)?, path, size, self.listener(py)))
    }
}

/// The path of a node, or of that of a Participant.
pub(crate) fn path_of(node: &Bound<'_, PyAny>) -> PyResult<String> {
    if let Ok(participant) = node.cast::<Participant>() {
        return Ok(participant.get().node_path().to_owned());
    }
    if let Ok(path) = node.cast::<PyString>() {
        return path.extract();
    }
    let kind = node.get_type().name()?;
    Err(PyTypeError::new_err(format!("node: expected a Participant or the path of a node, not {kind}")))
}

/// What a client is told before it connects.
pub(crate) fn config(
    py: Python<'_>,
    session_timeout: Option<Seconds>,
    connect_timeout: Option<Seconds>,
    lease_margin: Option<Seconds>,
    auth: Option<&Bound<'_, PyAny>>,
    wait_for_kazoo: bool,
    options: Option<&Bound<'_, PyAny>>,
) -> PyResult<Config> {
    let mut config = Config::new();
    config.set_wait_for_kazoo(wait_for_kazoo);
    for (name, value) in options.map_or_else(|| Ok(Vec::new()), pairs)? {
        config.set(&name, &value).or_raise(py)?;
    }
    if let Some(timeout) = session_timeout {
        config.set_session_timeout(timeout.milliseconds()).or_raise(py)?;
    }
    if let Some(timeout) = connect_timeout {
        config.set_connect_timeout(timeout.milliseconds()).or_raise(py)?;
    }
    if let Some(margin) = lease_margin {
        config.set_lease_margin(margin.milliseconds()).or_raise(py)?;
    }
    if let Some(auth) = auth {
        add_auth(&mut config, auth)?;
    }
    Ok(config)
}

/// How long a client's end may take.
const PATIENCE: Duration = Duration::from_secs(2);

#[pymethods]
impl Client {
    #[new]
    #[pyo3(
        signature = (servers, *, session_timeout=None, connect_timeout=None, lease_margin=None, auth=None, wait_for_kazoo=false, on_event=None, options=None),
        text_signature = "(servers, *, session_timeout=None, connect_timeout=None, lease_margin=None, auth=(), wait_for_kazoo=False, on_event=None, options=None)"
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
        on_event: Option<&Bound<'_, PyAny>>,
        options: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        log::look(py)?;
        let mut config = config(py, session_timeout, connect_timeout, lease_margin, auth, wait_for_kazoo, options)?;
        take_calls(&mut config);
        // If its last handle is dropped in a greenlet, the others do not wait for its end.
        config.set_end_in_background(Hub::find(py, Awaited::Server)?.is_some());
        let listener = match on_event {
            Some(on_event) => Listener::new(on_event, &mut config)?,
            None => None,
        };
        let start = || zklock::Client::start_connect(&servers, &config);
        let client = wait(py, Awaited::Server, start, drop)?.or_raise(py)?;
        Ok(Self::of(client, servers, listener, Teller::Thread))
    }

    /// Connects with the options in a file: UTF-8 text of 64 KiB at most, with one ``name = value`` a line. Empty lines, and lines that begin
    /// with ``#``, are skipped. The keywords are those of ``Client``, and take precedence over the file.
    ///
    /// Waits as ``Client`` does. Raises the same, and ValueError if the file cannot be read or a line is wrong.
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
        // A wrong argument is named whatever is in the file.
        config(py, session_timeout, connect_timeout, lease_margin, auth, wait_for_kazoo, options)?;
        if let Some(on_event) = on_event {
            callable("on_event", on_event)?;
        }
        let merged = _read_options(py, file, options)?;
        let options = Some(merged.as_any());
        Self::new(py, servers, session_timeout, connect_timeout, lease_margin, auth, wait_for_kazoo, on_event, options)
    }

    /// A mutex on a path: Curator's ``InterProcessMutex``, re-entrant for each thread. Nothing is sent yet.
    ///
    /// ``timeout`` (seconds; None waits without limit) is for ``with``; ``acquire()`` has its own. ``data`` is what the
    /// lock's nodes carry; None means this host's address, as in Curator. With ``local_handover`` the threads of this process pass it
    /// on among themselves, up to so many times in a row: see ``Lock.set_local_handover()``. Raises ValueError for a path that
    /// ZooKeeper would not take, ClientClosed.
    #[pyo3(signature = (path, timeout=None, data=None, *, local_handover=0))]
    fn mutex<'py>(
        &self,
        py: Python<'py>,
        #[pyo3(from_py_with = text::path)] path: String,
        #[pyo3(from_py_with = seconds::timeout)] timeout: Option<Seconds>,
        #[pyo3(from_py_with = text::data)] data: Option<PyBackedBytes>,
        #[pyo3(from_py_with = whole::local_handover)] local_handover: u32,
    ) -> PyResult<Bound<'py, Mutex>> {
        let lock = self.core.mutex(&path).or_raise(py)?;
        lock.set_local_handover(local_handover).or_raise(py)?;
        lock::object(py, Mutex, Lock::new(py, lock, path, timeout, data.as_deref(), self.listener(py))?)
    }

    /// A mutex that any thread may release and none may enter twice: Curator's ``InterProcessSemaphoreMutex``. Nothing is sent
    /// yet. The arguments are those of ``mutex()``.
    #[pyo3(signature = (path, timeout=None, data=None))]
    fn semaphore_mutex<'py>(
        &self,
        py: Python<'py>,
        #[pyo3(from_py_with = text::path)] path: String,
        #[pyo3(from_py_with = seconds::timeout)] timeout: Option<Seconds>,
        #[pyo3(from_py_with = text::data)] data: Option<PyBackedBytes>,
    ) -> PyResult<Bound<'py, SemaphoreMutex>> {
        let lock = self.core.semaphore_mutex(&path).or_raise(py)?;
        lock::object(py, SemaphoreMutex, Lock::new(py, lock, path, timeout, data.as_deref(), self.listener(py))?)
    }

    /// A lock for many readers or one writer: Curator's ``InterProcessReadWriteLock``. Nothing is sent yet. The arguments are
    /// those of ``mutex()``, for both halves.
    #[pyo3(signature = (path, timeout=None, data=None))]
    fn rwlock(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = text::path)] path: String,
        #[pyo3(from_py_with = seconds::timeout)] timeout: Option<Seconds>,
        #[pyo3(from_py_with = text::data)] data: Option<PyBackedBytes>,
    ) -> PyResult<RwLock> {
        let locks = self.core.rwlock(&path).or_raise(py)?;
        RwLock::new(py, locks, path, timeout, data.as_deref(), self.listener(py))
    }

    /// Several locks as one: Curator's ``InterProcessMultiLock``. Nothing is sent yet.
    ///
    /// ``locks`` is any iterable of locks: mutexes, semaphore mutexes, halves of read/write locks, other multi-locks; of this
    /// client or of others. ``timeout`` is as for ``mutex()``. Raises ValueError for no lock at all, or two on one path.
    ///
    /// Two that name the same locks in another order do not deadlock, and a Curator that takes them one after the other is let by.
    /// With ``in_order`` they are taken one after the other in the order given, as Curator does: for programs that share their paths
    /// with Curator's multi-locks and name them in the same order.
    #[pyo3(signature = (locks, timeout=None, *, in_order=false))]
    fn multi<'py>(
        &self,
        py: Python<'py>,
        locks: &Bound<'py, PyAny>,
        #[pyo3(from_py_with = seconds::timeout)] timeout: Option<Seconds>,
        #[pyo3(from_py_with = text::in_order)] in_order: bool,
    ) -> PyResult<Bound<'py, MultiLock>> {
        Bound::new(py, (MultiLock, Lock::multi(locks, timeout, in_order)?))
    }

    /// A semaphore on a path: Curator's ``InterProcessSemaphoreV2``.
    ///
    /// With ``max_leases`` it has that many, and that all its users agree on the number is up to them. Or else it has as many as a
    /// count says (``set_count()``, Curator's ``SharedCount``), now and whenever it changes: the one at ``count_path``, which is made
    /// with the value ``initial`` where it is not there. Who holds leases keeps them when it is lowered.
    ///
    /// With a count, blocks for the session timeout at most, and Ctrl-C interrupts it; raises ConnectionLost where no server
    /// answers by then. Without, nothing is sent yet. TypeError where it is not clear which of the two is meant.
    #[pyo3(signature = (path, max_leases=None, *, count_path=None, initial=None))]
    fn semaphore(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = text::path)] path: String,
        #[pyo3(from_py_with = whole::max_leases)] max_leases: Option<i32>,
        #[pyo3(from_py_with = text::count_path)] count_path: Option<String>,
        #[pyo3(from_py_with = whole::initial)] initial: Option<i32>,
    ) -> PyResult<Semaphore> {
        let client: &zklock::Client = &self.core;
        self.semaphore_of(py, path, Size::of(max_leases, count_path, initial)?, |py, path, count_path, initial| {
            let start = || client.start_counted_semaphore(path, count_path, initial);
            wait(py, Awaited::Server, start, drop)
        })
    }

    /// Reads a count: Curator's ``SharedCount``.
    ///
    /// Blocks for the session timeout at most; Ctrl-C interrupts it. Raises ServerError where there is none, ValueError where
    /// its node holds something else, ConnectionLost where no server answers.
    fn get_count(&self, py: Python<'_>, #[pyo3(from_py_with = text::path)] path: String) -> PyResult<i32> {
        wait(py, Awaited::Server, || self.core.start_get_count(&path), drop)?.or_raise(py)
    }

    /// Sets a count, from -2147483648 to 2147483647, and makes it where there is none.
    ///
    /// Blocks as ``get_count()`` does; where it is interrupted, the count may be set or not.
    fn set_count(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = text::path)] path: String,
        #[pyo3(from_py_with = whole::value)] value: i32,
    ) -> PyResult<()> {
        wait(py, Awaited::Server, || self.core.start_set_count(&path, value), drop)?.or_raise(py)
    }

    /// Asks the ensemble whether the hold with this fencing token is still the holder's on a path, whoever holds it and whichever
    /// recipe it is: a mutex, a read/write lock (then also that of one of several readers), a semaphore, a semaphore mutex, or one
    /// path of a multi-lock; made by zklock or by Curator. A waiter's token is not a holder's. False where there is no such path.
    ///
    /// What it says was true at a moment since the call began, also where the client's server lags behind the others. It does
    /// not take the place of the store's own comparison of tokens, for it may be old when it is read. For a hold of one's own
    /// ``is_held`` is the answer that costs nothing.
    ///
    /// Blocks as ``get_count()`` does. Raises ValueError for a token below 1, ConnectionLost where no server answers.
    fn fence_check(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = text::path)] path: String,
        #[pyo3(from_py_with = whole::token)] token: i64,
    ) -> PyResult<bool> {
        wait(py, Awaited::Server, || self.core.start_fence_check(&path, token), drop)?.or_raise(py)
    }

    /// Asks the owner of a node to give it up: Curator's ``Revoker``. ``node`` is a Participant, or the path of its node.
    ///
    /// It is a request, which the owner hears of if he wants to (``set_revocable()``). A node that is gone was given up. Blocks
    /// as ``get_count()`` does; where it is interrupted, the owner may be asked or not.
    fn revoke(&self, py: Python<'_>, node: &Bound<'_, PyAny>) -> PyResult<()> {
        let path = path_of(node)?;
        wait(py, Awaited::Server, || self.core.start_revoke(&path), drop)?.or_raise(py)
    }

    /// How the session stands: a ClientState. Does not block.
    #[getter]
    fn state<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        client_state(py, self.core.state().or_raise(py)?)
    }

    /// The session's id; 0 while there is none. A session that expired is followed by one with another id. Does not block.
    #[getter]
    pub(crate) fn session_id(&self, py: Python<'_>) -> PyResult<i64> {
        self.core.session_id().or_raise(py)
    }

    /// What the client has done so far, and how it stands: counters, histograms and gauges of one moment, as a Metrics.
    ///
    /// No server is asked, and it goes on to work when the session was lost, or the client closed. Does not block.
    fn metrics<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        metrics::object(py, &self.core.metrics().or_raise(py)?)
    }

    /// The same in the text form that Prometheus reads (its exposition format, version 0.0.4), to be served as
    /// ``text/plain; version=0.0.4``. ``labels`` are put to each of them, to tell this client from others.
    ///
    /// Does not block. Raises ValueError for names of labels that Prometheus would not take, or that metrics of zklock have.
    #[pyo3(signature = (labels=None))]
    fn prometheus(&self, py: Python<'_>, labels: Option<&Bound<'_, PyAny>>) -> PyResult<String> {
        let labels = metrics::labels(labels)?;
        Ok(self.core.metrics().or_raise(py)?.prometheus(&labels))
    }

    /// Ends the session, and with it every hold; all waits end with ClientClosed, as do later calls. May be called again.
    ///
    /// Waits until the server has confirmed it and ``on_event`` was called with the last event, but 2 seconds at most. In the child
    /// of a fork it does nothing: the session belongs to the parent.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.end(py)?.or_raise(py)
    }

    fn __enter__(this: PyRef<'_, Self>) -> PyRef<'_, Self> {
        this
    }

    /// Closes, as ``close()`` does. An exception of the block is not masked.
    fn __exit__(
        &self,
        py: Python<'_>,
        exc_type: &Bound<'_, PyAny>,
        exc_value: &Bound<'_, PyAny>,
        traceback: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let _ = (exc_type, traceback);
        match self.end(py)? {
            Err(error) if !exc_value.is_none() => add_to(py, exc_value, "closing the client", &error),
            closed => closed.or_raise(py),
        }
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let servers = PyString::new(py, &self.servers).repr()?;
        match (self.core.state(), self.core.session_id()) {
            (Ok(state), Ok(id)) => {
                let state = client_state(py, state)?.getattr("name")?;
                Ok(format!("<zklock.Client {servers} {state} session={id:#x}>"))
            }
            (Err(error), _) | (_, Err(error)) => Ok(format!("<zklock.Client {servers} {}>", word(error.status()))),
        }
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.listener)
    }
}

/// The clients that nobody may have closed when the interpreter ends.
static LIVE: PerProcess<sync::Mutex<Vec<(WeakClient, Teller)>>> = PerProcess::new(sync::Mutex::default);

/// Who calls a client's callbacks.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Teller {
    /// That of `zklock/_callbacks.py`, which does so to the end.
    Thread,
    /// An event loop, which runs no more when the interpreter ends.
    Loop,
}

fn remember(client: &zklock::Client, teller: Teller) {
    let mut live = LIVE.get().lock().unwrap_or_else(PoisonError::into_inner);
    live.retain(|(client, _)| client.is_used());
    live.push((client.downgrade(), teller));
}

/// Closes all clients, side by side: at the end of the interpreter, lest a daemon thread that still waits gets a lock in a
/// process that is no more.
#[pyfunction]
pub(crate) fn _close_all(py: Python<'_>) {
    interpreter_ends(End::Closing);
    let live = std::mem::take(&mut *LIVE.get().lock().unwrap_or_else(PoisonError::into_inner));
    py.detach(|| {
        thread::scope(|scope| {
            for (client, teller) in live.iter().filter_map(|(client, teller)| Some((client.upgrade()?, teller))) {
                if *teller == Teller::Loop {
                    let _ = client.silence();
                }
                let own = client.clone();
                if thread::Builder::new().spawn_scoped(scope, move || own.close()).is_err() {
                    let _ = client.close();
                }
            }
        });
        log::end(PATIENCE);
    });
    interpreter_ends(End::Closed);
}

/// Reads the options in a file, and checks them. Those that are given besides take precedence.
#[pyfunction]
#[pyo3(signature = (file, options=None))]
pub(crate) fn _read_options<'py>(
    py: Python<'py>,
    #[pyo3(from_py_with = text::file)] file: PathBuf,
    options: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyDict>> {
    let mut merged = py.detach(|| zklock::read_options(file)).or_raise(py)?;
    merged.extend(options.map_or_else(|| Ok(Vec::new()), pairs)?);
    merged.into_py_dict(py)
}

/// Options as names with their values.
fn pairs(options: &Bound<'_, PyAny>) -> PyResult<Vec<(String, String)>> {
    // No value in the message: it may be a password.
    let wrong = |what: &str, given: &Bound<'_, PyAny>| {
        let kind = given.get_type().name().map_or_else(|_| "this".to_owned(), |name| name.to_string());
        let expected = "expected names with texts as values, like {\"session.timeout\": \"5000\"}";
        PyTypeError::new_err(format!("{what}: {expected}, not {kind}"))
    };
    let items = options.cast::<PyMapping>().map_err(|_| wrong("options", options))?.items()?;
    let pair = |item: Bound<'_, PyAny>| {
        let (name, value) = item.extract::<(Bound<'_, PyAny>, Bound<'_, PyAny>)>()?;
        match (name.extract(), value.extract()) {
            (Ok(name), Ok(value)) => Ok((name, value)),
            (Err(_), _) => Err(wrong(&format!("options: {}", name.repr()?), &name)),
            (_, Err(_)) => Err(wrong(&format!("options: {}", name.repr()?), &value)),
        }
    };
    items.iter().map(pair).collect()
}

fn add_auth(config: &mut Config, pairs: &Bound<'_, PyAny>) -> PyResult<()> {
    // No value in the message: it may be a password.
    let wrong = || {
        PyTypeError::new_err("auth: expected pairs of scheme and credentials, like [(\"digest\", \"user:password\")]")
    };
    for pair in pairs.try_iter().map_err(|_| wrong())? {
        let (scheme, credentials) = pair?.extract::<(String, Bound<'_, PyAny>)>().map_err(|_| wrong())?;
        let added = if let Ok(bytes) = credentials.cast::<PyBytes>() {
            config.add_auth(&scheme, bytes.as_bytes())
        } else if let Ok(text) = credentials.cast::<PyString>() {
            config.add_auth(&scheme, text.extract::<String>()?.as_bytes())
        } else {
            return Err(wrong());
        };
        added.or_raise(pairs.py())?;
    }
    Ok(())
}
