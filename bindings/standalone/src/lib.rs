//! The C ABI of the standalone server, in a library of its own, so that programs which use locks do not carry a server. The
//! header `include/zklock_standalone.h` is made from this crate, so the comments on exported items speak to C programmers.
//!
//! It follows the conventions of `zklock.h`, and shares the code behind them: see [`zklock_abi`].

#![allow(non_camel_case_types, reason = "the names are C's")]
#![allow(clippy::missing_safety_doc, reason = "the header's comments are for C; what callers owe is in its preamble")]

pub mod fault;
pub mod server;

/// As in `zklock.h`.
pub type zkl_status = i32;
