//! The C ABI of zklock. The header `include/zklock.h` is generated from this crate. The comments on exported items therefore
//! address C programmers.
//!
//! Every exported function converts its arguments into values ([`arg`](zklock_abi::arg), [`handle`](zklock_abi::handle)) and
//! calls the Rust API. A boundary around each function ([`boundary`](zklock_abi::boundary)) converts errors and panics into
//! statuses. A function is `unsafe` only if it reads or writes memory of the caller. Handles are numbers, and the library never
//! dereferences a handle.
//!
//! The modules do not use each other in a circle. From the bottom to the top: `status` and `callback`, `lock_object`, `event`,
//! `config`, `client`, `lock`, `hold`, `semaphore`, `run`, and then all other modules. This crate must not contain rules about locks.

#![allow(non_camel_case_types, reason = "the names follow the style of C")]
#![allow(
    clippy::missing_safety_doc,
    reason = "the comments become the C header, whose preamble states the obligations of callers"
)]

pub mod callback;
pub mod client;
pub mod completion_queue;
pub mod config;
pub mod dispatch;
pub mod event;
pub mod fencing;
pub mod hold;
pub mod listener;
pub mod lock;
pub mod lock_object;
pub mod log;
pub mod metrics;
pub mod op;
pub mod op_answer;
pub mod participant;
pub mod revocation;
pub mod run;
pub mod semaphore;
pub mod start;
pub mod status;
pub mod waiting;
