//! What the client library and the standalone server know about their process: whether it was forked, which signals it
//! blocks, and whether it lacks a resource. This crate starts no threads and opens no descriptors.

#![deny(missing_debug_implementations, missing_docs)]

mod fork;
mod resource;
mod signals;

pub use fork::{ForkEpoch, PerProcess};
pub use resource::{exhausted_resource, resource_error};
pub use signals::with_signals_blocked;
