//! Calls the program's callbacks, and records which threads run a callback. A callback must not wait for other
//! participants, because the event that would end the wait may be queued behind the callback. The code in this file
//! does not select the thread that calls a callback.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use zklock_core::error::{Error, Result, Status};
use zklock_process::ForkEpoch;

use super::sync::thread_local;

thread_local! {
    /// The fork epoch of the process in which this thread runs a callback, or `None`. If the callback forks a child,
    /// the copy of this thread in the child does not count as running a callback.
    #[allow(clippy::missing_const_for_thread_local, reason = "the macro of loom does not support this block")]
    static IN_CALLBACK: Cell<Option<ForkEpoch>> = Cell::new(None);
}

/// Calls a function of the program. If the function panics, the panic does not reach the caller, because the calling
/// thread may serve other clients too. Returns false if the function panicked.
pub(super) fn call_catching_panic(call: impl FnOnce()) -> bool {
    let before = IN_CALLBACK.with(|within| within.replace(Some(ForkEpoch::current())));
    let outcome = catch_unwind(AssertUnwindSafe(call));
    IN_CALLBACK.with(|within| within.set(before));
    outcome.is_ok()
}

/// Calls a function of the program, and logs a message if the function panics. `what` is the name of the function in
/// the message.
pub(super) fn call_logging_panic(what: &str, call: impl FnOnce()) {
    if !call_catching_panic(call) {
        // The program provides the `tracing` subscriber, so the subscriber can panic too.
        call_catching_panic(|| tracing::error!("{what} panicked"));
    }
}

/// A function that is called once, after an operation has ended.
pub(crate) type Hook = Box<dyn FnOnce() + Send>;

/// Runs a hook. If the hook panics, the panic does not reach the caller, because the calling thread may serve other
/// clients too.
pub(crate) fn run_hook(hook: Hook) {
    call_logging_panic("the completion hook of a call", hook);
}

/// Marks the calling thread as running a callback from now on.
pub fn mark_callback_thread() {
    IN_CALLBACK.with(|within| within.set(Some(ForkEpoch::current())));
}

/// Returns whether the calling thread is running a callback.
pub(super) fn is_in_callback() -> bool {
    // While a thread ends, its `IN_CALLBACK` may no longer exist. An ending thread runs no callback.
    IN_CALLBACK.try_with(Cell::get).unwrap_or_default() == Some(ForkEpoch::current())
}

/// Fails with DEADLOCK if the calling thread runs a callback. Each function that waits for other participants calls
/// this function first. A limit of zero is allowed, because the caller then does not wait.
pub fn refuse_in_callback(limit: Option<Duration>) -> Result<()> {
    if limit == Some(Duration::ZERO) || !is_in_callback() {
        return Ok(());
    }
    let message = "a callback must not wait for a lock, because the event that ends the wait may be queued behind this \
                   callback; wait on another thread, or attempt once with timeout 0";
    Err(Error::new(Status::Deadlock, message))
}

#[cfg(all(test, not(zklock_loom)))]
#[allow(clippy::panic, reason = "tests")]
mod tests {
    use tracing::span::{Attributes, Id, Record};
    use tracing::{Event, Metadata, Subscriber};

    use super::*;

    struct Panicking;

    impl Subscriber for Panicking {
        fn enabled(&self, _: &Metadata<'_>) -> bool {
            true
        }

        fn new_span(&self, _: &Attributes<'_>) -> Id {
            Id::from_u64(1)
        }

        fn record(&self, _: &Id, _: &Record<'_>) {}

        fn record_follows_from(&self, _: &Id, _: &Id) {}

        fn event(&self, _: &Event<'_>) {
            panic!("on purpose");
        }

        fn enter(&self, _: &Id) {}

        fn exit(&self, _: &Id) {}
    }

    #[test]
    fn panic_in_hook_and_in_subscriber_is_caught() {
        tracing::subscriber::with_default(Panicking, || run_hook(Box::new(|| panic!("on purpose"))));
        assert!(!is_in_callback());
    }
}
