//! Acquires in progress, of locks and of leases. A caller can wait until the acquire ends, wait in several short slices,
//! or await the acquire as a future. An acquire that succeeds gives a [`Hold`]. The [`Operation`], and not the code in
//! this file, decides when an acquire has succeeded.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use zklock_core::error::Result;

use crate::client_locks::ClientLocks;
use crate::future::WakerRegistration;
use crate::hold::{GivenHold, Hold};
use crate::operation::Operation;

/// An acquire operation in progress. The operation continues whether or not a thread waits for it. Any thread may call
/// the methods of this value, any number of times.
///
/// An operation that succeeds gives a [`Hold`]. If the program drops this value while the operation still runs, the
/// operation is canceled. If the operation has succeeded, but no method has returned the hold, dropping this value
/// releases the hold. While this value exists, dropping the lock object closes neither the lock nor its member locks.
///
/// This value is also a future, which any executor can poll. The future resolves to the result of [`wait`](Self::wait).
/// A task that can move between threads needs an [`Owner`](crate::Owner) that is not a thread:
///
/// ```no_run
/// # use std::time::Duration;
/// # use zklock::{Lock, Owner, Result};
/// async fn work(lock: &Lock) -> Result<()> {
///     let hold = lock.start_acquire(Owner::unique(), Some(Duration::from_secs(5)))?.await?;
///     println!("held, with fencing token {}", hold.token());
///     hold.start_release(true)?.await
/// }
/// ```
#[must_use = "dropping this value cancels the acquire"]
pub struct Acquiring {
    operation: Arc<Operation>,
    awaiting: WakerRegistration,
    client_locks: Arc<ClientLocks>,
    path: Arc<str>,
    quantity: i32,
    hold: GivenHold,
}

impl Acquiring {
    pub(crate) fn new(
        operation: Arc<Operation>,
        client_locks: Arc<ClientLocks>,
        path: Arc<str>,
        quantity: i32,
    ) -> Self {
        let (awaiting, hold) = (WakerRegistration::default(), GivenHold::default());
        Self { operation, awaiting, client_locks, path, quantity, hold }
    }

    /// Waits until the operation ends, but no longer than the operation's timeout, and returns the hold. Fails with the
    /// same errors as [`Lock::acquire`](crate::Lock::acquire) or [`Semaphore::acquire`](crate::Semaphore::acquire).
    pub fn wait(self) -> Result<Hold> {
        loop {
            if let Some(result) = self.wait_for(Duration::MAX) {
                return result;
            }
        }
    }

    /// Waits for at most `slice`, or not at all if `slice` is zero. Returns `None` if the operation is still running.
    /// After the operation has ended, this method returns the same result each time, to any number of threads: the
    /// values that it returns share the hold, and the library releases the hold when the last of them is dropped. If a
    /// handler calls this method while the operation still runs, the method fails with DEADLOCK, unless `slice` or the
    /// timeout of the operation is zero.
    pub fn wait_for(&self, slice: Duration) -> Option<Result<Hold>> {
        self.wait_for_owner(slice).map(|result| result.and_then(|()| self.hold()))
    }

    /// Waits for at most `slice`. Returns the result of the operation, or `None` if the operation is still running. This
    /// method does not return the hold.
    pub fn look_for(&self, slice: Duration) -> Option<Result<()>> {
        self.operation.wait_for(slice, false)
    }

    /// Waits for at most `slice`, like [`wait_for`](Self::wait_for), and leaves the hold to its owner. After this method
    /// has returned `Ok`, dropping this value does not release the hold: the owner has it, as a
    /// thread has after [`Lock::acquire`](crate::Lock::acquire).
    pub fn wait_for_owner(&self, slice: Duration) -> Option<Result<()>> {
        self.operation.wait_for(slice, true)
    }

    fn hold(&self) -> Result<Hold> {
        self.hold.get(&self.client_locks, &self.path, self.quantity, || self.operation.hold_ids())
    }

    /// Cancels the operation. A canceled operation ends with CANCELED, unless it has already ended or is about to
    /// succeed. This method does not block.
    pub fn cancel(&self) -> Result<()> {
        self.operation.cancel()
    }

    /// Calls `hook` once, when the operation has succeeded or failed. The hook runs on the thread that detects the end
    /// of the operation. The thread holds no internal lock while it runs the hook. If the operation has already ended,
    /// the calling thread calls the hook at once.
    ///
    /// The hook often runs on the I/O thread, which serves all clients. The hook should therefore do very little, for
    /// example write to a descriptor. The hook must not block. If the hook calls a method that would wait for other
    /// participants, the method fails with DEADLOCK, as in a handler. If a hook on the I/O thread closes a client, the
    /// library closes the client in the background. The same applies if the hook drops the last object that uses a
    /// client.
    pub fn on_done(&self, hook: impl FnOnce() + Send + 'static) -> Result<()> {
        self.operation.on_done(Box::new(hook))
    }

    /// Ends the operation as if the program had dropped this value. If other threads wait for the operation, their
    /// calls fail with CLOSED.
    pub fn abandon(&self) {
        self.operation.abandon();
    }
}

impl fmt::Debug for Acquiring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Acquiring").field("path", &self.path).finish_non_exhaustive()
    }
}

impl Future for Acquiring {
    type Output = Result<Hold>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        let Self { operation, awaiting, .. } = this;
        let poll = awaiting.poll(cx, || operation.wait_for(Duration::ZERO, true), |hook| operation.on_done(hook));
        poll.map(|result| result.and_then(|()| this.hold()))
    }
}

impl Drop for Acquiring {
    fn drop(&mut self) {
        // The end of the operation must not wake the task of a dropped future.
        self.awaiting = WakerRegistration::default();
        self.abandon();
    }
}
