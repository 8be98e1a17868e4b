//! The program's callbacks for events and revocation requests.
//!
//! The core signals that a callback must be called. A Python thread (`zklock/_callbacks.py`) then fetches the callback and
//! calls it. Callbacks run only on this thread, and on a second thread for clients with a loss in their queues. The callbacks of
//! one client never run at the same time. If a callback does not return, `close()` still returns within two seconds, and
//! the interpreter can exit.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyString, PyWeakrefMethods, PyWeakrefReference};
use zklock::Config;
use zklock::internal::set_event_notifier;
use zklock::internal::{EventSource, ForkEpoch, PerProcess};

use crate::display::type_name;
use crate::errors::{OrRaise, wrong_type};
use crate::python_call::{CallPython, write_unraisable};

/// The revocation callback of a lock or a semaphore. The slot is made when the program sets the first callback.
#[derive(Default)]
pub(crate) struct RevocationCallback(OnceLock<Py<CallbackSlot>>);

/// A slot for one callable of the program. A slot may be empty. A callback often refers to its lock. The slot is a
/// Python object, so that the garbage collector can find the cycle of references. The core has only a weak reference to
/// the slot. A thread may lock the mutex only while it is attached to the interpreter, and only for a short time.
#[pyclass(frozen, weakref, module = "zklock")]
pub(crate) struct CallbackSlot(Mutex<Option<Py<PyAny>>>);

/// The handler that the core calls.
pub(crate) type Handler = Box<dyn Fn(&str) + Send + Sync>;

impl RevocationCallback {
    /// Replaces or removes the callback. The function `register` registers the handler with the core.
    pub(crate) fn set(
        &self,
        callback: &Bound<'_, PyAny>,
        register: impl FnOnce(Option<Handler>) -> zklock::Result<()> + Send,
    ) -> PyResult<()> {
        let py = callback.py();
        let callback = callable("callback", callback)?;
        let slot = self.slot(py)?;
        let whom = WeakCallback::new(slot.bind(py))?;
        let ask = move |node_path: &str| {
            whom.queue_call(|py| Ok(Some(PyString::new(py, node_path).into_any().unbind())));
        };
        let handler = callback.is_some().then(|| Box::new(ask) as Handler);
        // Set the callback before registering the handler, because a revocation request may already be waiting in the
        // core.
        let before = slot.get().replace(callback);
        if let Err(error) = py.detach(|| register(handler)).or_raise(py) {
            slot.get().replace(before);
            return Err(error);
        }
        Ok(())
    }

    fn slot(&self, py: Python<'_>) -> PyResult<&Py<CallbackSlot>> {
        match self.0.get() {
            Some(slot) => Ok(slot),
            None => {
                let fresh = Py::new(py, CallbackSlot::new(None))?;
                Ok(self.0.get_or_init(|| fresh))
            }
        }
    }

    pub(crate) fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(self.0.get())
    }
}

/// Checks that the value of `argument` is a callable or None.
pub(crate) fn callable(argument: &str, given: &Bound<'_, PyAny>) -> PyResult<Option<Py<PyAny>>> {
    if given.is_none() {
        return Ok(None);
    }
    if !given.is_callable() {
        let kind = type_name(given);
        return Err(wrong_type(format!("{argument}: expected a callable or None, not {kind}")));
    }
    Ok(Some(given.clone().unbind()))
}

impl CallbackSlot {
    pub(crate) fn new(callback: Option<Py<PyAny>>) -> Self {
        Self(Mutex::new(callback))
    }

    /// Replaces the callback, and returns the previous callback. The caller, and not this function, drops the previous callback. The
    /// drop can run arbitrary code, so the slot must not be locked during the drop.
    pub(crate) fn replace(&self, callback: Option<Py<PyAny>>) -> Option<Py<PyAny>> {
        std::mem::replace(&mut *lock(&self.0), callback)
    }

    pub(crate) fn get(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        lock(&self.0).as_ref().map(|callback| callback.clone_ref(py))
    }

    pub(crate) fn is_empty(&self) -> bool {
        lock(&self.0).is_none()
    }
}

#[pymethods]
impl CallbackSlot {
    pub(crate) fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        self.0.try_lock().map_or(Ok(()), |callback| visit.call(&*callback))
    }

    pub(crate) fn __clear__(&self) {
        self.replace(None);
    }
}

/// A Python weak reference to a slot. The garbage collector clears weak references before it destroys objects. Through any other kind
/// of reference, a thread could reach a callback that the garbage collector has partly destroyed.
#[derive(Clone)]
pub(crate) struct WeakCallback(Arc<Py<PyWeakrefReference>>);

impl WeakCallback {
    pub(crate) fn new(slot: &Bound<'_, CallbackSlot>) -> PyResult<Self> {
        Ok(Self(Arc::new(PyWeakrefReference::new(slot.as_any())?.unbind())))
    }

    /// Returns the callback, if it still exists.
    pub(crate) fn get(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        let slot = self.0.bind(py).upgrade().map(Bound::cast_into::<CallbackSlot>)?.ok()?;
        slot.get().get(py)
    }

    /// Adds a call of the callback to this thread's queue. The function `argument` returns the argument of the call. If the callback no
    /// longer exists, or `argument` returns `None`, the queue does not change. Handlers of the core call this function. After a handler
    /// has returned, the same thread attaches to the interpreter and makes the queued calls.
    pub(crate) fn queue_call(&self, argument: impl FnOnce(Python<'_>) -> PyResult<Option<Py<PyAny>>>) {
        Python::attach(|py| {
            let Some(Ok(slot)) = self.0.bind(py).upgrade().map(Bound::cast_into::<CallbackSlot>) else { return };
            let Some(callback) = slot.get().get(py) else { return };
            match argument(py) {
                Ok(Some(argument)) => push_bound_call((callback, argument), Some(slot.unbind())),
                Ok(None) => {}
                Err(error) => write_unraisable(py, error, None),
            }
        });
    }
}

/// A callback, and its argument.
pub(crate) type BoundCall = (Py<PyAny>, Py<PyAny>);

thread_local! {
    /// The queue of callback calls. Handlers add calls, and the thread makes them. Each entry contains the slot of the callback,
    /// because the program may remove the callback in the meantime.
    static BOUND_CALLS: RefCell<VecDeque<(BoundCall, Option<Py<CallbackSlot>>)>> = const { RefCell::new(VecDeque::new()) };
    /// The process in which this thread calls callbacks, and the role of this thread. If a callback forks, the child process continues
    /// in a copy of the thread.
    static CALLBACK_THREAD: Cell<Option<(ForkEpoch, Role)>> = const { Cell::new(None) };
}

/// The two threads that call callbacks.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    /// This thread calls all callbacks.
    Events,
    /// This thread calls the callbacks of clients with a loss in their queues, so that a slow callback of another client does not
    /// delay the loss.
    Losses,
}

/// The clients that have pending callbacks, and the state of the threads that call the callbacks.
#[derive(Default)]
struct CallbackQueue {
    state: Mutex<State>,
    changed: Condvar,
    /// Whether the threads that will call the callbacks were started. An exception may interrupt a start that succeeds.
    is_started: AtomicBool,
}

#[derive(Default)]
struct State {
    ready: VecDeque<EventSource>,
    /// The clients with a loss in their queues.
    urgent: VecDeque<EventSource>,
    events: Server,
    losses: Server,
}

/// The state of one of the threads that call callbacks.
#[derive(Default)]
struct Server {
    is_running: bool,
    /// The client whose callback is being called.
    current: Option<EventSource>,
}

impl State {
    const fn server(&mut self, role: Role) -> &mut Server {
        match role {
            Role::Events => &mut self.events,
            Role::Losses => &mut self.losses,
        }
    }

    fn is_current(&self, source: &EventSource) -> bool {
        [&self.events, &self.losses].iter().any(|server| server.current.as_ref() == Some(source))
    }

    /// Removes the next client whose callbacks a thread may call. The other thread must not be calling a callback of this client.
    fn take_next(&mut self, role: Role) -> Option<EventSource> {
        let urgent = self.urgent.iter().position(|source| !self.is_current(source));
        if let Some(at) = urgent {
            return self.urgent.remove(at);
        }
        let ready = self.ready.iter().position(|source| role == Role::Events && !self.is_current(source))?;
        self.ready.remove(ready)
    }
}

static CALLBACK_QUEUE: PerProcess<CallbackQueue> = PerProcess::new(CallbackQueue::default);

/// Configures a client so that the Python threads call its callbacks.
pub(crate) fn set_thread_notifier(config: &mut Config) {
    set_event_notifier(config, notify_thread);
}

/// The core calls this function when a client has pending callbacks.
pub(crate) fn notify_thread(handlers: EventSource) {
    let calls = CALLBACK_QUEUE.get();
    let mut state = lock(&calls.state);
    if handlers.has_loss() {
        state.ready.retain(|ready| *ready != handlers);
        state.urgent.push_back(handlers);
    } else {
        state.ready.push_back(handlers);
    }
    drop(state);
    calls.changed.notify_all();
}

/// Adds a call without a slot to this thread's queue. The log handler calls this function for each log line.
pub(crate) fn add_bound_call(callback: Py<PyAny>, argument: Py<PyAny>) {
    push_bound_call((callback, argument), None);
}

fn push_bound_call(found: BoundCall, slot: Option<Py<CallbackSlot>>) {
    BOUND_CALLS.with_borrow_mut(|all| all.push_back((found, slot)));
}

/// Removes the next recorded call from the queue and returns it.
fn pop_bound_call() -> Option<BoundCall> {
    while let Some((found, slot)) = BOUND_CALLS.with_borrow_mut(VecDeque::pop_front) {
        if slot.is_none_or(|slot| !slot.get().is_empty()) {
            return Some(found);
        }
    }
    None
}

/// Waits until the thread has called all pending callbacks, but no longer than `timeout`. The caller must be detached
/// from the interpreter.
pub(crate) fn wait_until_idle(timeout: Duration) {
    let calls = CALLBACK_QUEUE.get();
    let is_busy = |state: &mut State| {
        let has_current = state.events.current.is_some() || state.losses.current.is_some();
        has_current || !state.ready.is_empty() || !state.urgent.is_empty()
    };
    drop(calls.changed.wait_timeout_while(lock(&calls.state), timeout, is_busy));
}

/// Waits until a client's running callback has returned, but no longer than `timeout`. The caller must be detached from the
/// interpreter.
pub(crate) fn wait_until_returned(handlers: &EventSource, timeout: Duration) {
    if is_callback_thread() {
        return;
    }
    let calls = CALLBACK_QUEUE.get();
    let is_called = |state: &mut State| state.is_current(handlers);
    drop(calls.changed.wait_timeout_while(lock(&calls.state), timeout, is_called));
}

/// Returns whether the calling thread is a thread that calls callbacks.
pub(crate) fn is_callback_thread() -> bool {
    CALLBACK_THREAD.get().is_some_and(|(epoch, _)| epoch == ForkEpoch::current())
}

/// Starts the threads that call callbacks, unless the threads are already running.
pub(crate) fn start_thread(py: Python<'_>) -> PyResult<()> {
    let is_started = &CALLBACK_QUEUE.get().is_started;
    if is_started.swap(true, Ordering::AcqRel) {
        return Ok(());
    }
    let started = py.import("zklock._callbacks").and_then(|module| module.call_python_method(intern!(py, "start"), ()));
    started.map(drop).inspect_err(|_| is_started.store(false, Ordering::Release))
}

/// Wait for the next pending callback, and return the callback with its argument. If ``losses`` is true, the callback
/// belongs to a client with a loss in its queue. The caller must call the returned callback before it calls
/// ``_next_call()`` again. If another thread makes these calls, or if a callback forks the process and this process is
/// the child, the function returns None. The calling thread must then end.
#[pyfunction]
#[pyo3(signature = (*, losses))]
pub(crate) fn _next_call(py: Python<'_>, losses: bool) -> Option<BoundCall> {
    let (current, role) = (ForkEpoch::current(), if losses { Role::Losses } else { Role::Events });
    match CALLBACK_THREAD.get() {
        Some((epoch, _)) if epoch != current => return None,
        Some(_) => {}
        None if std::mem::replace(&mut lock(&CALLBACK_QUEUE.get().state).server(role).is_running, true) => return None,
        None => CALLBACK_THREAD.set(Some((current, role))),
    }
    zklock::internal::mark_callback_thread();
    loop {
        // One event may lead to several recorded calls. Dispatch the next event only when no recorded call is left.
        if let Some(found) = pop_bound_call() {
            return Some(found);
        }
        let handlers = py.detach(|| next_source(role));
        handlers.dispatch_next();
    }
}

/// Runs the next pending handlers of a client, and returns the calls that these handlers recorded. The caller must be attached to the
/// interpreter.
pub(crate) fn collect_bound_calls(_: Python<'_>, handlers: &EventSource) -> Vec<BoundCall> {
    handlers.dispatch_next();
    std::iter::from_fn(pop_bound_call).collect()
}

fn next_source(role: Role) -> EventSource {
    let calls = CALLBACK_QUEUE.get();
    let mut state = lock(&calls.state);
    if state.server(role).current.take().is_some() {
        calls.changed.notify_all();
    }
    loop {
        if let Some(handlers) = state.take_next(role) {
            state.server(role).current = Some(handlers.clone());
            return handlers;
        }
        state = calls.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
    }
}

/// Report an exception from a callback through `sys.unraisablehook`.
#[pyfunction]
pub(crate) fn _report_unraisable(error: Bound<'_, PyAny>, callback: &Bound<'_, PyAny>) {
    let py = error.py();
    write_unraisable(py, PyErr::from_value(error), Some(callback));
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
