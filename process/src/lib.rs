//! What the client library and the standalone server know about their process: whether it was forked, which signals it
//! blocks or waits for, how its threads are scheduled, whether it lacks a resource, and how it ends a connection of which a forked child has a copy.
//! This crate starts no threads and opens no descriptors.

#![deny(missing_debug_implementations, missing_docs)]

mod fork;
mod reset;
mod resource;
mod scheduling;
mod signals;

pub use fork::{ForkEpoch, PerProcess};
pub use reset::reset;
pub use resource::{exhausted_resource, resource_error};
pub use scheduling::adopt_scheduling_of_the_process;
pub use signals::{end_on_signal, with_signals_blocked};
