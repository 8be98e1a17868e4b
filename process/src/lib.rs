//! What the client library and the standalone server know about their process: whether it was forked, which signals it
//! blocks or waits for, whether it lacks a resource, and how it ends a connection of which a forked child has a copy.
//! This crate starts no threads and opens no descriptors.

#![deny(missing_debug_implementations, missing_docs)]

mod fork;
mod reset;
mod resource;
mod signals;

pub use fork::{ForkEpoch, PerProcess};
pub use reset::reset;
pub use resource::{exhausted_resource, resource_error};
pub use signals::{end_on_signal, with_signals_blocked};
