//! What a program wants to be called with: a client's events, and requests to give a lock back.
//!
//! The core calls its handlers on the thread of events, and a client that closes waits for the one that is running. Here a
//! handler only leaves a note, and a thread of Python's (`zklock/_callbacks.py`) calls the program: so whatever that does in its
//! callback, a client closes within its two seconds, and the interpreter ends.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use pyo3::exceptions::PyTypeError;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::{PyString, PyWeakrefMethods, PyWeakrefReference};
use zklock::{Event, PerProcess};

use crate::errors::OrRaise;
use crate::event::Listener;
use crate::wait::stay_behind_at_the_end;

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
        let leave =
            move |node_path: &str| Note { whom: whom.clone(), what: What::Revocation(node_path.to_owned()) }.leave();
        let handler = callback.is_some().then(|| Box::new(leave) as Handler);
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

/// What was given for `argument`: something to be called, by a thread that is there from now on, or None.
pub(crate) fn callable(argument: &str, given: &Bound<'_, PyAny>) -> PyResult<Option<Py<PyAny>>> {
    if given.is_none() {
        return Ok(None);
    }
    if !given.is_callable() {
        let kind = given.get_type().name()?;
        return Err(PyTypeError::new_err(format!("{argument}: expected a callable or None, not {kind}")));
    }
    start_thread(given.py())?;
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

    fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// A call that waits for its turn.
pub(crate) struct Note {
    pub(crate) whom: Whom,
    pub(crate) what: What,
}

pub(crate) enum What {
    /// Something of a client's stands differently.
    Event(Event),
    /// Somebody wants this node back.
    Revocation(String),
}

impl Note {
    pub(crate) fn leave(self) {
        let calls = CALLS.get();
        lock(&calls.state).waiting.push_back(self);
        calls.changed.notify_all();
    }

    /// What is to be called, if it is still there, and with what.
    fn call(self, py: Python<'_>) -> PyResult<Option<(Py<PyAny>, Py<PyAny>)>> {
        let Some(object) = self.whom.0.bind(py).upgrade() else { return Ok(None) };
        match self.what {
            What::Event(event) => object.cast::<Listener>()?.get().call(py, &event),
            What::Revocation(node_path) => {
                let callback = object.cast::<Slot>()?.get().get(py);
                Ok(callback.map(|callback| (callback, PyString::new(py, &node_path).into_any().unbind())))
            }
        }
    }
}

/// Calls that wait for their turn, and the thread that makes them.
#[derive(Default)]
struct Calls {
    state: Mutex<State>,
    changed: Condvar,
    is_served: AtomicBool,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Note>,
    /// The thread is just finding out what the next one is about.
    is_looking: bool,
}

static CALLS: PerProcess<Calls> = PerProcess::new(Calls::default);

thread_local! {
    /// Whether this is the thread that calls.
    static CALLING: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

fn start_thread(py: Python<'_>) -> PyResult<()> {
    let is_served = &CALLS.get().is_served;
    if is_served.swap(true, Ordering::AcqRel) {
        return Ok(());
    }
    let started = py.import("zklock._callbacks").and_then(|module| module.call_method0("start"));
    started.map(drop).inspect_err(|_| is_served.store(false, Ordering::Release))
}

/// The next callback to be called, and its argument. Waits until there is one.
#[pyfunction]
pub(crate) fn _next_call(py: Python<'_>) -> PyResult<(Py<PyAny>, Py<PyAny>)> {
    CALLING.set(true);
    loop {
        let note = py.detach(next);
        stay_behind_at_the_end(py)?;
        let call = note.call(py);
        let calls = CALLS.get();
        lock(&calls.state).is_looking = false;
        calls.changed.notify_all();
        match call {
            Ok(Some(call)) => return Ok(call),
            Ok(None) => {}
            Err(error) => error.write_unraisable(py, None),
        }
    }
}

fn next() -> Note {
    let calls = CALLS.get();
    let mut state = lock(&calls.state);
    loop {
        if let Some(note) = state.waiting.pop_front() {
            state.is_looking = true;
            return note;
        }
        state = calls.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
    }
}

/// Waits until the last call that somebody waits for has begun, `patience` at most. Detached from the interpreter.
pub(crate) fn flush(whom: &Whom, patience: Duration) {
    if CALLING.get() {
        return;
    }
    let calls = CALLS.get();
    let some_left = |state: &mut State| state.is_looking || state.waiting.iter().any(|note| note.whom.is(whom));
    drop(calls.changed.wait_timeout_while(lock(&calls.state), patience, some_left));
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
