//! The owners of holds. The functions identify the calling thread or greenlet, and warn about holds that remain when a thread or
//! greenlet ends. Each such hold causes a ResourceWarning.
//!
//! When a thread or greenlet ends, its holds remain, and no other thread or greenlet can release these holds. A
//! `HoldTracker` exists as long as its thread or greenlet, and records the locks that this thread or greenlet has
//! acquired. A `HoldTracker` must not keep a lock object alive.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyWeakrefMethods, PyWeakrefReference};
use zklock::{HoldView, LockState, Owner};

use crate::greenlet;
use crate::imports::imports;
use crate::lock::{Lock, state_of};
use crate::python_call::{CallPython, write_unraisable};
use crate::resource_warning::{is_released_with_object, warn};

/// The locks that a thread or greenlet has acquired. Python drops a `HoldTracker` when its owner ends.
#[pyclass(frozen, module = "zklock")]
pub(crate) struct HoldTracker {
    owner: Owner,
    /// The owner's name for use in messages, or `None` if the library cannot observe when the owner ends.
    who: Option<String>,
    entered: Mutex<HashMap<usize, EnteredLock>>,
}

/// A lock that the owner has acquired. The key in `entered` is the address of the lock object. If the object is garbage-collected during
/// the hold, the entry remains until a later lock has the same address.
struct EnteredLock {
    lock: Py<PyWeakrefReference>,
    /// The number of times that the owner must still release the lock. The number excludes the holds of `Hold` objects, because
    /// any thread may release a `Hold`.
    releases: usize,
}

impl EnteredLock {
    /// Returns the lock object, if it still exists.
    fn upgrade<'py>(&self, py: Python<'py>) -> Option<Bound<'py, Lock>> {
        self.lock.bind(py).upgrade_as::<Lock>().ok().flatten()
    }
}

// No function that records a hold or a release runs Python code. A signal handler could otherwise raise an exception between the acquire
// and the record.
impl HoldTracker {
    fn new(py: Python<'_>, owner: Owner, who: Option<String>) -> PyResult<Bound<'_, Self>> {
        Bound::new(py, Self { owner, who, entered: Mutex::default() })
    }

    pub(crate) fn owner(&self) -> Owner {
        self.owner
    }

    pub(crate) fn who(&self) -> Option<&str> {
        self.who.as_deref()
    }

    pub(crate) fn add(&self, lock: &Bound<'_, Lock>) -> PyResult<()> {
        let weak = PyWeakrefReference::new(lock)?.unbind();
        let mut entered = self.lock_entered();
        let previous = match entered.get_mut(&lock.as_ptr().addr()) {
            Some(entry) if entry.upgrade(lock.py()).is_some() => {
                entry.releases += 1;
                None
            }
            _ => entered.insert(lock.as_ptr().addr(), EnteredLock { lock: weak, releases: 1 }),
        };
        drop(entered);
        drop(previous);
        Ok(())
    }

    /// Decrements the hold count of a lock, or removes the lock if the hold is over.
    pub(crate) fn remove(&self, lock: &Bound<'_, Lock>, is_over: bool) {
        let address = lock.as_ptr().addr();
        let mut entered = self.lock_entered();
        let removed = match entered.get_mut(&address) {
            Some(entry) if entry.releases > 1 && !is_over => {
                entry.releases -= 1;
                None
            }
            _ => entered.remove(&address),
        };
        drop(entered);
        drop(removed);
    }

    fn lock_entered(&self) -> MutexGuard<'_, HashMap<usize, EnteredLock>> {
        self.entered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Warns about the holds that remain. The function releases lost holds without a warning.
    fn warn_of_holds(&self, py: Python<'_>) -> PyResult<()> {
        let Some(who) = &self.who else { return Ok(()) };
        let entered = std::mem::take(&mut *self.lock_entered());
        for lock in entered.into_values().filter_map(|entry| entry.upgrade(py)) {
            let core: &zklock::Lock = &lock.get().core;
            while matches!(core.view(self.owner), Ok(Some(HoldView { state: LockState::Lost, .. }))) {
                if py.detach(|| core.start_release(self.owner, false)).is_err() {
                    break;
                }
            }
            if is_released_with_object(&core.view(self.owner).map(state_of)) {
                let lock = Lock::describe(&lock, self.owner)?;
                let hint = "which no other thread or greenlet can release";
                warn(py, || Ok(format!("{who} ended while it holds {lock}, {hint}")));
            }
        }
        Ok(())
    }
}

#[pymethods]
impl HoldTracker {
    /// Warns about holds that remain after the end of the greenlet. When the greenlet ends, the greenlet object calls
    /// this method. The `HoldTracker` itself may be dropped later.
    fn __call__(&self, py: Python<'_>) -> PyResult<()> {
        self.warn_of_holds(py)
    }
}

impl Drop for HoldTracker {
    fn drop(&mut self) {
        // If the thread cannot attach to an interpreter, the library has already closed all clients.
        Python::try_attach(|py| {
            let raised = PyErr::take(py);
            if let Err(error) = self.warn_of_holds(py) {
                write_unraisable(py, error, None);
            }
            if let Some(raised) = raised {
                raised.restore(py);
            }
        });
    }
}

/// Returns the calling greenlet as an owner. Outside of greenlets, and in the main greenlet of a thread, the owner is the calling
/// thread.
pub(crate) fn current_owner(py: Python<'_>) -> PyResult<Owner> {
    match greenlet::current_non_main(py)? {
        Some(greenlet) => Ok(greenlet_hold_tracker(&greenlet)?.get().owner()),
        None => Ok(Owner::current_thread()),
    }
}

/// Returns the `HoldTracker` of the calling greenlet or thread.
pub(crate) fn current_hold_tracker(py: Python<'_>) -> PyResult<Bound<'_, HoldTracker>> {
    match greenlet::current_non_main(py)? {
        Some(greenlet) => greenlet_hold_tracker(&greenlet),
        None => thread_hold_tracker(py),
    }
}

/// Returns the `HoldTracker` of the calling thread. The thread-local storage owns the `HoldTracker`, and drops it when the thread ends.
fn thread_hold_tracker(py: Python<'_>) -> PyResult<Bound<'_, HoldTracker>> {
    let (local, name) = (imports(py)?.thread.bind(py), intern!(py, "hold_tracker"));
    if let Some(known) = local.getattr_opt(name)? {
        return Ok(known.cast_into()?);
    }
    let who = imports(py)?.thread_name.bind(py).call_python(())?.extract()?;
    let tracker = HoldTracker::new(py, Owner::current_thread(), who)?;
    local.setattr(name, &tracker)?;
    Ok(tracker)
}

/// Returns the `HoldTracker` of a greenlet. The greenlet object stores the `HoldTracker`, which contains a unique number for the
/// greenlet. The address of a greenlet is not a unique number, because a later greenlet may have the same address.
fn greenlet_hold_tracker<'py>(greenlet: &Bound<'py, PyAny>) -> PyResult<Bound<'py, HoldTracker>> {
    let py = greenlet.py();
    let attributes = greenlet.getattr(intern!(py, "__dict__"))?.cast_into::<PyDict>()?;
    let name = intern!(py, "__zklock_owner__");
    if let Some(Ok(known)) = attributes.get_item(name)?.map(Bound::cast_into::<HoldTracker>) {
        return Ok(known);
    }
    let who: String = imports(py)?.name_of.bind(py).call_python((greenlet,))?.extract()?;
    let tracker = HoldTracker::new(py, Owner::unique(), Some(who))?;
    imports(py)?.at_end.bind(py).call_python((greenlet, &tracker))?;
    attributes.set_item(name, &tracker)?;
    Ok(tracker)
}
