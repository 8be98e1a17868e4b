//! The object behind a lock handle, and the table in which events find the handle of a lock. This module must not use clients:
//! events contain lock handles, and clients make events.

use std::collections::HashMap;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::{ptr, slice};

use zklock::internal::PerProcess;
use zklock::{Lock, LockId, Result};
use zklock_abi::handle::{self, Handle, HandleKind, Table};

use crate::callback::{ReplaceableListeners, RevocationCallbacks};

/// A lock: a mutex, the read lock or the write lock of a read/write lock, a semaphore mutex, or a multi-lock. Threads that
/// share one handle exclude each other, and acquire the lock in the order of their calls.
pub struct zkl_lock(());

/// The object that a `zkl_lock` handle identifies. The object contains the lock, and the tables from which events get the lock
/// handle. An event of a multi-lock contains the handle of a member lock, never the handle of the multi-lock.
pub struct LockObject {
    pub(crate) lock: Lock,
    /// The tables of lock handles. A multi-lock has one table for each member lock. Any other lock has the table of its client.
    pub(crate) handles: Vec<LockHandles>,
    pub(crate) callbacks: RevocationCallbacks,
    pub(crate) on_event: ReplaceableListeners,
}

impl LockObject {
    pub(crate) fn new(lock: Lock, handles: Vec<LockHandles>) -> Self {
        Self { lock, handles, callbacks: RevocationCallbacks::default(), on_event: ReplaceableListeners::default() }
    }

    /// Returns the member locks of a multi-lock, or the lock itself if it is not a multi-lock. For each lock, the iterator also
    /// returns the table of lock handles of its client.
    pub(crate) fn members_or_self(&self) -> impl Iterator<Item = (&Lock, &LockHandles)> {
        let members = self.lock.members();
        let locks = if members.is_empty() { slice::from_ref(&self.lock) } else { members };
        locks.iter().zip(&self.handles)
    }

    pub(crate) fn close(&self) -> Result<()> {
        let closed = self.lock.close();
        self.callbacks.close();
        self.on_event.close();
        closed
    }
}

impl Drop for LockObject {
    fn drop(&mut self) {
        if let ([], [handles]) = (self.lock.members(), &*self.handles) {
            handles.remove(self.lock.id());
        }
    }
}

impl Deref for LockObject {
    type Target = Lock;

    fn deref(&self) -> &Lock {
        &self.lock
    }
}

impl Handle for zkl_lock {
    type Object = LockObject;
    const KIND: HandleKind = HandleKind::Lock;

    fn table() -> &'static Table<LockObject> {
        static TABLE: PerProcess<Table<LockObject>> = PerProcess::new(Table::default);
        TABLE.get()
    }
}

/// The lock handles of one client. The keys are the numbers that identify the locks in events.
#[derive(Clone, Default)]
pub(crate) struct LockHandles(Arc<Mutex<HashMap<LockId, SendableHandle>>>);

struct SendableHandle(*mut zkl_lock);

// SAFETY: a handle is a number, not an address.
unsafe impl Send for SendableHandle {}

impl LockHandles {
    pub(crate) fn add(&self, id: LockId, handle: *mut zkl_lock) {
        self.lock().insert(id, SendableHandle(handle));
    }

    fn remove(&self, id: LockId) {
        self.lock().remove(&id);
    }

    /// Returns the handle of a lock, or NULL if the program has freed the handle. `zklock.hpp` relies on this rule.
    pub(crate) fn find(&self, id: LockId) -> *mut zkl_lock {
        let handle = self.lock().get(&id).map_or(ptr::null_mut(), |handle| handle.0);
        // This call can drop the last reference to the object, which then locks the table. The table must therefore not be
        // locked here.
        if handle::get(handle).is_ok() { handle } else { ptr::null_mut() }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<LockId, SendableHandle>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
