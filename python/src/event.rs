//! A client's `on_event`, and what it is called with: the classes of `zklock/_events.py`.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::{PyWeakrefMethods, PyWeakrefReference};
use zklock::{Config, Event, LockId};

use crate::callback::{Slot, Whom, callable, start_thread};
use crate::needed::needed;
use crate::states::{client_state, lock_state};

/// Who wants to hear of a client's events. A client, its locks and its semaphores have it in common: whichever is left has
/// events.
#[pyclass(frozen, weakref, module = "zklock")]
pub(crate) struct Listener {
    on_event: Slot,
    /// The locks that events may be about: weak references.
    locks: Mutex<HashMap<LockId, Py<PyWeakrefReference>>>,
}

impl Listener {
    /// Has the core tell of a client's events, if somebody wants to hear of them.
    pub(crate) fn new(on_event: &Bound<'_, PyAny>, config: &mut Config) -> PyResult<Option<Py<Self>>> {
        let Some(callback) = callable("on_event", on_event)? else { return Ok(None) };
        let py = on_event.py();
        start_thread(py)?;
        let listener = Self::of(py, callback)?;
        config.set_event_handler(Self::handler(py, &listener)?);
        Ok(Some(listener))
    }

    /// Whoever wants to hear of events, once `handler` is the core's.
    pub(crate) fn of(py: Python<'_>, on_event: Py<PyAny>) -> PyResult<Py<Self>> {
        Py::new(py, Self { on_event: Slot::new(Some(on_event)), locks: Mutex::default() })
    }

    /// What the core calls.
    pub(crate) fn handler(py: Python<'_>, listener: &Py<Self>) -> PyResult<impl Fn(&Event) + Send + Sync + 'static> {
        let whom = Whom::new(listener.bind(py))?;
        Ok(move |event: &Event| whom.call(|py, listener: &Self| listener.call(py, event)))
    }

    /// Events that are about a lock name this object from now on.
    pub(crate) fn add(&self, id: LockId, object: &Bound<'_, PyAny>) -> PyResult<()> {
        let weak = PyWeakrefReference::new(object)?.unbind();
        self.locks().insert(id, weak);
        Ok(())
    }

    pub(crate) fn remove(&self, id: LockId) {
        let weak = self.locks().remove(&id);
        drop(weak);
    }

    /// What is to be called, and with what.
    fn call(&self, py: Python<'_>, event: &Event) -> PyResult<Option<(Py<PyAny>, Py<PyAny>)>> {
        let Some(callback) = self.on_event.get(py) else { return Ok(None) };
        Ok(Some((callback, self.object(py, event)?.unbind())))
    }

    fn object<'py>(&self, py: Python<'py>, event: &Event) -> PyResult<Bound<'py, PyAny>> {
        let needed = needed(py)?;
        match event {
            Event::Client { state, previous } => {
                let (state, previous) = (client_state(py, *state)?, client_state(py, *previous)?);
                needed.client_event.bind(py).call1((state, previous))
            }
            Event::Lock { lock, path, token, pass, state, previous } => {
                let (state, previous) = (lock_state(py, *state)?, lock_state(py, *previous)?);
                needed.lock_event.bind(py).call1((self.find(py, *lock), &**path, state, previous, *token, *pass))
            }
        }
    }

    /// The lock, if anybody still has it.
    fn find<'py>(&self, py: Python<'py>, id: LockId) -> Option<Bound<'py, PyAny>> {
        let weak = self.locks().get(&id).map(|weak| weak.clone_ref(py));
        weak.and_then(|weak| weak.bind(py).upgrade())
    }

    fn locks(&self) -> MutexGuard<'_, HashMap<LockId, Py<PyWeakrefReference>>> {
        self.locks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl Listener {
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        self.on_event.__traverse__(visit)
    }

    fn __clear__(&self) {
        self.on_event.__clear__();
    }
}
