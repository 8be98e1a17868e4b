//! The acquires of locks and of leases, which give a [`Hold`]. The [`Acquire`], and not the code in this file, decides when
//! an acquire has succeeded.

use std::sync::Arc;
use std::time::Duration;

use zklock_core::error::Result;

use crate::acquire::Acquire;
use crate::client_locks::ClientLocks;
use crate::hold::{GivenHold, Hold};
use crate::operation::{InProgress, Operation};
use crate::runtime::Hook;

/// An acquire whose result is a hold. While this value exists, dropping the lock object closes neither the lock nor its
/// member locks.
pub(crate) struct Acquiring {
    acquire: Arc<Acquire>,
    client_locks: Arc<ClientLocks>,
    path: Arc<str>,
    quantity: i32,
    hold: GivenHold,
}

impl Acquiring {
    pub(crate) fn new(acquire: Arc<Acquire>, client_locks: Arc<ClientLocks>, path: Arc<str>, quantity: i32) -> Self {
        Self { acquire, client_locks, path, quantity, hold: GivenHold::default() }
    }

    pub(crate) fn into_operation(self) -> Operation<Hold> {
        Operation::new(self)
    }

    /// Waits until the acquire ends, and leaves the hold to its owner: the owner has it, as a thread has after
    /// [`Lock::acquire`](crate::Lock::acquire).
    pub(crate) fn finish_for_owner(self) -> Result<()> {
        loop {
            if let Some(result) = self.acquire.wait_for(Duration::MAX) {
                return result;
            }
        }
    }
}

impl InProgress<Hold> for Acquiring {
    fn wait_for(&self, slice: Duration) -> Option<Result<Hold>> {
        let give = || self.hold.get(&self.client_locks, &self.path, self.quantity, || self.acquire.hold_ids());
        self.acquire.wait_for(slice).map(|result| result.and_then(|()| give()))
    }

    fn is_over(&self) -> bool {
        self.acquire.is_over()
    }

    fn on_done(&self, hook: Hook) -> Result<()> {
        self.acquire.on_done(hook)
    }

    fn cancel(&self) -> Result<()> {
        self.acquire.cancel()
    }

    fn abandon(&self) {
        self.acquire.abandon();
    }
}

impl Drop for Acquiring {
    fn drop(&mut self) {
        self.abandon();
    }
}
