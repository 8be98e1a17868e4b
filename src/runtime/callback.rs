//! Which threads are just being called back. They must not wait for other contenders: the news that would end such a wait may
//! stand behind the one that they were called with.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use super::fork::Epoch;
use super::sync::thread_local;
use crate::error::{Error, Result, Status};

thread_local! {
    /// In which process the thread is being called back: a child that was forked in a callback is in none.
    #[allow(clippy::missing_const_for_thread_local, reason = "loom's macro takes no such block")]
    static WITHIN: Cell<Option<Epoch>> = Cell::new(None);
}

/// Calls the program.
pub(crate) fn during(call: impl FnOnce()) {
    let before = WITHIN.with(|within| within.replace(Some(Epoch::current())));
    call();
    WITHIN.with(|within| within.set(before));
}

/// To be run once, when what it was given to is over.
pub(crate) type Hook = Box<dyn FnOnce() + Send>;

/// The thread that runs it serves others as well.
pub(crate) fn run(hook: Hook) {
    during(|| {
        if catch_unwind(AssertUnwindSafe(hook)).is_err() {
            tracing::error!("what was to be run at the end of a call panicked");
        }
    });
}

/// From now on the calling thread does nothing but call the program back.
pub fn calls_back() {
    WITHIN.with(|within| within.set(Some(Epoch::current())));
}

/// Whether the calling thread is being called back.
pub(super) fn is_within() -> bool {
    // While a thread is being torn down it is not.
    WITHIN.try_with(Cell::get).unwrap_or_default() == Some(Epoch::current())
}

/// DEADLOCK in a callback, for waits that may depend on others; not for those of no time at all.
pub fn refuse_in_callback(limit: Option<Duration>) -> Result<()> {
    if limit == Some(Duration::ZERO) || !is_within() {
        return Ok(());
    }
    let message = "a callback must not wait for a lock: what would end the wait may have to be told first, by the thread that \
                   waits; wait on another thread, or look once, with limit 0";
    Err(Error::new(Status::Deadlock, message))
}
