//! Events and listeners. Events are objects of the classes in `zklock/_events.py`.
//!
//! Python objects own the callbacks, so that the garbage collector can find them. A `ClientEvents` object owns the callbacks of a
//! client. The locks and semaphores of the client refer to the `ClientEvents` object. A lock object owns the lock's callbacks, and a
//! Leases object owns the callbacks of its leases. The core must have only weak references to callbacks.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use pyo3::IntoPyObjectExt;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString, PyWeakrefMethods, PyWeakrefReference};
use zklock::{Config, Event, LockId};

use crate::callback::{CallbackSlot, WeakCallback, callable, start_thread};
use crate::detached_drop::DetachedDrop;
use crate::display::repr;
use crate::errors::{OrRaise, wrong_type};
use crate::held_locks::HeldLocks;
use crate::imports::imports;
use crate::python_call::CallPython;
use crate::states::{client_state, lock_state};

/// Selects the thread that calls the program's callbacks.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum CallbackDispatcher {
    /// The thread of `zklock/_callbacks.py`.
    Thread,
    /// The thread of an event loop. This thread takes the calls from the completion queue of the client.
    Loop,
}

/// The event callbacks of a client. The client, its locks and its semaphores refer to the `ClientEvents` object, and so
/// keep the object alive.
#[pyclass(frozen, weakref, module = "zklock")]
pub(crate) struct ClientEvents {
    names: Arc<EventObjects>,
    listeners: Listeners,
    /// The callables of the argument `auth`. Like the event callbacks, the callables live as long as the `ClientEvents` object.
    auth: Vec<Py<CallbackSlot>>,
    /// The client object owns this value. The field is empty until the client has connected.
    held_locks: OnceLock<Weak<HeldLocks>>,
}

/// The Python lock objects that events contain.
#[derive(Default)]
pub(crate) struct EventObjects {
    /// Weak references to the lock objects.
    locks: Mutex<HashMap<LockId, Py<PyWeakrefReference>>>,
    /// Whether the program has ever registered a callback for the client, its locks or its leases.
    is_used: AtomicBool,
}

/// The listeners that belong to an object of the program.
#[derive(Default)]
pub(crate) struct Listeners(Mutex<Vec<Py<Listener>>>);

/// A callback that the program has added with ``on_event()`` or ``on_lost()``.
///
/// The callback stays registered until the program calls ``stop()``, or until the client, the lock or the leases are
/// garbage-collected. The program does not need to keep a reference to the Listener.
#[pyclass(frozen, weakref, module = "zklock")]
pub(crate) struct Listener {
    callback: Py<CallbackSlot>,
    core_listeners: Mutex<Vec<DetachedDrop<zklock::Listener>>>,
}

impl ClientEvents {
    pub(crate) fn new(py: Python<'_>, auth: Vec<Py<CallbackSlot>>) -> PyResult<Py<Self>> {
        Py::new(py, Self { names: Arc::default(), listeners: Listeners::default(), auth, held_locks: OnceLock::new() })
    }

    pub(crate) fn set_held_locks(&self, held_locks: &Arc<HeldLocks>) {
        let _ = self.held_locks.set(Arc::downgrade(held_locks));
    }

    /// Returns the locks that the client object keeps alive, or `None` if the program has dropped the client object.
    pub(crate) fn held_locks(&self) -> Option<Arc<HeldLocks>> {
        self.held_locks.get().and_then(Weak::upgrade)
    }

    pub(crate) fn names(&self) -> &Arc<EventObjects> {
        &self.names
    }

    /// Registers `on_event` with the config of a client that is about to connect. The callback receives all events of the client. If
    /// `waits` is true, the callback receives no events until `start_listening` is called.
    pub(crate) fn set_first_callback(
        &self,
        py: Python<'_>,
        on_event: Py<PyAny>,
        config: &mut Config,
        waits: bool,
    ) -> PyResult<()> {
        let listener = Listener::new(py, on_event)?;
        if !waits {
            *config = std::mem::take(config).on_event(listener.get().handler(py, &self.names)?);
        }
        self.listeners.add(listener);
        Ok(())
    }

    /// Makes the client report all later events to the callback that `set_first_callback` registered with `waits` set to true.
    pub(crate) fn start_listening(&self, py: Python<'_>, client: &zklock::Client) -> PyResult<()> {
        let Some(listener) = self.listeners.first(py) else { return Ok(()) };
        let handler = Box::new(listener.get().handler(py, &self.names)?);
        py.detach(|| client.set_event_handler(Some(handler))).or_raise(py)
    }

    /// Adds a callback for a client's events.
    pub(crate) fn listen(
        &self,
        callback: &Bound<'_, PyAny>,
        client: &zklock::Client,
        dispatcher: CallbackDispatcher,
    ) -> PyResult<Py<Listener>> {
        let py = callback.py();
        self.listeners.listen(callback, dispatcher, |listener| {
            let handler = listener.handler(py, &self.names)?;
            Ok(vec![DetachedDrop::new(py.detach(|| client.listen(handler)).or_raise(py)?)])
        })
    }
}

#[pymethods]
impl ClientEvents {
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        self.auth.iter().try_for_each(|slot| visit.call(slot))?;
        self.listeners.traverse(&visit)
    }
}

impl EventObjects {
    pub(crate) fn are_used(&self) -> bool {
        self.is_used.load(Ordering::Acquire)
    }

    /// Stores the Python object to include in later events about the lock `id`.
    pub(crate) fn add(&self, id: LockId, object: &Bound<'_, PyAny>) -> PyResult<()> {
        let weak = PyWeakrefReference::new(object)?.unbind();
        self.lock().insert(id, weak);
        Ok(())
    }

    pub(crate) fn remove(&self, id: LockId) {
        let weak = self.lock().remove(&id);
        drop(weak);
    }

    fn to_python<'py>(&self, py: Python<'py>, event: &Event) -> PyResult<Option<Bound<'py, PyAny>>> {
        let needed = imports(py)?;
        match event {
            Event::Client { state, previous, .. } => {
                let fields = [
                    (intern!(py, "state"), client_state(py, *state)?),
                    (intern!(py, "previous"), client_state(py, *previous)?),
                ];
                make(needed.client_event.bind(py), fields).map(Some)
            }
            Event::Lock { lock, path, token, fencing_pass, state, previous, .. } => {
                let fields = [
                    (intern!(py, "lock"), self.find(py, *lock).into_bound_py_any(py)?),
                    (intern!(py, "path"), path.into_bound_py_any(py)?),
                    (intern!(py, "state"), lock_state(py, *state)?),
                    (intern!(py, "previous"), lock_state(py, *previous)?),
                    (intern!(py, "token"), token.into_bound_py_any(py)?),
                    (intern!(py, "fencing_pass"), fencing_pass.into_bound_py_any(py)?),
                ];
                make(needed.lock_event.bind(py), fields).map(Some)
            }
            // The Python package has no class for this kind of event.
            _ => Ok(None),
        }
    }

    /// Returns the lock object with this id, if the object still exists.
    fn find<'py>(&self, py: Python<'py>, id: LockId) -> Option<Bound<'py, PyAny>> {
        let weak = self.lock().get(&id).map(|weak| weak.clone_ref(py));
        weak.and_then(|weak| weak.bind(py).upgrade())
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<LockId, Py<PyWeakrefReference>>> {
        lock(&self.locks)
    }
}

/// Makes an event from its fields. An event loop may call this function on the main thread. The function therefore runs no Python code:
/// an exception of a signal handler would drop the event.
fn make<'py, const N: usize>(
    class: &Bound<'py, PyAny>,
    fields: [(&Bound<'py, PyString>, Bound<'py, PyAny>); N],
) -> PyResult<Bound<'py, PyAny>> {
    let py = class.py();
    let event = class.call_python_method(intern!(py, "__new__"), (class,))?;
    let attributes = event.getattr(intern!(py, "__dict__"))?.cast_into::<PyDict>()?;
    fields.into_iter().try_for_each(|(name, value)| attributes.set_item(name, value))?;
    Ok(event)
}

impl Listeners {
    /// Adds a callback. The function `register` registers the callback with the core.
    pub(crate) fn listen(
        &self,
        callback: &Bound<'_, PyAny>,
        dispatcher: CallbackDispatcher,
        register: impl FnOnce(&Listener) -> PyResult<Vec<DetachedDrop<zklock::Listener>>>,
    ) -> PyResult<Py<Listener>> {
        let py = callback.py();
        let callback =
            callable("callback", callback)?.ok_or_else(|| wrong_type("callback: expected a callable, not NoneType"))?;
        if dispatcher == CallbackDispatcher::Thread {
            start_thread(py)?;
        }
        let listener = Listener::new(py, callback)?;
        let places = register(listener.get())?;
        lock(&listener.get().core_listeners).extend(places);
        self.add(listener.clone_ref(py));
        Ok(listener)
    }

    fn add(&self, listener: Py<Listener>) {
        let mut kept = lock(&self.0);
        let (over, going) = kept.drain(..).partition::<Vec<_>, _>(|listener| listener.get().is_stopped());
        *kept = going;
        kept.push(listener);
        drop(kept);
        drop(over);
    }

    fn first(&self, py: Python<'_>) -> Option<Py<Listener>> {
        lock(&self.0).first().map(|listener| listener.clone_ref(py))
    }

    pub(crate) fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        let kept = self.0.try_lock();
        kept.map_or(Ok(()), |kept| kept.iter().try_for_each(|listener| visit.call(listener)))
    }
}

impl Listener {
    fn new(py: Python<'_>, callback: Py<PyAny>) -> PyResult<Py<Self>> {
        let callback = Py::new(py, CallbackSlot::new(Some(callback)))?;
        Py::new(py, Self { callback, core_listeners: Mutex::default() })
    }

    /// The handler that the core calls.
    pub(crate) fn handler(
        &self,
        py: Python<'_>,
        names: &Arc<EventObjects>,
    ) -> PyResult<impl Fn(&Event) + Send + Sync + 'static> {
        let (whom, names) = (WeakCallback::new(self.callback.bind(py))?, Arc::clone(names));
        names.is_used.store(true, Ordering::Release);
        Ok(move |event: &Event| whom.queue_call(|py| Ok(names.to_python(py, event)?.map(Bound::unbind))))
    }

    fn is_stopped(&self) -> bool {
        self.callback.get().is_empty()
    }
}

#[pymethods]
impl Listener {
    /// Remove the callback. If another thread is about to call the callback when the program calls ``stop()``, that thread still
    /// makes the call. After that call of the callback, the library does not call the callback again. A program may call
    /// ``stop()`` several times. The callback itself may also call ``stop()``.
    fn stop(&self) {
        let callback = self.callback.get().replace(None);
        let places = std::mem::take(&mut *lock(&self.core_listeners));
        drop((callback, places));
    }

    #[getter]
    fn _is_stopped(&self) -> bool {
        self.is_stopped()
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        Ok(match self.callback.get().get(py) {
            None => "<zklock.Listener stopped>".to_owned(),
            Some(callback) => format!("<zklock.Listener {}>", repr(callback.bind(py))?),
        })
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.callback)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
