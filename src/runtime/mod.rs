//! The shell around the engine: the I/O thread, sockets, the clock, and wake-ups. It moves bytes and decides nothing.

mod callback;
mod clock;
#[cfg(not(feature = "loom"))]
mod connection;
mod dispatcher;
mod eventfd;
mod fork;
mod io;
mod log;
#[cfg(not(feature = "loom"))]
mod lookout;
mod outlet;
#[cfg_attr(feature = "loom", allow(dead_code, reason = "the models have wires instead of sockets"))]
mod poller;
mod report;
mod resolve;
mod resource;
mod shell;
mod signals;
#[cfg_attr(feature = "loom", allow(dead_code, reason = "the models have wires instead of sockets"))]
mod socket;
mod sync;
#[cfg(feature = "loom")]
mod wire;

#[cfg(feature = "loom")]
use wire as connection;
#[cfg(feature = "loom")]
use wire as lookout;

pub(crate) use callback::{Hook, run};
pub use callback::{calls_back, refuse_in_callback};
pub(crate) use clock::now;
pub use eventfd::{EventFd, OnceFd};
pub use fork::{Epoch, PerProcess};
pub(crate) use io::{in_background, is_serving};
pub use log::{LogCalls, LogHandler, LogLine, LogValue, set_log_handler, set_log_level};
pub use outlet::Handlers;
pub(crate) use report::{LOCK, SESSION};
pub use resource::refused;
#[cfg(all(test, feature = "loom"))]
pub(crate) use shell::models;
pub(crate) use shell::{Caller, Pending, Shell};
pub use signals::blocked as with_signals_blocked;
pub(crate) use sync::{Monitor, MutexGuard};
