//! The C ABI of the standalone server. The server has its own library. A program that only uses locks therefore does not
//! contain the server. The header `include/zklock_standalone.h` is generated from this crate. The comments on exported items
//! therefore address C programmers.
//!
//! The library follows the conventions of `zklock.h`, and shares code with the C ABI of zklock in [`zklock_abi`].

#![allow(non_camel_case_types, reason = "the names follow the style of C")]
#![allow(
    clippy::missing_safety_doc,
    reason = "the comments become the C header, whose preamble states the obligations of callers"
)]

pub mod fault;
pub mod server;

/// The same status type as in `zklock.h`.
pub type zkl_status = i32;
