//! Acquires in progress. A caller can wait until the acquire ends, wait in several short slices, or await the acquire
//! as a future. The [`Operation`], and not the code in this file, decides when an acquire has succeeded.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use zklock_core::error::Result;

use crate::future::WakerRegistration;
use crate::operation::{HoldIds, Operation};

/// An acquire operation in progress. The operation continues whether or not a thread waits for it. Any thread may call
/// the methods of this value, any number of times.
///
/// If the program drops this value while the operation still runs, the operation is canceled. If the operation has
/// succeeded, but no method has reported the success, dropping this value releases the lock. The drop decrements the
/// hold count of the hold that the operation acquired, and does not change a later hold of the owner. While this value
/// exists, dropping the lock object closes neither the lock nor its member locks.
///
/// This value is also a future, which any executor can poll. The future resolves to the result of [`wait`](Self::wait).
/// A task that can move between threads needs an [`Owner`](crate::Owner) that is not a thread:
///
/// ```no_run
/// # use std::time::Duration;
/// # use zklock::{Lock, Owner, Result};
/// async fn work(lock: &Lock) -> Result<()> {
///     let owner = Owner::unique();
///     lock.start_acquire(owner, Some(Duration::from_secs(5)))?.await?;
///     println!("held, with fencing token {}", lock.fencing_token_as(owner)?);
///     lock.start_release(owner, true)?.await
/// }
/// ```
#[must_use = "dropping this value cancels the acquire"]
pub struct Acquiring {
    operation: Arc<Operation>,
    awaiting: WakerRegistration,
    /// While this reference exists, dropping the lock object closes neither its client locks nor its member locks.
    _parts: Arc<dyn Send + Sync>,
}

impl Acquiring {
    pub(crate) fn new(operation: Arc<Operation>, parts: Arc<dyn Send + Sync>) -> Self {
        Self { operation, awaiting: WakerRegistration::default(), _parts: parts }
    }

    /// Waits until the operation ends, but no longer than the operation's timeout. Fails with the same errors as
    /// [`Lock::acquire`](crate::Lock::acquire).
    pub fn wait(self) -> Result<()> {
        self.wait_until_over()
    }

    pub(crate) fn wait_until_over(&self) -> Result<()> {
        loop {
            if let Some(result) = self.wait_for(Duration::MAX) {
                return result;
            }
        }
    }

    /// Identifies the holds that the operation has acquired.
    pub(crate) fn hold_ids(&self) -> Result<HoldIds> {
        self.operation.hold_ids()
    }

    /// Waits for at most `slice`, or not at all if `slice` is zero. Returns `None` if the operation is still running.
    /// After this method has returned `Ok`, the owner holds the lock, and dropping this value does not release the
    /// lock. If a handler calls this method while the operation still runs, the method fails with DEADLOCK, unless
    /// `slice` or the timeout of the operation is zero.
    pub fn wait_for(&self, slice: Duration) -> Option<Result<()>> {
        self.operation.wait_for(slice, true)
    }

    /// Returns the same result as [`wait_for`](Self::wait_for). The two methods differ only in the effect of a later
    /// drop of this value. After this method has returned `Ok`, dropping this value releases the lock. After `wait_for`
    /// has returned `Ok`, dropping this value does not release the lock.
    pub fn look_for(&self, slice: Duration) -> Option<Result<()>> {
        self.operation.wait_for(slice, false)
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
        f.debug_struct("Acquiring").field("path", &self.operation.path()).finish_non_exhaustive()
    }
}

impl Future for Acquiring {
    type Output = Result<()>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { operation, awaiting: waker, .. } = self.get_mut();
        waker.poll(cx, || operation.wait_for(Duration::ZERO, true), |hook| operation.on_done(hook))
    }
}

impl Drop for Acquiring {
    fn drop(&mut self) {
        // The end of the operation must not wake the task of a dropped future.
        self.awaiting = WakerRegistration::default();
        self.abandon();
    }
}
