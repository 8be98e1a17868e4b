//! Targets for a fuzzer: each takes any bytes at all, and panics if what they lead to must not be. `make fuzz` has libFuzzer
//! find such bytes; `tests/replay.rs` runs those that were worth keeping.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a target that fails panics"
)]

pub mod abi;
mod dice;
pub mod engine;
pub mod names;
pub mod proto;
pub mod standalone;

/// A target, by its name.
pub type Target = (&'static str, fn(&[u8]));

/// Every target there is.
pub const TARGETS: &[Target] = &[
    ("proto", proto::run),
    ("names", names::run),
    ("engine", engine::run),
    ("standalone", standalone::run),
    ("abi", abi::run),
];
