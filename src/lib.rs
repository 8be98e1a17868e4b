//! Distributed locks on Apache ZooKeeper, on the znodes of Apache Curator.
//!
//! ```no_run
//! use std::time::Duration;
//! use zklock::{Client, Config};
//!
//! # fn main() -> zklock::Result<()> {
//! let client = Client::connect("localhost:2181", &Config::new())?;
//! let lock = client.mutex("/locks/nightly-report")?;
//! let guard = lock.guard(Some(Duration::from_secs(5)))?;
//! println!("holding it; the store may refuse anything older than {}", lock.fencing_token()?);
//! drop(guard);
//! # Ok(())
//! # }
//! ```
//!
//! A lock is a lease: it is held while the session that made its node is surely alive, by a clock of our own
//! ([`Lock::is_held`], [`Lock::remaining`]). What no lock can do is to stop a program that goes on after it lost the lock;
//! a store that is given the fencing token can.
//!
//! The modules below [`engine`] are pure: they are handed bytes and the time, and know no clock, socket or thread.

mod call;
mod client;
mod config;
pub mod engine;
mod error;
mod histogram;
mod limits;
mod lock;
mod mutant;
mod note;
mod operation;
mod options;
mod path;
mod prometheus;
pub mod proto;
pub mod recipe;
mod runtime;
mod semaphore;
pub mod session;
mod span;
pub mod steps;
mod time;

pub use call::{Acquiring, Call};
pub use client::{Client, Connecting, RwLock, WeakClient};
pub use config::Config;
pub use engine::{Event, LockId, LockState, Metric, Metrics, Owner, Value, Waiting, WaitsFor};
pub use error::{Error, Result, Status};
pub use histogram::Histogram;
#[doc(hidden)]
pub use limits::{Limits, MirrorLimits};
pub use lock::{Guard, Lock, MAX_DATA};
#[cfg(feature = "mutants")]
pub use mutant::Mutant;
pub use note::Level;
pub use options::{ConfigOption, read_options};
pub use path::{MAX_DEPTH, MAX_PATH};
pub use prometheus::Labels;
pub use recipe::Participant;
pub use runtime::refused;
pub use runtime::{Epoch, EventFd, Handlers, OnceFd, PerProcess, calls_back, refuse_in_callback, with_signals_blocked};
pub use runtime::{LogCalls, LogHandler, LogLine, LogValue, set_log_handler, set_log_level};
pub use semaphore::{AcquiringLeases, Leases, Semaphore};
pub use session::ClientState;
pub use time::Time;

/// The version of the library.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
