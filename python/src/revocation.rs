//! What a program wants to be called with when somebody asks for a lock back.
//!
//! The core calls its handlers on the thread of events, and a client that closes waits for the one that is running. Here a
//! handler only leaves a note, and a thread of Python's (`zklock/_revocation.py`) calls the program: so whatever that does in its
//! callback, a client closes within its two seconds, and the interpreter ends.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};

use pyo3::exceptions::PyTypeError;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use zklock::PerProcess;

use crate::errors::OrRaise;
use crate::wait::stay_behind_at_the_end;

/// A lock's callback. It belongs to the Python object, where the garbage collector sees it: callbacks tend to refer to their
/// locks. What the core has refers to it weakly.
#[derive(Default)]
pub(crate) struct Callback(Arc<Slot>);

/// Never locked for long, and only by who is attached to the interpreter and stays so.
type Slot = Mutex<Option<Py<PyAny>>>;

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
        let callback = if callback.is_none() {
            None
        } else if callback.is_callable() {
            start_thread(py)?;
            Some(callback.clone().unbind())
        } else {
            let kind = callback.get_type().name()?;
            return Err(PyTypeError::new_err(format!("callback: expected a callable or None, not {kind}")));
        };
        let slot = Arc::downgrade(&self.0);
        let handler = callback.is_some().then(|| Box::new(move |node_path: &str| leave(&slot, node_path)) as Handler);
        // Before it is registered: somebody may have asked already.
        let before = self.replace(callback);
        if let Err(error) = py.detach(|| register(handler)).or_raise(py) {
            self.replace(before);
            return Err(error);
        }
        Ok(())
    }

    pub(crate) fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        self.0.try_lock().map_or(Ok(()), |callback| visit.call(&*callback))
    }

    pub(crate) fn clear(&self) {
        self.replace(None);
    }

    /// Gives the one before, to be dropped when the slot is free again: it may take anything with it.
    fn replace(&self, callback: Option<Py<PyAny>>) -> Option<Py<PyAny>> {
        std::mem::replace(&mut *lock(&self.0), callback)
    }
}

/// Calls that wait for their turn, and the thread that makes them.
#[derive(Default)]
struct Calls {
    waiting: Mutex<VecDeque<(Weak<Slot>, String)>>,
    changed: Condvar,
    is_served: AtomicBool,
}

static CALLS: PerProcess<Calls> = PerProcess::new(Calls::default);

fn start_thread(py: Python<'_>) -> PyResult<()> {
    let is_served = &CALLS.get().is_served;
    if is_served.swap(true, Ordering::AcqRel) {
        return Ok(());
    }
    let started = py.import("zklock._revocation").and_then(|module| module.call_method0("start"));
    started.map(drop).inspect_err(|_| is_served.store(false, Ordering::Release))
}

fn leave(slot: &Weak<Slot>, node_path: &str) {
    let calls = CALLS.get();
    lock(&calls.waiting).push_back((Weak::clone(slot), node_path.to_owned()));
    calls.changed.notify_one();
}

/// The next callback to be called, and its argument. Waits until there is one.
#[pyfunction]
pub(crate) fn _next_revocation(py: Python<'_>) -> PyResult<(Py<PyAny>, String)> {
    loop {
        let (slot, node_path) = py.detach(next);
        stay_behind_at_the_end(py)?;
        let callback = slot.upgrade().and_then(|slot| lock(&slot).as_ref().map(|callback| callback.clone_ref(py)));
        if let Some(callback) = callback {
            return Ok((callback, node_path));
        }
    }
}

fn next() -> (Weak<Slot>, String) {
    let calls = CALLS.get();
    let mut waiting = lock(&calls.waiting);
    loop {
        match waiting.pop_front() {
            Some(call) => return call,
            None => waiting = calls.changed.wait(waiting).unwrap_or_else(PoisonError::into_inner),
        }
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
