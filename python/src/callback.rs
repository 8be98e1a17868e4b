//! What a program wants to be called with: a client's events, and requests to give a lock back.
//!
//! The core says when something waits to be told. A thread of Python's (`zklock/_callbacks.py`) takes it, and calls the program: so
//! whatever that does in its callback, a client closes within its two seconds, and the interpreter ends.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use pyo3::PyClass;
use pyo3::exceptions::PyTypeError;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::pyclass::boolean_struct::True;
use pyo3::types::{PyString, PyWeakrefMethods, PyWeakrefReference};
use zklock::{Config, Epoch, Handlers, PerProcess};

use crate::errors::OrRaise;
use crate::wait::{End, stay_behind_at};

/// A lock's callback, from the first on.
#[derive(Default)]
pub(crate) struct Callback(OnceLock<Py<Slot>>);

/// A callable of the program's, or none. It belongs to Python objects, where the garbage collector sees it: callbacks tend to
/// refer to their locks. What the core has refers to it weakly. Never locked for long, and only by who is attached to the
/// interpreter and stays so.
#[pyclass(frozen, weakref, module = "zklock")]
pub(crate) struct Slot(Mutex<Option<Py<PyAny>>>);

/// What the core is given.
pub(crate) type Handler = Box<dyn Fn(&str) + Send + Sync>;

impl Callback {
    /// Puts a callback, or none, into the place of the one before; `register` tells the core.
    pub(crate) fn set(
        &self,
        callback: &Bound<'_, PyAny>,
        register: impl FnOnce(Option<Handler>) -> zklock::Result<()> + Send,
    ) -> PyResult<()> {
        let py = callback.py();
        let callback = callable("callback", callback)?;
        let slot = self.slot(py)?;
        let whom = Whom::new(slot.bind(py))?;
        let ask = move |node_path: &str| {
            whom.call(|py, slot: &Slot| {
                Ok(slot.get(py).map(|callback| (callback, PyString::new(py, node_path).into_any().unbind())))
            });
        };
        let handler = callback.is_some().then(|| Box::new(ask) as Handler);
        // Before it is registered: somebody may have asked already.
        let before = slot.get().replace(callback);
        if let Err(error) = py.detach(|| register(handler)).or_raise(py) {
            slot.get().replace(before);
            return Err(error);
        }
        Ok(())
    }

    fn slot(&self, py: Python<'_>) -> PyResult<&Py<Slot>> {
        match self.0.get() {
            Some(slot) => Ok(slot),
            None => {
                let fresh = Py::new(py, Slot::new(None))?;
                Ok(self.0.get_or_init(|| fresh))
            }
        }
    }

    pub(crate) fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(self.0.get())
    }
}

/// What was given for `argument`: something to be called, or None.
pub(crate) fn callable(argument: &str, given: &Bound<'_, PyAny>) -> PyResult<Option<Py<PyAny>>> {
    if given.is_none() {
        return Ok(None);
    }
    if !given.is_callable() {
        let kind = given.get_type().name()?;
        return Err(PyTypeError::new_err(format!("{argument}: expected a callable or None, not {kind}")));
    }
    Ok(Some(given.clone().unbind()))
}

impl Slot {
    pub(crate) fn new(callback: Option<Py<PyAny>>) -> Self {
        Self(Mutex::new(callback))
    }

    /// Gives the one before, to be dropped when the slot is free again: it may take anything with it.
    pub(crate) fn replace(&self, callback: Option<Py<PyAny>>) -> Option<Py<PyAny>> {
        std::mem::replace(&mut *lock(&self.0), callback)
    }

    pub(crate) fn get(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        lock(&self.0).as_ref().map(|callback| callback.clone_ref(py))
    }
}

#[pymethods]
impl Slot {
    pub(crate) fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        self.0.try_lock().map_or(Ok(()), |callback| visit.call(&*callback))
    }

    pub(crate) fn __clear__(&self) {
        self.replace(None);
    }
}

/// Who wants to be called: a weak reference of Python's, which is the first thing that the garbage collector takes away. Others
/// would lead to callbacks that it has taken apart already.
#[derive(Clone)]
pub(crate) struct Whom(Arc<Py<PyWeakrefReference>>);

impl Whom {
    pub(crate) fn new<T>(object: &Bound<'_, T>) -> PyResult<Self> {
        Ok(Self(Arc::new(PyWeakrefReference::new(object.as_any())?.unbind())))
    }

    /// Finds out what is to be called, and with what, if it is still there. For a handler of the core's, which is called by whoever
    /// goes on to call that, attached to the interpreter.
    pub(crate) fn call<T: PyClass<Frozen = True> + Sync>(
        &self,
        find: impl FnOnce(Python<'_>, &T) -> PyResult<Option<Found>>,
    ) {
        Python::attach(|py| {
            let Some(object) = self.0.bind(py).upgrade() else { return };
            let found = object.cast::<T>().map_err(PyErr::from).and_then(|object| find(py, object.get()));
            match found {
                Ok(found) => FOUND.set(found),
                Err(error) => error.write_unraisable(py, None),
            }
        });
    }
}

/// A callback, and its argument.
pub(crate) type Found = (Py<PyAny>, Py<PyAny>);

thread_local! {
    /// What the handler that was just called wants to be called.
    static FOUND: RefCell<Option<Found>> = const { RefCell::new(None) };
    /// In which process this is the thread that calls. A child that a callback forks goes on in a copy of it.
    static CALLING: Cell<Option<Epoch>> = const { Cell::new(None) };
}

/// Clients that have something to tell, and the thread that tells it.
#[derive(Default)]
struct Calls {
    state: Mutex<State>,
    changed: Condvar,
    is_served: AtomicBool,
}

#[derive(Default)]
struct State {
    ready: VecDeque<Handlers>,
    /// Whose callback is being called.
    current: Option<Handlers>,
}

static CALLS: PerProcess<Calls> = PerProcess::new(Calls::default);

/// Has the core leave the calls of a client to the thread.
pub(crate) fn take_calls(config: &mut Config) {
    config.set_event_bell(bell);
}

/// Something waits to be told.
pub(crate) fn bell(handlers: Handlers) {
    let calls = CALLS.get();
    lock(&calls.state).ready.push_back(handlers);
    calls.changed.notify_all();
}

/// What the handler that is just being called wants to be called, and with what.
pub(crate) fn found(callback: Py<PyAny>, argument: Py<PyAny>) {
    FOUND.set(Some((callback, argument)));
}

/// Waits until the thread has called all there is, `patience` at most. Detached from the interpreter.
pub(crate) fn drain(patience: Duration) {
    let calls = CALLS.get();
    let is_busy = |state: &mut State| !state.ready.is_empty() || state.current.is_some();
    drop(calls.changed.wait_timeout_while(lock(&calls.state), patience, is_busy));
}

/// Waits until the callback of a client that is being called has returned, `patience` at most. Detached from the interpreter.
pub(crate) fn settle(handlers: &Handlers, patience: Duration) {
    if is_calling() {
        return;
    }
    let calls = CALLS.get();
    let is_called = |state: &mut State| state.current.as_ref() == Some(handlers);
    drop(calls.changed.wait_timeout_while(lock(&calls.state), patience, is_called));
}

/// Whether the calling thread is the one that calls callbacks.
pub(crate) fn is_calling() -> bool {
    CALLING.get() == Some(Epoch::current())
}

/// The thread that calls is there from now on.
pub(crate) fn start_thread(py: Python<'_>) -> PyResult<()> {
    let is_served = &CALLS.get().is_served;
    if is_served.swap(true, Ordering::AcqRel) {
        return Ok(());
    }
    let started = py.import("zklock._callbacks").and_then(|module| module.call_method0("start"));
    started.map(drop).inspect_err(|_| is_served.store(false, Ordering::Release))
}

/// The next callback to be called, and its argument. Waits until there is one. Whoever asks has called the one before. None in a child
/// that was forked by that one: the thread serves nobody there.
#[pyfunction]
pub(crate) fn _next_call(py: Python<'_>) -> PyResult<Option<Found>> {
    let current = Epoch::current();
    if CALLING.replace(Some(current)).is_some_and(|epoch| epoch != current) {
        return Ok(None);
    }
    zklock::calls_back();
    loop {
        let handlers = py.detach(next);
        stay_behind_at(py, End::Closed)?;
        if let Some(found) = find(py, &handlers) {
            return Ok(Some(found));
        }
    }
}

/// What the next handler of a client, if one waits, wants to be called. Attached: it asks what the interpreter has.
pub(crate) fn find(_: Python<'_>, handlers: &Handlers) -> Option<Found> {
    handlers.call_next();
    FOUND.take()
}

fn next() -> Handlers {
    let calls = CALLS.get();
    let mut state = lock(&calls.state);
    if state.current.take().is_some() {
        calls.changed.notify_all();
    }
    loop {
        if let Some(handlers) = state.ready.pop_front() {
            state.current = Some(handlers.clone());
            return handlers;
        }
        state = calls.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
    }
}

/// Tells `sys.unraisablehook` what a callback raised.
#[pyfunction]
pub(crate) fn _report(error: Bound<'_, PyAny>, callback: &Bound<'_, PyAny>) {
    let py = error.py();
    PyErr::from_value(error).write_unraisable(py, Some(callback));
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
