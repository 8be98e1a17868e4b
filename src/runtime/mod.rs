//! The shell around the engine: the I/O thread, sockets, the clock, and wake-ups. It moves bytes and decides nothing.

mod clock;
mod dispatcher;
mod eventfd;
mod fork;
mod io;
mod resolve;
mod shell;
mod signals;

pub(crate) use clock::now;
pub use eventfd::EventFd;
pub use fork::{Epoch, PerProcess};
pub(crate) use shell::{Caller, Pending, Shell};
pub use signals::blocked as with_signals_blocked;
