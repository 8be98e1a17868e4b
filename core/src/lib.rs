//! The pure core of zklock: all decisions about sessions, locks and operations.
//!
//! The core consists of state machines. A state machine receives an input and the time, and returns its outputs. The
//! core uses no clock, socket or thread, and none of its dependencies does. The shell of the crate `zklock`, the
//! simulation and the fuzzers run the same core.
//!
//! Each layer may use only the layers below it:
//!
//! | module | decides |
//! |---|---|
//! | [`steps`], [`wait`] | the steps of one acquire, and of a thread that waits for it |
//! | [`engine`] | the operations and holds of one client |
//! | [`recipe`] | contenders, queues and caches of directories |
//! | [`session`] | connection, lease and watches of one session |
//! | [`zklock_proto`] | the meaning of the bytes on a connection |
//!
//! The other modules, and those of `zklock_base`, contain types that all layers use. The items of this crate may change
//! in any release. Programs use the crate `zklock`, which re-exports the types of its public interface.

#![forbid(unsafe_code)]
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]
#![deny(missing_debug_implementations, missing_docs)]

pub mod acl;
pub mod engine;
pub mod histogram;
pub mod limits;
pub mod log_record;
pub mod mutant;
pub mod path;
pub mod prometheus;
pub mod recipe;
pub mod session;
pub mod steps;
pub mod wait;

pub use zklock_base::{errno, error, time};
