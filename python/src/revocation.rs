//! What a program wants to be called with when somebody asks for a lock back.
//!
//! The core calls its handlers on the thread of events, and a client that closes waits for the one that is running. Here a
//! handler only leaves a note, and a thread of ours calls Python: so whatever the program does in its callback, a client closes
//! within its two seconds, and the interpreter ends.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;

use pyo3::exceptions::PyTypeError;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use zklock::{PerProcess, with_signals_blocked};

use crate::errors::OrRaise;
use crate::wait::does_interpreter_end;

/// A lock's callback. It belongs to the Python object, whose garbage collector sees it there: callbacks tend to refer to their
/// locks. What the core has refers to it weakly.
#[derive(Default)]
pub(crate) struct Callback(Arc<Slot>);

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
        if !callback.is_none() && !callback.is_callable() {
            let kind = callback.get_type().name()?;
            return Err(PyTypeError::new_err(format!("callback: expected a callable or None, not {kind}")));
        }
        let callback = (!callback.is_none()).then(|| callback.clone().unbind());
        let slot = Arc::downgrade(&self.0);
        let handler: Option<Handler> =
            callback.is_some().then(|| Box::new(move |node: &str| leave(&slot, node)) as Handler);
        // Before it is registered: somebody may have asked already.
        let before = self.replace(callback);
        py.detach(|| register(handler)).or_raise(py).inspect_err(|_| {
            self.replace(before);
        })
    }

    pub(crate) fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        // Never taken for long, and never while the interpreter's lock is let go.
        self.0.try_lock().map_or(Ok(()), |callback| visit.call(&*callback))
    }

    pub(crate) fn clear(&self) {
        // Dropped when the slot is free again: it may take anything with it.
        let _before = self.replace(None);
    }

    fn replace(&self, callback: Option<Py<PyAny>>) -> Option<Py<PyAny>> {
        std::mem::replace(&mut *lock(&self.0), callback)
    }
}

/// Calls that wait for their turn, one after the other.
#[derive(Default)]
struct Calls {
    waiting: VecDeque<(Weak<Slot>, String)>,
    /// A thread is there to make them. It goes when there are no more.
    is_served: bool,
}

static CALLS: PerProcess<Mutex<Calls>> = PerProcess::new(Mutex::default);

fn leave(slot: &Weak<Slot>, node_path: &str) {
    let mut calls = lock(CALLS.get());
    calls.waiting.push_back((Weak::clone(slot), node_path.to_owned()));
    if !calls.is_served {
        let run = || thread::Builder::new().name("zkl-revoked".into()).spawn(serve);
        // Where there is no thread to be had, the next call tries again.
        calls.is_served = with_signals_blocked(run).is_ok();
    }
}

fn serve() {
    loop {
        let next = {
            let mut calls = lock(CALLS.get());
            let next = calls.waiting.pop_front();
            calls.is_served = next.is_some();
            next
        };
        let Some((slot, node_path)) = next else { return };
        call(&slot, &node_path);
    }
}

fn call(slot: &Weak<Slot>, node_path: &str) {
    if does_interpreter_end() {
        return;
    }
    Python::try_attach(|py| {
        let callback = slot.upgrade().and_then(|slot| lock(&slot).as_ref().map(|callback| callback.clone_ref(py)));
        let Some(callback) = callback else { return };
        if let Err(error) = callback.call1(py, (node_path,)) {
            error.write_unraisable(py, Some(callback.bind(py)));
        }
    });
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
