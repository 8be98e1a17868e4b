//! Fuzz targets. Each target accepts any bytes and panics if they lead to a forbidden result. `make fuzz` searches for such bytes with
//! libFuzzer. `tests/replay.rs` runs the inputs of the corpus.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a failing target panics"
)]

pub mod abi;
mod choices;
pub mod engine;
pub mod files;
pub mod names;
pub mod proto;
pub mod standalone;

/// The name of a target, and its function.
pub type Target = (&'static str, fn(&[u8]));

/// All targets.
pub const TARGETS: &[Target] = &[
    ("proto", proto::run),
    ("names", names::run),
    ("files", files::run),
    ("engine", engine::run),
    ("standalone", standalone::run),
    ("abi", abi::run),
];
