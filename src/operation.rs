//! Operations: what each `start_...` method returns. A caller can wait until an operation ends, wait in several short
//! slices, or await the operation as a future. The code in this file does not know the kinds of operations.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use zklock_core::error::Result;

use crate::future::WakerRegistration;
use crate::runtime::Hook;

/// An operation in progress: an acquire, a release, a query, an attempt to connect, or a wait for a loss. The operation
/// continues whether or not a thread waits for it. Any thread may call the methods of this value, any number of times.
///
/// The program can drop this value early. An acquire is then canceled, and an acquire that has already succeeded is
/// released, unless a method has returned its [`Hold`](crate::Hold). A client stops connecting, and a wait for a loss
/// ends. A run that has begun is removed from the record, unless a method has returned its [`Run`](crate::Run). Every
/// other operation, for example a release or a query, continues.
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
#[must_use = "dropping this value ends an acquire, and ignores the errors of other operations"]
pub struct Operation<T> {
    /// Rust drops the fields in this order. The end of the work must not wake the task of a dropped future.
    awaiting: WakerRegistration,
    work: Box<dyn InProgress<T>>,
}

/// The work of an operation. Each kind of operation has its own type.
pub(crate) trait InProgress<T>: Send + Sync {
    /// Waits for at most `slice`. Returns `None` if the work has not ended. After the work has ended, the method returns
    /// the same result each time.
    fn wait_for(&self, slice: Duration) -> Option<Result<T>>;

    fn is_over(&self) -> bool;

    /// Runs `hook` once when the work has ended, or at once if it has already ended.
    fn on_done(&self, hook: Hook) -> Result<()>;

    /// Ends the work with CANCELED, if its kind can be canceled.
    fn cancel(&self) -> Result<()>;

    /// Ends the work as if the operation was dropped. Calls that wait for the work fail with CLOSED.
    fn abandon(&self);

    /// Waits until the work ends, and returns the result itself instead of a copy.
    fn finish(self: Box<Self>) -> Result<T> {
        loop {
            if let Some(result) = self.wait_for(Duration::MAX) {
                return result;
            }
        }
    }
}

impl<T> Operation<T> {
    pub(crate) fn new(work: impl InProgress<T> + 'static) -> Self {
        Self { awaiting: WakerRegistration::default(), work: Box::new(work) }
    }

    /// Waits until the operation ends, and returns its result. An operation with a timeout ends within this timeout. In
    /// a handler, a wait for other participants fails with DEADLOCK, unless the timeout of the operation is zero.
    pub fn wait(self) -> Result<T> {
        let Self { awaiting, work } = self;
        drop(awaiting);
        work.finish()
    }

    /// Waits for at most `slice`, or not at all if `slice` is zero. Returns `None` if the operation is still running.
    /// After the operation has ended, this method returns the same result each time, to any number of threads: the
    /// values of an acquire share the hold, and the library releases the hold when the last of them is dropped. The
    /// rule of [`wait`](Self::wait) for handlers applies, unless `slice` is zero.
    pub fn wait_for(&self, slice: Duration) -> Option<Result<T>> {
        self.work.wait_for(slice)
    }

    /// Returns whether the operation has ended. After this method has returned true, [`wait_for`](Self::wait_for) does
    /// not wait. Does not block.
    pub fn is_over(&self) -> bool {
        self.work.is_over()
    }

    /// Calls `hook` once, when the operation has succeeded or failed. The hook runs on the thread that detects the end
    /// of the operation. The thread holds no internal lock while it runs the hook. If the operation has already ended,
    /// the calling thread calls the hook at once. Errors: FORKED, INTERNAL.
    ///
    /// The hook often runs on the I/O thread, which serves all clients. The hook should therefore do very little, for
    /// example write to a descriptor. The hook must not block. If the hook calls a method that would wait for other
    /// participants, the method fails with DEADLOCK, as in a handler. If a hook on the I/O thread closes a client, the
    /// library closes the client in the background. The same applies if the hook drops the last object that uses a
    /// client.
    pub fn on_done(&self, hook: impl FnOnce() + Send + 'static) -> Result<()> {
        self.work.on_done(Box::new(hook))
    }

    /// Cancels an acquire, an attempt to connect, a wait for a loss or the beginning of a run. A canceled operation ends
    /// with CANCELED, unless it has already ended or is about to succeed. The call has no effect on any other operation.
    /// Errors: FORKED. Does not block.
    pub fn cancel(&self) -> Result<()> {
        self.work.cancel()
    }

    /// Ends the operation as if the program had dropped this value. If other threads wait for the operation, their
    /// calls fail with CLOSED. Does not block.
    pub fn abandon(&self) {
        self.work.abandon();
    }

    /// Returns an operation with the result of `next`. The library calls `next` with the result of this operation, on the
    /// thread that asks for the result, and once for each answer of [`wait_for`](Self::wait_for).
    pub fn and_then<U>(self, next: impl Fn(T) -> Result<U> + Send + Sync + 'static) -> Operation<U>
    where
        T: 'static,
    {
        Operation::new(Then { first: self.work, next })
    }
}

/// An operation with another result.
struct Then<T, F> {
    first: Box<dyn InProgress<T>>,
    next: F,
}

impl<T, U, F: Fn(T) -> Result<U> + Send + Sync> InProgress<U> for Then<T, F> {
    fn wait_for(&self, slice: Duration) -> Option<Result<U>> {
        self.first.wait_for(slice).map(|result| result.and_then(&self.next))
    }

    fn is_over(&self) -> bool {
        self.first.is_over()
    }

    fn on_done(&self, hook: Hook) -> Result<()> {
        self.first.on_done(hook)
    }

    fn cancel(&self) -> Result<()> {
        self.first.cancel()
    }

    fn abandon(&self) {
        self.first.abandon();
    }

    fn finish(self: Box<Self>) -> Result<U> {
        self.first.finish().and_then(self.next)
    }
}

impl<T> fmt::Debug for Operation<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Operation").field("is_over", &self.is_over()).finish_non_exhaustive()
    }
}

impl<T> Future for Operation<T> {
    type Output = Result<T>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { awaiting, work } = self.get_mut();
        let end = || if work.is_over() { work.wait_for(Duration::ZERO) } else { None };
        awaiting.poll(cx, end, |hook| work.on_done(hook))
    }
}
