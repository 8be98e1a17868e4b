//! What `zklock/aio` stands on: calls that are started for a task, and an inbox that its event loop watches. Nothing here waits.

use std::collections::VecDeque;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pyo3::IntoPyObjectExt;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use zklock::session::ConnectString;
use zklock::{Acquiring, AcquiringLeases, Call, Config, Connecting, Epoch, EventFd, Handlers, Owner, Result, Status};

use crate::callback::{Found, callable, find};
use crate::client::{self, Client, Size, Teller};
use crate::errors::OrRaise;
use crate::event::Listener;
use crate::lock::{Lock, RwLock, seconds_left};
use crate::log;
use crate::participant::Participant;
use crate::seconds::{self, Seconds};
use crate::semaphore::{Leases, Semaphore};
use crate::states::lock_state;
use crate::{text, whole};

/// What a client connects with, checked. The arguments are those of ``zklock.Client``.
#[pyclass(frozen, name = "_Settings", module = "zklock")]
pub(crate) struct Settings {
    servers: String,
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
        let mut config =
            client::config(py, session_timeout, connect_timeout, lease_margin, auth, wait_for_kazoo, options)?;
        // Wherever the last of its handles is dropped, an event loop may be waiting for that thread.
        config.set_end_in_background(true);
        ConnectString::parse(&servers).or_raise(py)?;
        Ok(Self { servers, config })
    }
}

/// Where a client's calls that have ended are waited for, and its callbacks that are to be called: one descriptor for all of them.
/// Methods that start a call give an ``_Op``, whose key comes out of ``take()`` when it is over.
#[pyclass(frozen, weakref, name = "_Inbox", module = "zklock")]
pub(crate) struct Inbox(Arc<Shared>);

/// What other threads put in. None of them needs the interpreter for it.
struct Shared {
    epoch: Epoch,
    fd: EventFd,
    last_key: AtomicU64,
    queue: Mutex<Queue>,
}

#[derive(Default)]
struct Queue {
    items: VecDeque<Item>,
    /// The descriptor is readable.
    is_rung: bool,
}

enum Item {
    /// A call is over.
    Over(u64),
    /// A client has something to tell.
    News(Handlers),
}

/// So much is taken out at a time, lest other things of the event loop wait.
const TURN: usize = 256;

impl Shared {
    fn put(&self, item: Item) {
        let mut queue = self.lock();
        queue.items.push_back(item);
        if !std::mem::replace(&mut queue.is_rung, true) {
            self.fd.signal();
        }
    }

    fn next(&self) -> Option<Item> {
        let mut queue = self.lock();
        let item = queue.items.pop_front();
        if item.is_none() && std::mem::take(&mut queue.is_rung) {
            self.fd.clear();
        }
        item
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inbox {
    /// Has a call that was started put its key in when it is over, unless it is over already.
    fn watch<W: Work>(&self, py: Python<'_>, work: W) -> PyResult<Op> {
        let key = self.0.last_key.fetch_add(1, Ordering::Relaxed) + 1;
        if !work.is_over() {
            let shared = Arc::clone(&self.0);
            work.on_done(Box::new(move || shared.put(Item::Over(key)))).or_raise(py)?;
        }
        Ok(Op { key, work: Mutex::new(Some(Box::new(work))) })
    }

    fn ask<T: Send + 'static, P: for<'py> IntoPyObject<'py> + 'static>(
        &self,
        py: Python<'_>,
        call: Result<Call<T>>,
        convert: fn(T) -> P,
    ) -> PyResult<Op> {
        self.watch(py, Asking { call: call.or_raise(py)?, convert })
    }
}

#[pymethods]
impl Inbox {
    /// Raises Exhausted where there is no descriptor to be had.
    #[new]
    fn new(py: Python<'_>) -> PyResult<Self> {
        let fd = EventFd::new().or_raise(py)?;
        let shared = Shared { epoch: Epoch::current(), fd, last_key: AtomicU64::new(0), queue: Mutex::default() };
        Ok(Self(Arc::new(shared)))
    }

    /// The descriptor: readable while there is something to be taken out. Nobody else is to read or close it.
    fn fileno(&self) -> RawFd {
        self.0.fd.as_raw_fd()
    }

    /// Raises Forked in a child of the process that made it.
    fn check(&self, py: Python<'_>) -> PyResult<()> {
        self.0.epoch.check().or_raise(py)
    }

    /// Takes out the keys of calls that are over, and callbacks with their arguments, in the order in which they came; not more than a turn's
    /// worth.
    fn take(&self, py: Python<'_>) -> PyResult<(Vec<u64>, Vec<Found>)> {
        self.check(py)?;
        let (mut over, mut calls) = (Vec::new(), Vec::new());
        for _ in 0..TURN {
            match self.0.next() {
                None => break,
                Some(Item::Over(key)) => over.push(key),
                Some(Item::News(handlers)) => calls.extend(find(py, &handlers)),
            }
        }
        Ok((over, calls))
    }

    /// Connects: a Client. ``on_event`` is what its events are to be called with, from the first on or once it ``listens``.
    fn connect(&self, py: Python<'_>, settings: &Settings, on_event: &Bound<'_, PyAny>, listens: bool) -> PyResult<Op> {
        self.check(py)?;
        log::look(py)?;
        let on_event = callable("on_event", on_event)?.ok_or_else(|| PyTypeError::new_err("on_event: None"))?;
        let listener = Listener::of(py, on_event)?;
        let mut config = settings.config.clone();
        let shared = Arc::clone(&self.0);
        config.set_event_bell(move |handlers| shared.put(Item::News(handlers)));
        if listens {
            config.set_event_handler(Listener::handler(py, &listener)?);
        }
        let connecting = zklock::Client::start_connect(&settings.servers, &config).or_raise(py)?;
        self.watch(py, Connect { connecting, servers: settings.servers.clone(), listener })
    }

    /// Ends a client's session: None, when that is confirmed and its last events were taken out, after 2 seconds at most.
    fn end(&self, py: Python<'_>, client: &Client) -> PyResult<Op> {
        let key = self.0.last_key.fetch_add(1, Ordering::Relaxed) + 1;
        let closed = Arc::new(Mutex::new(None));
        let (shared, end) = (Arc::clone(&self.0), Arc::clone(&closed));
        let hook = move |result| {
            *end.lock().unwrap_or_else(PoisonError::into_inner) = Some(result);
            shared.put(Item::Over(key));
        };
        client.core.close_in_background(hook).or_raise(py)?;
        Ok(Op { key, work: Mutex::new(Some(Box::new(Close(closed)))) })
    }

    /// Acquires a lock for an owner: True, or False where time runs out.
    #[pyo3(signature = (lock, owner, timeout=None))]
    fn acquire(
        &self,
        py: Python<'_>,
        lock: &Lock,
        owner: u64,
        #[pyo3(from_py_with = seconds::timeout)] timeout: Option<Seconds>,
    ) -> PyResult<Op> {
        self.enter_within(py, lock, owner, timeout, Late::IsFalse)
    }

    /// The same with the timeout that the lock was made with: True, or LockTimeout.
    fn enter(&self, py: Python<'_>, lock: &Lock, owner: u64) -> PyResult<Op> {
        self.enter_within(py, lock, owner, lock.timeout, Late::Raises)
    }

    /// Releases one entry of an owner: None, once the server has confirmed it. What it does it has done when this returns.
    fn release(&self, py: Python<'_>, lock: &Lock, owner: u64) -> PyResult<Op> {
        self.ask(py, lock.core.start_release(Owner::Custom(owner), true), |()| ())
    }

    /// Acquires leases: a Leases.
    #[pyo3(signature = (semaphore, quantity=1, timeout=None))]
    fn acquire_leases(
        &self,
        py: Python<'_>,
        semaphore: &Bound<'_, Semaphore>,
        #[pyo3(from_py_with = whole::quantity)] quantity: u32,
        #[pyo3(from_py_with = seconds::timeout)] timeout: Option<Seconds>,
    ) -> PyResult<Op> {
        log::look(py)?;
        let limit = timeout.and_then(Seconds::limit);
        let acquiring = semaphore.get().core.start_acquire(quantity, limit).or_raise(py)?;
        self.watch(py, Lease { acquiring, semaphore: semaphore.clone().unbind() })
    }

    /// Gives leases back: None, once the server has confirmed it. What it does it has done when this returns.
    fn release_leases(&self, py: Python<'_>, leases: &Leases) -> PyResult<Op> {
        self.ask(py, leases.core.start_release(true), |()| ())
    }

    /// Who stands in a queue: a list of Participants. ``of`` is a Lock, an RwLock or a Semaphore.
    fn participants(&self, py: Python<'_>, of: &Bound<'_, PyAny>) -> PyResult<Op> {
        let call = if let Ok(lock) = of.cast::<Lock>() {
            lock.get().core.start_participants()
        } else if let Ok(lock) = of.cast::<RwLock>() {
            lock.get().start_participants(py)
        } else if let Ok(semaphore) = of.cast::<Semaphore>() {
            semaphore.get().core.start_participants()
        } else {
            return Err(PyTypeError::new_err(format!("of: expected a lock, not {}", of.get_type().name()?)));
        };
        self.ask(py, call, |all| all.into_iter().map(Participant::from).collect::<Vec<_>>())
    }

    /// Reads a count: an int.
    fn get_count(
        &self,
        py: Python<'_>,
        client: &Client,
        #[pyo3(from_py_with = text::path)] path: String,
    ) -> PyResult<Op> {
        self.ask(py, client.core.start_get_count(&path), |value| value)
    }

    /// Sets a count: None.
    fn set_count(
        &self,
        py: Python<'_>,
        client: &Client,
        #[pyo3(from_py_with = text::path)] path: String,
        #[pyo3(from_py_with = whole::value)] value: i32,
    ) -> PyResult<Op> {
        self.ask(py, client.core.start_set_count(&path, value), |()| ())
    }

    /// Asks whether a token is a holder's: a bool.
    fn fence_check(
        &self,
        py: Python<'_>,
        client: &Client,
        #[pyo3(from_py_with = text::path)] path: String,
        #[pyo3(from_py_with = whole::token)] token: i64,
    ) -> PyResult<Op> {
        self.ask(py, client.core.start_fence_check(&path, token), |holds| holds)
    }

    /// Asks the owner of a node to give it up: None.
    fn revoke(&self, py: Python<'_>, client: &Client, node: &Bound<'_, PyAny>) -> PyResult<Op> {
        self.ask(py, client.core.start_revoke(&client::path_of(node)?), |()| ())
    }

    /// Has a client tell of what happens from now on.
    fn listen(&self, py: Python<'_>, client: &Client) -> PyResult<()> {
        let Some(listener) = client.listener(py) else { return Ok(()) };
        client.core.set_event_handler(Some(Box::new(Listener::handler(py, &listener)?))).or_raise(py)
    }
}

impl Inbox {
    fn enter_within(
        &self,
        py: Python<'_>,
        lock: &Lock,
        owner: u64,
        timeout: Option<Seconds>,
        late: Late,
    ) -> PyResult<Op> {
        log::look(py)?;
        let limit = timeout.and_then(Seconds::limit);
        let acquiring = lock.core.start_acquire(Owner::Custom(owner), limit).or_raise(py)?;
        self.watch(py, Enter { acquiring, late })
    }
}

/// A call under way. One that acquires is given up by who drops it, and given back where it had just won; the others go on.
#[pyclass(frozen, weakref, name = "_Op", module = "zklock")]
pub(crate) struct Op {
    key: u64,
    work: Mutex<Option<Box<dyn Work>>>,
}

#[pymethods]
impl Op {
    /// What its inbox gives when it is over.
    #[getter]
    fn key(&self) -> u64 {
        self.key
    }

    /// Whether it is over. What was over when it was started does not come out of the inbox.
    #[getter]
    fn is_over(&self) -> bool {
        self.lock().as_ref().is_none_or(|work| work.is_over())
    }

    /// What came of it, or the exception that did: once, and once it is over. What was acquired is the program's from now on.
    fn result(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let mut place = self.lock();
        let over = place.take_if(|work| work.is_over());
        drop(place);
        match over {
            Some(work) => work.result(py),
            None => Err(PyValueError::new_err("this call is not over, or its result was taken before")),
        }
    }

    /// Gives it up, as dropping it does. Does not block.
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
    fn lock(&self) -> MutexGuard<'_, Option<Box<dyn Work>>> {
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a call is, and what comes of it.
trait Work: Send + 'static {
    fn is_over(&self) -> bool;
    fn on_done(&self, hook: Box<dyn FnOnce() + Send>) -> Result<()>;
    /// To be asked for when it is over.
    fn result(&self, py: Python<'_>) -> PyResult<Py<PyAny>>;
    fn traverse(&self, _: &PyVisit<'_>) -> std::result::Result<(), PyTraverseError> {
        Ok(())
    }
}

/// What came of a call that is over.
fn taken<T>(py: Python<'_>, result: Option<Result<T>>) -> PyResult<T> {
    result.unwrap_or_else(|| Err(Status::Internal.into())).or_raise(py)
}

struct Enter {
    acquiring: Acquiring,
    late: Late,
}

/// What it means that time ran out.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Late {
    IsFalse,
    Raises,
}

impl Work for Enter {
    fn is_over(&self) -> bool {
        self.acquiring.look_for(Duration::ZERO).is_some()
    }

    fn on_done(&self, hook: Box<dyn FnOnce() + Send>) -> Result<()> {
        self.acquiring.on_done(hook)
    }

    fn result(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        match self.acquiring.wait_for(Duration::ZERO) {
            Some(Err(error)) if error.status() == Status::Timeout && self.late == Late::IsFalse => {
                false.into_py_any(py)
            }
            entered => taken(py, entered).and_then(|()| true.into_py_any(py)),
        }
    }
}

struct Lease {
    acquiring: AcquiringLeases,
    semaphore: Py<Semaphore>,
}

impl Work for Lease {
    fn is_over(&self) -> bool {
        self.acquiring.look_for(Duration::ZERO).is_some()
    }

    fn on_done(&self, hook: Box<dyn FnOnce() + Send>) -> Result<()> {
        self.acquiring.on_done(hook)
    }

    fn result(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let leases = taken(py, self.acquiring.wait_for(Duration::ZERO))?;
        Leases::new(leases, self.semaphore.clone_ref(py)).into_py_any(py)
    }

    fn traverse(&self, visit: &PyVisit<'_>) -> std::result::Result<(), PyTraverseError> {
        visit.call(&self.semaphore)
    }
}

struct Connect {
    connecting: Connecting,
    servers: String,
    listener: Py<Listener>,
}

impl Work for Connect {
    fn is_over(&self) -> bool {
        self.connecting.is_over()
    }

    fn on_done(&self, hook: Box<dyn FnOnce() + Send>) -> Result<()> {
        self.connecting.on_done(hook)
    }

    fn result(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let client = taken(py, self.connecting.wait_for(Duration::ZERO))?;
        Client::of(client, self.servers.clone(), Some(self.listener.clone_ref(py)), Teller::Loop).into_py_any(py)
    }

    fn traverse(&self, visit: &PyVisit<'_>) -> std::result::Result<(), PyTraverseError> {
        visit.call(&self.listener)
    }
}

/// What asks something, or can't be undone.
struct Asking<T, P> {
    call: Call<T>,
    convert: fn(T) -> P,
}

impl<T: Send + 'static, P: for<'py> IntoPyObject<'py> + 'static> Work for Asking<T, P> {
    fn is_over(&self) -> bool {
        self.call.is_over()
    }

    fn on_done(&self, hook: Box<dyn FnOnce() + Send>) -> Result<()> {
        self.call.on_done(hook)
    }

    fn result(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let answer = taken(py, self.call.wait_for(Duration::ZERO))?;
        (self.convert)(answer).into_py_any(py)
    }
}

struct Close(Arc<Mutex<Option<Result<()>>>>);

impl Work for Close {
    fn is_over(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// It was said how it is told when it was started.
    fn on_done(&self, _: Box<dyn FnOnce() + Send>) -> Result<()> {
        Ok(())
    }

    fn result(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let closed = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        taken(py, closed).and_then(|()| ().into_py_any(py))
    }
}

// What is asked of a hold, for an owner. Where he has none it is that of another owner by this handle, as for a thread.

/// Whether an owner holds a lock, and safely so.
#[pyfunction]
pub(crate) fn _is_held(py: Python<'_>, lock: &Lock, owner: u64) -> PyResult<bool> {
    lock.core.is_held_by(Owner::Custom(owner)).or_raise(py)
}

/// How an owner's hold stands, or another's by this handle: a LockState.
#[pyfunction]
#[pyo3(signature = (lock, owner, *, alone=false))]
pub(crate) fn _state<'py>(py: Python<'py>, lock: &Lock, owner: u64, alone: bool) -> PyResult<Bound<'py, PyAny>> {
    let own = lock.core.state_by(Owner::Custom(owner)).or_raise(py)?;
    let state = if own == zklock::LockState::Free && !alone { lock.core.state().or_raise(py)? } else { own };
    lock_state(py, state)
}

/// For how many seconds that hold is safe.
#[pyfunction]
pub(crate) fn _remaining(py: Python<'_>, lock: &Lock, owner: u64) -> PyResult<f64> {
    seconds_left(py, own_or_any(lock.core.remaining_by(Owner::Custom(owner)), || lock.core.remaining()))
}

/// That hold's fencing token.
#[pyfunction]
pub(crate) fn _fencing_token(py: Python<'_>, lock: &Lock, owner: u64) -> PyResult<i64> {
    own_or_any(lock.core.fencing_token_by(Owner::Custom(owner)), || lock.core.fencing_token()).or_raise(py)
}

/// How often the lock had been passed on when that hold began.
#[pyfunction]
pub(crate) fn _fencing_pass(py: Python<'_>, lock: &Lock, owner: u64) -> PyResult<u32> {
    own_or_any(lock.core.fencing_pass_by(Owner::Custom(owner)), || lock.core.fencing_pass()).or_raise(py)
}

/// The path of an owner's node.
#[pyfunction]
pub(crate) fn _node_path(py: Python<'_>, lock: &Lock, owner: u64) -> PyResult<String> {
    lock.node_path_of(py, Owner::Custom(owner))
}

/// The paths of an owner's nodes.
#[pyfunction]
pub(crate) fn _node_paths(py: Python<'_>, lock: &Lock, owner: u64) -> PyResult<Vec<String>> {
    lock.core.node_paths_by(Owner::Custom(owner)).or_raise(py)
}

/// Releases one entry of an owner, and leaves the rest to the library.
#[pyfunction]
pub(crate) fn _release_nowait(py: Python<'_>, lock: &Lock, owner: u64) -> PyResult<()> {
    let release = lock.core.start_release(Owner::Custom(owner), false).or_raise(py)?;
    taken(py, release.wait_for(Duration::ZERO))
}

/// ``set_revocable()`` of a Lock or Semaphore, whose client's inbox gives what is to be called.
#[pyfunction]
pub(crate) fn _set_revocable(of: &Bound<'_, PyAny>, callback: &Bound<'_, PyAny>) -> PyResult<()> {
    if let Ok(lock) = of.cast::<Lock>() {
        lock.get().tell_revocations(callback)
    } else if let Ok(semaphore) = of.cast::<Semaphore>() {
        semaphore.get().tell_revocations(callback)
    } else {
        Err(PyTypeError::new_err(format!("of: expected a lock or a semaphore, not {}", of.get_type().name()?)))
    }
}

/// ``Client.semaphore()`` at once: a count that is not there is made meanwhile.
#[pyfunction]
#[pyo3(signature = (client, path, max_leases=None, *, count_path=None, initial=None))]
pub(crate) fn _semaphore(
    py: Python<'_>,
    client: &Client,
    #[pyo3(from_py_with = text::path)] path: String,
    #[pyo3(from_py_with = whole::max_leases)] max_leases: Option<i32>,
    #[pyo3(from_py_with = text::count_path)] count_path: Option<String>,
    #[pyo3(from_py_with = whole::initial)] initial: Option<i32>,
) -> PyResult<Semaphore> {
    client.semaphore_of(py, path, Size::of(max_leases, count_path, initial)?, |_, path, count_path, initial| {
        Ok(client.core.counted_semaphore_at_once(path, count_path, initial))
    })
}

fn own_or_any<T>(own: Result<T>, any: impl FnOnce() -> Result<T>) -> Result<T> {
    match own {
        Err(error) if error.status() == Status::NotOwner => any(),
        own => own,
    }
}
