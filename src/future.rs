//! Operations as futures. A task can await an operation on any executor, and the wait needs no thread and no timer. The
//! caller passes a closure that polls the operation, and a closure that registers a hook. The code in this file uses
//! only these closures, and does not depend on the kinds of operations.
//!
//! A poll checks the state of the operation without waiting. The first poll registers a hook, which wakes the task when
//! the operation ends.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use zklock_core::error::Result;

use crate::runtime::Hook;

/// The registration of a task that awaits an operation. The value is empty if no task awaits the operation.
#[derive(Default)]
pub(crate) struct WakerRegistration {
    /// The waker cell, which this value shares with the completion hook of the operation. The first poll creates the
    /// cell.
    cell: Option<Arc<WakerCell>>,
}

#[derive(Default)]
struct WakerCell {
    /// The waker of the latest poll.
    waker: Mutex<Option<Waker>>,
}

impl WakerRegistration {
    /// Polls an operation. `end` returns the result if the operation has ended, and `on_done` registers a hook.
    pub(crate) fn poll<T>(
        &mut self,
        cx: &Context<'_>,
        end: impl FnOnce() -> Option<Result<T>>,
        on_done: impl FnOnce(Hook) -> Result<()>,
    ) -> Poll<Result<T>> {
        // The poll stores the waker before it checks the operation. So if the operation ends after the check, its hook
        // finds this waker.
        if let Some(cell) = &self.cell {
            cell.set(cx.waker());
        }
        if let Some(result) = end() {
            self.cell = None;
            return Poll::Ready(result);
        }
        if self.cell.is_none() {
            let cell = Arc::<WakerCell>::default();
            cell.set(cx.waker());
            self.cell = Some(Arc::clone(&cell));
            // If the operation ends before this call, the hook runs at once, and the executor polls the task again.
            if let Err(error) = on_done(Box::new(move || cell.wake())) {
                return Poll::Ready(Err(error));
            }
        }
        Poll::Pending
    }
}

/// An operation can continue after its future was dropped. Dropping the future removes the waker, so the operation no
/// longer refers to the task.
impl Drop for WakerRegistration {
    fn drop(&mut self) {
        if let Some(cell) = &self.cell {
            cell.take();
        }
    }
}

/// The methods of a waker cell release its lock before they call code of the executor.
impl WakerCell {
    fn set(&self, waker: &Waker) {
        if self.waker().as_ref().is_some_and(|known| known.will_wake(waker)) {
            return;
        }
        let waker = waker.clone();
        let before = self.waker().replace(waker);
        drop(before);
    }

    fn take(&self) -> Option<Waker> {
        self.waker().take()
    }

    fn wake(&self) {
        if let Some(waker) = self.take() {
            waker.wake();
        }
    }

    fn waker(&self) -> MutexGuard<'_, Option<Waker>> {
        self.waker.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
