//! The locks that `acquire()` or a `with` block has acquired. The client object keeps these lock objects alive, so that a hold lasts
//! until its release or the end of its client, even if the program drops the lock object.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;

/// The lock objects of one client, by their addresses.
#[derive(Default)]
pub(crate) struct HeldLocks(Mutex<HashMap<usize, Py<PyAny>>>);

// Dropping a lock object runs code that may use this map, so each method drops the objects after it has unlocked the map.
impl HeldLocks {
    pub(crate) fn add(&self, lock: &Bound<'_, PyAny>) {
        let previous = self.lock().insert(lock.as_ptr().addr(), lock.clone().unbind());
        drop(previous);
    }

    pub(crate) fn remove(&self, lock: &Bound<'_, PyAny>) {
        let removed = self.lock().remove(&lock.as_ptr().addr());
        drop(removed);
    }

    pub(crate) fn clear(&self) {
        let removed = std::mem::take(&mut *self.lock());
        drop(removed);
    }

    pub(crate) fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        self.0.try_lock().map_or(Ok(()), |held| held.values().try_for_each(|lock| visit.call(lock)))
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<usize, Py<PyAny>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
