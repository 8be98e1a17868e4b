//! The tests of the Rust API on real servers, with one module for each subject. One program contains all modules, so
//! that they share a server, and so that Cargo links only once. Tests that observe or change the whole process are
//! separate programs in `process/`.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic, reason = "a failing test may panic")]

mod acl;
mod common;
mod credentials;
mod directory_cache;
mod ensemble;
mod events;
mod failures;
mod faulty_servers;
mod frames;
mod future;
mod hold;
mod lease;
mod loss;
mod metrics;
mod mutex;
mod once;
mod operation;
mod operators;
mod reader;
mod recipes;
mod sasl;
mod secrets;
mod server_lists;
mod session_size;
mod tls;
