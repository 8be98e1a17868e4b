//! The engine contains the logic of one client: the session, the locks and the operations. The engine performs no I/O.
//! Only the engine grants locks, ends operations at their deadlines, and decides whether holds are lost.
//!
//! The shell passes operations, received bytes and the time to the engine. The engine returns bytes to send,
//! connections to open, results of operations and notifications for the program. The engine also returns the time at
//! which the shell must call the engine next.
//!
//! `interface.rs` contains the values that the shell passes and receives, and `state.rs` contains the data of the
//! engine. The methods of [`Engine`] are in the other files, by subject.

mod attempt;
mod coalescing_queue;
mod cohort;
mod deadlock;
mod dispatch;
mod holds;
mod interface;
mod locks;
mod machines;
mod metrics;
mod ops;
mod owner;
mod path_bytes;
mod record;
mod release;
mod semaphore;
mod state;
#[cfg(test)]
mod tests;
mod timers;
mod wait_reason;

pub use coalescing_queue::CoalescingQueue;
pub use interface::{
    AcquireLimit, Answer, Event, HoldId, HoldToRelease, HoldView, LockId, LockState, Notification, OpId, Recipe,
    Revocation,
};
pub use metrics::{Metric, Metrics, Value};
pub use ops::{CLOSE_LIMIT, TRY_ONCE_LIMIT};
pub use owner::Owner;
pub use path_bytes::DEFAULT_MAX_PATH_BYTES;
pub use state::Engine;
pub use wait_reason::{Waiting, WaitsFor};
