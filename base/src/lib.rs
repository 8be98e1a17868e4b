//! What all crates of zklock use: the statuses and errors of calls, and points in time. This crate may not decide
//! anything about sessions or locks, so that the standalone server can use it without the core.

#![forbid(unsafe_code)]
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]
#![deny(missing_debug_implementations, missing_docs)]

pub mod errno;
pub mod error;
mod io_error;
pub mod time;
