//! The C ABI of zklock. The header `include/zklock.h` is made from this crate, so the comments on exported items speak to C
//! programmers.
//!
//! Every exported function is a line or two: it turns its arguments into values ([`arg`](zklock_abi::arg),
//! [`handle`](zklock_abi::handle)), calls the Rust API, and runs inside the one boundary ([`guard`](zklock_abi::guard)), which
//! turns errors and panics into statuses. A function is `unsafe` exactly if it reads or writes the caller's memory; handles are
//! numbers and are never dereferenced.

#![allow(non_camel_case_types, reason = "the names are C's")]
#![allow(clippy::missing_safety_doc, reason = "the header's comments are for C; what callers owe is in its preamble")]

pub mod client;
pub mod config;
pub mod event;
pub mod lock;
pub mod log;
pub mod metrics;
pub mod op;
pub mod participant;
pub mod revocation;
pub mod semaphore;
pub mod status;
pub mod waiting;
