//! Distributed locks on Apache ZooKeeper. The locks use the same znodes as the locks of Apache Curator.
//!
//! ```no_run
//! use std::time::Duration;
//! use zklock::{Client, Config};
//!
//! # fn main() -> zklock::Result<()> {
//! let client = Client::connect("localhost:2181", &Config::new())?;
//! let lock = client.mutex("/locks/nightly-report")?;
//! let hold = lock.hold(Some(Duration::from_secs(5)))?;
//! println!("holding it; the store may refuse anything older than {}", hold.token());
//! hold.release()?;
//! # Ok(())
//! # }
//! ```
//!
//! The crate provides mutexes, read/write locks ([`Client::rwlock`]), semaphores ([`Client::semaphore`]), and locks
//! that any thread may release ([`Client::semaphore_mutex`]). A multi-lock ([`Lock::multi`]) acquires several locks as
//! a unit. Every operation can either block the calling thread or run in the background ([`Lock::start_acquire`]). A
//! background operation is also a future. An operation that succeeds gives a [`Hold`], which any thread may use. The
//! owner of a hold can be a thread, a task, or a number ([`Owner`]).
//!
//! A hold is safe only while its ZooKeeper session is known to be alive. The client uses a local clock to decide
//! whether a hold is safe ([`Lock::is_held`], [`Lock::remaining`]). A lock cannot stop a program that has lost the lock
//! and continues its work. However, a data store that compares fencing tokens can refuse the writes of a program that
//! has lost the lock ([`Lock::fencing_token`]).

#![deny(missing_debug_implementations, missing_docs)]

mod acquire;
mod acquiring;
mod chain;
mod client;
mod client_inner;
mod client_lock;
mod client_locks;
mod config;
mod errno;
mod future;
mod hold;
#[doc(hidden)]
pub mod internal;
mod listener;
mod lock;
mod multi_lock;
mod once;
mod operation;
mod options;
mod request;
mod runtime;
mod semaphore;
mod span;
mod timeout;
mod wait_lost;
mod zookeeper_options;

pub use client::{Client, RwLock, WeakClient};
pub use client_lock::MAX_DATA;
pub use config::Config;
pub use hold::Hold;
pub use listener::Listener;
pub use lock::Lock;
pub use once::{PastRun, Period, Run, RunResult, RunStart};
pub use operation::Operation;
pub use options::ConfigOption;
pub use runtime::Listen;
pub use semaphore::Semaphore;
#[doc(inline)]
pub use zklock_base::error::{Error, Result, Status};
#[doc(inline)]
pub use zklock_core::acl::Permission;
#[doc(inline)]
pub use zklock_core::engine::{Event, HoldView, LockId, LockState, Metric, Metrics, Owner, Value, Waiting, WaitsFor};
#[doc(inline)]
pub use zklock_core::histogram::Histogram;
#[doc(inline)]
pub use zklock_core::path::{MAX_DEPTH, MAX_PATH};
#[doc(inline)]
pub use zklock_core::prometheus::Labels;
#[doc(inline)]
pub use zklock_core::recipe::{Children, LockFamily, NodeContent, Participant, QueueNode};
#[doc(inline)]
pub use zklock_core::session::{ClientState, ConnectString, Server};

/// The version of the library.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
